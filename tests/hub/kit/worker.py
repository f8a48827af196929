"""What a process that has torch does for a case; it is imported before the case is known."""

import contextlib
import importlib
import json
import sys
import time
from typing import Any

import torch

torch.set_num_threads(1)
# What the hub's client needs and keeps no settings; most of its import.
for name in ("httpx2", "httpx", "yaml", "tqdm.auto", "packaging.version", "filelock", "numpy", "msgspec"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


def run_case(calls: str) -> None:
    """Print how each of the calls, as JSON, ended, and what this process then knows."""
    from kernels_bench_tools.hub import loaded_kernels

    start = time.monotonic()
    answer = {
        "all": [run_call(call) for call in json.loads(calls)],
        "seconds": time.monotonic() - start,
        "loaded": [{name: getattr(one, name) for name in one.__struct_fields__} for one in loaded_kernels()],
        "imported": "kernels" in sys.modules,
    }
    print(json.dumps(answer))


def run_call(call: dict[str, Any]) -> dict[str, Any]:
    from kernels_bench_tools import KbtError, get_kernel
    from kernels_bench_tools.hub import HubError

    try:
        got = get_kernel(call.pop("reference"), **call)
    except HubError as error:
        return {"status": error.status.value, "reason": error.reason}
    except KbtError as error:
        return {"status": "mistake", "reason": str(error)}
    if isinstance(got, type):
        got = got()
    function = getattr(got, "scale", got)
    try:
        return {"status": "ok", "value": function(torch.ones(1)).item()}
    except RuntimeError as error:
        return {"status": "raised", "reason": str(error)}
