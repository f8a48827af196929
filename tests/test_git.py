"""The repository that a project is in."""

import pytest
from projects import git, run_kbt

from kernels_bench_tools.git import Checkout


def test_a_variable_names_the_commit_and_says_nothing_of_changes(tmp_path, monkeypatch):
    monkeypatch.delenv("KBT_COMMIT", raising=False)
    assert (Checkout(tmp_path).commit, Checkout(tmp_path).dirty) == ("", None)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "one")
    (tmp_path / "new").touch()
    assert Checkout(tmp_path).dirty is True

    monkeypatch.setenv("KBT_COMMIT", "abc123")

    assert (Checkout(tmp_path).commit, Checkout(tmp_path).dirty) == ("abc123", None)


@pytest.mark.parametrize("name", ["evil", "evil.name=x"])
def test_no_program_that_a_repository_names_is_started(tmp_path, name, monkeypatch):
    root, ran = tmp_path / "clone", tmp_path / "ran"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / "pyproject.toml").write_text("[tool.kbt]\n")
    (root / "n.md").write_text("# Page\n\n```python id=a\nprint(1)\n```\n")
    (root / ".gitattributes").write_text(f"* filter={name}\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "one")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\ncat\n")
    program.chmod(0o755)
    hooks = root / ".git" / "own hooks"
    hooks.mkdir()
    for hook in ("post-index-change", "post-checkout", "reference-transaction"):
        (hooks / hook).symlink_to(program)
    git(root, "config", "core.hooksPath", str(hooks))
    git(root, "config", "core.fsmonitor", str(program))
    for kind in ("clean", "smudge", "process"):
        git(root, "config", f"filter.{name}.{kind}", str(program))
    git(root, "config", f"filter.{name}.required", "true")
    (root / "n.md").write_text((root / "n.md").read_text() + "More.\n")
    ran.unlink(missing_ok=True)
    monkeypatch.delenv("KBT_COMMIT", raising=False)

    assert Checkout(root).dirty
    done = run_kbt(root, "plan", "--since", "HEAD")

    assert done.returncode == 0, done.stderr
    assert not ran.exists(), ran.read_text()
