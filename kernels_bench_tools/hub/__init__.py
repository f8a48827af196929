"""Kernels from the Hugging Face Hub. ``kernels`` and ``torch`` are imported when a kernel is requested, not before."""

from kernels_bench_tools.hub.kernel import get_kernel, loaded_kernels
from kernels_bench_tools.hub.status import HubError, HubStatus

__all__ = ["HubError", "HubStatus", "get_kernel", "loaded_kernels"]
