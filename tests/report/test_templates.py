"""Compiled templates are kept between processes."""

import tempfile

import pytest
from jinja2 import Environment

from kernels_bench_tools.report import templates

NAME = "404.html.j2"


@pytest.fixture
def compiled(tmp_path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The names of the templates that are compiled from here on; none is compiled yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: list[str | None] = []
    compile_template = Environment.compile

    def counted(self, source, name=None, *rest, **options):
        names.append(name)
        return compile_template(self, source, name, *rest, **options)

    monkeypatch.setattr(Environment, "compile", counted)
    return names


def get_template_in_a_new_environment():
    templates.environment.__wrapped__().get_template(NAME)


def test_a_compiled_template_is_not_compiled_again(compiled):
    get_template_in_a_new_environment()
    get_template_in_a_new_environment()
    assert compiled == [NAME]


def test_a_template_compiled_by_another_version_is_compiled_again(compiled, monkeypatch):
    get_template_in_a_new_environment()
    monkeypatch.setattr(templates, "program_key", lambda: "another version")
    get_template_in_a_new_environment()
    assert compiled == [NAME, NAME]
