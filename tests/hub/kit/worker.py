"""A process that has torch, and forks a child for every case: each gets the hub's client fresh.

The client reads its settings when it is imported, and modules stay for the life of a process; importing torch
for every case would take minutes.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import sys
import time
from typing import Any

import torch

HIDDEN = ("HF_", "KERNELS_", "KBT_", "LOCAL_KERNELS", "USE_HUB_KERNELS", "HTTP", "ALL_PROXY")
"""Prefixes of variables that no case gets from this process."""


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    for name in [name for name in os.environ if name.upper().startswith(HIDDEN)]:
        del os.environ[name]
    os.environ.update(case["variables"])
    os.chdir(case["folder"])
    exec(case["before"], {})
    if "build" in case:
        return run_build(case["build"])
    from kernels_bench_tools.hub import loaded_kernels

    start = time.monotonic()
    outcomes = [run_call(call) for call in case["calls"]]
    return {
        "seconds": time.monotonic() - start,
        "outcomes": outcomes,
        "loaded": [{name: getattr(one, name) for name in one.__struct_fields__} for one in loaded_kernels()],
        "imported": "kernels" in sys.modules,
    }


def run_build(request: dict[str, Any]) -> dict[str, Any]:
    """Run the process that ``kbt hub build`` starts, without starting torch again."""
    import msgspec

    from kernels_bench_tools.hub.build.__main__ import main
    from kernels_bench_tools.records.hub import BuildRequest

    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(msgspec.convert(request, BuildRequest))
    return {"code": code, "out": output.getvalue(), "err": errors.getvalue()}


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


def fork_case(case: dict[str, Any]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as answer, contextlib.redirect_stdout(sys.stderr):
            try:
                json.dump(run_case(case), answer)
            except BaseException as error:
                json.dump({"error": repr(error)}, answer)
        os._exit(0)  # threads that wait for a silent hub stay behind
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


if __name__ == "__main__":
    torch.set_num_threads(1)
    # What the client needs and keeps no settings; most of its import.
    for name in ("httpx2", "httpx", "yaml", "tqdm.auto", "packaging.version", "filelock", "numpy", "msgspec"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # torch alone is a million objects
    print("ready", flush=True)
    for line in sys.stdin:
        print(fork_case(json.loads(line)), flush=True)
