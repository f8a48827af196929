"""Kernels in Python that the real `kernels` loads on any CPU."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

KERNEL = "kernels-community/scale"
CODE = "from . import layers\n\n\ndef scale(x):\n    return x * {factor}\n"
LAYERS = """\
import torch


class Scale(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""


def make_kernel(
    folder: Path,
    *,
    variant: str = "torch-cpu",
    version: int = 1,
    factor: int = 2,
    name: str = "scale",
    code: str = "",
    sign: bool = False,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write a kernel's repository with one build into ``folder`` (beside other builds, if it has some).

    ``factor`` is what its function multiplies by, so that a test can tell builds from each other; ``sign`` puts
    the digest of its files into its metadata; ``metadata`` replaces entries of it, and None takes one away.
    """
    build = folder / "build" / variant
    build.mkdir(parents=True, exist_ok=True)
    (build / "__init__.py").write_text(code or CODE.format(factor=factor))
    (build / "layers.py").write_text(LAYERS)
    backend = variant.removeprefix("torch-") if variant.startswith("torch-") else "cpu"
    described = {
        "id": f"_{name}_{version}_{hashlib.sha256(str(build).encode()).hexdigest()[:8]}",
        "name": name,
        "version": version,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": backend},
    }
    if sign:
        files = {path.name: _digest(path) for path in (build / "__init__.py", build / "layers.py")}
        described["digest"] = {"algorithm": "sha256", "files": files}
    described |= metadata or {}
    kept = {key: value for key, value in described.items() if value is not None}
    (build / "metadata.json").write_text(json.dumps(kept))
    return folder


def _digest(path: Path) -> str:
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
