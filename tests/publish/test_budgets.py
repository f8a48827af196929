"""How large the pages of the real report are, made from the records that are committed."""

from __future__ import annotations

import gzip
import io
import os
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from kernels_bench_tools.devices import Device
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.notebooks.reporting import describe_cell, describe_notebook
from kernels_bench_tools.publish.site import publish
from kernels_bench_tools.records import Status
from kernels_bench_tools.runs import BuildRun, Need, Needs, ProjectInfo, write_struct
from kernels_bench_tools.summarize.combine import combine

ROOT = Path(__file__).parents[2]
CPU = Device(kind="cpu", name="No device", slug="none")
KB = 1000


def combined(operator: Path, folder: Path, fronts) -> dict[str, str]:
    """Run the operator's combine step on its committed records; return its artifacts."""
    folder.mkdir(parents=True)
    cells = [
        Need(notebook=name, cell="benchmark", front=front, status=Status.UNSUPPORTED, reason="not run", directory=str(folder))
        for name, front in fronts.items()
        if name.startswith(f"{operator.name}/impls/")
    ]  # fmt: skip
    files = sorted(str(path) for path in operator.glob("results/records/*/*.jsonl"))
    notebook = f"{operator.name}/results/combined_results.md"
    needs = Needs(project=str(ROOT), notebook=notebook, device=CPU, cells=cells, files=files)
    write_struct(folder.parent / f"{operator.name}.json", needs)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
        patch.setenv("KBT_NEEDS", str(folder.parent / f"{operator.name}.json"))
        patch.chdir(folder)
        combine()
    return {path.name: os.path.relpath(path, ROOT) for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def real_site(tmp_path_factory):
    """The report of this repository, of committed records alone."""
    base = tmp_path_factory.mktemp("real")
    project = find_project(ROOT)
    notebooks = [read_notebook(project, path) for path in project.notebook_paths()]
    runs = [
        describe_notebook(one, lambda _, cell: describe_cell(project, cell, None, False)) for one in notebooks
    ]
    fronts = {run.path: run.front for run in runs}
    for run in runs:
        if run.path.endswith("/results/combined_results.md"):
            operator = ROOT / run.path.split("/")[0]
            cell = run.cells[0]
            cell.status = Status.OK
            cell.artifacts = combined(operator, base / operator.name, fronts)
    build = BuildRun(
        project=ProjectInfo(title="Real", raw_html=project.raw_html),
        device=CPU,
        environment="uv",
        notebooks=runs,
    )
    publish(ROOT, build, base / "site")
    return base / "site"


def operator_pages(site):
    return [path for path in site.glob("*/index.html") if path.parent.name != "devices"]


def test_the_front_page_is_light(real_site):
    assert (real_site / "index.html").stat().st_size <= 100 * KB


def test_an_operator_page_is_light(real_site):
    pages = operator_pages(real_site)
    assert len(pages) >= 5
    raw = {page.parent.name: page.stat().st_size for page in pages}
    packed = {page.parent.name: len(gzip.compress(page.read_bytes())) for page in pages}
    assert {name: size for name, size in raw.items() if size > 250 * KB} == {}
    assert {name: size for name, size in packed.items() if size > 40 * KB} == {}


def test_no_page_shows_markup_that_was_meant_to_be_read_by_a_browser(real_site):
    shown = {}
    for page in real_site.rglob("*.html"):
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        shown[page.relative_to(real_site).as_posix()] = re.findall(r"&lt;/?[a-z]+[^&]{0,40}&gt;", prose)
    assert len(shown) > 50
    assert {name: found for name, found in shown.items() if found} == {}


def test_every_link_of_the_real_report_resolves(real_site, find_dead_references):
    assert find_dead_references(real_site) == []


def test_the_front_page_follows_the_order_of_its_own_text(real_site, read_page):
    page = read_page(real_site, "index.html")
    headings = ["".join(heading.itertext()) for heading in page.elements("h2")]
    known = [
        "Layer Normalization",
        "Rotary Position Embeddings",
        "Attention",
        "Causal Conv1D",
        "Activation Functions",
    ]
    assert [heading for heading in headings if heading in known] == known
