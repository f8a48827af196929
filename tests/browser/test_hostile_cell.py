"""A cell that wants to take over the page that shows it: built, published and opened in a real browser."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.run.build import build
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.run.progress import Progress

pytestmark = pytest.mark.browser

ATTACK = (
    "</pre></code></td></title><script>window.taken = 1</script><img src=x onerror='window.taken = 2'>"
    '"><svg onload=window.taken=3><iframe srcdoc="<script>parent.taken=4</script>"></iframe>'
    "<a href='javascript:window.taken=5' id=bait>x</a><meta http-equiv=refresh content='0;url=https://taken.example'>"
    "<style>@import 'https://taken.example/x.css';</style><link rel=stylesheet href=https://taken.example/y.css>"
)
SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="window.taken=6">
<script>window.taken = 7</script><image href="https://taken.example/a.png"/>
<a href="javascript:window.taken=8"><text id="bait-svg" y="5">x</text></a>
<foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><img src="x" onerror="window.taken=9"/></body></foreignObject>
<style>body:has(&amp;) {{ display: none }} :root {{ display: none }} rect {{ position: fixed }}</style>
<g class="panel" data-scales="[" data-box="x"/><g class="series readout"/>
<text>{ATTACK.replace("<", "&lt;")}</text></svg>"""
LOADING = """<svg xmlns="http://www.w3.org/2000/svg"><style>@import 'https://taken.example/z.css';</style>
<rect fill="&#117;rl(https://taken.example/d.svg#d)"/><use href="//taken.example/u.svg#u"/>
<rect fill="url(https://taken.example/e.svg#e)"/></svg>"""
ENDINGS = ["html", "xhtml", "xml", "atom", "svgz", "SVGz", "shtm", "ehtml", "xhtm", "xbl", "rng", "any"]
FORMULAS = r"$\text{<script>window.taken=13</script>}$ $\mbox{<img src=x onerror='window.taken=14'>}$"
NAMES = [
    "<img src=x onerror=window.taken=10>.csv",
    '"onmouseover="window.taken=11.txt',
    "javascript:window.taken=12",
    "a b#c?d%20e.csv",
    "x" * 196 + ".txt",
]
CELL = """
import json, os, sys
attack, svg, names = json.loads({literals!r})
print(attack); print(attack, file=sys.stderr)
os.write(1, b"\\xff\\xfe\\x00 \\x1b]0;title\\x07 " + attack.encode() + bytes(range(256)))
open("figure.svg", "w").write(svg)
for ending in {endings!r}:
    open("page." + ending, "w").write(
        "<html xmlns='http://www.w3.org/1999/xhtml'><head/><body><p id='read'>words</p><script>window.taken = 17;"
        "top.taken = 18; top.location = 'https://taken.example'</script></body></html>")
open("loading.svg", "w").write({loading!r})
open("table.csv", "w").write(attack + "," + attack + chr(10) + attack + ",1" + chr(10))
for name in names + ["line" + chr(10) + "feed", "esc" + chr(27) + "[31m", b"caf\\xe9"]:
    open(name, "w").write(attack)
os.symlink("/etc/passwd", "passwd.txt"); os.mkfifo("pipe")
record = {{"ts": attack, "run": attack, "impl": attack, "wl": {{"name": attack, "dtype": attack}}, "op": attack,
    "tags": {{attack: attack, "family": attack}}, "status": "error", "err": {{"type": attack, "msg": attack}},
    "env": {{"torch": attack, "gpu": attack}}, "schema": 1}}
open("op.jsonl", "w").write(json.dumps(record) + chr(10))
raise ValueError(attack)
"""


@pytest.fixture(scope="session")
def hostile_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "project"
    notebook = root / "op" / "impls" / "evil.md"
    notebook.parent.mkdir(parents=True)
    (root / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Test"\n')
    code = CELL.format(literals=json.dumps([ATTACK, SVG, NAMES]), endings=ENDINGS, loading=LOADING)
    front = f"---\ntitle: {json.dumps(ATTACK)}\ndescription: {json.dumps(ATTACK)}\n---\n"
    shown = "![artifact:figure.svg]\n\n![artifact:table.csv]\n"
    cell = f"```python id=a outputs=*,op.jsonl\n{code}\n```\n"
    notebook.write_text(f"{front}\nProse. {FORMULAS}\n\n{shown}\n{cell}\n")
    run = build(find_project(root), [], BuildOptions(environment="current", processes=1), Progress())
    (entry,) = [cell for one in run.notebooks for cell in one.cells]
    assert entry.status == "error"
    assert set(NAMES) < set(entry.artifacts)
    publish(root, run, root / "site")
    return root / "site"


@pytest.fixture
def visit(browser: Browser, hostile_site: Path) -> Iterator[Callable[[Path], list[object]]]:
    context = browser.new_context()

    def open_page(path: Path) -> list[object]:
        """Open a page, use what can be used on it, and return what it should not have done."""
        done: list[object] = []
        page = context.new_page()
        page.on("dialog", lambda dialog: (done.append(dialog.message), dialog.dismiss()))
        page.on(
            "request", lambda request: None if request.url.startswith("file:") else done.append(request.url)
        )
        page.goto(path.as_uri())
        for element in page.locator("#bait, #bait-svg, summary").all():
            if element.is_visible():
                element.click(no_wait_after=True)
        page.wait_for_timeout(100)
        if page.evaluate("window.taken"):
            done.append(f"taken by {page.evaluate('window.taken')}")
        if page.url != path.as_uri():
            done.append(page.url)
        page.close()
        return [one for one in done if not str(one).startswith("data:")]

    yield open_page
    context.close()


def test_no_page_does_what_a_hostile_cell_wants(
    hostile_site: Path, visit: Callable[[Path], list[object]]
) -> None:
    pages = sorted(hostile_site.rglob("*.html"))

    assert len(pages) >= 3
    assert {path.name: visit(path) for path in pages} == {path.name: [] for path in pages}


@pytest.mark.parametrize("name", ["figure.svg", "loading.svg", *(f"page.{it}" for it in ENDINGS)])
def test_a_file_that_is_opened_by_itself_runs_and_loads_nothing(
    hostile_site: Path, browser: Browser, visit: Callable[[Path], list[object]], name: str
) -> None:
    folder = hostile_site / "op" / "impls" / "artifacts" / "a"
    (file,) = (file for file in folder.iterdir() if file.name in {name, f"{name}.txt"})

    assert visit(file) == []
    page = browser.new_page()
    page.goto(file.as_uri())
    if file.suffix == ".txt":
        assert "words</p><script>" in (page.locator("body").text_content() or "")
    elif file.suffix == ".svg":
        assert page.evaluate("document.documentElement.firstElementChild.getBoundingClientRect().width") > 100
    else:
        assert page.frames[-1].locator("#read").text_content() == "words"
    page.close()


def test_what_the_cell_printed_is_there_to_be_read(hostile_site: Path) -> None:
    text = (hostile_site / "op" / "impls" / "evil.html").read_text(encoding="utf-8")

    assert "&lt;script&gt;window.taken = 1&lt;/script&gt;" in text
    assert "did not keep" in text
    assert "passwd.txt" in text
    assert not list(hostile_site.rglob("passwd.txt"))


def test_scripts_run_from_files_only(hostile_site: Path, browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    for path in (path for path in hostile_site.rglob("*.html") if "artifacts" not in path.parts):
        text = path.read_text(encoding="utf-8")
        injected = tmp_path / path.name
        script = "<script>window.taken = 15</script><p onclick='window.taken = 16' id=handler>x</p>"
        injected.write_text(text.replace("</main>", f"{script}</main>"), encoding="utf-8")
        page.goto(injected.as_uri())
        page.locator("#handler").click(force=True)
        assert page.evaluate("window.taken") is None
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.matches('.scripted')")
        assert page.locator("button.theme").is_visible()
    page.close()


def test_a_figure_leaves_the_page_around_it_as_it_is(hostile_site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto((hostile_site / "op" / "impls" / "evil.html").as_uri())

    assert page.locator("h1").is_visible()
    assert page.evaluate("getComputedStyle(document.body).display") != "none"
    page.locator("button.theme").click()
    assert page.evaluate("document.documentElement.dataset.theme")
    page.close()


def test_the_browser_would_have_noticed(tmp_path: Path, visit: Callable[[Path], list[object]]) -> None:
    leaving = "<meta http-equiv=refresh"
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><title>{ATTACK.replace(leaving, '<meta')}")
    left = tmp_path / "left.html"
    left.write_text(f"<!doctype html><title>{ATTACK}")

    assert "https://taken.example/y.css" in visit(page)
    assert any(str(one).startswith("taken by") for one in visit(page))
    assert any("taken.example" in str(one) and "css" not in str(one) for one in visit(left))
