"""Layers of hub kernels for ``kernelize``, found as :func:`get_kernel` finds kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_bench_tools.hub.kernel import get_kernel


@dataclass(frozen=True, kw_only=True)
class HubLayer:
    """A layer of a kernel; has the arguments and methods of ``kernels.LayerRepository`` that ``kernelize`` uses.

    That one asks the hub for the revision first, also for kernels that were built from source.
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
    """Let transformers' table of kernels, which it makes at the first ``use_kernels=True``, consist of :class:`HubLayer`."""
    from transformers.integrations import hub_kernels

    hub_kernels.LayerRepository = HubLayer
