"""A system that refuses memory, threads or a home folder: one line, and exit code 2."""

from pathlib import Path

import pytest
import typer

from kernels_bench_tools.cli.app import run
from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.run.environment.variables import user_cache


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("too deep"), RuntimeError("can't start new thread")]
)
def test_a_system_that_refuses_something_is_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    assert run(app, []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kbt: kbt: the system refused")


def test_without_a_home_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(KbtError, match="HOME: is not set"):
        user_cache()
