"""Whatever a cell, a record or a file name holds, a page shows it and runs none of it."""

import time
from unittest.mock import Mock

import msgspec
import pytest

from kernels_bench_tools.records.build import NotebookRun, Prose
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.report import artifacts, site
from kernels_bench_tools.report.artifacts import _OURS, Artifact, linked_files, rendered
from kernels_bench_tools.text.words import words

ROOT_HOME = "/" + "root"

PAYLOAD = '<script>alert("1")</script><img src=x onerror=alert(1)>"\'&'
TRITON = "layer_norm/impls/triton_layer_norm"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9">{}</svg>'


def harmless(page):
    scripts = [
        element
        for element in page.elements("script")
        if not element.get("src", "").endswith("static/report.js")
    ]
    handlers = [
        name for element in page.root.iter() for name in element.attrib if str(name).lower().startswith("on")
    ]
    sources = [url for tag, url in page.references() if tag == "img"]
    return not scripts and not handlers and "x" not in sources


def test_records_are_text(sample, read_page):
    summary = sample.read_summary()
    for row in summary.devices[0].rows:
        row.title = row.reason = row.environment.torch = PAYLOAD
        row.points[0].reason = row.points[0].workload = PAYLOAD
        row.provenance.packages = {PAYLOAD: PAYLOAD}
        row.tags = {PAYLOAD: PAYLOAD}
    summary.devices[0].device = msgspec.structs.replace(summary.devices[0].device, name=PAYLOAD)
    sample.write_summary(summary)
    quoted = PAYLOAD.replace('"', '""')
    sample.artifact("latency.csv").write_text(f'{PAYLOAD!r}\n"{quoted}"\n', encoding="utf-8")
    sample.publish()
    for path in (
        "index.html",
        "layer_norm/index.html",
        f"{TRITON}.html",
        "layer_norm/results/combined_results.html",
    ):
        page = read_page(sample.site, path)
        assert harmless(page), path
        assert len(page.ids()) == len(set(page.ids()))


def test_file_names_with_special_characters_are_quoted_in_links(sample, find_flaws):
    cell = sample.notebook(f"{TRITON}.md").cells[0]
    cell.artifacts = {'a b#c?d%20"e.jsonl': cell.artifacts["layer_norm.jsonl"]}
    sample.publish()
    assert (
        sample.root / 'site/layer_norm/impls/artifacts/triton_layer_norm/benchmark/a b#c?d%20"e.jsonl'
    ).is_file()
    assert find_flaws(sample.site) == []


def test_names_cannot_lead_out_of_the_site(sample):
    cell = sample.notebook(f"{TRITON}.md").cells[0]
    cell.id = ".."
    cell.artifacts = {
        "../../../../../outside.txt": cell.artifacts["layer_norm.jsonl"],
        "fine.jsonl": cell.artifacts["layer_norm.jsonl"],
    }
    published = sample.publish()
    assert not list(sample.root.rglob("outside.txt"))
    assert all(".." not in path.split("/") for path in published.written)


@pytest.mark.parametrize("slug", ["../../outside", "/tmp/outside", "a/b"])
def test_a_device_of_a_summary_cannot_lead_out_of_the_site(sample, read_page, slug):
    cell = sample.notebook("layer_norm/results/combined_results.md").cells[0]
    file = sample.root / cell.artifacts["summary.json"]
    summary = msgspec.json.decode(file.read_bytes())
    summary["devices"][0]["device"]["slug"] = slug
    sample.write_summary(summary)

    published = sample.publish()

    assert not list(sample.root.parent.rglob("outside*"))
    assert not any("outside" in path for path in published.written)
    assert "summary.json is not a summary: slug is not" in read_page(sample.site, "status.html").text


def test_lines_that_are_not_records_are_on_the_page_of_failures(sample, published):
    committed = sample.root / "layer_norm/results/records/nvidia-h200/mine.jsonl"
    committed.parent.mkdir(parents=True)
    committed.write_text("{}\n<<<<<<< HEAD\n")
    (sample.root / "secret.jsonl").write_text('{"secret": 1}\n')
    committed.with_name("linked.jsonl").symlink_to(sample.root / "secret.jsonl")

    text = published("status.html").text
    assert "records/nvidia-h200/mine.jsonl:2: is not a record: it is a merge conflict marker" in text
    assert "records/nvidia-h200/linked.jsonl: cannot be read (it is a symbolic link" in text
    assert "secret" not in (sample.root / "site/layer_norm/results/records.jsonl").read_text()


FORMULAS = [
    r"\text{<script>alert(1)</script>}",
    r"\text{&lt;script&gt;alert(1)&lt;/script&gt;}",
    r"\mbox{<img src=x onerror=alert(1)>}",
    r"\textbf{</mtext></math><script>alert(1)</script>}",
    r"\href{javascript:alert(1)}{x}",
    r"\style{position:fixed}{x}\class{top}{x}",
    r'\color{"><script>alert(1)</script>}{x}',
    r"\operatorname{<script>}\verb|<script>|\tag{<script>}",
    r"\left<script>alert(1)</script>",  # no formula, so shown as code
    "{" * 20000,
]


@pytest.mark.parametrize("marks", ["$", "$$"])
def test_a_formula_is_text(sample, published, marks):
    for formula in FORMULAS:
        sample.notebook(f"{TRITON}.md").blocks.insert(0, Prose(text=f"{marks}{formula}{marks}\n"))
    page = published(f"{TRITON}.html")
    assert harmless(page)
    parts = [part for formula in page.elements("math") for part in formula.iter()]
    assert len(parts) > len(FORMULAS)
    assert not [part for part in parts if {"href", "style", "class"} & part.attrib.keys()]


def test_a_long_line_of_prose_takes_no_longer_than_others(sample):
    for text in ("![artifact:", "![operators:", "![", "[", "$a ", "`a``", "*a_"):
        sample.notebook(f"{TRITON}.md").blocks.insert(0, Prose(text=text * 4_000))
    started = time.process_time()  # not what tests side by side take
    sample.publish()
    assert time.process_time() - started < 4


@pytest.mark.parametrize(
    ("start", "part"),
    [("<script/>", "<svg "), ("", "<svg "), ("", "<a "), ("", '<svg class="panel">'), ("", "](<a")],
)
def test_a_file_of_twice_the_length_takes_twice_the_time(tmp_path, start, part):
    def seconds(count):
        artifact = Artifact("x.svg", "", "", tmp_path / "x.svg", "x.svg")
        blocks = [Prose(text=f"{_OURS}>{start}{part * count}")]
        artifact.file.write_text(blocks[0].text)
        started = time.process_time()
        assert rendered(artifact, None) and not artifact.panels  # noqa: PT018
        list(linked_files(tmp_path, NotebookRun(path="", digest="", front=FrontMatter(), blocks=blocks), ""))
        return time.process_time() - started

    assert seconds(80_000) < 3 * max(seconds(40_000), 1)


@pytest.mark.parametrize("error", [MemoryError, RecursionError, ValueError])
def test_a_file_that_cannot_be_rendered_says_so_and_costs_no_other(sample, published, monkeypatch, error):
    monkeypatch.setattr(artifacts, "read_csv", Mock(side_effect=error))
    monkeypatch.setattr(site, "rendered", Mock(side_effect=error))
    assert ": cannot be shown" in published("layer_norm/results/combined_results.html").text
    assert (
        "kbt cannot publish" in (sample.site / "layer_norm/results/artifacts/combine/latency.csv").read_text()
    )


def test_a_page_shows_a_part_of_a_wide_table_and_says_so(sample, published):
    sample.artifact("latency.csv").write_text("\n".join(["1," * 9_999 + "1"] * 300))
    text = published("layer_norm/results/combined_results.html").text
    assert (len(text) < 100_000, "99 more rows and 9900 more columns in latency" in text) == (True, True)


HOMES = words("""
    /home/alice/project https://alice@h/project https://h/a?b&token=alice https://h/alice/simple https://h/a/basic/alice
    https://me:alice@h/ https://h/glpat-aliceAlice0123456789/x
""")


def test_no_published_file_has_a_home_folder_or_a_credential(sample):
    home = "\n".join(HOMES)
    notebook = sample.notebook(f"{TRITON}.md")
    fence = "```console\n$ pip install -i https://h/simple?token=alice\n```\n\n## At https://me:alice@h\n"
    notebook.blocks.insert(0, Prose(text=fence))
    notebook.cells[0].code = "a = 'https://h/?token=alice\\n'"
    notebook.cells[0].reason = f'File "{home}/x.py", and file://{ROOT_HOME}/y'
    for stream in ("stdout", "stderr", "environment_log"):
        sample.log(f"{TRITON}.md", stream).write_text(f"{home}/x.py\n")
    sample.artifact("latency.csv").write_text(f"a\n{home}\n")
    summary = sample.read_summary()
    summary.devices[0].rows[0].points[0].reason = home
    sample.write_summary(summary)
    sample.publish()
    published = [path for path in (sample.site).rglob("*") if path.is_file()]
    assert [path for path in published if b"alice" in path.read_bytes()] == []
    page = (sample.site / f"{TRITON}.html").read_text(encoding="utf-8")
    assert "~/project" in page
    assert "***" in page


def test_characters_that_a_page_would_obey_are_shown_as_escapes_and_bytes_replaced(sample, read_page):
    hidden = "a\u202eb\u2066c\x9bd\x08e"
    notebook = sample.notebook(f"{TRITON}.md")
    notebook.front.title = notebook.front.description = notebook.cells[0].reason = hidden
    notebook.cells[0].code = f"x = '{hidden}'"
    notebook.blocks.insert(0, Prose(text=hidden))
    sample.log(f"{TRITON}.md").write_bytes(
        b"caf\xe9 \x00\x07 10%\r100%\r\n\x1b]0;title\x07\x1b[1mbold\x1b[0m" + f"\x1b[31m{hidden}".encode()
    )
    sample.publish()
    for path in ("index.html", "layer_norm/index.html", f"{TRITON}.html"):
        page = read_page(sample.site, path)
        assert not set("\u202e\u2066\x9b\x08\x1b\x00\x07") & set(page.html)
    assert "a\\u202eb\\u2066c\\u009bd\\x08e" in page.text
    assert "100% bold" in page.text


@pytest.mark.parametrize("inner", ["<defs><style>rect { fill: red }</style></defs><rect/>", "<g>" * 5000])
def test_a_figure_that_is_not_of_ours_is_an_image(sample, published, inner):
    sample.artifact("latency.svg").write_text(SVG.format(inner), encoding="utf-8")
    for path in ("layer_norm/results/combined_results.html", "layer_norm/index.html"):
        page = published(path)
        assert not page.elements("svg")
        assert [url for tag, url in page.references() if tag == "img" and url.endswith("combine/latency.svg")]


@pytest.mark.parametrize("raw_html", [False, True])
def test_a_custom_style_sheet_needs_raw_html_and_cannot_end_its_element(sample, published, raw_html):
    sample.build.project.raw_html = raw_html
    css = ".rejected { display: none }</style><script>alert(1)</script>"
    sample.notebook(f"{TRITON}.md").front.custom_css = css
    page = published(f"{TRITON}.html")
    assert ("display: none" in page.html) == raw_html
    assert harmless(page)
