"""The kind of device that this process measures on, as references by device name it."""

from __future__ import annotations

from kernels_bench_tools.hub.status import HubError, HubStatus

DEVICES = ("cuda", "rocm", "xpu", "mps", "npu", "cpu")


def device_here() -> str:
    """Return the kind of device that torch can use here, the first of :data:`DEVICES` that is there.

    Raises:
        HubError: There is no torch, by whose version builds are chosen.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        reason = f"needs the package {error.name!r}, which is not installed in this environment"
        raise HubError(HubStatus.MISSING_DEPENDENCY, reason) from error

    if torch.cuda.is_available():
        return "rocm" if torch.version.hip else "cuda"
    for kind in ("xpu", "mps", "npu"):
        module = getattr(torch, kind, None)
        if module is not None and hasattr(module, "is_available") and module.is_available():
            return kind
    return "cpu"


def backend_for(asked: str | None) -> str | None:
    """Return the backend whose builds to look for; None leaves it to ``kernels``, which asks torch.

    A torch that was built for a GPU and finds none measures on the CPU, where only builds for it can run.
    """
    return asked or ("cpu" if device_here() == "cpu" else None)
