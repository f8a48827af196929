"""The site of this project's own operators, made from the records that are committed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from kernels_bench_tools.devices import Device
from kernels_bench_tools.publish.site import publish
from kernels_bench_tools.records import Status, read_records
from kernels_bench_tools.runs import BuildRun, CellRun, FrontMatter, NotebookRun, ProjectInfo, Prose
from kernels_bench_tools.summaries import Summary
from kernels_bench_tools.summarize.charts import CHARTS
from kernels_bench_tools.summarize.figures import chart_svg
from kernels_bench_tools.summarize.sources import Source
from kernels_bench_tools.summarize.summary import summarize

ROOT = Path(__file__).parent.parent.parent
OPERATORS = sorted({folder.parent.parent.parent.name for folder in ROOT.glob("*/results/records/*/")})


def write_site(root: Path) -> Path:
    """Write the project's site below ``root``, and return its folder."""
    notebooks = [_notebook("index.md")]
    for operator in OPERATORS:
        notebooks += _operator(root, operator)
    build = BuildRun(
        project=ProjectInfo(title="Kernels"),
        device=Device(kind="cpu", name="AMD EPYC, 2 cores", slug="amd-epyc-2-cores"),
        environment="uv",
        notebooks=notebooks,
    )
    publish(root, build, root / "site")
    return root / "site"


def _operator(root: Path, operator: str) -> list[NotebookRun]:
    index = _notebook(f"{operator}/index.md")
    impls = [
        _notebook(path.relative_to(ROOT).as_posix()) for path in sorted(ROOT.glob(f"{operator}/impls/*.md"))
    ]
    fronts = {Path(notebook.path).stem: notebook.front for notebook in impls}
    files = sorted(ROOT.glob(f"{operator}/results/records/*/*.jsonl"))
    sources = [Source(records=read_records(file), front=fronts.get(file.stem)) for file in files]
    folder = root / "made" / operator
    folder.mkdir(parents=True)
    summary: Summary = summarize(operator, index.front.title, sources)
    (folder / "summary.json").write_bytes(msgspec.json.encode(summary))
    for chart in CHARTS:
        (folder / f"{chart.name}.svg").write_bytes(chart_svg(summary, chart))
    left = {path.name: path.relative_to(root).as_posix() for path in sorted(folder.iterdir())}
    cell = CellRun(id="combine", code="combine()\n", line=1, status=Status.OK, artifacts=left)
    combined = _notebook(f"{operator}/results/combined_results.md")
    combined.blocks.append(cell)
    return [index, *impls, combined]


def _notebook(path: str) -> NotebookRun:
    _, front, text = (ROOT / path).read_text(encoding="utf-8").split("---\n", 2)
    # Cells are of no concern here.
    prose = text.split("```python id=")[0]
    known = msgspec.convert(yaml.safe_load(front), FrontMatter)
    return NotebookRun(path=path, digest="ab" * 32, front=known, blocks=[Prose(text=prose)])
