"""Publishing again, publishing less, publishing what failed."""

import json

import pytest
from builds import notebook_run
from projects import contents

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.records.build import Prose
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.report.folder import OutputFolder

COMBINED = "layer_norm/results/combined_results.md"
TRITON = "layer_norm/impls/triton_layer_norm.md"


def test_pages_of_deleted_notebooks_are_removed(sample, read_page, find_flaws):
    site = sample.site
    sample.publish()
    sample.build.notebooks.remove(sample.notebook(TRITON))
    published = sample.publish()
    assert "layer_norm/impls/triton_layer_norm.html" in published.removed
    assert not (site / "layer_norm/impls/artifacts/triton_layer_norm").exists()
    assert published.dead_links == []
    assert find_flaws(site) == []
    assert "Triton layer norm" in read_page(site, "layer_norm/index.html").text  # its row stays


@pytest.mark.parametrize("name", ["CNAME", ".gitignore"])
def test_files_that_no_build_wrote_are_left_alone(sample, name):
    site, precious = sample.site, sample.root / "precious.txt"
    precious.write_text("mine")
    if name == ".gitignore":
        site.mkdir()
        (site / name).write_text("*")
    sample.publish()
    (site / name).write_text("mine")
    sample.publish()
    manifest = json.loads((site / ".kbt-site.json").read_text())
    manifest["files"].append("../precious.txt")
    (site / ".kbt-site.json").write_text(json.dumps(manifest))
    OutputFolder(site).clear()
    assert list(contents(site)) == [name]
    assert precious.exists()


@pytest.mark.parametrize(
    ("name", "published_before", "problem"),
    [
        ("", False, "is not a folder"),
        ("thesis.tex", False, "holds files that kbt did not write, such as thesis.tex"),
        ("new.html", True, "in the way"),
    ],
)
def test_what_no_build_wrote_is_never_replaced(sample, name, published_before, problem):
    if published_before:
        sample.publish()
    sample.build.notebooks.append(notebook_run("new.md"))
    file = sample.site / name if name else sample.site
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(ProjectError, match=problem):
        sample.publish()
    assert file.read_text() == "mine"


def test_nothing_is_written_or_removed_through_a_link_among_the_pages(sample, tmp_path):
    site, outside = sample.site, tmp_path / "outside"
    sample.publish()
    (site / "static").rename(outside)
    (site / "static").symlink_to(outside)
    before = contents(outside)
    for change in (sample.publish, lambda: OutputFolder(site).clear()):
        with pytest.raises(ProjectError, match="static: is a symbolic link"):
            change()
    assert contents(outside) == before


def test_a_folder_that_a_killed_build_began_is_that_of_the_site(sample):
    sample.site.mkdir()
    (sample.site / f"..gitignore.{'0' * 32}").write_text("")
    assert sample.publish().written


def test_folders_of_a_site_whose_files_were_deleted_are_in_no_way(sample):
    sample.publish()
    for path in [*sample.site.rglob("*")]:
        if path.is_file():
            path.unlink()
    assert sample.publish().written


def test_pages_state_why_there_is_no_summary(sample, read_page, find_flaws):
    cell = sample.notebook(COMBINED).cells[0]
    cell.status, cell.reason, cell.exit_code, cell.artifacts = Status.ERROR, "ValueError: no <records>", 1, {}
    site = sample.site
    sample.publish()
    for path in ("index.html", "layer_norm/index.html", "layer_norm/results/combined_results.html"):
        assert "cell combine failed (error): ValueError: no <records>" in read_page(site, path).text, path
    implementation = read_page(site, "layer_norm/impls/triton_layer_norm.html").text
    assert "No summary:" in implementation
    assert "N2048_D4096" in implementation
    assert "PyTorch layer norm" in read_page(site, "index.html").text
    assert find_flaws(site) == []


def test_a_damaged_summary_is_reported_on_the_page(sample, published):
    for damage in (b"", b"{}", b"\xff\xfe", b'{"schema": 1'):
        sample.artifact("summary.json").write_bytes(damage)
        assert "summary.json is not a summary" in published("layer_norm/index.html").text


def test_missing_artifacts_are_named_not_linked_and_missing_logs_left_out(sample, read_page, find_flaws):
    sample.artifact("latency.svg").unlink()
    sample.artifact("latency.csv").unlink()
    sample.log(TRITON).unlink()
    sample.publish()
    assert "latency.svg is missing" in read_page(sample.site, "layer_norm/results/combined_results.html").text
    page = read_page(sample.site, "layer_norm/impls/triton_layer_norm.html")
    assert "a warning" in page.text
    assert "stdout" not in page.text
    assert find_flaws(sample.site) == []


def test_an_operator_without_implementations_or_records_has_a_page(sample, published, find_flaws):
    sample.build.notebooks = [
        sample.notebook("index.md"),
        sample.notebook("layer_norm/index.md"),
        sample.notebook(COMBINED),
    ]
    cell = sample.notebook(COMBINED).cells[0]
    cell.status, cell.artifacts = None, {}
    text = published("layer_norm/index.html").text
    assert "its combine notebook has not run" in text
    assert "No implementations yet." in text
    assert find_flaws(sample.site) == []


def test_a_project_without_notebooks_has_a_front_page(sample, read_page):
    sample.build.notebooks = []
    published = sample.publish()
    assert "No operators yet." in read_page(published.index.parent, "index.html").text


def test_html_in_prose_is_text_unless_the_project_allows_it(sample, published):
    sample.notebook(TRITON).blocks.insert(
        0, Prose(text='<img src="x" onerror="alert(1)">\n\nA <b>word</b>.\n')
    )
    page = published("layer_norm/impls/triton_layer_norm.html")
    assert not page.elements("img")
    assert '<img src="x" onerror="alert(1)">' in page.text

    sample.build.project.raw_html = True
    sample.notebook(TRITON).front.custom_css = ".series:hover path { stroke-width: 3; }"
    script = "<script>\nconst seriesConfig = {'series--x': {}};\n</script>\n"
    sample.notebook(TRITON).blocks += [Prose(text='<div id="mine">x</div>\n\n## mine\n'), Prose(text=script)]
    page = published("layer_norm/impls/triton_layer_norm.html")
    assert len(page.elements("img")) == 1
    assert {"mine", "mine-1"} <= set(page.ids())
    assert "const seriesConfig = {'series--x'" in page.html
    assert ".series:hover path { stroke-width: 3; }" in page.html


def test_long_output_is_shortened_and_kept_as_a_file(sample, read_page, find_flaws):
    sample.log(TRITON).write_text("first\n" + "x" * 3_000_000 + "\nlast\n")
    site = sample.site
    sample.publish()
    page = read_page(site, "layer_norm/impls/triton_layer_norm.html")
    assert len(page.html) < 100_000
    assert "first" in page.text
    assert "last" in page.text
    assert "omitted:" in page.text
    assert (site / "layer_norm/impls/cells/triton_layer_norm/benchmark.stdout.txt").stat().st_size > 3_000_000
    assert find_flaws(site) == []


def test_formulas_are_set_as_mathml_and_money_stays_money(sample, published):
    text = "A row $x_i$ for $5 or $6:\n\n$$\na = {b \\qquad c}\n$$\n\n$$\n\\frac{x_i - \\mu}{\\sigma}, \\qquad y\n$$\n"
    text += "\n$$\nx^1^2 <b>\n$$\n"
    sample.notebook(TRITON).blocks.insert(0, Prose(text=text))
    page = published("layer_norm/impls/triton_layer_norm.html")
    # The last one is divided; braces keep the one before together.
    assert [formula.get("display") for formula in page.elements("math")] == ["inline", *3 * ["block"]]
    assert "for $5 or $6" in page.text
    assert "x^1^2 <b>" in page.text  # cannot be set, so shown as written
    assert not page.elements("b")
