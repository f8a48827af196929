"""Devices, and the device of this machine, found without torch."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from itertools import takewhile
from pathlib import Path

import msgspec

from kernels_bench_tools.own_process import run_program
from kernels_bench_tools.text.names import slugify
from kernels_bench_tools.text.words import plural

_LISTED_GPU = re.compile(r"^(?:GPU (?P<index>\d+):|\s+MIG ).*\(UUID: (?P<uuid>[^)\s]+)\)")
"""A GPU in the list of ``nvidia-smi -L``, or, indented below it, an instance of it."""

_CPU_IDENTITY = (
    *("vendor_id", "cpu family", "model", "stepping"),
    *("CPU implementer", "CPU part", "CPU revision"),
)


class Device(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """torch's device type: ``"cuda"`` or ``"cpu"``."""
    name: str
    """The vendor's name: ``"NVIDIA H200"``, ``"AMD EPYC, 2 cores, 3f9a0c"``."""
    slug: str
    """The name in paths and ids, such as ``"nvidia-h200"``."""
    driver: str = ""

    def __post_init__(self) -> None:
        """Refuse a slug that is not one: pages and folders of records have its name."""
        if slugify(self.slug[:200]) != self.slug:
            raise ValueError("slug is not at most 200 lower-case letters, digits and single hyphens")


def cuda_device(name: str, driver: str = "") -> Device:
    return Device(kind="cuda", name=name, slug=slugify(name), driver=driver)


def names_a_gpu(name: str) -> bool:
    """Whether a name is one of a GPU, not what tools write where there is none: ``N/A``, ``[Not Supported]``."""
    known = name.strip().strip("[]").lower()
    return known not in {"", "cpu", "none", "null", "n/a", "unknown", "not supported", "not available"}


@cache
def cpu_device() -> Device:
    """Return this machine's CPU, named by what distinguishes machines: model, number of cores, and digest of its flags."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    model, digest = _cpu_model()
    name = ", ".join(filter(None, [model, plural(cores, "core"), digest]))
    return Device(kind="cpu", name=name, slug=slugify(name))


@cache
def current_device() -> Device:
    """Return the device that a build on this machine measures: the first visible CUDA GPU, else the CPU."""
    gpus = visible_gpus()
    return _gpu_device(gpus[0]) or cpu_device() if gpus else cpu_device()


def visible_gpus() -> list[str]:
    """Return the GPUs that CUDA can use, by their names in ``CUDA_VISIBLE_DEVICES``, which an empty one hides."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        listed = filter(None, map(_LISTED_GPU.match, ask_smi("-L").splitlines()))
        return [gpu["index"] for gpu in listed if gpu["index"]] or ["0"]
    return [*takewhile(lambda name: name not in {"", "-1"}, map(str.strip, visible.split(",")))]


def gpus_alike() -> list[str]:
    """Return the visible GPUs of the model of the first; only that one among instances (MIG), which share their GPU."""
    visible = visible_gpus()
    if any(name.startswith("MIG-") for name in visible):
        return visible[:1]
    return [name for name in visible if _gpu_device(name) == current_device()]


@cache
def _gpu_device(gpu: str) -> Device | None:
    """Return a GPU, given its name in ``CUDA_VISIBLE_DEVICES``; None if it does not exist."""
    gpu = _find_gpu(gpu) or gpu if gpu.startswith("GPU-") else gpu  # nvidia-smi takes whole UUIDs only
    driver, name = query_gpu("driver_version,name", gpu) or ("", "")
    return cuda_device(name, driver) if names_a_gpu(name) else None


def hardware_id(device: Device, gpu: str = "") -> str:
    """Return the UUID of a GPU, however ``CUDA_VISIBLE_DEVICES`` names it, or the host of the CPU.

    ``gpu`` is the first visible one by default. An instance (MIG) counts as its GPU: clocks and power are shared. A GPU
    that nvidia-smi does not list is the host's with this index.
    """
    if device.kind != "cuda":
        return f"{platform.node()} {device.kind}"
    gpu = gpu or os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    gpu = str(int(gpu)) if gpu.isdecimal() else gpu
    return _find_gpu(gpu) or f"{platform.node()} {device.slug} {gpu}"


def query_gpu(fields: str, gpu: str = "") -> list[str]:
    """Return the values of ``nvidia-smi``'s fields for a GPU, the first if ``gpu`` is empty; empty if it fails.

    Only the last value may contain commas.
    """
    selected = [f"--id={gpu}"] if gpu else []
    output = ask_smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *selected)
    values = [value.strip() for value in output.partition("\n")[0].split(",", fields.count(","))]
    return values if len(values) == fields.count(",") + 1 else []


def _find_gpu(name: str) -> str:
    """Return the UUID of the GPU with this index, or whose UUID, or an instance's, begins so; empty if there is none."""
    gpu = ""
    for line in ask_smi("-L").splitlines():
        if listed := _LISTED_GPU.match(line):
            gpu = listed["uuid"] if listed["index"] else gpu
            if name == listed["index"] or ("-" in name and listed["uuid"].startswith(name)):
                return gpu
    return ""


def ask_smi(*arguments: str) -> str:
    """Return what nvidia-smi prints; empty if it is not installed or fails."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ""
    try:
        done = run_program([smi, *arguments], timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if done.returncode else done.stdout


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, str]:
    """Return the model's name, and six digits of family, model, stepping and flags, which hypervisors do not hide."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    identity = [fields.get(key, "") for key in _CPU_IDENTITY]
    flags = sorted(fields.get("flags", fields.get("Features", "")).split())
    digest = hashlib.sha256(" ".join([*identity, *flags]).encode()).hexdigest()[:6] if flags else ""
    return fields.get("model name") or platform.processor() or platform.machine() or "CPU", digest
