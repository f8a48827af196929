"""The device and software that a record was measured with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from importlib import metadata

import torch

from kernels_bench_tools.devices import Device, cpu_device, cuda_device
from kernels_bench_tools.records import Environment, Provenance
from kernels_bench_tools.runs import CellContext


def torch_device() -> str:
    """Return torch's name of the device to measure on: ``"cuda"`` if there is one, else ``"cpu"``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_device(device: str) -> Device:
    """Return the device as records and paths call it."""
    if not device.startswith("cuda"):
        return cpu_device()
    driver = _query_smi("driver_version", device)
    return cuda_device(torch.cuda.get_device_name(device), driver[0] if driver else "")


def describe_environment(device: Device, torch_name: str) -> Environment:
    """Return versions and, for a CUDA device, the clocks as they are now.

    Call it right after a measurement: clocks fall within milliseconds of idling.
    """
    versions = installed_packages()
    environment = Environment(
        torch=str(torch.__version__),
        py=platform.python_version(),
        plat=platform.platform(),
        triton=versions.get("triton", ""),
        kernels=versions.get("kernels", ""),
        cpu=cpu_device().name,
        threads=torch.get_num_threads(),
        driver=device.driver,
    )
    if device.kind == "cuda":
        properties = torch.cuda.get_device_properties(torch_name)
        environment.cuda = torch.version.cuda or ""
        environment.gpu = device.name
        environment.sm = f"{properties.major}.{properties.minor}"
        environment.l2_bytes = properties.L2_cache_size
        clocks = _query_smi("clocks.sm,clocks.mem", torch_name)
        if len(clocks) == 2 and all(clock.isdigit() for clock in clocks):
            environment.sm_clock_mhz, environment.memory_clock_mhz = map(int, clocks)
    return environment


def describe_provenance(context: CellContext, seed: int) -> Provenance:
    """Return where a record comes from."""
    packages = installed_packages()
    return Provenance(
        notebook=context.notebook,
        notebook_digest=context.notebook_digest,
        cell=context.cell,
        commit=context.commit,
        dirty=context.dirty,
        environment=context.environment,
        packages=packages,
        harness=packages.get("kernels-bench-tools", ""),
        seed=seed,
    )


@cache
def installed_packages() -> dict[str, str]:
    """Return every installed distribution with its version, by name."""
    found = {
        str(distribution.metadata["Name"]).lower(): distribution.version
        for distribution in metadata.distributions()
        if distribution.metadata["Name"]
    }
    return dict(sorted(found.items()))


def _query_smi(fields: str, device: str) -> list[str]:
    """Return what ``nvidia-smi`` says of these fields; nothing if it is not there or does not know."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    query = [smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={_smi_id(device)}"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = output.splitlines()
    return [value.strip() for value in lines[0].split(",")] if lines else []


def _smi_id(device: str) -> str:
    """Return the card's id for ``nvidia-smi``, which knows nothing of CUDA_VISIBLE_DEVICES."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return f"GPU-{uuid}"
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
