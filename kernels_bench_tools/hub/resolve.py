"""Which build a reference means here: an override, the project's lock, a source build, the cache, the Hub; in this order."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import find_struct, read_file
from kernels_bench_tools.hub.reference import KernelReference, parse_reference
from kernels_bench_tools.hub.source import read_source
from kernels_bench_tools.hub.status import HubError, HubStatus, classify
from kernels_bench_tools.hub.store import (
    Answer,
    cached_commit,
    cached_names,
    check_files,
    choose_build,
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
    from kernels.resolver import LocalKernel

ALLOW_LIST = "allow-list"
OVERRIDES = "LOCAL_KERNELS"
"""``org/repo=folder:org/repo2=folder2``, as ``kernels`` reads it."""
_NO_ANSWER = {HubStatus.HUB_UNREACHABLE, HubStatus.HUB_ERROR}
_OFFLINE = "HF_HUB_OFFLINE is set"
_LOCAL = Answer(pin="", commit="", trusted="local")
"""What is known of a build that was not downloaded."""


@dataclass
class Resolver:
    """Finds the build of a kernel, and those of its dependencies. ``kernels`` calls :meth:`resolve`."""

    reference: KernelReference
    """The requested kernel."""
    trust: Sequence[str]
    """Publishers or kernels to load although the Hub does not list the publisher as trusted."""
    backend: str | None
    found: dict[Path, HubKernel] = field(default_factory=dict)
    """Descriptions of the builds for the record, by folder."""

    def resolve(self, *, api: Any, backend: str | None, kernel: Any) -> LocalKernel:  # noqa: ARG002
        """Return the build of a ``kernels.KernelDependency``; the first one stands for the requested kernel."""
        from kernels.importer import _loaded_kernels

        reference, pin = self.reference, kernel.version
        if self.found:
            version, revision = getattr(pin, "version", None), getattr(pin, "revision", None)
            reference = parse_reference(kernel.repo_id, version, revision)
        build = self._find(reference)
        name, path = build.metadata.id, build.variant_path
        # The imports inside a second build with the same id would get the modules of the first one.
        if any(one.metadata.id == name and folder != path for folder, one in _loaded_kernels.items()):
            reason = f"another build with the id {name} is loaded; load each of them in a notebook of its own"
            raise HubError(HubStatus.IMPORT_FAILED, reason)
        return build

    def _find(self, reference: KernelReference) -> LocalKernel:
        """Return the build that ``reference`` means here, with its files checked."""
        if folder := _override(reference):
            return self._from_folder(reference, folder)
        if commit := _locked_commit(reference):
            return self._from_lock(reference, commit)
        if local := self._from_source_build(reference):
            return local
        earlier = find_answer(reference.repo, reference.pin) if reference.is_fixed else None
        found = self._from_known(reference, earlier, "cache") if earlier else None
        return found or self._from_hub(reference)

    def _from_folder(self, reference: KernelReference, folder: Path) -> LocalKernel:
        if not folder.is_dir():
            where, what = f"get_kernel({reference.text!r})", f"there is no folder {folder}"
            raise KbtError(where, what, "a kernel's folder")
        build = choose_build(folder, reference.repo or reference.folder, self.backend)
        version, note = build.metadata.version, ""
        if reference.version not in (None, version):
            note = f"version {reference.version} was requested; this folder has version {version}"
        return self._checked(reference, build, "override", _LOCAL, note)

    def _from_source_build(self, reference: KernelReference) -> LocalKernel | None:
        """Return what ``kbt hub build`` made of the kernel, or None if it built no such version.

        A source build that cannot be used is an error: a run must not use the Hub's build in one process only.
        """
        builds = builds_folder(_base_folder())
        folder = builds / reference.repo
        if not folder.is_dir():
            return None
        if reference.repo not in described_builds(builds):
            reason = f"the source build of {reference.repo} is not finished; run `kbt hub build` again"
            raise HubError(HubStatus.CACHE_INCOMPLETE, reason)
        build = choose_build(folder, reference.repo, self.backend)
        version, revision, made = build.metadata.version, reference.revision, read_source_build(build)
        is_commit = made is not None and len(revision) >= 7 and made.commit.startswith(revision)
        if is_commit or (version is not None and version == reference.version):
            return self._checked(reference, build, "override", _LOCAL)
        return None

    def _from_lock(self, reference: KernelReference, commit: str) -> LocalKernel:
        known = find_answer(reference.repo, commit) or Answer(pin=reference.pin, commit=commit)
        if found := self._from_known(reference, known, "lock"):
            return found
        if _is_offline():
            reason = f"{reference.name} is locked to {commit[:12]}, which is not in the local cache"
            raise HubError(HubStatus.NOT_IN_CACHE, f"{reason}, and {_OFFLINE}")
        build, answer = self._download(parse_reference(reference.repo, revision=commit))
        return self._checked(reference, build, "lock", answer)

    def _from_known(self, reference: KernelReference, known: Answer, origin: str) -> LocalKernel | None:
        """Return the commit in a lock or in an earlier answer of the Hub, or None if the Hub has to supply files."""
        if known.trusted == ALLOW_LIST and not self._allows(reference.repo):
            publisher = reference.repo.partition("/")[0]
            reason = f"{publisher} was trusted because of trust=, which does not name it any more"
            raise HubError(HubStatus.UNTRUSTED_PUBLISHER, reason)
        if snapshot_folder(reference.repo, known.commit).is_dir():
            try:
                return self._from_snapshot(reference, known, origin)
            except HubError as error:
                # The hub may supply missing files, or a build for another torch; changed files are an error.
                if error.status is HubStatus.FILES_CHANGED or _is_offline():
                    raise
        return None

    def _from_hub(self, reference: KernelReference) -> LocalKernel:
        """Return what the Hub has; if it does not respond, or with an error, what the cache has."""
        if _is_offline():
            return self._from_cache(reference, _OFFLINE)
        try:
            build, answer = self._download(reference)
        except HubError as error:
            if error.status not in _NO_ANSWER:
                raise
            try:
                return self._from_cache(reference, error.reason)
            except HubError as second:
                if second.status is HubStatus.FILES_CHANGED:
                    raise
                raise error from second
        return self._checked(reference, build, "hub", answer)

    def _from_cache(self, reference: KernelReference, why: str) -> LocalKernel:
        """Return the build in the cache, with a note that states why the Hub was not used."""
        if not (commit := cached_commit(reference)):
            there = ", ".join(sorted(cached_names(reference.repo)))
            what = f"{reference.name} is not in the local cache" + (f" (which has {there})" if there else "")
            raise HubError(HubStatus.NOT_IN_CACHE, f"{what}, and {why}")
        known = find_answer(reference.repo, commit) or Answer(pin=reference.pin, commit=commit)
        return self._from_snapshot(reference, known, "cache", f"taken from the local cache: {why}")

    def _from_snapshot(
        self, reference: KernelReference, known: Answer, origin: str, note: str = ""
    ) -> LocalKernel:
        folder = snapshot_folder(reference.repo, known.commit)
        build = choose_build(folder, reference.repo, self.backend)
        return self._checked(reference, build, origin, known, note)

    def _download(self, reference: KernelReference) -> tuple[LocalKernel, Answer]:
        """Download the build for this system, and keep the Hub's answer for later processes."""
        from huggingface_hub import constants, get_session
        from kernels.hf_hub import _check_trust_remote_code, _get_hf_api
        from kernels.resolver import resolve_hub_kernel

        repo, allowed = reference.repo, self._allows(reference.repo)
        try:
            get_session().timeout = constants.HF_HUB_ETAG_TIMEOUT  # by default most requests have none
            api, trusted = _get_hf_api(), [repo] if allowed else False
            _check_trust_remote_code(repo, local_files_only=False, trust_remote_code=trusted)
            revision = _find_commit(reference, api)
            remote = resolve_hub_kernel(repo, api=api, backend=self.backend, revision=revision)
            # The folder names the full commit, also where a short one was requested.
            snapshot = remote.install(api=api).variant_path.parents[1]
            # Chosen again from the disk, so that the checked build is the loaded one.
            build = choose_build(snapshot, repo, self.backend)
        except Exception as error:
            raise classify(error, repo, HubStatus.HUB_ERROR) from error
        answer = Answer(
            pin=reference.pin,
            commit=snapshot.name,
            version=reference.version,
            trusted=ALLOW_LIST if allowed else "publisher",
            builds={build.variant_str: digest_build(build)},
        )
        save_answer(repo, answer)
        return build, answer

    def _checked(
        self, reference: KernelReference, build: LocalKernel, origin: str, known: Answer, note: str = ""
    ) -> LocalKernel:
        """Return the build after checking its files against what is known of them; describe it for the record."""
        repo = reference.repo or reference.folder
        digest = check_files(build, repo, known.builds.get(build.variant_str))
        # Verifying a signature needs the network; `kernels verify-signature` does it.
        signed = (build.variant_path / "metadata.json.sigstore").exists()
        provenance = build.metadata.provenance
        info = HubKernel(
            repo=repo,
            requested=reference.text if reference.folder or "@" in reference.text else reference.name,
            origin=origin,
            commit=known.commit,
            variant=build.variant_str,
            version=build.metadata.version,
            digest=digest,
            signature="not checked" if signed else "unsigned",
            dirty=None if provenance is None else bool(provenance.dirty),
            trusted=known.trusted or "not checked",
        )
        if made := read_source_build(build):
            source = Path(made.source)
            # It would be measured under the wrong name.
            if (source / "build.toml").is_file() and read_source(source).digest() != made.source_digest:
                reason = f"the source of {repo} changed after it was built; run `kbt hub build` again"
                raise HubError(HubStatus.FILES_CHANGED, reason)
            archs = [f"sm_{arch.replace('.', '')}" for arch in made.archs]
            how = f"built from source with {', '.join([*made.compilers, *archs, f'torch {made.torch}'])}"
            left_out = f"; left out: {', '.join(made.left_out)}" if made.left_out else ""
            info.origin, info.commit, info.dirty = SOURCE_BUILD, known.commit or made.commit, made.dirty
            info.notes.append(how + left_out)
        if note:
            info.notes.append(note)
        self.found[build.variant_path] = info
        return build

    def _allows(self, repo: str) -> bool:
        return repo in self.trust or repo.partition("/")[0] in self.trust


def _override(reference: KernelReference) -> Path | None:
    if reference.folder:
        return _base_folder() / Path(reference.folder).expanduser()
    text = os.environ.get(OVERRIDES, "")
    for entry in text.split(":") if text else []:
        repo, equals, folder = entry.partition("=")
        if not equals:
            raise KbtError(OVERRIDES, f"has the invalid entry {entry!r}", "org/repo=FOLDER:org/other=FOLDER")
        if repo == reference.repo:
            return Path(folder)
    return None


def _locked_commit(reference: KernelReference) -> str:
    """Return the commit of a kernel in the project's lock, or nothing; a ``KbtError`` if the lock cannot be read."""
    from kernels._rust import KernelDependency, KernelLocks, KernelVersion

    path = find_lock(_base_folder())
    if path is None:
        return ""
    what = ""
    try:
        locks = KernelLocks.from_json(read_file(path).decode())
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except ValueError as error:
        what = f"is not a lock file of kernels ({error})"
    if what:
        raise KbtError(str(path), what, "", "Write it with `kernels lock`")
    version = (
        KernelVersion.Revision(reference.revision)
        if reference.version is None
        else KernelVersion.Version(reference.version)
    )
    entry = locks.get(KernelDependency(reference.repo, version))
    return entry.commit if entry else ""


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _find_commit(reference: KernelReference, api: HfApi) -> str:
    """Return the commit that a reference means on the Hub; a short one, or one without a name, as it is."""
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
