"""Where a kernel comes from: a folder of the user's, the project's lock, the cache, the hub; in this order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub.build import Build, check_files, choose_build
from kernels_bench_tools.hub.deadline import within
from kernels_bench_tools.hub.download import ALLOWED, download, is_allowed, is_offline
from kernels_bench_tools.hub.lock import LockedKernel, base_folder, find_lock, read_lock
from kernels_bench_tools.hub.reference import Reference, parse_reference
from kernels_bench_tools.hub.status import HubError, HubStatus
from kernels_bench_tools.hub.store import (
    Snapshot,
    cached_names,
    downloaded_bytes,
    find_snapshots,
    recall,
    snapshot_folder,
)

OVERRIDES = "LOCAL_KERNELS"
"""``org/repo=folder:org/repo2=folder2``, as ``kernels`` reads it."""
_NOBODY_TO_ASK = {HubStatus.HUB_UNREACHABLE, HubStatus.HUB_ERROR}


@dataclass(frozen=True)
class Terms:
    """How to ask, whatever is asked for."""

    trust: Sequence[str] = ()
    deadline_s: float = 60.0
    backend: str | None = None


@dataclass(frozen=True)
class Found:
    """A build that may be loaded, and how it was found."""

    reference: Reference
    build: Build
    origin: str
    """``override``, ``lock``, ``cache`` or ``hub``."""
    digest: str
    commit: str = ""
    trusted: str = ""
    notes: list[str] = field(default_factory=list)


def resolve(reference: Reference, terms: Terms) -> Found:
    """Return the build that ``reference`` stands for here, with its files checked.

    Raises:
        HubError: It cannot be had; the status and the reason say why.
        KbtError: A setting of the user's is wrong.
    """
    if folder := _override(reference):
        return _from_folder(reference, folder, terms)
    locked = _locked(reference)
    if locked is not None:
        return _from_lock(reference, locked, terms)
    return _known(reference, terms) or _ask(reference, terms)


def resolve_anew(reference: Reference, terms: Terms) -> tuple[Found, LockedKernel]:
    """Return what the hub says ``reference`` is now, whatever is locked or cached.

    Raises:
        HubError: It cannot be had.
    """
    if is_offline():
        reason = "the hub is switched off (HF_HUB_OFFLINE)"
        raise HubError(HubStatus.HUB_UNREACHABLE, reason)
    got = within(
        terms.deadline_s,
        lambda: download(reference, terms.trust, terms.backend),
        lambda: downloaded_bytes(reference.repo),
    )
    digest = check_files(got.build, reference.repo, None)
    answer = got.answer
    return Found(reference, got.build, "hub", digest, answer.commit, answer.trusted, got.notes), answer


def _override(reference: Reference) -> Path | None:
    if reference.folder:
        return base_folder() / Path(reference.folder).expanduser()
    text = os.environ.get(OVERRIDES, "")
    for entry in text.split(":") if text else []:
        repo, equals, folder = entry.partition("=")
        if not equals:
            raise KbtError(OVERRIDES, f"has the entry {entry!r}", "org/repo=FOLDER:org/other=FOLDER")
        if repo == reference.repo:
            return Path(folder)
    return None


def _from_folder(reference: Reference, folder: Path, terms: Terms) -> Found:
    name = reference.repo or reference.folder
    if not folder.is_dir():
        raise KbtError(f"get_kernel({reference.text!r})", f"there is no folder {folder}", "a kernel's folder")
    build = choose_build(folder, name, terms.backend)
    notes = []
    if reference.version not in (None, build.metadata.version):
        notes.append(f"version {reference.version} was asked for; this folder has {build.metadata.version}")
    return Found(reference, build, "override", check_files(build, name, None), trusted="local", notes=notes)


def _locked(reference: Reference) -> LockedKernel | None:
    path = find_lock()
    return read_lock(path).find(reference) if path else None


def _from_lock(reference: Reference, locked: LockedKernel, terms: Terms) -> Found:
    """Return the locked commit, from the disk if it is there."""
    _check_trust(locked, terms)
    folder = snapshot_folder(locked.repo, locked.commit)
    if folder.is_dir():
        try:
            return _on_disk(reference, Snapshot(locked.commit, folder), "lock", locked, terms)
        except HubError as error:
            if error.status is HubStatus.FILES_CHANGED or is_offline():
                raise
    if is_offline():
        reason = f"{reference.name} is locked to {locked.commit[:12]}, which is not in the local cache"
        raise HubError(HubStatus.NOT_IN_CACHE, f"{reason}, and the hub is switched off")
    found, _ = resolve_anew(parse_reference(locked.repo, revision=locked.commit), terms)
    digest = check_files(found.build, locked.repo, locked.builds.get(found.build.variant))
    return Found(reference, found.build, "lock", digest, locked.commit, found.trusted, locked.notes)


def _known(reference: Reference, terms: Terms) -> Found | None:
    """Return what the hub once answered to this very question, where the answer cannot have changed."""
    answer = recall(reference.repo).find(reference) if reference.is_fixed else None
    if answer is None or (answer.trusted == ALLOWED and not is_allowed(answer.repo, terms.trust)):
        return None
    folder = snapshot_folder(answer.repo, answer.commit)
    if not folder.is_dir():
        return None
    try:
        return _on_disk(reference, Snapshot(answer.commit, folder), "cache", answer, terms)
    except HubError as error:
        # Files can be fetched again, and there may be a build for another torch; changed ones are not hidden.
        if error.status is HubStatus.FILES_CHANGED:
            raise
        return None


def _ask(reference: Reference, terms: Terms) -> Found:
    if is_offline():
        return _cached(reference, terms, "the hub is switched off (HF_HUB_OFFLINE)")
    try:
        found, _ = resolve_anew(reference, terms)
    except HubError as error:
        if error.status not in _NOBODY_TO_ASK:
            raise
        try:
            return _cached(reference, terms, f"the hub could not be asked: {error.reason}")
        except HubError as second:
            if second.status is HubStatus.FILES_CHANGED:
                raise
            raise error from second
    return found


def _cached(reference: Reference, terms: Terms, why: str) -> Found:
    """Return the newest of what the cache has, with a note that says why nobody was asked."""
    rejections: list[HubError] = []
    for snapshot in find_snapshots(reference):
        known = recall(reference.repo).find(reference)
        same = known if known is not None and known.commit == snapshot.commit else None
        try:
            found = _on_disk(reference, snapshot, "cache", same, terms)
        except HubError as error:
            if error.status is HubStatus.FILES_CHANGED:
                raise
            rejections.append(error)
            continue
        found.notes.append(f"taken from the local cache: {why}")
        return found
    if rejections:
        raise rejections[0]
    there = ", ".join(cached_names(reference.repo))
    what = f"{reference.name} is not in the local cache" + (f" (which has {there})" if there else "")
    raise HubError(HubStatus.NOT_IN_CACHE, f"{what}, and {why}")


def _on_disk(
    reference: Reference, snapshot: Snapshot, origin: str, known: LockedKernel | None, terms: Terms
) -> Found:
    build = choose_build(snapshot.folder, reference.repo, terms.backend)
    digest = check_files(build, reference.repo, known.builds.get(build.variant) if known else None)
    trusted = (known.trusted if known else "") or "not checked"
    notes = list(known.notes) if known else []
    return Found(reference, build, origin, digest, snapshot.commit, trusted, notes)


def _check_trust(locked: LockedKernel, terms: Terms) -> None:
    if locked.trusted == ALLOWED and not is_allowed(locked.repo, terms.trust):
        publisher = locked.repo.partition("/")[0]
        reason = (
            f"{publisher} was trusted by an allow-list when it was locked, and trust= does not name it now"
        )
        raise HubError(HubStatus.UNTRUSTED_PUBLISHER, reason)
