"""The workflows say only what GitHub, the shell and the command understand."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from projects import run_kbt

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
REPORT = FOLDER / "report.yml"
GRANTED = {
    "report.yml": {"deploy": {"pages": "write", "id-token": "write"}},
    "comment.yml": {"comment": {"contents": "read", "actions": "read", "pull-requests": "write"}},
}
_COMMAND = re.compile(r"\bkbt (?P<arguments>[^|)\n]*)")


def load(path: Path) -> dict[Any, Any]:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


def kbt_commands() -> list[str]:
    runs = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    return [match["arguments"].strip() for run in runs for match in _COMMAND.finditer(run)]


@pytest.mark.parametrize("command", kbt_commands())
def test_every_kbt_command_of_a_workflow_is_one(tmp_path: Path, command: str) -> None:
    done = run_kbt(tmp_path, *shlex.split(command), "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: kbt" in done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_workflow_is_given_more_than_it_needs(path: Path) -> None:
    text, data = path.read_text(encoding="utf-8"), load(path)
    assert "secrets." not in text
    assert data["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in data["jobs"].items() if "permissions" in job}
    assert granted == GRANTED.get(path.name, {})
    for job in data["jobs"].values():
        assert job["runs-on"]
        assert job["timeout-minutes"] <= 360
    for run in (step["run"] for step in steps(path) if "run" in step):
        subprocess.run(["bash", "-n"], input=run, text=True, check=True)
        # Text of a push that is pasted into a script would run there.
        assert "${{" not in run
    # A tag can be moved to other code. The comment is the release of the commit.
    used = re.findall(r"uses:(.*)", text)
    assert used
    assert [one for one in used if not re.fullmatch(r" [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_what_a_fork_brings_runs_neither_with_a_token_that_may_write_nor_on_our_machines() -> None:
    for path in WORKFLOWS:
        data = load(path)
        events = data[True]  # `on` in YAML 1.1
        assert "pull_request_target" not in events
        for name, job in data["jobs"].items():
            if "pull_request" in events and "GPU_RUNNER" in job["runs-on"]:
                assert "head.repo.full_name == github.repository" in job["if"], name
            if "workflow_run" in events:
                text = str(job["steps"])
                assert "'ref'" not in text
                assert (
                    re.search(r"git (checkout|switch|worktree|reset|merge |pull)|gh pr checkout", text)
                    is None
                )


def test_uv_is_installed_in_one_version() -> None:
    scripts = [path.read_text(encoding="utf-8") for path in (*WORKFLOWS, ROOT / ".ci" / "run")]
    installed = [command for script in scripts for command in re.findall(r"pip install\b(.*)", script)]

    assert len(installed) == 6
    assert len(set(installed)) == 1
    assert re.fullmatch(r" --quiet uv==\d+\.\d+\.\d+", installed[0])


def test_a_report_with_failures_is_published_and_the_job_fails() -> None:
    build = next(step for step in steps(REPORT) if step.get("id") == "build")
    for kbt_code, published in ((0, True), (1, True), (2, False)):
        script = f"uv() {{ return {kbt_code}; }}; cp() {{ echo copied; }}\n{build['run']}"
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail"], input=script, text=True, capture_output=True, check=False
        )

        assert (done.returncode, "copied" in done.stdout) == (kbt_code, published)
    upload = next(step for step in steps(REPORT) if "upload-pages-artifact" in step.get("uses", ""))
    assert "!cancelled()" in upload["if"]
    assert "published" in load(REPORT)["jobs"]["deploy"]["if"]
