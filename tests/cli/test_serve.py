"""``kbt serve`` as a process, with a browser, and with files that change."""

import http.client
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect
from projects import PYTHON, assert_one_line, contents, run_kbt, wait_until

from kernels_bench_tools.serve.server import ADDRESS, Server

PATIENCE = 60.0
"""Seconds until what does not happen is a failure; nothing here is about how long things take."""
SLOW = """
import os, pathlib, time
here = pathlib.Path({here!r})
with open(here / "log", "a") as log:
    log.write("{name} begins " + str(os.getpid()) + "\\n")
while not (here / "{name}.go").exists():
    time.sleep(0.02)
with open(here / "log", "a") as log:
    log.write("{name} ends\\n")
print("{name} is done")
"""


def write(path: Path, code: str, prose: str = "Prose.", attributes: str = "id=a") -> None:
    """Write a notebook as careful editors do: beside it, and then over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(f"# {path.stem}\n\n{prose}\n\n```python {attributes}\n{code}\n```\n")
    new.replace(path)


class Served:
    """``kbt serve`` in a project of its own."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.root = root
        self.lines: list[str] = []
        command = [PYTHON, "-X", "faulthandler", "-m", "kernels_bench_tools", "serve", "--port", "0"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*command, *arguments], cwd=root, stdout=pipe, stderr=pipe, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.said
        self.port = int(self.url.rstrip("/").rpartition(":")[2])

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, times: int = 1) -> None:
        if not wait_until(lambda: self.said.count(text) >= times, PATIENCE):
            self.end(signal.SIGABRT)  # it then says where each of its threads is
            pytest.fail(f"it does not say {text!r}; it said:\n{self.said}")

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.title(): v for name, v in answer.getheaders()}
        finally:
            connection.close()

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()
        return code


Serve = Callable[..., Served]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Served"\n')
    write(root / "index.md", "print('front')")
    return root


@pytest.fixture
def serve(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    started: list[Served] = []

    def start(*arguments: str) -> Served:
        started.append(Served(root, *(arguments or ("--env", "current"))))
        return started[-1]

    yield start
    for served in started:
        served.end()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 800, "height": 600})
    context.set_default_timeout(PATIENCE * 1000)
    expect.set_options(timeout=PATIENCE * 1000)
    yield context.new_page()
    context.close()


@pytest.mark.browser
def test_an_open_page_reloads_in_place_and_edited_prose_runs_no_cell(
    root: Path, serve: Serve, page: Page, tmp_path: Path
) -> None:
    long = "\n\n".join(f"Paragraph {number}." for number in range(200))
    code = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')\nprint('it said {{}}')"
    write(root / "n.md", code.format("one"), long)
    messages: list[str] = []
    loads: list[object] = []
    page.on("load", lambda loaded: loads.append(loaded))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    served = serve()
    served.wait_for(" ran, ")
    page.goto(f"{served.url}n.html")
    page.evaluate("scrollTo(0, 1234)")

    write(root / "n.md", code.format("one"), long.replace("Paragraph 7.", "Edited prose."))

    expect(page.get_by_text("Edited prose.")).to_be_attached()
    page.wait_for_function("scrollY === 1234")
    assert (tmp_path / "runs").read_text() == "x"

    write(root / "n.md", code.format("two"), long)

    expect(page.locator("body")).to_contain_text("it said two")
    page.wait_for_function("scrollY === 1234")
    assert (tmp_path / "runs").read_text() == "xx"
    assert messages == []
    assert len(loads) == 3, "the page loads itself once for each edit"


@pytest.mark.browser
def test_an_error_is_shown_in_the_page_until_it_is_fixed(root: Path, serve: Serve, page: Page) -> None:
    write(root / "n.md", "print('fine')")
    served = serve()
    served.wait_for(" ran, ")
    page.goto(f"{served.url}n.html")
    banner = page.get_by_role("alert")

    write(root / "n.md", "print('broken')", attributes="id=a needs=nothing")
    expect(banner).to_contain_text("n.md:5: needs=nothing")  # its page is left out, until it is mended
    served.wait_for("n.md:5: needs=nothing")
    write(root / "n.md", "print('fine')")
    expect(page.locator("main")).to_contain_text("fine")
    expect(banner).to_have_count(0)

    (root / "pyproject.toml").write_text("[tool.kbt\n")
    expect(banner).to_contain_text("cannot be read")
    (root / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Another title"\n')
    expect(banner).to_have_count(0)
    expect(page).to_have_title(re.compile("Another title"))
    assert served.process.poll() is None
    assert "Traceback" not in served.said


def begun(log: Path, name: str) -> list[int]:
    """The process ids of a slow cell's starts."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split()[2]) for line in lines if line.startswith(f"{name} begins")]


def test_an_edit_during_a_build_is_built_after_it(root: Path, serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = SLOW.format(here=str(tmp_path), name="a")
    write(root / "a.md", code)
    served = serve()
    assert wait_until(lambda: begun(log, "a"), PATIENCE)

    write(root / "a.md", f"{code}print('edited')")
    (tmp_path / "a.go").touch()

    served.wait_for(" ran, ", times=2)
    assert log.read_text().count("begins") == 2
    assert "changed: a.md" in served.said
    assert b"edited" in served.get("/a.html")[1]

    (root / "a.md").rename(root / "b.md")
    served.wait_for(" ran, ", times=3)
    assert [served.get(path)[0] for path in ("/a.html", "/b.html")] == [404, 200]


def test_the_site_that_a_stopped_server_leaves_is_the_one_that_build_writes(root: Path, serve: Serve) -> None:
    served = serve()
    served.wait_for(" ran, ")
    assert b"/.kbt/live.js" in served.get("/index.html")[1]

    assert served.end() == 130
    assert "Traceback" not in served.said
    pages = contents(root / "site")
    command = [PYTHON, "-m", "kernels_bench_tools", "build", "--env", "current"]
    subprocess.run(command, cwd=root, check=True, capture_output=True)

    assert contents(root / "site") == pages
    assert not any(b"/.kbt/" in content for content in pages.values())


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A report that is served and not built."""
    root = tmp_path_factory.mktemp("shown")
    (root / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Shown"\n')
    site = root / "site"
    (site / "empty").mkdir(parents=True)
    (site / "sub dir").mkdir()
    (site / "index.html").write_text("<html><head></head><body>front</body></html>")
    (site / "sub dir/index.html").write_text("below")
    (site / ".kbt-site.json").write_text("{}")
    (site / "log.txt").write_text("plain ü")
    (site / "out.txt").symlink_to(root / "pyproject.toml")
    served = Served(root, "--no-build")
    yield served
    served.end()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:{port}"}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_requests_from_foreign_pages_are_refused(shown: Served, headers: dict[str, str], status: int) -> None:
    headers = {name: value.format(port=shown.port) for name, value in headers.items()}

    assert [shown.get(path, **headers)[0] for path in ("/", "/.kbt/live.js", "/.kbt/state")] == [status] * 3


@pytest.mark.parametrize(
    "path",
    [
        *("/../pyproject.toml", "/%2e%2e/pyproject.toml", "/sub%20dir/..%2f..%2fpyproject.toml"),
        *("//etc/passwd", "/out.txt", "/.kbt-site.json", "/.kbt/build.json", "/empty/", "/%00"),
    ],
)
def test_files_outside_the_report_and_folder_listings_are_not_served(shown: Served, path: str) -> None:
    status, body, _ = shown.get(path)

    assert status == 404
    assert b"tool.kbt" not in body
    assert b"root:" not in body


def test_methods_content_types_redirects_and_caching_headers(shown: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert [shown.get(path, method)[0] for path in ("/", "/.kbt/state")] == [501, 501]
    assert shown.get("/sub%20dir/")[0] == 200
    status, _, headers = shown.get("/sub%20dir")
    assert (status, headers["Location"]) == (301, "/sub%20dir/")
    status, body, headers = shown.get("/log.txt")
    assert (status, body.decode(), headers["Content-Type"]) == (200, "plain ü", "text/plain; charset=utf-8")
    assert headers["Cache-Control"] == "no-store"
    assert shown.get("/", "HEAD")[1] == b""


def test_a_target_that_is_no_path_is_refused_and_many_connections_wait(tmp_path: Path) -> None:
    server = Server(0, tmp_path)  # which accepts none yet
    waiting = [socket.create_connection((ADDRESS, server.server_port), 5) for _ in range(100)]
    waiting[0].sendall(f"GET http://[ HTTP/1.0\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
    server.handle_request()
    assert waiting[0].recv(12) == b"HTTP/1.0 400"
    for one in (*waiting, server.socket):
        one.close()


@pytest.mark.browser
def test_a_served_figure_runs_no_script_and_a_page_does(shown: Served, page: Page) -> None:
    script = "<script src='x.js' href='x.js'></script>"
    for name, text in ("x.js", "document.documentElement.id = 'taken'"), ("x.html", f"<head></head>{script}"):
        (shown.root / "site" / name).write_text(text)
    (shown.root / "site/x.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg'>{script}</svg>")
    for path, taken in ("x.svg", ""), ("x.html", "taken"):
        page.goto(shown.url + path)
        assert page.evaluate("document.documentElement.id") == taken


@pytest.mark.browser
def test_no_build_reloads_pages_when_another_command_publishes(shown: Served, page: Page) -> None:
    page.goto(f"{shown.url}new.html")
    expect(page.get_by_role("heading")).to_have_text("Not in the report")
    new = shown.root / "site/new.html"
    new.write_text("<html><head></head><body>new</body></html>")
    expect(page.locator("body")).to_have_text("new")
    new.write_text("<html><head></head><body>another</body></html>")
    expect(page.locator("body")).to_have_text("another")
    new.unlink()
    expect(page.get_by_role("heading")).to_have_text("Not in the report")


def test_a_port_in_use_is_a_one_line_error(shown: Served) -> None:
    done = run_kbt(shown.root, "serve", "--port", str(shown.port), timeout=60)

    assert_one_line(done, f"kbt: port {shown.port}: ", "Address already in use")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_server_ends_running_cells(
    root: Path, serve: Serve, tmp_path: Path, number: int
) -> None:
    write(root / "a.md", SLOW.format(here=str(tmp_path), name="a"))
    served = serve()
    assert wait_until(lambda: begun(tmp_path / "log", "a"), PATIENCE)

    assert served.end(number) == 130
    assert wait_until(lambda: not psutil.pid_exists(begun(tmp_path / "log", "a")[0]), PATIENCE)
    assert "Traceback" not in served.said
    assert "interrupted" in served.said
