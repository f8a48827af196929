from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from kernels_bench_tools.errors import KbtError, Unsupported
from kernels_bench_tools.hub import get_kernel, reason

REPO = "kernels-community/layer-norm"
SCRIPT = """
import sys
from kernels_bench_tools import Unsupported, get_kernel
try:
    get_kernel(sys.argv[1], version=1, deadline_s=float(sys.argv[2]))
except Unsupported as error:
    print(error)
"""


def reason_of(clean_environment: dict[str, str], deadline_s: float = 50, **environment: str) -> str:
    """Return why the kernel cannot be had, from a fresh process: the hub's client reads its settings once."""
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, REPO, str(deadline_s)],
        env={**clean_environment, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.fixture
def clean_environment(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    import os

    hidden = ("HF_", "KERNELS_", "LOCAL_KERNELS", "USE_HUB_KERNELS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(hidden)}
    return {**kept, "HF_HOME": str(tmp_path), "NO_PROXY": "*"}


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def failing_server() -> Iterator[str]:
    class Fails(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fails) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_hub_that_refuses_is_out_of_reach(clean_environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"

    text = reason_of(clean_environment, HF_ENDPOINT=endpoint)

    assert text == "the hub cannot be reached: [Errno 111] Connection refused"


def test_a_name_that_does_not_resolve_is_out_of_reach_and_no_matter_of_trust(
    clean_environment: dict[str, str],
) -> None:
    text = reason_of(clean_environment, HF_ENDPOINT="http://hub.invalid")

    assert text.startswith("the hub cannot be reached: ")
    assert "trust" not in text


def test_a_silent_hub_is_given_up_at_the_deadline(
    clean_environment: dict[str, str], silent_server: str
) -> None:
    start = time.monotonic()

    text = reason_of(clean_environment, deadline_s=3, HF_ENDPOINT=silent_server)

    assert text == "the hub did not answer within 3 s"
    assert time.monotonic() - start < 20


def test_a_hub_that_fails_is_told_with_its_code(
    clean_environment: dict[str, str], failing_server: str
) -> None:
    assert reason_of(clean_environment, HF_ENDPOINT=failing_server) == f"the hub answered HTTP 500 for {REPO}"


def test_offline_without_the_kernel_says_so(clean_environment: dict[str, str]) -> None:
    text = reason_of(clean_environment, HF_HUB_OFFLINE="1")

    assert text.startswith(f"{REPO} is not in the local cache")


@pytest.mark.parametrize("value", ["0", "off", "NO"])
def test_switched_off_nothing_is_imported(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("USE_HUB_KERNELS", value)
    monkeypatch.setitem(sys.modules, "kernels", None)  # importing it would raise

    with pytest.raises(Unsupported, match="hub kernels are switched off"):
        get_kernel(REPO, version=1)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USE_HUB_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "kernels", None)

    with pytest.raises(Unsupported, match="needs the package 'kernels'"):
        get_kernel(REPO, version=1)


def test_a_kernel_without_a_version_is_a_user_s_mistake() -> None:
    with pytest.raises(KbtError, match="has no version"):
        get_kernel(REPO)
    with pytest.raises(KbtError, match="both a version and a revision"):
        get_kernel(REPO, version=1, revision="main")


def test_a_kernel_that_has_no_build_here_says_what_there_is() -> None:
    error = FileNotFoundError("Cannot find a build variant for this system in x:\n  torch-cuda: no CUDA")

    assert reason(error, REPO) == (
        f"no build of {REPO} fits this system: "
        "Cannot find a build variant for this system in x: torch-cuda: no CUDA"
    )


def test_the_reason_is_always_one_line() -> None:
    assert "\n" not in reason(RuntimeError("a\n\nb"), REPO)
