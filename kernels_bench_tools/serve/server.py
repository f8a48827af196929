"""A small web server for a folder of pages: it reads, and does nothing else.

It listens on the loopback interface only. A foreign page in the same browser can still send requests there, under
this server's name or under one that it has pointed at 127.0.0.1, so both are checked: ``Host`` and ``Origin``.
"""

from __future__ import annotations

import errno
import mimetypes
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.serve.live import EVENTS, SCRIPT, SCRIPT_FILE, Live, enliven, placeholder

ADDRESS = "127.0.0.1"
_STILL_HERE_SECONDS = 15.0
"""How often an open page hears something, so that one that has gone away is noticed."""
_TYPES = {".js": "text/javascript", ".jsonl": "text/plain", ".md": "text/plain", ".py": "text/plain"}


class Server(ThreadingHTTPServer):
    """Serves a site to this machine's own browsers.

    Args:
        port: Where to listen; 0 takes a free one.
        site: The folder.
        live: What open pages are told.
    """

    def __init__(self, port: int, site: Path, live: Live) -> None:
        self.site = site.resolve()
        self.live = live
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the front page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def is_own(self, host: str) -> bool:
        """Return whether a request for ``host`` is one for this server."""
        names = (ADDRESS, "localhost")
        own = {f"{name}:{self.server_port}" for name in names}
        return host.lower() in (own | set(names) if self.server_port == 80 else own)


@contextmanager
def serving(port: int, site: Path, live: Live) -> Iterator[Server]:
    """Serve a site in the background.

    Raises:
        ProjectError: The port is in use, or may not be used.
    """
    try:
        server = Server(port, site, live)
    except OSError as error:
        if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
            raise
        what = "is in use" if error.errno == errno.EADDRINUSE else "may not be used by you"
        remedy = "Give another with --port, or 0 for any"
        raise ProjectError(f"port {port}", what, "A free port", remedy) from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        live.close()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 60
    server_version = "kbt"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with a file of the site."""
        try:
            self._answer()
        except (ConnectionError, TimeoutError):  # the reader has gone
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 - the name is the base class's

    def log_message(self, *_: object) -> None:
        """Keep quiet: nobody reads a line per request."""

    def end_headers(self) -> None:
        """Add what is true of every answer."""
        # The next build may be a second away: nothing that was sent may be used again.
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "SAMEORIGIN")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        super().end_headers()

    def _answer(self) -> None:
        if not self._is_welcome():
            self.send_error(HTTPStatus.FORBIDDEN, "Only pages of this server may ask it")
            return
        path = urlsplit(self.path).path
        if path == EVENTS:
            self._send_events()
        elif path == SCRIPT:
            self._send(SCRIPT_FILE.read_bytes(), "text/javascript; charset=utf-8")
        else:
            self._send_file(unquote(path, errors="replace"))

    def _is_welcome(self) -> bool:
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        scheme = "http://"
        known = all(o.startswith(scheme) and self.server.is_own(o.removeprefix(scheme)) for o in origins)
        return len(hosts) == 1 and self.server.is_own(hosts[0]) and known

    def _send_file(self, path: str) -> None:
        version = self.server.live.version
        file = self._find(path)
        if file is not None and file.is_dir():
            if not path.endswith("/"):
                self._redirect(f"{urlsplit(self.path).path}/")
                return
            file /= "index.html"
        if file is None or not file.is_file():
            self._send_absence(version)
            return
        kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        if kind == "text/html":
            self._send(enliven(file.read_bytes(), version), "text/html; charset=utf-8")
            return
        with file.open("rb") as content:
            self._start(HTTPStatus.OK, f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
            if self.command != "HEAD":
                shutil.copyfileobj(content, self.wfile)

    def _find(self, path: str) -> Path | None:
        """Return the file or folder of the site at this path; None for what is hidden or outside of it."""
        parts = [part for part in path.split("/") if part]
        if any(part.startswith(".") or "\0" in part or "\\" in part for part in parts):
            return None
        file = self.server.site.joinpath(*parts)
        try:
            file.stat()
        except OSError:  # also for a name that is too long to be one
            return None
        return file if file.resolve().is_relative_to(self.server.site) else None

    def _send_absence(self, version: str) -> None:
        if (self.server.site / "index.html").is_file():
            page = placeholder(
                "Not in the report", "The report has no such page. It is shown here once it has."
            )
        else:
            page = placeholder(
                "No report yet", "It is being built, and is shown here as soon as it is there."
            )
        self._send(enliven(page, version), "text/html; charset=utf-8", HTTPStatus.NOT_FOUND)

    def _redirect(self, path: str) -> None:
        self.send_response(HTTPStatus.MOVED_PERMANENTLY)
        # A path that begins with two slashes would be another server's address.
        self.send_header("Location", "/" + path.lstrip("/"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._start(status, kind, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _start(self, status: HTTPStatus, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send_events(self) -> None:
        self._start(HTTPStatus.OK, "text/event-stream; charset=utf-8")
        if self.command == "HEAD":
            return
        live, seen = self.server.live, -1
        while not live.closed:
            number, news = live.wait(seen, _STILL_HERE_SECONDS)
            text = b": still here\n\n" if number == seen else b"data: " + msgspec.json.encode(news) + b"\n\n"
            self.wfile.write(text)
            self.wfile.flush()
            seen = number
