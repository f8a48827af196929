"""Pages whose inputs did not change are not rendered again."""

import pytest
from builds import notebook_run
from projects import contents

from kernels_bench_tools.records.build import Prose
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.report import pages
from kernels_bench_tools.report.site import publish

TRITON = "layer_norm/impls/triton_layer_norm.md"
RENDERERS = [name for name, value in vars(pages).items() if name.endswith("_page") and callable(value)]


@pytest.fixture
def rendered(monkeypatch):
    """The names of the functions that render pages, each time that one is called."""
    names: list[str] = []

    def counted(name, render):
        def function(*arguments):
            names.append(name)
            return render(*arguments)

        return function

    for name in RENDERERS:
        monkeypatch.setattr(pages, name, counted(name, getattr(pages, name)))
    return names


def test_nothing_is_rendered_or_written_when_nothing_changed(sample, rendered):
    first = sample.publish()
    assert set(rendered) >= {"front_page", "operator_page", "implementation_page", "device_page"}
    rendered.clear()
    times = {path: (sample.site / path).stat().st_mtime_ns for path in first.written}
    for cell in (cell for notebook in sample.build.notebooks for cell in notebook.cells):
        cell.cached = True  # where a result came from is on no page
    assert sample.publish().written == rendered == []
    assert times == {path: (sample.site / path).stat().st_mtime_ns for path in times}


def test_a_change_renders_only_the_pages_that_show_it(sample, rendered):
    sample.build.notebooks.append(notebook_run("other/impls/x.md", title="Other"))
    sample.publish()
    rendered.clear()
    sample.notebook("other/impls/x.md").blocks.append(Prose(text="New.\n"))
    assert sample.publish().written == ["other/impls/x.html"]
    assert rendered.count("implementation_page") == rendered.count("operator_page") == 1
    sample.log(TRITON).write_text("another line\n")
    assert sample.publish().written == ["layer_norm/impls/triton_layer_norm.html"]


def test_incremental_builds_give_the_same_site_as_a_full_build(sample):
    sample.publish()
    sample.edit("1.62", "1.73")
    sample.publish()
    sample.notebook(TRITON).front = FrontMatter(title="Renamed", description="Otherwise.")
    sample.publish()
    cell = sample.notebook(TRITON).cells[0]
    cell.status, cell.reason = Status.ERROR, "ValueError"
    sample.publish()
    sample.build.notebooks.append(notebook_run("new/impls/x.md"))
    sample.publish()
    publish(sample.root, sample.build, sample.root / "whole")
    assert contents(sample.site) == contents(sample.root / "whole")


def test_dead_links_are_reported_until_they_are_fixed(sample):
    sample.notebook(TRITON).blocks.insert(0, Prose(text="[read](../../README.md)\n"))
    for _ in range(2):
        assert sample.publish().dead_links == [f"{TRITON}: ../../README.md"]
    # Not part of the key of the page.
    (sample.root / "README.md").write_text("here")
    assert sample.publish().dead_links == []


def test_a_damaged_page_is_rendered_again(sample):
    site = sample.site
    sample.publish()
    (site / "method.html").write_text("cut")
    assert sample.publish().written == ["method.html"]
