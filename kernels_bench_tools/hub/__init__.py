"""Kernels from the Hugging Face Hub, or the true reason why one cannot be had.

get_kernel        reference -> module, layer or function; :class:`HubError` says why not, as a status
loaded_kernels    what this process has loaded so far, for its records

status references       words: how it may end, what may be asked for
locks cache online      where a kernel may come from
resolving builds        which of them serves, and whether its files are what they should be
loading prefetch        what is done with it

Nothing here imports ``kernels`` or ``torch`` before a kernel is really asked for.
"""

from kernels_bench_tools.hub.kernel import get_kernel, loaded_kernels
from kernels_bench_tools.hub.status import HubError, HubStatus

__all__ = ["HubError", "HubStatus", "get_kernel", "loaded_kernels"]
