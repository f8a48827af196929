"""Processes of this package import nothing from the current folder, and get no credentials that they do not need."""

import ast
import re
import subprocess
from pathlib import Path

from kernels_bench_tools.own_process import PACKAGE_FOLDER, module_variables, python_command, run_program
from kernels_bench_tools.text.words import words

STARTS = re.compile(
    r"subprocess\.(?:run|Popen|call|check_\w+|get\w*output)|os\.(?:exec|spawn|posix_spawn|fork|system|popen)|\bpty\."
    r"|subprocess_(?:exec|shell)|get_context\(|ProcessPoolExecutor\(|multiprocessing\.(?:Process|Pool)"
    r"|import (?:subprocess|os|multiprocessing) as|from (?:subprocess|os) import (?!PathLike|TimeoutExpired)"
)
"""How a process is started, or what starts one gets another name."""
CALLED = {"subprocess.run", "subprocess.Popen", "start_session"}
PLACES = {
    "subprocess.run": words("git own_process"),
    # The last one for types only.
    "subprocess.Popen": words(
        "hub/build/__main__ measure/device/clocks run/process/forks run/process/reaper run/process/run"
    ),
    # Copies of a process, which run what it runs.
    "os.fork": words("forking"),
    **dict.fromkeys(("get_context(", "ProcessPoolExecutor("), ("chart/figure", "selfcheck/checks")),
}


def modules() -> dict[str, str]:
    return {
        path.relative_to(PACKAGE_FOLDER).as_posix(): path.read_text() for path in PACKAGE_FOLDER.rglob("*.py")
    }


def test_processes_are_started_in_known_places_with_variables_and_a_command_that_were_chosen():
    found = {(start, path) for path, text in modules().items() for start in STARTS.findall(text)}
    calls = [(path, node) for path, text in modules().items() for node in ast.walk(ast.parse(text))]
    starts = [
        (path, one) for path, one in calls if isinstance(one, ast.Call) and ast.unparse(one.func) in CALLED
    ]
    without = [path for path, call in starts if all(one.arg != "env" for one in call.keywords)]

    assert found == {(start, f"{path}.py") for start, paths in PLACES.items() for path in paths}
    assert without == ["run/process/reaper.py"]  # one function passes on what its callers chose
    own = [path for path, text in modules().items() if re.search(r"\[\s*PYTHON,|sys\.executable", text)]
    assert own == ["own_process.py"]


def test_git_is_called_in_one_place():
    calls = {
        name for name, text in modules().items() if re.search(r"""\[["']git["'],|["']git (?!clone`)""", text)
    }

    assert calls == {"git.py"}


def test_no_module_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":.")
    for name in ("msgspec", "torch", "numpy", "json", "argparse", "kernels"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')\nraise SystemExit\n")
    command = python_command("-m", "kernels_bench_tools.hub.build", "none")

    done = subprocess.run(
        command, cwd=tmp_path, env=module_variables({"PYTHONPATH": ":."}), input=b"[]", capture_output=True
    )

    assert not (tmp_path / "imported").exists()
    assert b"kernels_bench_tools" in done.stderr or done.returncode in {0, 2}


def test_credentials_are_passed_only_to_what_needs_them() -> None:
    secrets = dict.fromkeys(words("HF_TOKEN GITHUB_TOKEN MYSQL_PWD SSHPASS"), "secret")
    urls = {"HTTPS_PROXY": "http://me:secret@proxy", "PIP_INDEX_URL": "https://me:secret@index"}
    variables = {"HOME": "/home/me", "PWD": "/home/me"} | secrets | urls

    assert "secret" not in str(module_variables(variables))
    passed = module_variables(variables, network=True).keys() - {"PYTHONPATH"}
    assert passed == {"HOME", "PWD", "HF_TOKEN", "HTTPS_PROXY"}


def test_a_program_gets_no_credentials(monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in run_program(["env"]).stdout
