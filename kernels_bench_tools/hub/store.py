"""The local cache: snapshots, the Hub's answers, and the digests of builds.

``kernels`` writes no ``refs/v1`` when it downloads version 1, and its offline mode rejects a snapshot with one build
only. So the Hub's answers are stored beside the snapshots, and builds are found in their folders.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernels_bench_tools.file_io import file_digest, file_text, read_file, read_struct, write_atomically
from kernels_bench_tools.hub.reference import KernelReference
from kernels_bench_tools.hub.status import HubError, HubStatus, classify
from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.records.hub import SOURCE_BUILD_FILE, SourceBuild
from kernels_bench_tools.text.foreign import parse_json
from kernels_bench_tools.text.words import abbreviated

if TYPE_CHECKING:
    from kernels.resolver import LocalKernel

ANSWERS = "kbt-answers.json"
"""File in a kernel's folder of the cache."""
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class BuildFiles(msgspec.Struct, kw_only=True):
    """A build as it was when it was downloaded."""

    digest: str
    """SHA-256 over its files."""
    files: dict[str, str]
    """Path within the build to SHA-256."""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a reference meant when it was resolved on the Hub."""

    pin: str
    """Normalized version or revision."""
    commit: str
    version: int | None = None
    trusted: str = ""
    """``publisher`` or ``allow-list``."""
    builds: dict[str, BuildFiles] = msgspec.field(default_factory=dict)
    """By the name of the build."""


def snapshot_folder(repo: str, commit: str) -> Path:
    """Return the cache's folder for the files of a commit."""
    return path_below(_kernel_folder(repo), f"snapshots/{commit}", where=f"{repo}: commit", linked=True)


def cached_commit(reference: KernelReference) -> str:
    """Return the commit in the cache that ``reference`` means; empty if there is none, or several begin like it."""
    repo, named = reference.repo, cached_names(reference.repo)
    revision = reference.revision or f"v{reference.version}"
    if revision in named or not _SHORT_COMMIT.fullmatch(revision):
        return named.get(revision, "")
    found = [path.name for path in snapshot_folder(repo, "").glob(f"{revision}*")]
    return found[0] if len(found) == 1 else ""


def cached_names(repo: str) -> dict[str, str]:
    """Return the branches, tags and versions (``v1``) in the cache, and their commits."""
    named = {}
    for answer in _read_answers(repo):
        named[answer.pin if answer.version is None else f"v{answer.version}"] = answer.commit
    refs = _kernel_folder(repo) / "refs"
    for path in refs.rglob("*"):
        if path.is_file():
            named.setdefault(path.relative_to(refs).as_posix(), file_text(path).strip())
    return {name: commit for name, commit in named.items() if snapshot_folder(repo, commit).is_dir()}


def find_answer(repo: str, pin: str) -> Answer | None:
    """Return the Hub's earlier answer for a pin or a commit."""
    return next((answer for answer in _read_answers(repo) if pin in (answer.pin, answer.commit)), None)


def save_answer(repo: str, answer: Answer) -> None:
    """Keep an answer of the Hub for later processes, if the cache is writable."""
    answers = _read_answers(repo)
    for old in answers:
        if old.commit == answer.commit:
            answer.builds = {**old.builds, **answer.builds}
    kept = [answer, *(old for old in answers if old.pin != answer.pin)]
    with suppress(OSError):
        write_atomically(_kernel_folder(repo) / ANSWERS, msgspec.json.encode(kept))


def choose_build(folder: Path, repo: str, backend: str | None) -> LocalKernel:
    """Return the build that fits this system best in a snapshot, a kernel's repository, or the folder of a build."""
    from kernels.resolver import resolve_local_kernel

    try:
        build = resolve_local_kernel(folder, backend=backend)
    except Exception as error:
        if any(path.is_dir() and not (path / "metadata.json").exists() for path in folder.glob("build/*")):
            raise _incomplete(repo, ["metadata.json"]) from error
        raise classify(error, repo, HubStatus.BAD_METADATA) from error
    path = build.variant_path
    # In a cache whose blobs were removed, the files of a build are dangling links.
    missing = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if not file.exists())
    if not any((path / name / "__init__.py").is_file() for name in ("", build.metadata.name.python_name)):
        missing = missing or ["__init__.py"]
    if missing:
        raise _incomplete(repo, missing)
    return build


def digest_build(build: LocalKernel) -> BuildFiles:
    """Return the digests of a build's files as they are now."""
    folder = build.variant_path
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = {name: file_digest(folder / name) for name in names if not _is_bytecode(name)}
    lines = "".join(f"{name}\0{digest}\n" for name, digest in files.items())
    return BuildFiles(digest=hashlib.sha256(lines.encode()).hexdigest(), files=files)


def check_files(build: LocalKernel, repo: str, expected: BuildFiles | None) -> str:
    """Return the digest over a build's files, after checking them against those that were downloaded and published."""
    now = digest_build(build)
    if expected is not None:
        if missing := sorted(expected.files.keys() - now.files.keys()):
            raise _incomplete(repo, missing)
        changed = [name for name, digest in now.files.items() if expected.files.get(name) != digest]
        if changed:
            raise _changed(repo, build, changed, "downloaded")
    published = build.metadata.digest
    if published is not None:
        from kernels._rust import Digest, DigestValidationError

        try:
            published.validate(Digest.hash_variant(published.algorithm, build.variant_path))
        except DigestValidationError as error:
            names = {getattr(violation, "path", str(violation)) for violation in error.violations}
            if changed := sorted(name for name in names if not _is_bytecode(name)):
                event = "built" if read_source_build(build) else "published"
                raise _changed(repo, build, changed, event) from error
    return now.digest


def read_source_build(build: LocalKernel) -> SourceBuild | None:
    """Return how ``kbt hub build`` made a build; None for a build that it did not make."""
    path = build.variant_path / SOURCE_BUILD_FILE
    return read_struct(path, SourceBuild) if path.is_file() else None


def _read_answers(repo: str) -> list[Answer]:
    """Return the Hub's earlier answers for a kernel; a damaged file counts as none, since the Hub can be asked again."""
    try:
        return parse_json(read_file(_kernel_folder(repo) / ANSWERS), list[Answer])
    except (OSError, msgspec.DecodeError):
        return []


def _is_bytecode(name: str) -> bool:
    """Return whether Python wrote the file, when a build was imported earlier."""
    return name.endswith(".pyc") or "__pycache__" in name.split("/")


def _incomplete(repo: str, missing: list[str]) -> HubError:
    return HubError(HubStatus.CACHE_INCOMPLETE, f"the local copy of {repo} lacks {abbreviated(missing)}")


def _changed(repo: str, build: LocalKernel, changed: list[str], event: str) -> HubError:
    reason = f"{abbreviated(changed)} of {repo} ({build.variant_str}) changed since the build was {event}"
    return HubError(HubStatus.FILES_CHANGED, reason)


def _kernel_folder(repo: str) -> Path:
    """Return the folder of a kernel where ``kernels`` downloads to."""
    from huggingface_hub import constants

    cache = Path(os.environ.get("KERNELS_CACHE") or constants.HF_HUB_CACHE).expanduser()
    return cache / f"kernels--{repo.replace('/', '--')}"
