"""Which build a reference means here: an override, the project's lock, a source build, the cache, the hub; in this order."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import find_struct, read_file
from kernels_bench_tools.hub.reference import KernelReference, parse_reference
from kernels_bench_tools.hub.status import HubError, HubStatus, classify
from kernels_bench_tools.hub.store import (
    Answer,
    cached_commit,
    cached_names,
    check_files,
    check_source,
    choose_build,
    describe_source_build,
    digest_build,
    find_answer,
    read_source_build,
    save_answer,
    snapshot_folder,
)
from kernels_bench_tools.records.hub import SOURCE_BUILD, builds_folder, described_builds, find_lock
from kernels_bench_tools.records.record import HubKernel
from kernels_bench_tools.records.request import NEEDS_VARIABLE, Needs

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from kernels._rust import KernelDependency, KernelLocks
    from kernels.resolver import LocalKernel

ALLOW_LIST = "allow-list"
OVERRIDES = "LOCAL_KERNELS"
"""``org/repo=folder:org/repo2=folder2``, as ``kernels`` reads it."""
_NO_ANSWER = {HubStatus.HUB_UNREACHABLE, HubStatus.HUB_ERROR}


@dataclass(frozen=True)
class ResolveOptions:
    """Settings that apply to a kernel and its dependencies."""

    trust: Sequence[str] = ()
    """Publishers or kernels to load although the hub does not list the publisher as trusted."""
    backend: str | None = None

    def allows(self, repo: str) -> bool:
        return repo in self.trust or repo.partition("/")[0] in self.trust


class ResolvedKernel(NamedTuple):
    """A build on this disk with checked files, and its description for the record."""

    build: LocalKernel
    info: HubKernel


def resolve(reference: KernelReference, options: ResolveOptions) -> ResolvedKernel:
    """Return the build that ``reference`` means here, with its files checked."""
    if folder := _override(reference):
        return _from_folder(reference, folder, options)
    lock = find_lock(_base_folder())
    if lock and (entry := read_locks(lock).get(dependency_of(reference))):
        return _from_lock(reference, entry.commit, options)
    if local := _from_source_build(reference, options):
        return local
    earlier = find_answer(reference.repo, reference.pin) if reference.is_fixed else None
    found = _from_known(reference, earlier, "cache", options) if earlier else None
    return found or _from_hub(reference, options)


def dependency_of(reference: KernelReference) -> KernelDependency:
    """Return a version or revision of a kernel as ``kernels`` names it."""
    from kernels._rust import KernelDependency, KernelVersion

    if reference.version is None:
        return KernelDependency(reference.repo, KernelVersion.Revision(reference.revision))
    return KernelDependency(reference.repo, KernelVersion.Version(reference.version))


def read_locks(path: Path) -> KernelLocks:
    """Read a lock file as ``kernels lock`` writes it; a ``KbtError`` states why it cannot be read."""
    from kernels._rust import KernelLocks

    remedy = "Write it with `kernels lock`"
    try:
        return KernelLocks.from_json(read_file(path).decode())
    except OSError as error:
        raise KbtError(str(path), f"cannot be read ({error.strerror})", "", remedy) from None
    except ValueError as error:
        raise KbtError(str(path), f"is not a lock file of kernels ({error})", "", remedy) from None


def resolve_on_hub(reference: KernelReference, options: ResolveOptions) -> ResolvedKernel:
    """Return what ``reference`` means on the hub now, regardless of lock and cache."""
    if _is_offline():
        raise HubError(HubStatus.HUB_UNREACHABLE, "the hub is switched off (HF_HUB_OFFLINE)")
    try:
        build, answer = _download(reference, options)
    except Exception as error:
        raise classify(error, reference.repo, HubStatus.HUB_ERROR) from error
    return _checked(reference, build, "hub", answer)


def _override(reference: KernelReference) -> Path | None:
    if reference.folder:
        return _base_folder() / Path(reference.folder).expanduser()
    text = os.environ.get(OVERRIDES, "")
    for entry in text.split(":") if text else []:
        repo, equals, folder = entry.partition("=")
        if not equals:
            raise KbtError(OVERRIDES, f"has the entry {entry!r}", "org/repo=FOLDER:org/other=FOLDER")
        if repo == reference.repo:
            return Path(folder)
    return None


def _from_folder(reference: KernelReference, folder: Path, options: ResolveOptions) -> ResolvedKernel:
    if not folder.is_dir():
        raise KbtError(f"get_kernel({reference.text!r})", f"there is no folder {folder}", "a kernel's folder")
    build = choose_build(folder, reference.repo or reference.folder, options.backend)
    found = _checked(reference, build, "override", None, trusted="local")
    if reference.version not in (None, build.metadata.version):
        note = f"version {reference.version} was requested; this folder has {build.metadata.version}"
        found.info.notes.append(note)
    return found


def _from_source_build(reference: KernelReference, options: ResolveOptions) -> ResolvedKernel | None:
    """Return what ``kbt hub build`` made of the kernel, or None if it built no such version.

    A source build that cannot be used is an error: a run must not use the hub's build in one process only.
    """
    builds = builds_folder(_base_folder())
    folder = builds / reference.repo
    if not folder.is_dir():
        return None
    if reference.repo not in described_builds(builds):
        reason = f"the source build of {reference.repo} is not finished; run `kbt hub build` again"
        raise HubError(HubStatus.CACHE_INCOMPLETE, reason)
    build = choose_build(folder, reference.repo, options.backend)
    version, made = build.metadata.version, read_source_build(build)
    same = made is not None and len(reference.revision) >= 7 and made.commit.startswith(reference.revision)
    if not same and (version is None or version != reference.version):
        return None
    return _checked(reference, build, "override", None, trusted="local")


def _from_known(
    reference: KernelReference, known: Answer, origin: str, options: ResolveOptions
) -> ResolvedKernel | None:
    """Return the commit in a lock or in an earlier answer of the hub, or None if the hub has to supply files."""
    if known.trusted == ALLOW_LIST and not options.allows(reference.repo):
        publisher = reference.repo.partition("/")[0]
        reason = f"{publisher} was trusted by an allow-list when it was resolved, and trust= does not name it"
        raise HubError(HubStatus.UNTRUSTED_PUBLISHER, reason)
    if snapshot_folder(reference.repo, known.commit).is_dir():
        try:
            return _from_disk(reference, known.commit, origin, known, options)
        except HubError as error:
            # The hub may supply missing files, or a build for another torch; changed files are an error.
            if error.status is HubStatus.FILES_CHANGED or _is_offline():
                raise
    return None


def _from_lock(reference: KernelReference, commit: str, options: ResolveOptions) -> ResolvedKernel:
    known = find_answer(reference.repo, commit) or Answer(pin=reference.pin, commit=commit)
    if local := _from_known(reference, known, "lock", options):
        return local
    if _is_offline():
        reason = f"{reference.name} is locked to {commit[:12]}, which is not in the local cache"
        raise HubError(HubStatus.NOT_IN_CACHE, f"{reason}, and the hub is switched off")
    found = resolve_on_hub(parse_reference(reference.repo, revision=commit), options)
    return _checked(reference, found.build, "lock", find_answer(reference.repo, commit), commit=commit)


def _from_hub(reference: KernelReference, options: ResolveOptions) -> ResolvedKernel:
    """Return the hub's answer; if it does not answer, what the cache has."""
    if _is_offline():
        return _from_cache(reference, options, "the hub is switched off (HF_HUB_OFFLINE)")
    try:
        return resolve_on_hub(reference, options)
    except HubError as error:
        if error.status not in _NO_ANSWER:
            raise
        try:
            return _from_cache(reference, options, f"the hub did not answer: {error.reason}")
        except HubError as second:
            if second.status is HubStatus.FILES_CHANGED:
                raise
            raise error from second


def _from_cache(reference: KernelReference, options: ResolveOptions, why: str) -> ResolvedKernel:
    """Return the build in the cache, with a note that states why the hub was not used."""
    if not (commit := cached_commit(reference)):
        there = ", ".join(sorted(cached_names(reference.repo)))
        what = f"{reference.name} is not in the local cache" + (f" (which has {there})" if there else "")
        raise HubError(HubStatus.NOT_IN_CACHE, f"{what}, and {why}")
    answer = find_answer(reference.repo, reference.pin)
    known = answer if answer is not None and answer.commit == commit else None
    found = _from_disk(reference, commit, "cache", known, options)
    found.info.notes.append(f"taken from the local cache: {why}")
    return found


def _from_disk(
    reference: KernelReference, commit: str, origin: str, known: Answer | None, options: ResolveOptions
) -> ResolvedKernel:
    folder = snapshot_folder(reference.repo, commit)
    build = choose_build(folder, reference.repo, options.backend)
    return _checked(reference, build, origin, known, commit=commit)


def _checked(
    reference: KernelReference,
    build: LocalKernel,
    origin: str,
    known: Answer | None,
    *,
    commit: str = "",
    trusted: str = "not checked",
) -> ResolvedKernel:
    """Check a build's files against what is known of them, and describe it."""
    repo = reference.repo or reference.folder
    digest = check_files(build, repo, known.builds.get(build.variant_str) if known else None)
    made = read_source_build(build)
    if made is not None:
        check_source(made, repo)
        origin, commit = SOURCE_BUILD, made.commit
    # Verifying a signature needs the network; `kernels verify-signature` does it.
    signed = (build.variant_path / "metadata.json.sigstore").exists()
    provenance = build.metadata.provenance
    info = HubKernel(
        repo=repo,
        requested=reference.requested,
        origin=origin,
        commit=known.commit if known else commit,
        variant=build.variant_str,
        version=build.metadata.version,
        digest=digest,
        signature="not checked" if signed else "unsigned",
        dirty=None if provenance is None else bool(provenance.dirty),
        trusted=(known.trusted if known else "") or trusted,
    )
    if made is not None:
        info.dirty, info.notes = made.dirty, [describe_source_build(made)]
    return ResolvedKernel(build, info)


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _download(reference: KernelReference, options: ResolveOptions) -> tuple[LocalKernel, Answer]:
    """Download the build for this system, and keep the hub's answer for later processes."""
    from huggingface_hub import constants, get_session
    from kernels.hf_hub import _check_trust_remote_code, _get_hf_api
    from kernels.resolver import resolve_hub_kernel

    get_session().timeout = constants.HF_HUB_ETAG_TIMEOUT  # by default most requests have none
    repo, api = reference.repo, _get_hf_api()
    allowed = options.allows(repo)
    _check_trust_remote_code(repo, local_files_only=False, trust_remote_code=[repo] if allowed else False)
    revision = _find_commit(reference, api)
    remote = resolve_hub_kernel(repo, api=api, backend=options.backend, revision=revision)
    # The folder names the full commit, also where a short one was requested.
    snapshot = remote.install(api=api).variant_path.parents[1]
    # Chosen again from the disk, so that the checked build is the loaded one.
    build = choose_build(snapshot, repo, options.backend)
    answer = Answer(
        pin=reference.pin,
        commit=snapshot.name,
        version=reference.version,
        trusted=ALLOW_LIST if allowed else "publisher",
        builds={build.variant_str: digest_build(build)},
    )
    save_answer(repo, answer)
    return build, answer


def _find_commit(reference: KernelReference, api: HfApi) -> str:
    """Return the commit that a reference means on the hub; a short one, or one without a name, as it is."""
    if reference.revision and reference.is_fixed:
        return reference.revision
    refs = api.list_repo_refs(reference.repo, repo_type="kernel")
    if reference.revision:
        named = {ref.name: ref.target_commit for ref in (*refs.tags, *refs.branches)}
        return named.get(reference.revision, reference.revision)
    branches = {ref.name: ref.target_commit for ref in refs.branches}
    if commit := branches.get(f"v{reference.pin}"):
        return commit
    there = ", ".join(sorted(name[1:] for name in branches if name[1:].isdigit())) or "none"
    reason = f"{reference.repo} has no version {reference.pin}; its versions: {there}"
    raise HubError(HubStatus.NO_SUCH_VERSION, reason)


def _base_folder() -> Path:
    """Return the folder that relative paths refer to: the notebook's in a cell, else the current one."""
    needs = os.environ.get(NEEDS_VARIABLE)
    if needs and (found := find_struct(Path(needs), Needs)):
        return Path(found.project, found.notebook).parent
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script:  # of a cell that was started by hand
        folder = Path(script).absolute().parent
        if folder.parts[-2:] == (".kbt", "cells"):
            return folder.parents[1]
    return Path.cwd()
