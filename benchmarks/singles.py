"""Single notebooks built by kbt and by uvnote from PyPI, and their scripts run by ``uv run``."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commands import Costs, timed
from benchmarks.trees import HEADER

_DATED = """# /// script
# requires-python = ">=3.11"
# dependencies = [{dependencies}]
#
# [tool.uv]
# exclude-newer = "2026-11-20T00:00:00Z"
# ///
"""
SINGLES = {
    "stdlib": HEADER + "print(sum(range(1000)))\n",
    "numpy": _DATED.format(dependencies='"numpy"') + "import numpy\nprint(numpy.arange(1000).sum())\n",
    "torch": _DATED.format(dependencies='"torch==2.13.0", "numpy"')
    + "import torch\nprint(torch.arange(1000).sum())\n",
    "prints-110-MB": HEADER
    + "import sys\nline = 'x' * 99 + chr(10)\nfor _ in range(1100):\n    sys.stdout.write(line * 1000)\n",
}
"""Code of the only cell of each notebook."""


@dataclass(frozen=True)
class SingleCosts:
    """Results for one notebook with one cell."""

    kind: str
    cold: Costs
    noop: Costs
    uvnote_cold: Costs
    uvnote_noop: Costs
    plain: Costs
    """``uv run`` of the script, with an existing environment."""

    def row(self) -> str:
        """Return a row of a Markdown table."""
        peak = max(self.cold.peak_mib, self.noop.peak_mib)
        theirs = max(self.uvnote_cold.peak_mib, self.uvnote_noop.peak_mib)
        return (
            f"| {self.kind} | {self.cold} | {self.noop} | {peak:.0f} MiB "
            f"| {self.uvnote_cold} | {self.uvnote_noop} | {theirs:.0f} MiB | {self.plain} |"
        )


def time_single(root: Path, kind: str, repeats: int, environ: dict[str, str]) -> SingleCosts:
    """Write one of ``SINGLES`` as a notebook and time builds of it."""
    root.mkdir(parents=True)
    (root / "pyproject.toml").write_text('[tool.kbt]\ntitle = "One notebook"\n', encoding="utf-8")
    (root / "n.md").write_text(f"# One notebook\n\n```python id=cell\n{SINGLES[kind]}```\n", encoding="utf-8")
    script = root / "script.py"
    script.write_text(SINGLES[kind], encoding="utf-8")
    folders = [root / "site", root / ".kbt", root / ".uvnote", root / "theirs"]

    def costs(command: list[str], cold: bool) -> Costs:
        runs = []
        for _ in range(repeats):
            for folder in folders if cold else ():
                shutil.rmtree(folder, ignore_errors=True)
            runs.append(timed(command, root, environ))
        return Costs(tuple(runs))

    kbt = [sys.executable, "-m", "kernels_bench_tools", "build"]
    uvnote = [str(Path(sys.executable).with_name("uvnote")), "build", "n.md", "-o", "theirs"]
    plain = ["uv", "run", "-q", str(script)]
    timed(plain, root, environ)  # fills uv's cache for all three
    ours = costs(kbt, cold=True), costs(kbt, cold=False)
    theirs = costs(uvnote, cold=True), costs(uvnote, cold=False)
    return SingleCosts(kind, *ours, *theirs, costs(plain, cold=False))
