"""Templates that an earlier build compiled are used again, and never trusted beyond what they were made from."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import Environment

from kernels_bench_tools.report import templates
from kernels_bench_tools.report.templates import CompiledTemplates, make_environment

NAME = "404.html.j2"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a build left its compiled templates; this process knows none of them."""
    monkeypatch.setattr(CompiledTemplates, "_known", {})
    make_environment(tmp_path).get_template(NAME)
    CompiledTemplates._known.clear()
    return tmp_path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The names of the templates that are compiled from here on."""
    names: list[str | None] = []
    compile_template = Environment.compile

    def counted(self, source, name=None, *rest, **options):
        names.append(name)
        return compile_template(self, source, name, *rest, **options)

    monkeypatch.setattr(Environment, "compile", counted)
    return names


def test_what_an_earlier_build_compiled_is_not_compiled_again(state, compiled):
    make_environment(state).get_template(NAME)

    assert compiled == []


def test_one_process_compiles_a_template_once_also_where_nothing_can_be_kept(tmp_path, compiled, monkeypatch):
    monkeypatch.setattr(CompiledTemplates, "_known", {})
    for _ in range(2):
        make_environment(tmp_path / "missing").get_template(NAME)

    assert compiled == [NAME]
    assert not (tmp_path / "missing").exists()


def test_what_another_version_compiled_is_compiled_anew(state, compiled, monkeypatch):
    monkeypatch.setattr(templates, "program_key", lambda: "another version")
    make_environment(state).get_template(NAME)

    assert compiled == [NAME]


@pytest.mark.parametrize("damage", [b"", b"garbage", None], ids=["empty", "garbage", "cut short"])
def test_a_damaged_file_is_compiled_anew(state, compiled, damage):
    for file in (state / "templates").iterdir():
        file.write_bytes(file.read_bytes()[:200] if damage is None else damage)
    make_environment(state).get_template(NAME)

    assert compiled == [NAME]
