"""A page whose inputs did not change is neither made nor written again."""

from __future__ import annotations

import pytest

from kernels_bench_tools.report import making
from kernels_bench_tools.report.products import Product, make_products
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.schema.build import FrontMatter, NotebookRun, Prose
from kernels_bench_tools.schema.record import Status

TRITON = "layer_norm/impls/triton_layer_norm.md"
METHODS = [name for name, value in vars(making.Maker).items() if callable(value) and not name.startswith("_")]


@pytest.fixture
def made(monkeypatch):
    """What is made from here on, by the names of the makers; they go on making it."""
    names: list[str] = []

    def counted(name, make):
        def method(self, *arguments):
            names.append(name)
            return make(self, *arguments)

        return method

    for name in METHODS:
        monkeypatch.setattr(making.Maker, name, counted(name, getattr(making.Maker, name)))
    return names


def test_nothing_is_made_when_nothing_changed(sample, made):
    publish(sample.root, sample.build, sample.root / "site")
    assert set(made) == set(METHODS) - {"figure"} or "figure" in made
    made.clear()
    publish(sample.root, sample.build, sample.root / "site")
    assert made == []


def test_a_log_makes_only_the_pages_that_may_show_it(sample, made):
    publish(sample.root, sample.build, sample.root / "site")
    made.clear()
    sample.log(TRITON).write_text("another line\n")
    publish(sample.root, sample.build, sample.root / "site")
    assert made.count("implementation") == 1
    assert {"front", "method", "status", "figure", "feed", "report"}.isdisjoint(made)


def test_another_operator_is_left_alone(sample, made):
    front = FrontMatter(title="Other")
    sample.build.notebooks.append(NotebookRun(path="other/impls/x.md", digest="", front=front, blocks=[]))
    publish(sample.root, sample.build, sample.root / "site")
    made.clear()
    sample.notebook("other/impls/x.md").blocks.append(Prose(text="New.\n"))
    published = publish(sample.root, sample.build, sample.root / "site")
    assert published.written == ["other/impls/x.html"]
    assert made.count("implementation") == made.count("operator") == 1


def test_incremental_builds_end_where_a_whole_one_does(sample):
    def contents(folder):
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    site = sample.root / "site"
    publish(sample.root, sample.build, site)
    summary = sample.artifact("summary.json")
    summary.write_text(summary.read_text().replace("1.62", "1.73"))
    publish(sample.root, sample.build, site)
    sample.notebook(TRITON).front = FrontMatter(title="Renamed", description="Otherwise.")
    publish(sample.root, sample.build, site)
    cell = sample.notebook(TRITON).cells[0]
    cell.status, cell.reason = Status.ERROR, "ValueError"
    publish(sample.root, sample.build, site)
    sample.build.notebooks.append(
        NotebookRun(path="new/impls/x.md", digest="", front=FrontMatter(), blocks=[])
    )
    publish(sample.root, sample.build, site)
    publish(sample.root, sample.build, sample.root / "whole")
    assert contents(site) == contents(sample.root / "whole")


def test_links_that_lead_nowhere_are_told_again_and_forgotten_once_they_lead_somewhere(sample):
    sample.notebook(TRITON).blocks.insert(0, Prose(text="[read](../../README.md)\n"))
    site = sample.root / "site"
    for _ in range(2):
        assert publish(sample.root, sample.build, site).dead_links == ["layer_norm/impls: ../../README.md"]
    # Not an input of the page that any key knows.
    (sample.root / "README.md").write_text("here")
    assert publish(sample.root, sample.build, site).dead_links == []


def test_a_damaged_page_is_made_again(sample):
    site = sample.root / "site"
    publish(sample.root, sample.build, site)
    (site / "method.html").write_text("cut")
    assert publish(sample.root, sample.build, site).written == ["method.html"]


def test_many_products_made_in_processes_are_the_same_and_their_dead_links_are_known(tmp_path):
    dead: set[str] = set()

    def product(number):
        def make():
            if number % 50 == 0:
                dead.add(f"link {number}")
            return str(number).encode()

        return Product(str(number), make)

    def put(path, data):
        (tmp_path / path).write_bytes(data)
        return True

    found = list(make_products({f"{number}.txt": product(number) for number in range(150)}, put, dead))
    assert [one.path for one in found] == [f"{number}.txt" for number in range(150)]
    assert [one.dead for one in found if one.dead] == [["link 0"], ["link 50"], ["link 100"]]
    assert (tmp_path / "149.txt").read_text() == "149"
