"""``kbt history``."""

import json

import pytest
from history import make_repository, rows
from projects import assert_one_line, git, run_kbt

THEN, SLOWER = (0.1000, 0.1001, 0.0999), (0.1040, 0.1041, 0.1039)
LESS = (0.1030, 0.10301, 0.10299)


@pytest.fixture
def repository(tmp_path):
    return make_repository(
        tmp_path, [rows("r1", *THEN), rows("r2", *SLOWER, torch="2.13.0"), rows("r3", *LESS, torch="2.13.0")]
    )


@pytest.mark.parametrize("name", ["op", "op/mine"])
def test_it_prints_a_line_for_each_measurement_with_its_cause(repository, name):
    done = run_kbt(repository, "history", name, COLUMNS="160")

    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[-3:] for line in lines if "2.12.0" in line] == [["2.12.0", "→", "2.13.0"]]
    assert "unexplained change" in done.stdout
    assert lines[-1] == ["3", "measurements,", "2", "changes", "of", "time,", "1", "unexplained"]


def test_its_json_has_the_times_the_causes_and_the_commit(repository):
    done = run_kbt(repository, "history", "op", "--json", "--workload", "a")

    first, second, _ = json.loads(done.stdout)["rows"]
    assert "base" not in first
    assert second["base"]["ms"] == pytest.approx(0.1)
    assert second["difference"] == pytest.approx(0.04)
    assert second["causes"] == [{"kind": "toolchain", "detail": "torch 2.12.0 → 2.13.0"}]
    assert (second["change"], second["commit"]) == ("slower", git(repository, "rev-parse", "HEAD~1"))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["opp"], ["opp", "has no records in any commit", "'op'"]),
        (["op", "--device", "x"], ["op x", "has no records in any commit", "kbt list --records"]),
        (["op", "--workload", "aa"], ["aa", "'a'"]),
        (["op/other"], ["op/other"]),
        (["../op"], ["outside repository"]),
    ],
)
def test_rows_that_no_commit_has_are_a_mistake(repository, arguments, parts):
    assert_one_line(run_kbt(repository, "history", *arguments), *parts)


def test_without_a_repository_it_says_so(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "pyproject.toml").write_text("[tool.kbt]\n")

    assert_one_line(run_kbt(folder, "history", "op"), "is not in a git repository")
