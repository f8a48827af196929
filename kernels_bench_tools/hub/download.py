"""What the hub itself says: which commit a reference means, and the files of its build for this system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels_bench_tools.hub.build import Build, choose_build, lock_build
from kernels_bench_tools.hub.lock import LockedKernel
from kernels_bench_tools.hub.reasons import classify
from kernels_bench_tools.hub.reference import Reference
from kernels_bench_tools.hub.status import HubError, HubStatus
from kernels_bench_tools.hub.store import cache_folder, remember, snapshot_folder

ALLOWED = "allow-list"
PUBLISHER = "publisher"


@dataclass(frozen=True)
class Candidate:
    """A commit that a reference may mean."""

    commit: str
    version: int | None = None


@dataclass(frozen=True)
class Downloaded:
    """A build that was downloaded, or was there and is what the hub has."""

    build: Build
    answer: LockedKernel
    """What to remember of it."""
    notes: list[str] = field(default_factory=list)


def is_offline() -> bool:
    """Return whether the user has told the hub's client to stay off the network (``HF_HUB_OFFLINE``)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_allowed(repo: str, trust: Sequence[str]) -> bool:
    """Return whether the allow-list names a kernel or its publisher."""
    return repo in trust or repo.partition("/")[0] in trust


def download(reference: Reference, trust: Sequence[str], backend: str | None) -> Downloaded:
    """Return the build that ``reference`` means now, and keep the hub's answer for later processes.

    Args:
        reference: What was asked for; not a folder.
        trust: Publishers or kernels to load though the hub does not call their publisher trusted.
        backend: See :func:`choose_build`.

    Raises:
        HubError: It cannot be had; the reason is the hub's, or that of the network.
    """
    try:
        return _download(reference, trust, backend)
    except Exception as error:
        raise classify(error, reference.repo, HubStatus.HUB_ERROR) from error


def _download(reference: Reference, trust: Sequence[str], backend: str | None) -> Downloaded:
    skipped: list[str] = []
    rejections: list[HubError] = []
    for candidate in _candidates(reference):
        name = candidate.commit[:12] if candidate.version is None else f"version {candidate.version}"
        try:
            build = _install(reference.repo, candidate, trust, backend)
        except Exception as error:
            found = classify(error, reference.repo, HubStatus.HUB_ERROR)
            if found.status is not HubStatus.NO_BUILD_FOR_SYSTEM or not reference.bounds:
                raise found from error
            skipped.append(f"{name} was skipped: {found.status}")
            rejections.append(found)
            continue
        return _answer(reference, candidate, build, trust, skipped)
    reason = f"none of the versions that {reference.pin} admits fits this system: "
    raise HubError(HubStatus.NO_BUILD_FOR_SYSTEM, reason + "; ".join(one.reason for one in rejections))


def _candidates(reference: Reference) -> Iterator[Candidate]:
    """Yield the commits that a reference may mean, the newest version first."""
    if reference.commit:
        yield Candidate(reference.commit)
        return
    from huggingface_hub import HfApi

    refs = HfApi().list_repo_refs(reference.repo, repo_type="kernel")
    if reference.revision:
        yield Candidate(_find_revision(reference, [*refs.branches, *refs.tags]))
        return
    names = {branch.name: branch.target_commit for branch in refs.branches}
    versions = {int(name[1:]): commit for name, commit in names.items() if _is_version(name)}
    wanted = sorted((version for version in versions if reference.admits(version)), reverse=True)
    if not wanted:
        there = ", ".join(map(str, sorted(versions))) or "none"
        reason = f"{reference.repo} has no version {reference.pin}; its versions: {there}"
        raise HubError(HubStatus.NO_SUCH_VERSION, reason)
    yield from (Candidate(versions[version], version) for version in wanted)


def _find_revision(reference: Reference, refs: Sequence[Any]) -> str:
    """Return the commit of a branch or tag; of anything else, what was asked for: the hub may know it."""
    for ref in refs:
        if ref.name == reference.revision:
            return str(ref.target_commit)
    return reference.revision


def _is_version(name: str) -> bool:
    return name.startswith("v") and name[1:].isdecimal()


def _install(repo: str, candidate: Candidate, trust: Sequence[str], backend: str | None) -> Build:
    """Return the candidate's build for this system, downloaded; the publisher is checked first."""
    from kernels._rust import KernelDependency, KernelVersion
    from kernels.hf_hub import _get_hf_api
    from kernels.resolver import HubResolver

    allowed: bool | list[str] = [repo] if is_allowed(repo, trust) else False
    wanted = KernelDependency(repo_id=repo, version=KernelVersion.Revision(candidate.commit))
    api = _get_hf_api()
    # Not `install_kernel`, which fetches what a kernel depends on by rules of its own.
    remote = HubResolver(trust_remote_code=allowed).resolve(api=api, backend=backend, kernel=wanted)
    # Chosen again from its own folder, so that what is checked here is what is loaded.
    return choose_build(Path(remote.install(api=api).variant_path), repo, backend)


def _answer(
    reference: Reference, candidate: Candidate, build: Build, trust: Sequence[str], skipped: list[str]
) -> Downloaded:
    repo = reference.repo
    # The folder has the whole commit, also where a part of it or a name was asked for.
    commit = build.folder.parents[1].name
    answer = LockedKernel(
        repo=repo,
        pin=reference.pin,
        commit=commit,
        snapshot=snapshot_folder(repo, commit).relative_to(cache_folder()).as_posix(),
        version=candidate.version,
        trusted=ALLOWED if is_allowed(repo, trust) else PUBLISHER,
        builds={build.variant: lock_build(build)},
        notes=skipped,
    )
    remember(answer)
    return Downloaded(build, answer, skipped)
