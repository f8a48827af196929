from projects import git

from kernels_bench_tools.run.git import Checkout


def test_a_variable_names_the_commit_of_files_of_which_it_is_not_known_whether_they_are_changed(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("KBT_COMMIT", raising=False)
    assert (Checkout(tmp_path).commit, Checkout(tmp_path).dirty) == ("", None)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "one")
    (tmp_path / "new").touch()
    assert Checkout(tmp_path).dirty is True

    monkeypatch.setenv("KBT_COMMIT", "abc123")

    assert (Checkout(tmp_path).commit, Checkout(tmp_path).dirty) == ("abc123", None)
