"""A build of a kernel on this disk: which one fits, and whether its files are what they should be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_bench_tools.hub.lock import LockedBuild
from kernels_bench_tools.hub.reasons import classify
from kernels_bench_tools.hub.status import HubError, HubStatus
from kernels_bench_tools.hub.store import missing_files

SIGNATURE = "metadata.json.sigstore"


@dataclass(frozen=True)
class Build:
    """A build that fits this system."""

    folder: Path
    metadata: Any
    """``kernels.Metadata``."""

    @property
    def variant(self) -> str:
        """The build's name, such as ``torch-cuda``."""
        return self.folder.name

    @property
    def signature(self) -> str:
        """Whether it is signed. Checking a signature needs the network, so it is left to `kernels`."""
        return "not checked" if (self.folder / SIGNATURE).exists() else "unsigned"

    @property
    def dirty(self) -> bool | None:
        """Whether it was built from uncommitted changes; None where its metadata does not say."""
        provenance = self.metadata.provenance
        return None if provenance is None else bool(provenance.dirty)


def choose_build(folder: Path, repo: str, backend: str | None = None) -> Build:
    """Return the build in ``folder`` that fits this system best.

    Args:
        folder: A snapshot, a kernel's repository, or one build.
        repo: What it is, for reasons.
        backend: ``"cpu"`` for a build for the CPU where torch was built for something else.

    Raises:
        HubError: None fits, files are missing, or its metadata cannot be read.
    """
    from kernels.resolver import resolve_local_kernel

    try:
        found = resolve_local_kernel(folder, backend=backend)
    except Exception as error:
        broken = [name for path in _build_folders(folder) for name in missing_files(folder, path.name)]
        if broken and "metadata.json" in broken:
            raise _incomplete(repo, broken) from error
        raise classify(error, repo, HubStatus.BAD_METADATA) from error
    if found.variant_path.parent.name == "build":
        missing = missing_files(found.variant_path.parents[1], found.variant_path.name)
        if missing:
            raise _incomplete(repo, missing)
    module = found.metadata.name.python_name
    if not any((found.variant_path / name / "__init__.py").is_file() for name in ("", module)):
        raise _incomplete(repo, ["__init__.py"])
    return Build(found.variant_path, found.metadata)


def lock_build(build: Build) -> LockedBuild:
    """Return the digests of a build's files as they are now."""
    files = dict(_digests(build.folder))
    return LockedBuild(digest=_digest_of(files), files=files)


def check_files(build: Build, repo: str, expected: LockedBuild | None) -> str:
    """Return the digest over a build's files after comparing them with what is known of them.

    Args:
        build: The build.
        repo: What it is, for reasons.
        expected: The files when it was downloaded or locked; None if that is not known.

    Raises:
        HubError: A file was changed, added or lost; it is named.
    """
    now = lock_build(build)
    if expected is not None:
        lost = sorted(expected.files.keys() - now.files.keys())
        if lost:
            raise _incomplete(repo, lost)
        changed = sorted(name for name, one in now.files.items() if expected.files.get(name) != one)
        if changed:
            raise _changed(repo, build, changed, "when it was downloaded")
    _check_published_digest(build, repo)
    return now.digest


def _check_published_digest(build: Build, repo: str) -> None:
    """Compare with the digest in the build's own metadata, if it has one."""
    published = build.metadata.digest
    if published is None:
        return
    from kernels._rust import Digest, DigestValidationError

    try:
        published.validate(Digest.hash_variant(published.algorithm, build.folder))
    except DigestValidationError as error:
        # Python writes its byte code beside the files of a build that was loaded before.
        names = {getattr(violation, "path", str(violation)) for violation in error.violations}
        changed = sorted(name for name in names if not _is_bytecode(name))
        if changed:
            raise _changed(repo, build, changed, "when it was published") from error


def _digest_of(files: Mapping[str, str]) -> str:
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not _is_bytecode(name):
            with path.open("rb") as file:
                yield name, hashlib.file_digest(file, "sha256").hexdigest()


def _is_bytecode(name: str) -> bool:
    return name.endswith(".pyc") or "__pycache__" in name.split("/")


def _build_folders(folder: Path) -> list[Path]:
    builds = folder / "build"
    return sorted(path for path in builds.iterdir() if path.is_dir()) if builds.is_dir() else []


def _incomplete(repo: str, missing: list[str]) -> HubError:
    names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return HubError(HubStatus.CACHE_INCOMPLETE, f"the local copy of {repo} lacks {names}")


def _changed(repo: str, build: Build, changed: list[str], since: str) -> HubError:
    names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    reason = f"{names} of {repo} ({build.variant}) is not what it was {since}"
    return HubError(HubStatus.FILES_CHANGED, reason)
