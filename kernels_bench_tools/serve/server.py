"""A read-only web server for the report, on the loopback interface.

A foreign page in the same browser can send requests there too, under this server's name or under one that resolves
to 127.0.0.1, so ``Host`` and ``Origin`` are checked. Each page gets a script that polls the state of the report and
reloads the page when it has changed; files on disk are not modified.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_file, walk_files

ADDRESS = "127.0.0.1"
STATE = "/.kbt/state"
SCRIPT = "/.kbt/live.js"
"""Addresses that no site has: its files are never in hidden folders."""
_HTML = "text/html; charset=utf-8"
_JS = "text/javascript; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
# Pages have stricter ones, each its own. That of other files counts where one is opened by itself.
_PAGE_POLICY = """default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; \
base-uri 'none'; form-action 'none'; frame-ancestors 'self'"""
_FILE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
_MISSING = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Not in the report</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="dark light">
<link rel="icon" href="data:,"></head>
<body style="font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem">
<h1>Not in the report</h1>
<p>The report does not have this page, or is still being built. This page reloads when the report changes.</p>
</body></html>"""


class Server(ThreadingHTTPServer):
    """Serves the folder ``site`` to browsers on this machine, in the background; port 0 is any free port.

    A port that cannot be used is a ``ProjectError``.
    """

    request_queue_size = 128  # connections that wait

    def __init__(self, port: int, site: Path) -> None:
        self.site = site.resolve()
        # Random, so that a restarted server does not take an old page for a current one.
        self._name, self._report = secrets.token_hex(4), 0
        self.update()
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            what, remedy = (
                f"cannot be used ({error.strerror})",
                "Choose another with --port, or 0 for any free port",
            )
            raise ProjectError(f"port {port}", what, "A free port", remedy) from error
        own = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        self.own_hosts = own | {ADDRESS, "localhost"} if self.server_port == 80 else own
        self.url = f"http://{ADDRESS}:{self.server_port}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def update(self, *, error: str = "", busy: str = "", new_report: bool = False) -> None:
        """Change the messages that open pages show; with ``new_report`` they reload."""
        self._report += new_report
        self.version = f"{self._name}-{self._report}"
        self.state = json.dumps({"version": self.version, "error": error, "busy": busy}).encode()


class _Handler(SimpleHTTPRequestHandler):
    server: Server
    policy = _FILE_POLICY
    timeout = 60
    server_version = "kbt"
    sys_version = ""
    extensions_map = (
        SimpleHTTPRequestHandler.extensions_map
        | dict.fromkeys((".jsonl", ".md", ".py", ".txt"), "text/plain; charset=utf-8")
        | {".html": _HTML, ".js": _JS, ".css": "text/css; charset=utf-8", ".csv": "text/csv; charset=utf-8"}
    )

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
        for name, value in (*_HEADERS.items(), ("Content-Security-Policy", self.policy)):
            self.send_header(name, value)
        super().end_headers()

    def send_head(self) -> Any:
        """Send the headers of a response and return its content."""
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        known = all(origin.removeprefix("http://") in self.server.own_hosts for origin in origins)
        if len(hosts) != 1 or hosts[0].lower() not in self.server.own_hosts or not known:
            self.send_error(HTTPStatus.FORBIDDEN, "Only pages of this server may send requests")
            return None
        if not self.path.startswith("/"):  # a whole URL, which need not be one
            self.send_error(HTTPStatus.BAD_REQUEST)
            return None
        url = self.path.partition("?")[0]
        if url == STATE:
            return self._send(self.server.state, "application/json")
        if url == SCRIPT:
            return self._send(Path(__file__).with_name("live.js").read_bytes(), _JS)
        # As known before the page is read, so that a page read during a build is never taken for a newer one.
        version = self.server.version
        path = self.translate_path(self.path)
        is_folder = os.path.isdir(path)  # noqa: PTH112 - False for invalid and too long names
        file = Path(path, "index.html") if is_folder else Path(path)
        hidden = any(part.startswith(".") for part in file.relative_to(self.server.site).parts)
        is_file = os.path.isfile(file)  # noqa: PTH113 - False for invalid and too long names
        if hidden or not is_file or not file.resolve().is_relative_to(self.server.site):
            return self._send(with_live_script(_MISSING, version), _HTML, HTTPStatus.NOT_FOUND)
        if file.suffix != ".html" or (is_folder and not url.endswith("/")):
            return super().send_head()  # the file, or a redirect to the address with a slash
        return self._send(with_live_script(read_file(file), version), _HTML)

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> io.BytesIO:
        self.policy = _PAGE_POLICY if kind == _HTML else _FILE_POLICY
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return io.BytesIO(content)


def with_live_script(page: bytes, version: str) -> bytes:
    """Return an HTML page of a version of the report with the script, which its policy allows to poll."""
    tag = f'<script src="{SCRIPT}" data-version="{version}" defer></script></head>'.encode()
    return page.replace(b"connect-src 'none'", b"connect-src 'self'", 1).replace(b"</head>", tag, 1)


_TEMPORARY = ("~", ".pyc", ".swp", ".swx", ".tmp", ".part")
"""Suffixes of files that editors and interpreters write for themselves."""
_INTERVAL_S, _SETTLE_S = 0.5, 0.2


class Watcher:
    """Reports changed files below ``root``, counted from the moment of construction.

    Hidden files and folders, virtual environments and folders that ``is_output`` are ignored.
    """

    def __init__(self, root: Path, is_output: Callable[[Path], bool] = lambda _: False) -> None:
        self.root = root
        self._is_output = is_output
        self._seen = self._snapshot()

    def wait(self) -> list[str]:
        """Return the paths of files written or removed since the last call, sorted; wait until there are any."""
        while True:
            while self._snapshot() == self._seen:
                time.sleep(_INTERVAL_S)
            time.sleep(_SETTLE_S)  # a program may be writing several files
            before, self._seen = self._seen, self._snapshot()
            if before != self._seen:
                return sorted({path for path, _ in before.items() ^ self._seen.items()})

    def _snapshot(self) -> dict[str, tuple[int, int, int]]:
        """Return the path of each file within the folder, with its modification time, size and inode."""
        files = {}
        for path in walk_files(self.root, self._is_output):
            if path.name.startswith("#") or path.name.endswith(_TEMPORARY):
                continue
            with suppress(OSError):  # removed meanwhile, or a dangling link
                status = path.stat()
                key = path.relative_to(self.root).as_posix()
                files[key] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return files
