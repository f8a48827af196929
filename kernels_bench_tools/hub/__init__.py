"""Kernels from the Hugging Face Hub.

kernel      get_kernel: a reference becomes a module, layer or function in this process
reference   the syntax of references
resolve     which build a reference means: override, lock, cache, hub, in this order
store       the file kernels.lock, and the local cache: snapshots, builds, digests of their files
status      HubStatus and HubError; classification of exceptions
prefetch    the process that `kbt prefetch` starts

``kernels`` and ``torch`` are imported when a kernel is requested, not before.
"""

from kernels_bench_tools.hub.kernel import get_kernel, loaded_kernels
from kernels_bench_tools.hub.status import HubError, HubStatus

__all__ = ["HubError", "HubStatus", "get_kernel", "loaded_kernels"]
