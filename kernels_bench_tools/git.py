"""The git repository that a project is in, which is only read, and the one call of git.

A repository's configuration may name programs and files, which are switched off: file system monitors, hooks, filters of
contents, transports for missing objects, and lists that git would read, such as a FIFO.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import copy_file
from kernels_bench_tools.text.hiding import visible

_SECONDS = 10
_LISTS = r"core\.(attributes|excludes)file"
_BLOBS = 200
"""Files that are read at once: their bytes are in memory together."""


class Commit(NamedTuple):
    """A commit that changed files."""

    name: str
    time: int  # seconds since 1970, which is also the time of a commit without a valid one
    subject: str
    files: dict[str, str]
    """The names of the files' new contents by path within the folder; empty for a file that was removed."""


class Checkout:
    """The commit that is checked out around a folder, and whether the files differ from it.

    ``KBT_COMMIT`` names the commit of a tree that was exported without its repository.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def commit(self) -> str:
        """The commit's full name; empty if there is none."""
        # Also in a folder of another user, such as one that is mounted into a container.
        named = os.environ.get("KBT_COMMIT")
        return named or (self._output("-c", "safe.directory=*", "rev-parse", "--verify", "-q", "HEAD") or "")

    @cached_property
    def dirty(self) -> bool | None:
        """Whether there are uncommitted changes; None if unknown. Read it only when a cell runs: it takes a while."""
        if not self.commit or os.environ.get("KBT_COMMIT"):
            return None
        output = self._output("status", "--porcelain", "--ignore-submodules=dirty")
        return None if output is None else bool(output)

    def _output(self, *arguments: str) -> str | None:
        try:
            done = run_git(self.root, *arguments)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


class Repository:
    """The git repository around a folder; that there is none, or no git, is a ``ProjectError``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        what, remedy = "is not in a git repository", "`git clone` the project"
        top = self._git("rev-parse", "--show-toplevel", what=what, remedy=remedy)
        self.top = Path(os.fsdecode(top).removesuffix("\n")).resolve()
        """The folder that the whole repository is checked out in."""

    def resolve(self, revision: str) -> str:
        """Return the full name of the commit that ``revision`` stands for; it must exist here."""
        name = self._git(
            *("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"),
            where=f"revision {revision!r}",
            what="there is no such commit here",
            expected="A commit, branch or tag of this repository, such as HEAD~1 or origin/main",
            remedy="If the clone is shallow, `git fetch --unshallow`; in a workflow, `fetch-depth: 0`",
        )
        return name.decode().strip()

    def changed_files(self, commit: str, folder: Path) -> set[Path]:
        """Return the files that differ from ``commit``, are gone, or are new and not ignored; ``folder`` is a temporary one."""
        # A copy, since `git diff` writes what it finds out about files into the index; without that, it takes files for
        # changed whose time has changed.
        own = Path(os.fsdecode(self._git("rev-parse", "--git-path", "index")).removesuffix("\n"))
        with suppress(FileNotFoundError):
            copy_file(self._folder / own, folder / "index")
        copy = str(folder / "index")
        plain = ("--name-only", "--no-renames", "--no-ext-diff", "--ignore-submodules=dirty", "-z")
        new = ("ls-files", "--others", "--exclude-standard", "--full-name", "-z", ":/")
        listed = self._git("diff", *plain, commit, "--", GIT_INDEX_FILE=copy) + self._git(*new)
        return {self.top / os.fsdecode(name) for name in listed.split(b"\0") if name}

    def check_out(self, commit: str, folder: Path) -> None:
        """Write the files of ``commit`` into an empty folder; the repository is not changed."""
        index = str(folder.parent / f"{folder.name}.index")
        for command in (["read-tree", commit], ["checkout-index", "--all", f"--prefix={folder}/"]):
            self._git("-C", str(self.top), *command, what=f"{commit} cannot be read", GIT_INDEX_FILE=index)

    def log(self, *paths: str) -> list[Commit]:
        """Return the commits that changed files of these pathspecs, oldest first; of a merge, what it brought here."""
        listed = self._git(
            *("log", "-z", "--raw", "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-show-signature"),
            *("--first-parent", "--diff-merges=first-parent", "--relative", "--format=%x01%H%x02%ct%x02%s"),
            *("HEAD", "--", *paths),
            what="git cannot list the commits",
        )
        commits: list[Commit] = []
        parts = iter(os.fsdecode(listed).split("\0"))
        for part in parts:
            if part.startswith("\1"):
                name, seconds, subject = part[1:].split("\2", 2)
                # A commit may have anything as its date, and bytes that are no text as its subject.
                time = int(seconds) if seconds.isdecimal() and len(seconds) < 16 else 0
                commits.append(Commit(name, time, visible(subject), {}))
            elif part.strip():  # modes and names before and after, and what happened
                new = part.split(" ")[3]
                commits[-1].files[next(parts)] = new if new.strip("0") else ""
        return commits[::-1]

    def files(self, commit: str) -> dict[str, str]:
        """Return the names of the contents of a commit's files in the folder by path."""
        listed = os.fsdecode(self._git("ls-tree", "-r", "-z", commit, what="cannot be listed"))
        entries = (line.partition("\t") for line in listed.split("\0") if line)
        return {path: about.split(" ")[2] for about, _, path in entries if about.startswith("100")}

    def names(self, expressions: Sequence[str]) -> dict[str, str]:
        """Return the full names of objects such as ``COMMIT:path``, a file or folder; those that are not here are missing."""
        given = "".join(f"{expression}\n" for expression in expressions)
        names = self._git("cat-file", "--batch-check=%(objectname)", what="git cannot read", given=given)
        answers = zip(expressions, os.fsdecode(names).splitlines(), strict=True)
        return {expression: name for expression, name in answers if " " not in name}

    def read(self, contents: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes of contents with these names."""
        for start in range(0, len(contents), _BLOBS):
            names = contents[start : start + _BLOBS]
            data = self._git("cat-file", "--batch", what="git cannot read files", given="\n".join(names))
            position = 0
            for name in names:
                end = data.index(b"\n", position)
                size = data[position:end].split(b" ")[-1]
                if not size.isdigit():
                    remedy = "`git fetch --refetch`: the clone may be a partial one"
                    raise ProjectError(f"content {name}", "the repository lacks it", "", remedy)
                position = end + 1 + int(size) + 1
                yield data[end + 1 : position - 1]

    def _git(
        self,
        *arguments: str,
        where: str = "",
        what: str = "git cannot list the changes",
        expected: str = "",
        remedy: str = "",
        given: str | None = None,
        **variables: str,
    ) -> bytes:
        try:
            done = run_git(self._folder, *arguments, given=given, **variables)
        except subprocess.TimeoutExpired:
            remedy = "Look there, in .git and in `git config --list` for a path that is no regular file, such as a FIFO"
            raise ProjectError(str(self._folder), f"git did not end in {_SECONDS} s", "", remedy) from None
        except (OSError, subprocess.SubprocessError) as error:
            raise ProjectError("git", f"cannot be run ({error})", "", "Install git") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[:1]
            why = said[0].removeprefix("fatal: ") if said else f"exit code {done.returncode}"
            raise ProjectError(where or str(self._folder), f"{what} ({why})", expected, remedy)
        return done.stdout


def run_git(
    folder: Path, *arguments: str, given: str | None = None, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. It starts no program that the repository names, and connects to nothing.

    ``given`` is its standard input. ``variables`` are added to the environment.
    """
    fixed = [f"{name}={os.devnull}" for name in ("core.hooksPath", "diff.orderFile")]
    fixed += ["core.fsmonitor=false", "i18n.logOutputEncoding=UTF-8", "log.mailmap=false"]
    command = ["git", "-C", str(folder), *(part for setting in fixed for part in ("-c", setting))]
    # The user's own count in comparisons, such as the filter of LFS, but write no files.
    trusted = set() if "checkout-index" in arguments else {"system", "global", "command"}
    listing = ("config", "--show-scope", "--name-only", "-z", "--get-regexp", rf"^filter\.|{_LISTS}")
    listed = _start([*command, *listing], {}).stdout.split(b"\0") if "rev-parse" not in arguments else []
    keys = zip(listed[::2], map(os.fsdecode, listed[1::2]), strict=False)
    foreign = {key for scope, key in keys if os.fsdecode(scope) not in trusted}
    lists = {key for key in foreign if re.fullmatch(_LISTS, key)}
    drivers = sorted({key.rpartition(".")[0] for key in foreign - lists})
    settings = [(f"{driver}.{name}", "") for driver in drivers for name in ("clean", "smudge", "process")]
    settings += [(key, "") for key in lists]
    settings += [(f"{driver}.required", "false") for driver in drivers]
    count = os.environ.get("GIT_CONFIG_COUNT", "")  # the user's own, which come first
    first = int(count) if count.isdecimal() else 0
    off = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (key, value) in enumerate(settings, first):
        off |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return _start([*command, *arguments], off | variables, given)


def _start(
    command: Sequence[str], variables: Mapping[str, str], given: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    # GIT_OPTIONAL_LOCKS: not even the index is refreshed.
    fixed = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    used = {**os.environ, **fixed, **variables}
    data = None if given is None else os.fsencode(given)
    return subprocess.run(command, env=used, input=data, capture_output=True, timeout=_SECONDS, check=False)
