"""Prose of notebooks: what of Markdown is rendered, and the files that it links to."""

import pytest
from builds import build_of
from markup import text_of

from kernels_bench_tools.notebooks.document import survey_notebook
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.run.build import describe_notebook


@pytest.fixture
def page(tmp_path, read_page):
    """Publish a notebook of this text; return its page."""

    def read(text, **options):
        publish_text(tmp_path, {"n.md": text}, **options)
        return read_page(tmp_path / "site", "n.html")

    return read


def publish_text(root, notebooks, *, repository="", raw_html=False):
    root.joinpath("pyproject.toml").write_text("[tool.kbt]\n")
    for name, text in notebooks.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    project = find_project(root)

    def describe(_, cell):
        return CellRun(id=cell.id, code=cell.code, line=cell.file_line)

    found = [survey_notebook(project, root / name) for name in notebooks]
    build = build_of(*(describe_notebook(one, describe) for one in found), repository=repository)
    build.project.raw_html = raw_html
    return publish(root, build, root / "site")


CELL = "\n\n```python id=a\n1\n```\n\n"


@pytest.mark.parametrize("raw_html", [False, True])
@pytest.mark.parametrize(
    "comment",
    [
        "<!-- internal -->",
        "<!--\ninternal\n\n## internal\n\n```py\ninternal\n```\n-->",
        "Text <!-- internal --> more.",
        "Text <!-- internal\ninternal --> more.",
        "- one\n  <!-- internal\n  internal -->\n- two",
        "> <!-- internal -->\n> quoted",
        "Text\n<!-- internal -->\nmore.",
        "<!-- internal\n\ninternal --> and text",
        "# A title <!-- internal -->",
    ],
)
def test_comments_are_left_out(page, comment, raw_html):
    found = page(f"# Title\n\n{comment}\n\nThe end.\n", raw_html=raw_html)

    assert "internal" not in found.html
    assert "The end." in found.text
    assert ("<!--" in found.html, "&lt;!--" in found.html) == (False, False)


@pytest.mark.parametrize("text", ["`<!-- x -->`", "```\n<!-- x -->\n```", "    <!-- x -->", r"\<!-- x -->"])
def test_comments_in_code_and_escaped_ones_are_text_and_one_that_is_not_closed_hides_nothing(page, text):
    found = page(f"# Title\n\n{text}\n\n<!-- open\n\nshown\n").text
    assert "<!-- x -->" in found
    assert "shown" in found


def test_task_lists_are_checkboxes(page):
    boxes = [box.attrib for box in page("# T\n\n- [ ] open\n- [x] done\n- none\n").elements("input")]

    assert [("checked" in box, "disabled" in box) for box in boxes] == [(False, True), (True, True)]


def test_alerts_have_their_kind_as_title(page):
    found = page("> [!NOTE]\n> Read.\n\nText.\n\n> [!WARNING]\n> Beware.\n").elements("div")

    alerts = [text_of(one) for one in found if "alert" in one.get("class", "")]
    assert alerts == ["Note Read.", "Warning Beware."]


@pytest.mark.parametrize(
    "text",
    [
        "Text.[^a] More.[^b]{cell}[^a]: The first.\n[^b]: The second.\n",
        "[^a]: The first.\n[^b]: The second.{cell}Text.[^a] More.[^b]\n",
        "Text.[^a]{cell}[^a]: The first.{cell2}More.[^b]\n\n[^b]: The second.\n",
    ],
)
def test_footnotes_and_links_are_found_wherever_they_are_defined(page, text):
    found = page(
        text.format(cell=f"\n\n[here][x]{CELL}[x]: https://x.org\n", cell2=CELL.replace("id=a", "id=b"))
    )
    (notes,) = [one for one in found.elements("section") if one.get("class") == "footnotes"]

    assert [text_of(item).split(" ↩")[0] for item in notes.iter("li")] == ["The first.", "The second."]
    notes_of = {url for _, url in found.references() if url.startswith("#fn")}
    assert {f"#{name}" for name in found.ids()} >= notes_of
    assert ("a", "https://x.org") in found.references()


@pytest.mark.parametrize(
    ("link", "file"),
    [
        ("![setup](picture.png)", "picture.png"),
        ("[data](data.csv)", "data.csv"),
        ("[data][d]\n\n[d]: <data.csv>", "data.csv"),
        ("![p](<a b.png>)", "a b.png"),
        ("![p](a%20b.png)", "a b.png"),
        ("![p](img/x(1).png?raw=true)", "img/x(1).png"),
        ("[![p](in.png)](https://x.org)", "in.png"),
        ("![p](größe.jpg)", "größe.jpg"),
        ("[up](../data/x.json#a)", "../data/x.json"),
    ],
)
def test_files_that_prose_links_are_published_beside_its_page(tmp_path, link, file):
    target = tmp_path / "folder" / file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"content")
    published = publish_text(tmp_path, {"folder/n.md": f"# N\n\n{link}\n"})

    assert (tmp_path / "site/folder" / file).read_bytes() == b"content"
    assert published.dead_links == []
    target.write_bytes(b"changed")
    publish_text(tmp_path, {"folder/n.md": f"# N\n\n{link}\n"})
    assert (tmp_path / "site/folder" / file).read_bytes() == b"changed"


@pytest.mark.parametrize("name", [".env", ".secret/x.png", "../outside.png", "linked.png", "gone.png"])
def test_a_file_that_is_missing_hidden_or_elsewhere_is_named_with_notebook_and_line(tmp_path, name):
    root = tmp_path / "project"
    (root / ".secret").mkdir(parents=True)
    for path in (root / ".env", root / ".secret/x.png", tmp_path / "outside.png"):
        path.write_text("private content")
    (root / "linked.png").symlink_to(tmp_path / "outside.png")
    published = publish_text(root, {"a/n.md": f"---\ntitle: N\n---\n\nText.\n\n![p](../{name})\n"})

    assert published.dead_links == [f"a/n.md:7: ../{name}"]
    assert b"private content" not in b"".join(
        path.read_bytes() for path in (root / "site").rglob("*") if path.is_file()
    )


def test_with_a_repository_it_shows_files_that_are_no_pictures_and_elsewhere(tmp_path, read_page):
    for name in ("src/x.py", "src/x.png", "NOTES.md", "data.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("content")
    text = "[a](src/x.py) ![b](src/x.png) [c](NOTES.md) [d](data.csv)\n"
    publish_text(tmp_path, {"n.md": text}, repository="https://x.org/r")
    urls = {url for _, url in read_page(tmp_path / "site", "n.html").references()}

    assert {"https://x.org/r/blob/HEAD/src/x.py", "https://x.org/r/blob/HEAD/NOTES.md"} <= urls
    assert {"src/x.png", "data.csv"} <= urls
    assert not (tmp_path / "site/src/x.py").exists()


def test_a_linked_file_with_scripts_runs_none_and_replaces_no_page(tmp_path):
    (tmp_path / "status.html").write_text("mine")
    (tmp_path / "x.html").write_text("<script>alert(1)</script>")
    (tmp_path / "x.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')
    publish_text(tmp_path, {"n.md": "[a](x.html) ![b](x.svg) [c](status.html)\n"})

    for name in ("x.html", "x.svg"):
        assert "<script>" not in (tmp_path / "site" / name).read_text()
    assert "mine" not in (tmp_path / "site/status.html").read_text()
