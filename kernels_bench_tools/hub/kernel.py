"""Load a kernel into this process, and keep account of what was loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels_bench_tools.errors import KbtError, Unsupported
from kernels_bench_tools.hub.deadline import find_deadline
from kernels_bench_tools.hub.device import DEVICES, backend_for, device_here
from kernels_bench_tools.hub.reasons import classify
from kernels_bench_tools.hub.reference import Reference, parse_reference
from kernels_bench_tools.hub.resolve import Found, Terms, resolve
from kernels_bench_tools.hub.status import HubError, HubStatus
from kernels_bench_tools.schema.record import HubKernel

SWITCH = "USE_HUB_KERNELS"
OFF_VALUES = {"0", "OFF", "NO", "FALSE"}
"""Values of ``USE_HUB_KERNELS`` that switch hub kernels off."""

_loaded: dict[Path, tuple[HubKernel, str]] = {}
"""Folder of a build to what is known of it and its metadata's id. Modules belong to the process, so does this."""


def get_kernel(
    reference: str | Mapping[str, str],
    *,
    version: int | str | None = None,
    revision: str | None = None,
    trust: Sequence[str] = (),
    backend: str | None = None,
    deadline_s: float | None = None,
) -> Any:
    """Return a kernel as a module, or the layer or function of it that was asked for.

    Args:
        reference: ``"org/repo@1"``, ``"org/repo@>=1,<3:Layer"``, ``"org/repo@COMMIT.function"``, ``"./folder"``;
            or one of these for each kind of device: ``{"cuda": "org/a@1", "cpu": "org/b@2"}``.
        version: Major version or constraint, where the reference has none.
        revision: Branch, tag or commit, where the reference has none.
        trust: Publishers (``"org"``) or kernels (``"org/repo"``) to load although the hub does not call the
            publisher trusted. Kernels are programs: name whom you would let run programs here.
        backend: ``"cpu"`` for a build for the CPU beside a torch for a GPU. Usually found by itself.
        deadline_s: Seconds of silence after which the hub is given up; 60, or ``KBT_HUB_DEADLINE_S``.

    Raises:
        HubError: It cannot be had here; ``.status`` is one of a closed set, and the reason is one line. It is an
            ``Unsupported``: the implementation gets rows that say so.
        KbtError: The reference, or another argument, is wrong.
    """
    choices = reference if isinstance(reference, Mapping) else {"": reference}
    parsed = {kind: parse_reference(text, version, revision) for kind, text in choices.items()}
    _check_arguments(parsed, trust)
    seconds = find_deadline(deadline_s)
    check_switch()
    check_library()
    chosen = choose(parsed)
    try:
        terms = Terms(trust, seconds, backend_for(backend))
        module = _load(resolve(chosen, terms), terms)
    except (Unsupported, KbtError):
        raise
    except Exception as error:
        raise classify(error, chosen.name, HubStatus.IMPORT_FAILED) from error
    return _select(module, chosen)


def loaded_kernels() -> list[HubKernel]:
    """Return the kernels that this process has loaded by :func:`get_kernel`, those they depend on included."""
    return [kernel for kernel, _ in _loaded.values()]


def _check_arguments(parsed: Mapping[str, Reference], trust: Sequence[str]) -> None:
    unknown = sorted(kind for kind in parsed if kind and kind not in DEVICES)
    if unknown or not parsed:
        what = f"names the device {unknown[0]!r}" if unknown else "names no device"
        raise KbtError("get_kernel({...})", what, ", ".join(DEVICES))
    if (
        isinstance(trust, str)
        or not isinstance(trust, Sequence)
        or not all(isinstance(t, str) for t in trust)
    ):
        raise KbtError(
            f"get_kernel(trust={trust!r})", "is no allow-list", 'a list such as ["org", "org/repo"]'
        )


def check_switch() -> None:
    """Raise if the user has switched hub kernels off.

    Raises:
        HubError: They are.
    """
    switch = os.environ.get(SWITCH, "").strip()
    if switch.upper() in OFF_VALUES:
        raise HubError(HubStatus.DISABLED, f"hub kernels are switched off ({SWITCH}={switch})")


def check_library() -> None:
    """Raise if the hub's client is not installed, or cannot be imported.

    Raises:
        HubError: With the package that is missing.
    """
    try:
        import kernels  # noqa: F401
    except ModuleNotFoundError as error:
        reason = f"needs the package {error.name!r}, which is not installed in this environment"
        raise HubError(HubStatus.MISSING_DEPENDENCY, reason) from error
    except Exception as error:  # it reads settings of the user's, and may not understand one
        raise classify(error, "the package 'kernels'", HubStatus.IMPORT_FAILED) from error


def choose(parsed: Mapping[str, Reference]) -> Reference:
    """Return the reference for the device that this process measures on; ``""`` stands for every device.

    Raises:
        HubError: There is none for it.
    """
    if "" in parsed:
        return parsed[""]
    here = device_here()
    if here not in parsed:
        reason = f"there is a kernel for {', '.join(parsed)} here, and this device is {here}"
        raise HubError(HubStatus.BACKEND_NOT_HERE, reason)
    return parsed[here]


def _load(found: Found, terms: Terms) -> Any:
    """Return the module of a build, which is imported if it has not been."""
    from kernels._rust import KernelDependency, KernelVersion
    from kernels.hf_hub import _get_hf_api
    from kernels.load import get_kernel_with_resolver
    from kernels.validate import AllValidator, ArchValidator, default_metadata_validators

    tree = _Tree(found, terms)
    root = KernelDependency(repo_id=found.reference.name, version=KernelVersion.Version(0))
    module = get_kernel_with_resolver(
        api=_get_hf_api(),
        backend=terms.backend,
        kernel=root,
        resolver=tree,
        # The check of the card comes before the import: a build for another one can end the process.
        metadata_validator=AllValidator(validators=[*default_metadata_validators(), ArchValidator()]),
    )
    for one in tree.found:
        _loaded[one.build.folder] = (describe(one), one.build.metadata.id)
    return module


class _Tree:
    """Finds a kernel and those it depends on, all by the same rules."""

    def __init__(self, root: Found, terms: Terms) -> None:
        self.found: list[Found] = []
        self._root = root
        self._terms = terms

    def resolve(self, *, api: Any, backend: str | None, kernel: Any) -> Any:  # noqa: ARG002
        """Return where a kernel is on this disk; the first that ``kernels`` asks for is the one to load."""
        from kernels.resolver import LocalKernel

        found = resolve(dependency_reference(kernel), self._terms) if self.found else self._root
        _check_alone(found)
        self.found.append(found)
        return LocalKernel(variant_path=found.build.folder, metadata=found.build.metadata)


def dependency_reference(kernel: Any) -> Reference:
    """Return the reference that a ``kernels.KernelDependency`` of a build's metadata stands for."""
    pin = kernel.version
    return parse_reference(kernel.repo_id, getattr(pin, "version", None), getattr(pin, "revision", None))


def _check_alone(found: Found) -> None:
    """Refuse a second build with the same id: its own imports would get the first one's modules."""
    name = found.build.metadata.id
    for folder, (_, known) in _loaded.items():
        if known == name and folder != found.build.folder:
            reason = f"another build called {name} is loaded in this process; compare them in two notebooks"
            raise HubError(HubStatus.IMPORT_FAILED, reason)


def describe(found: Found) -> HubKernel:
    """Return what records say of a build."""
    return HubKernel(
        repo=found.reference.repo or found.reference.folder,
        requested=found.reference.requested,
        origin=found.origin,
        commit=found.commit,
        variant=found.build.variant,
        version=found.build.metadata.version,
        digest=found.digest,
        signature=found.build.signature,
        dirty=found.build.dirty,
        trusted=found.trusted,
        notes=found.notes,
    )


def _select(module: Any, reference: Reference) -> Any:
    if not reference.layer and not reference.function:
        return module
    name = reference.layer or reference.function
    holder = getattr(module, "layers", None) if reference.layer else module
    if not hasattr(holder, name):
        kind = "layer" if reference.layer else "function"
        there = ", ".join(sorted(one for one in dir(holder) if not one.startswith("_"))[:12]) or "none"
        reason = f"{reference.name} has no {kind} {name}; it has: {there}"
        raise HubError(
            HubStatus.NO_SUCH_LAYER, reason if holder is not None else f"{reference.name} has no layers"
        )
    return getattr(holder, name)
