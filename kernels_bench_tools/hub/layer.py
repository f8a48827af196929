"""Hub kernels of transformers and ``kernelize``, found as :func:`get_kernel` finds kernels."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kernels_bench_tools.hub.kernel import get_kernel


@dataclass(frozen=True, kw_only=True)
class HubLayer:
    """A layer of a kernel; has the arguments and methods of ``kernels.LayerRepository`` that ``kernelize`` uses.

    That one requests the revision from the hub first, even for kernels that were built from source.
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
