"""``kbt serve``: the report over HTTP, on this machine only."""

from __future__ import annotations

import errno
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.project import find_project


def serve(
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 8000,
) -> None:
    """Serve the published report on http://127.0.0.1:PORT until interrupted."""
    site = find_project(Path.cwd()).root / "site"
    if not (site / "index.html").is_file():
        raise ProjectError(str(site), "holds no report", "A built site", "Run `kbt build` first")
    server = _listen(port, site)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    with server:
        server.serve_forever()


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Keep quiet: nobody reads a line per request."""

    def end_headers(self) -> None:
        # A rebuilt page must not be answered from the browser's cache.
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


def _listen(port: int, site: Path) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, directory=str(site)))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ProjectError(
            f"port {port}", "is in use", "A free port", "Give another with --port, or 0 for any"
        ) from error
