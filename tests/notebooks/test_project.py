from pathlib import Path

import pytest

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.project import (
    find_project,
    find_project_of,
    join_path,
    matches,
    operator_of,
    operators,
)

CELL = "```python id=a\n1\n```\n"


def names(root: Path) -> list[str]:
    project = find_project(root)
    return [project.relative(path) for path in project.notebook_paths()]


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(CELL if path.endswith(".md") else "")


def test_the_nearest_folder_with_settings_is_the_project(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\nrepository = "https://x/y/"\n')
    touch(tmp_path, "a/pyproject.toml", "a/.git/HEAD", "a/b/c.md")

    project = find_project(tmp_path / "a/b/c.md")

    assert (project.root, project.title, project.repository) == (tmp_path, "T", "https://x/y")
    assert project.state == tmp_path / ".kbt"


@pytest.mark.parametrize("text", ["", "# Notes\n\n```python\nprint(1)\n```\n"])
def test_a_folder_without_settings_and_cells_is_no_project(tmp_path, text):
    touch(tmp_path, ".git/HEAD")
    (tmp_path / "notes.md").write_text(text)

    with pytest.raises(ProjectError, match=r"is not a project.* `kbt init` creates one"):
        find_project(tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("titel = 'x'", "Did you mean 'title'?"),
        ("notebooks = 'x.md'", "A list of globs"),
        ("notebooks = ['../other/*.md']", "A list of globs below the project's root"),
        ("title = 3", "A string"),
        ("title = ", "cannot be read"),
        (f"title = {'[' * 50_000}", "cannot be read"),
        (f"title = {'1' * 5000}", "cannot be read"),
        ("operators = '../x'", "Printable names"),
        ("memory_limit = 'much'", "memory_limit: 'much' is not a size. Expected: A number of bytes"),
        (f"cache_size = '{'9' * 400}GB'", "is not a size"),
        ("artifact_limit = '0'", "artifact_limit: '0' is not a size"),
        ("memory_limit = [1]", "memory_limit is invalid. Expected: A number of bytes"),
        ("pass_env = 'HF_TOKEN'", "pass_env is invalid. Expected: A list"),
        ("raw_html = 'yes'", "raw_html is invalid. Expected: true or false"),
        ("harness = 'torch'", "harness is invalid"),
        ("harness = 'kernels-bench-toolsx'", "harness is invalid"),
        ("harness = 'kernels-bench-tools rm'", "harness is invalid"),
        ("harness = 3", "harness is invalid"),
        ("harness = {}", "harness is invalid"),
        ("harness = { path = '.', git = 'x' }", "harness is invalid"),
        ("harness = { path = 3 }", "harness is invalid"),
        ("harness = { pth = '.' }", "harness is invalid"),
        ("pass_env = ['A=B']", "'A=B' is not a variable name"),
        (
            "repository = 'javascript:alert(1)//'",
            "repository is invalid. Expected: A URL that begins with https://",
        ),
    ],
)
def test_invalid_settings_are_an_error_in_one_line(tmp_path, settings, said):
    (tmp_path / "pyproject.toml").write_text(f"[tool.kbt]\n{settings}\n")

    with pytest.raises(ProjectError, match=r"pyproject\.toml") as caught:
        find_project(tmp_path)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_documents_environments_hidden_files_and_links_are_not_notebooks_and_patterns_decide(tmp_path):
    root = tmp_path / "project"
    touch(
        root,
        "pyproject.toml",
        "a/x.md",
        "a/README.md",
        "b.md",
        "op/impls/x.md",
        "a/b/impls/x.md",
        ".git/HEAD",
    )
    touch(root, "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE.md", "docs/x.md", "index.md")
    touch(root, "site/x.md", "node_modules/x.md", ".hidden/x.md", ".x.md", "env/pyvenv.cfg", "env/lib/x.md")
    touch(tmp_path, "outside/x.md")
    (root / "linked").symlink_to(tmp_path / "outside")
    (root / "linked.md").symlink_to(tmp_path / "outside/x.md")
    assert names(root) == ["a/README.md", "a/b/impls/x.md", "a/x.md", "b.md", "index.md", "op/impls/x.md"]

    (root / "pyproject.toml").write_text('[tool.kbt]\nnotebooks = ["index.md", "*/impls/*.md"]\n')
    assert names(root) == ["index.md", "op/impls/x.md"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("op/impls/x.md", ["op/impls/x.md"]),
        ("op/x", ["op/impls/x.md"]),
        ("op", ["op/impls/x.md", "op/impls/y.md", "op/results/combined.md"]),
        ("op/results", ["op/results/combined.md"]),
        ("results/combined.md", ["op/results/combined.md"]),
        ("models/tiny-1.0", [f"models/tiny-1.0/{name}.md" for name in ("impls/t", "results/c")]),
        ("models/tiny-1.0/t", ["models/tiny-1.0/impls/t.md"]),
        ("models", [f"models/tiny-1.0/{name}.md" for name in ("impls/t", "results/c")]),
    ],
)
def test_a_target_is_a_path_or_a_short_name(tmp_path, monkeypatch, target, expected):
    tiny = "models/tiny-1.0"
    touch(tmp_path, ".git/HEAD", "op/impls/x.md", "op/impls/y.md", "op/results/combined.md", "z.md")
    touch(tmp_path, f"{tiny}/impls/t.md", f"{tiny}/results/c.md", "impls/of_no_operator.md")
    monkeypatch.chdir(tmp_path / "op")
    project = find_project(tmp_path)

    assert [project.relative(path) for path in project.find_notebooks([target])] == expected
    assert {name: [path.stem for path in paths] for name, paths in operators(project).items()} == {
        tiny: ["t"],
        "op": ["x", "y"],
    }
    assert operator_of(f"{tiny}/results/c.md") == tiny


def two_projects(root: Path) -> None:
    touch(root, "one/.git/HEAD", "one/op/impls/mine.md", "one/other/impls/mine.md", "one/op/impls/yours.md")
    touch(root, "two/.git/HEAD", "two/op/impls/mine.md")


@pytest.mark.parametrize("target", ["one/op", "one/op/impls/mine.md", "one/op/impls/mine.md:a"])
def test_the_project_is_that_of_the_target_not_of_the_current_folder(tmp_path, monkeypatch, target):
    two_projects(tmp_path)
    monkeypatch.chdir(tmp_path)

    assert find_project_of([target]).root == tmp_path / "one"

    monkeypatch.chdir(tmp_path / "two")
    assert find_project_of([f"../{target}"]).root == tmp_path / "one"
    assert find_project_of(["op", "mine"]).root == tmp_path / "two"
    assert find_project_of([]).root == tmp_path / "two"


def test_a_project_in_a_folder_of_a_repository_is_found_from_its_top(tmp_path, monkeypatch):
    touch(tmp_path, ".git/HEAD", "bench/op/impls/mine.md", "notes.md")
    (tmp_path / "bench/pyproject.toml").write_text("[tool.kbt]\n")
    monkeypatch.chdir(tmp_path)

    for target in ("bench/op/mine", "bench/op/mine:a", "bench/op/impls/mine.md", f"{tmp_path}/bench/op/mine"):
        project = find_project_of([target])
        assert project.root == tmp_path / "bench"
        assert project.find_notebooks([target.removesuffix(":a")]) == [tmp_path / "bench/op/impls/mine.md"]
    assert names(tmp_path) == ["notes.md"]

    (tmp_path / "notes.md").unlink()
    with pytest.raises(ProjectError, match="Run the command in bench, which is one"):
        find_project_of([])


def test_targets_in_two_projects_are_an_error(tmp_path, monkeypatch):
    two_projects(tmp_path)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ProjectError, match="Expected: Notebooks of one project"):
        find_project_of(["one/op", "two/op"])


def test_an_implementation_is_found_by_its_name_alone_where_one_operator_has_it(tmp_path):
    two_projects(tmp_path)
    project = find_project(tmp_path / "one")

    assert project.find_notebooks(["yours"]) == [project.root / "op/impls/yours.md"]
    with pytest.raises(ProjectError, match=r"of several operators\. Expected: op/mine or other/mine"):
        project.find_notebooks(["mine"])


@pytest.mark.parametrize("part", ["**/", "**/*/"])
def test_a_glob_of_many_parts_is_matched_at_once(part: str) -> None:
    assert not matches("d/" * 40 + "y.md", part * 14 + "x.md")
    assert matches("d/" * 40 + "x.md", part * 14 + "x.md")
    assert join_path("a", f"{'**/' * 14}*.md") == "a/**/*.md"
