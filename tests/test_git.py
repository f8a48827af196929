"""The repository that a project is in."""

import os
import re

import pytest
from projects import commit_all, git, run_kbt

from kernels_bench_tools.git import Checkout, Repository
from kernels_bench_tools.text.words import words


def test_a_variable_names_the_commit_and_says_nothing_of_changes(tmp_path, monkeypatch):
    monkeypatch.delenv("KBT_COMMIT", raising=False)
    assert (Checkout(tmp_path).commit, Checkout(tmp_path).dirty) == ("", None)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "one")
    (tmp_path / "new").touch()
    assert Checkout(tmp_path).dirty is True

    monkeypatch.setenv("KBT_COMMIT", "abc123")

    assert (Checkout(tmp_path).commit, Checkout(tmp_path).dirty) == ("abc123", None)


PROGRAMS = words("""
    core.pager core.editor core.sshCommand core.askPass core.gitProxy core.alternateRefsCommand diff.external
    diff.more.command diff.more.textconv merge.more.driver gpg.program gpg.ssh.program credential.helper
    uploadpack.packObjectsHook interactive.diffFilter pager.log alias.status
""")
"""Settings of a repository that name a program."""


@pytest.mark.parametrize("name", ["evil", "evil.name=x"])
def test_no_program_that_a_repository_names_is_started(tmp_path, name, monkeypatch):
    root, ran = tmp_path / "clone", tmp_path / "ran"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / "pyproject.toml").write_text("[tool.kbt]\n")
    (root / "n.md").write_text("# Page\n\n```python id=a\nprint(1)\n```\n")
    (root / ".gitattributes").write_text(f"* filter={name}\n")
    inner = root / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    git(inner, "commit", "--quiet", "--allow-empty", "--message", "inner")
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
    # Also from a file that the configuration includes, for attributes that are not committed, and in a submodule.
    (root / ".git/more").write_text(f'[filter "more"]\nclean = {program}\nprocess = {program}\n')
    git(root, "config", "include.path", "more")
    (root / ".git/info/attributes").write_text("*.toml filter=more diff=more\n")
    for key in PROGRAMS:
        git(root, "config", key, str(program))
    git(root, "config", "log.showSignature", "true")
    git(inner, "config", "core.fsmonitor", str(program))
    (inner / "new").touch()
    (root / "pyproject.toml").write_text("[tool.kbt]\n\n")
    (root / "n.md").write_text((root / "n.md").read_text() + "More.\n")
    ran.unlink(missing_ok=True)
    monkeypatch.delenv("KBT_COMMIT", raising=False)

    assert Checkout(root).dirty
    for command in (["plan", "--since", "HEAD"], ["compare", "HEAD"], ["list"], ["check"]):
        done = run_kbt(root, *command)

        assert done.returncode == 0, done.stderr
        assert not ran.exists(), ran.read_text()


def test_settings_in_the_users_variables_count(tmp_path, monkeypatch):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "filter.other.clean", "cat")  # which is switched off in the same way
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "one")
    (tmp_path / "new").touch()
    for name, value in {"COUNT": "1", "KEY_0": "status.showUntrackedFiles", "VALUE_0": "no"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    monkeypatch.delenv("KBT_COMMIT", raising=False)

    assert Checkout(tmp_path).dirty is False


@pytest.mark.parametrize("seconds", ["", "never", "9" * 5000])
def test_the_commits_of_a_repository_are_read_whatever_it_sets_and_they_say(tmp_path, seconds):
    (tmp_path / "a").touch()
    commit_all(tmp_path)
    said = re.sub("(committer .*>).*", rf"\1 {seconds} +0000", git(tmp_path, "cat-file", "commit", "HEAD"))
    (tmp_path / "commit").write_bytes(said.encode() + b" to https://me:secret@h/a caf\xe9\n")
    name = git(tmp_path, "hash-object", "-t", "commit", "-w", "--literally", str(tmp_path / "commit"))
    git(tmp_path, "update-ref", "HEAD", name)
    git(tmp_path, "config", "i18n.logOutputEncoding", "UTF-16")
    git(tmp_path, "config", "diff.orderFile", str(tmp_path / "fifo"))
    os.mkfifo(tmp_path / "fifo")

    (found,) = Repository(tmp_path).log("a")
    assert found[:3] == (name, 0, "all to https://***@h/a caf\\udce9")
    assert tmp_path / "commit" in Repository(tmp_path).changed_files("HEAD", tmp_path / ".git/refs")


def test_comparing_files_does_not_write_the_index(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("text\n")
    commit_all(tmp_path)
    os.utime(tmp_path / "file", (1, 1))
    index = tmp_path / ".git/index"
    (temporary := tmp_path / ".git/temporary").mkdir()
    before = index.read_bytes(), index.stat().st_ino

    assert Repository(tmp_path).changed_files("HEAD", temporary) == set()
    assert Checkout(tmp_path).dirty is False
    assert (index.read_bytes(), index.stat().st_ino) == before


@pytest.mark.parametrize("named", ["fifo", "/dev/zero"])
def test_no_file_that_a_repository_names_is_read_but_the_users_lists_are(tmp_path, named, monkeypatch):
    root, home = tmp_path / "clone", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    os.mkfifo(root / "fifo")
    (root / "pyproject.toml").write_text("[tool.kbt]\n")
    (root / "n.md").write_text("# Page\n\n```python id=a\nprint(1)\n```\n")
    (root / ".gitignore").write_text("fifo\n")
    (home / "ignored").write_text("*.mine\n")
    commit_all(root)
    (root / "new.mine").touch()
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "config"))
    git(root, "config", "--global", "core.excludesFile", str(home / "ignored"))
    monkeypatch.delenv("KBT_COMMIT", raising=False)
    assert Checkout(root).dirty is False
    for key in ("core.attributesFile", "core.excludesFile", "mailmap.file"):
        git(root, "config", key, named if named[0] == "/" else str(root / named))

    for command in (["plan", "--since", "HEAD"], ["compare", "HEAD"]):
        done = run_kbt(root, *command, timeout=100)
        assert done.returncode == 0, done.stderr


def test_a_git_that_waits_for_ever_is_ended_and_the_error_says_where_to_look(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    (tmp_path / "n.md").write_text("# Page\n\n```python id=a\nprint(1)\n```\n")
    commit_all(tmp_path)
    os.mkfifo(tmp_path / ".git/more")
    git(tmp_path, "config", "include.path", "more")

    done = run_kbt(tmp_path, "plan", "--since", "HEAD", timeout=100)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"{tmp_path}: git did not end in 10 s. Look there, in .git" in done.stderr
