"""Revisions of the git repository that a project is in, looked at without touching it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kernels_bench_tools.errors import ProjectError

_SECONDS = 300


class Repository:
    """The git repository around a folder.

    Raises:
        ProjectError: There is none, or git is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        done = self._git("rev-parse", "--show-toplevel")
        if done.returncode:
            what = f"is not in a checkout of git ({_complaint(done)})"
            raise ProjectError(str(folder), what, "", "`git clone` the project, or plan without `--since`")
        self.top = Path(os.fsdecode(done.stdout).removesuffix("\n")).resolve()
        """The folder that the whole repository is checked out in."""

    def resolve(self, revision: str) -> str:
        """Return the full name of the commit that ``revision`` stands for.

        Raises:
            ProjectError: There is no such commit here.
        """
        done = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if done.returncode:
            expected = "A commit, branch or tag of this repository, such as HEAD~1 or origin/main"
            remedy = "If the clone is shallow, `git fetch --unshallow`; in a workflow, `fetch-depth: 0`"
            raise ProjectError(f"revision {revision!r}", "there is no such commit here", expected, remedy)
        return done.stdout.decode().strip()

    def changed_files(self, commit: str) -> set[Path]:
        """Return the files that differ from ``commit``, are gone, or are new and not ignored."""
        differing = self._lines("diff", "--name-only", "--no-renames", "-z", commit, "--")
        new = self._lines("ls-files", "--others", "--exclude-standard", "--full-name", "-z", ":/")
        return {self.top / os.fsdecode(name) for name in (*differing, *new)}

    def check_out(self, commit: str, folder: Path) -> None:
        """Write the files of ``commit`` into an empty folder; the repository stays as it is."""
        index = {"GIT_INDEX_FILE": str(folder.parent / f"{folder.name}.index")}
        for command in (["read-tree", commit], ["checkout-index", "--all", f"--prefix={folder}/"]):
            done = self._git(*command, folder=self.top, variables=index)
            if done.returncode:
                raise ProjectError(f"revision {commit}", f"cannot be read ({_complaint(done)})")

    def _lines(self, *arguments: str) -> list[bytes]:
        done = self._git(*arguments)
        if done.returncode:
            raise ProjectError(str(self.top), f"git cannot tell what changed ({_complaint(done)})")
        return [name for name in done.stdout.split(b"\0") if name]

    def _git(
        self, *arguments: str, folder: Path | None = None, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        # GIT_OPTIONAL_LOCKS: not even the index is refreshed.
        environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"} | (variables or {})
        command = ["git", "-C", str(folder or self._folder), *arguments]
        try:
            return subprocess.run(
                command, env=environment, capture_output=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            remedy = "Install git, or plan without `--since`"
            raise ProjectError("git", f"cannot be run ({error})", "", remedy) from None


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else f"exit code {done.returncode}"
