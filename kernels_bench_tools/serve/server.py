"""A read-only web server for the report, on the loopback interface.

A foreign page in the same browser can send requests there too, under this server's name or under one that resolves
to 127.0.0.1, so ``Host`` and ``Origin`` are checked. Each page gets a script that polls the state of the report and
reloads the page when it has changed; files on disk are not modified.
"""

from __future__ import annotations

import errno
import io
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import msgspec

from kernels_bench_tools.errors import ProjectError

ADDRESS = "127.0.0.1"
STATE = "/.kbt/state"
SCRIPT = "/.kbt/live.js"
"""Addresses that no site has: its files are never in hidden folders."""
SCRIPT_FILE = Path(__file__).with_name("live.js")
_HTML = "text/html; charset=utf-8"
_TYPES = {
    ".html": _HTML,
    ".js": "text/javascript",
    ".jsonl": "text/plain",
    ".md": "text/plain",
    ".py": "text/plain",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class ReportState(msgspec.Struct, frozen=True):
    """What an open page polls."""

    version: str
    """Of the report; a page loaded with another version is out of date."""
    error: str = ""
    """Why the last build failed; empty if it did not."""
    busy: str = ""
    """What is running now; empty for nothing."""


class Server(ThreadingHTTPServer):
    """Serve a site to browsers on this machine.

    Args:
        port: Where to listen; 0 takes a free port.
        site: The folder.
    """

    def __init__(self, port: int, site: Path) -> None:
        self.site = site.resolve()
        # Random, so that a restarted server does not take an old page for a current one.
        self._name, self._report = secrets.token_hex(4), 0
        self.state = ReportState(f"{self._name}-0")
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the front page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def update(self, *, error: str = "", busy: str = "", new_report: bool = False) -> None:
        """Change the state that open pages show; with ``new_report`` they reload."""
        self._report += new_report
        self.state = ReportState(f"{self._name}-{self._report}", error, busy)

    def is_own(self, host: str) -> bool:
        """Return whether ``host`` is an address of this server."""
        names = (ADDRESS, "localhost")
        own = {f"{name}:{self.server_port}" for name in names}
        return host.lower() in (own | set(names) if self.server_port == 80 else own)


@contextmanager
def serving(port: int, site: Path) -> Iterator[Server]:
    """Serve a site in the background.

    Raises:
        ProjectError: The port is in use, or not permitted.
    """
    try:
        server = Server(port, site)
    except OSError as error:
        if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
            raise
        what = "is in use" if error.errno == errno.EADDRINUSE else "is not permitted"
        raise ProjectError(
            f"port {port}", what, "A free port", "Choose another with --port, or 0 for any free port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(SimpleHTTPRequestHandler):
    server: Server
    timeout = 60
    server_version = "kbt"
    sys_version = ""

    def __init__(self, request: Any, address: Any, server: Server) -> None:
        super().__init__(request, address, server, directory=str(server.site))

    def handle(self) -> None:
        """Answer the request; a browser that closes the connection early is not an error."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Do not log requests."""

    def end_headers(self) -> None:
        """Add the headers of every response."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def send_head(self) -> Any:
        """Send the headers of a response and return its content."""
        if not self._is_allowed():
            self.send_error(HTTPStatus.FORBIDDEN, "Only pages of this server may send requests")
            return None
        url = urlsplit(self.path).path
        if url == STATE:
            return self._send(msgspec.json.encode(self.server.state), "application/json")
        if url == SCRIPT:
            return self._send(SCRIPT_FILE.read_bytes(), "text/javascript; charset=utf-8")
        # As known before the page is read, so that a page read during a build is never taken for a newer one.
        version = self.server.state.version
        path = self._find(unquote(url, errors="replace"))
        if path is None:
            return self._send_missing(version)
        if path.is_dir():
            if not url.endswith("/"):
                return super().send_head()  # redirects to the address with a slash
            path /= "index.html"
        if not path.is_file():
            return self._send_missing(version)
        kind = self.guess_type(path)
        if kind == _HTML:
            return self._send(with_live_script(path.read_bytes(), version), kind)
        return super().send_head()

    def guess_type(self, path: Any) -> str:
        """Return the media type of a file, with the encoding of text."""
        kind = _TYPES.get(Path(path).suffix) or super().guess_type(path)
        return f"{kind}; charset=utf-8" if kind.startswith("text/") and "charset" not in kind else kind

    def _is_allowed(self) -> bool:
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        scheme = "http://"
        known = all(o.startswith(scheme) and self.server.is_own(o.removeprefix(scheme)) for o in origins)
        return len(hosts) == 1 and self.server.is_own(hosts[0]) and known

    def _find(self, path: str) -> Path | None:
        """Return the file or folder of the site at ``path``; None if it is hidden, outside of the site or missing."""
        parts = [part for part in path.split("/") if part]
        if any(part.startswith(".") or "\0" in part or "\\" in part for part in parts):
            return None
        file = self.server.site.joinpath(*parts)
        try:
            file.stat()
        except OSError:  # also for a name that is too long
            return None
        return file if file.resolve().is_relative_to(self.server.site) else None

    def _send_missing(self, version: str) -> BinaryIO:
        if (self.server.site / "index.html").is_file():
            page = _page(
                "Not in the report", "The report has no such page yet. This page reloads when it has."
            )
        else:
            page = _page("No report yet", "The report is being built. This page reloads when it is ready.")
        return self._send(with_live_script(page, version), _HTML, HTTPStatus.NOT_FOUND)

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> BinaryIO:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return io.BytesIO(content)


def with_live_script(page: bytes, version: str) -> bytes:
    """Return an HTML page with the reload script, and with a content security policy that lets it poll.

    Args:
        page: HTML.
        version: The version of the report that the page belongs to.
    """
    tag = f'<script src="{SCRIPT}" data-version="{escape(version)}" defer></script>'.encode()
    page = page.replace(b"connect-src 'none'", b"connect-src 'self'", 1)
    head, end, rest = page.partition(b"</head>")
    return head + tag + end + rest


def _page(title: str, text: str) -> bytes:
    style = "font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="dark light"><link rel="icon" href="data:,">'
        f'<title>{escape(title)}</title></head><body style="{style}">'
        f"<h1>{escape(title)}</h1><p>{escape(text)}</p></body></html>"
    ).encode()
