"""A hub's cache as downloads leave it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

COMMIT = "c0ffee" * 6 + "0000"


def seed_cache(
    cache: Path, repo: str, kernel: Path, refs: Sequence[str] = ("v1",), commit: str = COMMIT
) -> Path:
    """Put ``kernel`` into ``cache`` as ``repo`` at ``commit``, which ``refs`` name; return its snapshot."""
    root = cache / f"kernels--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    shutil.copytree(kernel, snapshot)
    for ref in refs:
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / ref).write_text(commit)
    return snapshot
