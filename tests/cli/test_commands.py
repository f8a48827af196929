"""The other verbs, and what they say to mistakes."""

import json
import re
from pathlib import Path

import pytest
import typer
from projects import Kbt, assert_one_line, run_kbt
from typer.core import TyperArgument

from kernels_bench_tools.cli.app import VERBS, find_app


def test_a_sustained_time_is_measured_if_asked_for(project: Path) -> None:
    smoke = ("run", "layer_norm/torch_layer_norm", "--env", "current", "--workloads", "smoke", "--json")

    usual, asked = (json.loads(run_kbt(project, *smoke, *more).stdout) for more in ((), ("--sustained",)))

    ((cell, row),) = [(cell, row) for cell in asked for row in cell["rows"]]
    assert not cell["cached"]
    assert row["status"] in {"ok", "disturbed"}
    assert "sustained_ms" not in usual[0]["rows"][0]["more"]
    assert row["more"]["sustained_ms"] > 0


def test_check_finds_unknown_names_in_placeholders_but_not_in_examples(bare: Path) -> None:
    text = "![family: x]\n\n![operators: sofmax, softmax]\n\n```md\n![family: y]\n```\n"
    (bare / "index.md").write_text(text)

    told = run_kbt(bare, "check").stderr

    assert re.findall(r"index.md: !\[(\w+): .*? names '(\w+)'", told) == [
        ("family", "x"),
        ("operators", "sofmax"),
    ]
    assert "Did you mean 'softmax'?" in told


def test_a_mistake_in_one_notebook_does_not_stop_the_others_of_its_operator(bare: Path) -> None:
    (bare / "softmax/impls/draft.md").write_text("```python id=c timeout=soon\npass\n```\n")

    done = run_kbt(bare, "run", "softmax/plain", "--env", "current")

    assert "wrote no softmax.jsonl" in done.stdout, done.stderr
    assert run_kbt(bare, "new", "implementation", "softmax/mine").returncode == 0
    assert_one_line(run_kbt(bare, "run", "softmax/draft"), "draft.md:1: timeout=soon")
    listed = run_kbt(bare, "list")
    assert "3 implementations" in listed.stdout
    assert listed.stderr.startswith("note: softmax/impls/draft.md:1: timeout=soon")


@pytest.mark.parametrize(
    ("selection", "ran"),
    [
        ("only={'function': 'a'}", {"of_a"}),
        ("only={'function': ONE}", {"of_a", "of_b"}),
        ("", {"of_a", "of_b"}),
    ],
)
def test_run_runs_the_baseline_of_the_same_function(bare: Path, selection: str, ran: set[str]) -> None:
    def write(name: str, front: str, selection: str) -> None:
        code = f"if 0: run_benchmark('softmax', abs, {selection})"
        text = f"---\n{front}\n---\n```python id=benchmark outputs=softmax.jsonl\n{code}\n```\n"
        (bare / f"softmax/impls/{name}.md").write_text(text)

    (bare / "softmax/impls/plain.md").unlink()
    write("of_a", "baseline: true", "only={'function': 'a'}")
    write("of_b", "baseline: true", "only={'function': 'b'}")
    write("mine", "family: mine", selection)

    done = run_kbt(bare, "run", "softmax/mine", "--env", "current")

    assert {name for name in ("of_a", "of_b") if f"{name}.md:benchmark" in done.stderr} == ran


def test_clean_removes_the_report_and_keeps_the_results(project: Path, build: Kbt) -> None:
    assert run_kbt(project, "clean").returncode == 0

    assert not (project / "site" / "index.html").exists()
    done = build("--json")
    assert all(cell["cached"] or cell["exit_code"] is None for cell in json.loads(done.stdout)["cells"])
    assert (project / "site" / "index.html").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_its_arguments_no_brackets_because_typer_adds_them(verb: str) -> None:
    commands = [typer.main.get_command(find_app([verb]))]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        names = [one.metavar or "" for one in command.params if isinstance(one, TyperArgument)]
        assert not [name for name in names if name.startswith("[") or name.endswith("...")]
        assert command.help
