"""A hub on loopback: the client that talks to it is the real one, only its answers are ours."""

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """A kernel on the hub: its commits, and the names that point at them."""

    commits: dict[str, Path] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


class FakeHub:
    """A hub in a thread of this process. ``mode`` may be changed while it runs; ``log`` has every request."""

    def __init__(self) -> None:
        self.mode = "up"
        self.trusted = {"kernels-community"}
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        """Old name of a kernel to its new one."""
        self.log: list[str] = []
        self.closing = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815 - named by the base class

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that was ended in the middle of an answer is no error of ours."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop; whoever asks from now on is refused."""
        if not self.closing.is_set():
            self.closing.set()
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def publish(self, repo: str, kernel: Path, *branches: str, tags: tuple[str, ...] = ()) -> str:
        """Publish a commit with the files of ``kernel`` and let names point at it; return the commit."""
        repository = self.repositories.setdefault(repo, Repository())
        digest = hashlib.sha1(f"{repo} {len(repository.commits)}".encode()).hexdigest()
        repository.commits[digest] = kernel
        repository.branches |= dict.fromkeys(branches, digest)
        repository.tags |= dict.fromkeys(tags, digest)
        return digest

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request, as the mode has it."""
        parts = urlsplit(request.path)
        path = unquote(parts.path)
        self.log.append(f"{request.command} {request.path}")
        if self.mode == "silent":
            self.closing.wait(60)
        elif self.mode in {"500", "429"}:
            _send(request, int(self.mode), b"{}")
        elif self.mode == "nonsense":
            _send(request, 200, b"<html>Log in to the network first</html>", {"Content-Type": "text/html"})
        elif match := re.fullmatch(r"/api/organizations/([^/]+)/overview", path):
            self._organization(request, match[1])
        elif match := re.fullmatch(r"(/api/kernels/|/kernels/)([^/]+/[^/]+)(/.*)", path):
            self._repository(request, match, parts.query)
        else:
            _missing(request, "RepoNotFound")

    def _organization(self, request: BaseHTTPRequestHandler, name: str) -> None:
        if name == "a-person":
            _send(request, 404, b'{"error": "This organization does not exist"}')
            return
        trusted = name in self.trusted
        about = {"name": name, "fullname": name, "avatarUrl": "", "numUsers": 1}
        _send(request, 200, json.dumps(about | {"trustedKernelPublisher": trusted}).encode())

    def _repository(self, request: BaseHTTPRequestHandler, match: re.Match[str], query: str) -> None:
        root, repo, rest = match[1], match[2], match[3]
        if repo in self.moved:
            location = f"{self.url}{root}{self.moved[repo]}{rest}" + (f"?{query}" if query else "")
            _send(request, 307, b"", {"Location": location})
        elif (repository := self.repositories.get(repo)) is None:
            _missing(request, "RepoNotFound")
        elif rest == "/refs":
            _send(request, 200, json.dumps(_refs(repository)).encode())
        else:
            self._content(request, repository, rest, "recursive=true" in query.lower())

    def _content(
        self, request: BaseHTTPRequestHandler, repository: Repository, rest: str, recursive: bool
    ) -> None:
        match = re.fullmatch(r"/(tree|resolve|revision)/([^/]+)/?(.*)", rest)
        names = {**repository.branches, **repository.tags}
        revision = match[2].removeprefix("refs/heads/") if match else ""
        commit = names.get(revision, revision)
        if match is None or commit not in repository.commits:
            _missing(request, "RevisionNotFound")
            return
        path = repository.commits[commit] / match[3]
        if not path.exists():
            _missing(request, "EntryNotFound")
        elif match[1] == "resolve":
            data = path.read_bytes()
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit}
            _send(request, 200, data, headers)
        else:
            _send(request, 200, json.dumps(_tree(repository.commits[commit], path, recursive)).encode())


def _refs(repository: Repository) -> dict[str, object]:
    def listed(names: dict[str, str], kind: str) -> list[dict[str, str]]:
        return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": c} for n, c in names.items()]

    return {
        "branches": listed(repository.branches, "heads"),
        "tags": listed(repository.tags, "tags"),
        "converts": [],
    }


def _tree(root: Path, folder: Path, recursive: bool) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for path in sorted(folder.rglob("*") if recursive else folder.iterdir()):
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            found.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": name})
        else:
            data = path.read_bytes()
            oid = hashlib.sha1(data).hexdigest()
            found.append({"type": "file", "oid": oid, "size": len(data), "path": name})
    return found


def _missing(request: BaseHTTPRequestHandler, code: str) -> None:
    _send(request, 404, b'{"error": "not found"}', {"X-Error-Code": code})


def _send(
    request: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None
) -> None:
    request.send_response(status)
    for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(data)
