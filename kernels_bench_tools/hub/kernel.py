"""Load a kernel into this process, for notebooks and for transformers, and list the loaded ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernels_bench_tools.errors import KbtError, Unsupported
from kernels_bench_tools.hub.reference import KernelReference, parse_reference
from kernels_bench_tools.hub.resolve import Resolver
from kernels_bench_tools.hub.status import HubError, HubStatus, classify
from kernels_bench_tools.records.record import HubKernel

SWITCH = "USE_HUB_KERNELS"
OFF_VALUES = {"0", "OFF", "NO", "FALSE"}
KERNELS = "0.17"
"""Of the package ``kernels``, whose interface for locks and builds is another one in each minor version."""

_loaded: dict[Path, HubKernel] = {}
"""The kernels that this process has loaded, by the folder of their build."""


def get_kernel(
    reference: str,
    *,
    version: int | None = None,
    revision: str | None = None,
    trust: Sequence[str] = (),
    backend: str | None = None,
) -> Any:
    """Return a kernel of the Hub as a module, or a layer or function of it.

    Args:
        reference: ``"org/repo@1"``, ``"org/repo@2:Layer"``, ``"org/repo@COMMIT.function"``, ``"./folder"``.
        version: Major version, where the reference has none.
        revision: Branch, tag or commit, where the reference has none.
        trust: Publishers (``"org"``) or kernels (``"org/repo"``) to load although the Hub does not list the
            publisher as trusted. A kernel is a program that runs with your permissions.
        backend: ``"cpu"`` for a CPU build if torch was built for a GPU. Detected by default.

    Raises:
        HubError: The kernel is not available; ``.status`` is one of a closed set, and the reason is one line. It is
            an ``Unsupported``: inside ``load`` of ``run_benchmark`` it becomes records with this reason.
        KbtError: The reference, or another argument, is wrong.
    """
    parsed = parse_reference(reference, version, revision)
    if isinstance(trust, str) or not (isinstance(trust, Sequence) and all(isinstance(x, str) for x in trust)):
        expected = 'a list such as ["org", "org/repo"]'
        raise KbtError(f"get_kernel(trust={trust!r})", "is not a list of publishers or kernels", expected)
    if reason := switched_off():
        raise HubError(HubStatus.DISABLED, reason)
    try:
        module = _load(parsed, trust, backend)
    except (Unsupported, KbtError):
        raise
    except Exception as error:
        raise classify(error, parsed.name, HubStatus.IMPORT_FAILED) from error
    return _select(module, parsed)


def loaded_kernels() -> list[HubKernel]:
    """Return the kernels that :func:`get_kernel` has loaded in this process, including their dependencies."""
    return [*_loaded.values()]


def switched_off() -> str:
    """Return why no kernel of the Hub may be loaded, or nothing."""
    switch = os.environ.get(SWITCH, "").strip()
    return f"Hub kernels are disabled ({SWITCH}={switch})" if switch.upper() in OFF_VALUES else ""


def _load(reference: KernelReference, trust: Sequence[str], backend: str | None) -> Any:
    """Resolve a kernel and its dependencies, and return its module."""
    import kernels
    import torch

    if kernels.__version__.rpartition(".")[0] != KERNELS:
        reason = f"kernels {kernels.__version__} is installed, but get_kernel needs {KERNELS}"
        raise HubError(HubStatus.KERNELS_TOO_OLD, reason)

    from kernels._rust import KernelDependency, KernelVersion
    from kernels.hf_hub import _get_hf_api
    from kernels.load import get_kernel_with_resolver
    from kernels.validate import AllValidator, ArchValidator, default_metadata_validators

    # A torch that was built for a GPU and finds none runs on the CPU, where only CPU builds can run.
    kinds = (getattr(torch, kind, None) for kind in ("cuda", "xpu", "mps", "npu"))
    if not any(getattr(kind, "is_available", bool)() for kind in kinds):
        backend = backend or "cpu"
    resolver = Resolver(reference, trust, backend)
    module = get_kernel_with_resolver(
        api=_get_hf_api(),
        backend=backend,
        kernel=KernelDependency(repo_id=reference.name, version=KernelVersion.Version(0)),
        resolver=resolver,
        # The architecture is checked before the import: a build for another GPU can end the process.
        metadata_validator=AllValidator(validators=[*default_metadata_validators(), ArchValidator()]),
    )
    _loaded.update(resolver.found)
    return module


def _select(module: Any, reference: KernelReference) -> Any:
    name = reference.layer or reference.function
    if not name:
        return module
    holder = getattr(module, "layers", None) if reference.layer else module
    if not hasattr(holder, name):
        kind = "layer" if reference.layer else "function"
        public = [one for one in dir(holder) if not one.startswith("_")]
        there = ", ".join(public[:12]) or "none"
        raise HubError(HubStatus.NO_SUCH_LAYER, f"{reference.name} has no {kind} {name}; it has: {there}")
    return getattr(holder, name)


@dataclass(frozen=True, kw_only=True)
class HubLayer:
    """A layer of a kernel; has the arguments and methods of ``kernels.LayerRepository`` that ``kernelize`` uses.

    That one requests the revision from the Hub first, even for kernels that were built from source.
    """

    repo_id: str
    layer_name: str
    revision: str | None = None
    version: int | None = None
    trust_remote_code: bool = False

    def load(self) -> Any:
        """Return the layer's class; raise ``HubError`` if it is not available."""
        trust = [self.repo_id] if self.trust_remote_code else []
        reference = f"{self.repo_id}:{self.layer_name}"
        return get_kernel(reference, version=self.version, revision=self.revision, trust=trust)


def use_in_transformers() -> None:
    """Let transformers find its kernels as :func:`get_kernel` does: those of its table and of ``KernelConfig``, and attention."""
    hub_kernels: Any = import_module("transformers.integrations.hub_kernels")
    # It makes its table at the first use_kernels=True.
    hub_kernels.LayerRepository = HubLayer
    hub_kernels.get_kernel_hub = _module
    if find_spec("kernels"):
        kernels: Any = import_module("kernels")
        kernels.LayerRepository = HubLayer  # where KernelConfig imports it from


def _module(
    repo_id: str,
    *,
    revision: str | None = None,
    version: int | None = None,
    trust_remote_code: bool = False,
    **_: Any,
) -> Any:
    """Return a kernel; the arguments are those of ``kernels.get_kernel``."""
    trust = [repo_id] if trust_remote_code else []
    return get_kernel(repo_id, version=version, revision=revision, trust=trust)
