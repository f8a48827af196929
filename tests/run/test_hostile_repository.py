"""A repository that was just cloned may contain anything where kbt keeps its files: nothing outside changes."""

import os
import subprocess
from pathlib import Path

import pytest
from projects import PYTHON, contents, run_kbt, wait_until

CELL = "# Page\n\n```python id=a\nprint(1)\n```\n"
BUILD = ("build", "--env", "current")
COMMANDS = (BUILD, ("clean", "--unused"), ("clean", "--all"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project beside folders and files of the user."""
    for name in ("a" * 64, f"{'b' * 64}-process-0", ".draft-" + "c" * 32, "thesis"):
        (tmp_path / "outside" / name).mkdir(parents=True)
        (tmp_path / "outside" / name / "chapter").write_text("kept")
        os.utime(tmp_path / "outside" / name, (1, 1))
    (tmp_path / "outside" / "file").write_text("kept")
    root = tmp_path / "clone"
    (root / "op" / "impls").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[tool.kbt]\ncache_size = "1"\n')
    for name in ("n.md", "op/impls/x.md"):
        (root / name).write_text(CELL)
    return root


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (".kbt", "outside"),
        (".kbt/cache", "outside"),
        (".kbt/cache", ""),
        (".kbt/cells", "outside"),
        (".kbt/environments", "outside"),
        (".kbt/cache/" + "d" * 64, "outside"),
        (".kbt/last.json", "outside/file"),
        (".kbt/build.json", "outside/file"),
        (".kbt/lock", "outside/file"),
        (".kbt/.gitignore", "outside/new"),
        ("op/impls/.kbt", "outside"),
        ("op/impls/.kbt/cells", "outside"),
        ("site", "outside"),
    ],
)
def test_no_command_changes_what_is_behind_a_link(clone: Path, name: str, target: str) -> None:
    link = clone / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(clone.parent / target)
    outside = clone.parent / "outside"
    before = contents(outside)

    for command in COMMANDS:
        done = run_kbt(clone, *command, timeout=60)

        assert contents(outside) == before
        assert done.returncode in {0, 2}
        assert "Traceback" not in done.stderr
        if done.returncode == 2:
            assert any(remedy in done.stderr for remedy in ("Remove", "Move", "Choose"))


@pytest.mark.parametrize(
    ("name", "target", "command"),
    [
        ("rms_norm", "outside", ("new", "operator", "rms_norm")),
        ("rms_norm/impls", "outside", ("new", "operator", "rms_norm")),
        ("softmax/impls", "outside", ("init",)),
        (".gitignore", "outside/file", ("init",)),
        (".github", "outside", ("init",)),
        (".github/workflows", "outside", ("init",)),
        ("kernelbench", "outside", ("import", "kernelbench", "op")),
        ("selfcheck", "outside", ("selfcheck", "--quick", "--processes", "0", "--ncu", "")),
        ("op/impls/new.md", "outside/new", ("new", "implementation", "op", "new")),
        ("pyproject.toml", "outside/settings", ("upgrade", "--harness", "1.0")),
        ("op/impls/x.md", "outside/cell", ("upgrade", "--harness", "1.0")),
    ],
)
def test_no_command_that_writes_sources_writes_behind_a_link(
    clone: Path, name: str, target: str, command: tuple[str, ...]
) -> None:
    outside = clone.parent / "outside"
    (outside / "settings").write_text('[tool.kbt]\nharness = "0.1"\n')
    (outside / "cell").write_text(CELL)
    (clone / "op" / "1_x.py").write_text("class Model: pass\nclass ModelNew: pass\n")
    link = clone / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(outside.parent / target)
    if command == ("init",):
        (clone / "pyproject.toml").unlink()
    before = contents(outside)

    done = run_kbt(clone, *command)

    assert contents(outside) == before
    assert done.returncode in {0, 2}
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("has_pages", [True, False])
def test_only_a_site_that_the_user_names_may_be_a_link(clone: Path, has_pages: bool) -> None:
    site = clone.parent / "other"
    site.mkdir()
    if has_pages:
        assert run_kbt(clone, *BUILD, "--output", str(site)).returncode == 0
    (clone / "n.md").rename(clone / "m.md")
    (clone / "site").symlink_to(site)
    before = contents(site)

    for command in COMMANDS:
        done = run_kbt(clone, *command)

        assert (done.returncode, contents(site)) == (2, before)
        assert "/site: is a symbolic link." in done.stderr
    assert run_kbt(clone, *BUILD, "--output", "site").returncode == 0
    assert (site / "m.html").exists()


def test_a_gitignore_that_was_cut_or_is_a_link_is_made_again_and_one_with_text_is_kept(clone: Path) -> None:
    assert run_kbt(clone, *BUILD).returncode == 0
    files = [clone / name / ".gitignore" for name in (".kbt", "site")]

    for damage in (lambda path: path.write_bytes(b"\0\0"), lambda path: path.symlink_to("nowhere")):
        for file in files:
            file.unlink()
            damage(file)
        assert run_kbt(clone, *BUILD).returncode == 0
        assert [file.read_text() for file in files] == ["*\n", "*\n"]
    files[1].write_text("mine")
    assert run_kbt(clone, *BUILD).returncode == 0
    assert files[1].read_text() == "mine"


def test_no_script_of_an_environment_is_written_behind_a_link(clone: Path) -> None:
    (clone / ".kbt").mkdir()
    (clone / ".kbt/environments").symlink_to(clone.parent / "outside")
    before = contents(clone.parent / "outside")

    done = run_kbt(clone, "build", UV_OFFLINE="1")

    assert (done.returncode, contents(clone.parent / "outside")) == (2, before)
    assert "environments: is a symbolic link" in done.stderr


def test_a_last_result_outside_of_the_cache_is_none(clone: Path) -> None:
    (clone / ".kbt").mkdir()
    (clone / ".kbt/last.json").write_text('{"keys": {"n.md:a": "../../../outside/thesis"}}')

    done = run_kbt(clone, *BUILD)

    assert done.returncode == 0, done.stderr
    assert (clone.parent / "outside/thesis").stat().st_mtime == 1


def test_only_folders_whose_name_is_a_key_are_removed_from_the_cache(clone: Path) -> None:
    assert run_kbt(clone, *BUILD).returncode == 0
    cache = clone / ".kbt" / "cache"
    kept = {path.name for path in cache.iterdir()} | {
        "thesis",
        "x-process-1",
        "thesis.replaced",
        ".draft-mine",
    }
    for name in (*kept, "e" * 64):
        (cache / name).mkdir(exist_ok=True)

    done = run_kbt(clone, *COMMANDS[1])

    assert done.returncode == 0, done.stderr
    assert {path.name for path in cache.iterdir()} == kept


def test_folders_that_a_cell_nested_thousands_deep_do_not_stop_any_build(clone: Path) -> None:
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')\nos.kill(os.getppid(), 9)"
    (clone / "op" / "impls" / "x.md").unlink()
    (clone / "n.md").write_text(CELL.replace("print(1)", deep))
    temporary = clone.parent / "t"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary)}
    run_kbt(clone, *BUILD, **variables)
    (clone / "n.md").write_text(CELL)

    done = run_kbt(clone, *BUILD, **variables)

    assert done.returncode == 0, done.stderr
    assert wait_until(lambda: not list(temporary.glob("kbt-*")))


def test_no_file_of_a_clone_is_imported_by_kbt_or_in_place_of_a_package(clone: Path) -> None:
    ran = clone.parent / "ran"
    for name in ("sitecustomize", "usercustomize", "conftest", "msgspec", "jinja2", "typer", "torch", "json"):
        for folder in (clone, clone / ".kbt/cells", clone / "op/impls"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write(__file__)\n")
    (clone / "matplotlibrc").write_text("backend: module://conftest\n")
    (clone / ".netrc").write_text("machine x login y password z\n")
    (clone / "n.md").write_text(CELL.replace("print(1)", "import json, msgspec"))

    for command in (("list",), ("check",), ("plan",), BUILD, ("clean",)):
        # As the installed command: `python -m` alone looks into the current folder.
        start = [PYTHON, "-P", "-m", "kernels_bench_tools", *command]
        assert subprocess.run(start, cwd=clone, check=False).returncode == 0
        assert not ran.exists(), ran.read_text()
