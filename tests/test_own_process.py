"""Processes of this package import nothing from the current folder, and get no credentials that they do not need."""

import re
import subprocess
from pathlib import Path

from kernels_bench_tools.own_process import PACKAGE_FOLDER, module_variables, python_command

STARTS = re.compile(r"subprocess\.(run|Popen|call|check_\w+)|os\.(exec|spawn|posix_spawn|system|popen)")
"""How a process is started."""
OTHER_PROGRAMS = {
    "git.py",
    "hub/build/__main__.py",
    "hub/build/compilers.py",
    "records/device.py",
    "run/process/run.py",
}
"""Where something else than a module of this package is started."""


def modules() -> dict[str, str]:
    return {
        path.relative_to(PACKAGE_FOLDER).as_posix(): path.read_text() for path in PACKAGE_FOLDER.rglob("*.py")
    }


def test_every_start_of_a_module_of_this_package_has_its_command_from_one_place():
    started = {name for name, text in modules().items() if STARTS.search(text)}
    named = {name for name, text in modules().items() if re.search(r"sys\.executable", text)}
    commands = {name for name, text in modules().items() if re.search(r"(python|isolated)_command\(", text)}

    assert started - OTHER_PROGRAMS <= commands
    assert named == {"own_process.py"}


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
    variables = {
        "HOME": "/home/me",
        "HF_TOKEN": "secret",
        "HTTPS_PROXY": "http://me:secret@proxy",
        "GITHUB_TOKEN": "secret",
        "PIP_INDEX_URL": "https://me:secret@index",
    }

    assert "secret" not in str(module_variables(variables))
    assert module_variables(variables)["HOME"] == "/home/me"
    assert module_variables(variables, network=True).keys() - {"PYTHONPATH"} == {
        "HOME",
        "HF_TOKEN",
        "HTTPS_PROXY",
    }
