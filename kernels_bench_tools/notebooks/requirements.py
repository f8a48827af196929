"""Whether this machine is one that a notebook asks for."""

from __future__ import annotations

import os
import platform

from kernels_bench_tools.schema.build import FrontMatter
from kernels_bench_tools.schema.device import Device


def unmet_requirement(front: FrontMatter, device: Device) -> str:
    """Return why the notebook's cells cannot run here, in one line; empty if they can.

    >>> gpu = Device(kind="cuda", name="NVIDIA H200", slug="nvidia-h200")
    >>> unmet_requirement(FrontMatter(requires=["rocm"]), gpu)
    'needs a ROCM device; this machine has NVIDIA H200'
    """
    here = (os.environ.get("UVNOTE_PLATFORM") or platform.system()).lower()
    if front.platforms is not None and here not in front.platforms:
        if not front.platforms:
            return "is switched off (`platforms: []`)"
        return f"runs on {' or '.join(front.platforms)} only; this machine runs {here}"
    if front.requires and device.kind not in front.requires:
        kinds = " or ".join(kind.upper() for kind in front.requires)
        return f"needs a {kinds} device; this machine has {device.name}"
    return ""
