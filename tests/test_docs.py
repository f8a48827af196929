"""What the documentation names exists."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md"))),
]
PACKAGE = ROOT / "kernels_bench_tools"

# In somebody's project: what `kbt init` and builds make there (tests/cli/test_init.py).
_IN_PROJECTS = {
    ".github/workflows/benchmarks.yml",
    ".kbt/",
    "operators/softmax.py",
    "site/",
    "softmax/impls/",
    "softmax/index.md",
    "softmax/results/combined_results.md",
}
_NAMED = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md|toml|yml))?|[\w-]+\.py)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
_REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def named_paths(text: str) -> set[str]:
    """Return the paths in backticks, without placeholders such as ``suites/NAME.toml``."""
    return {
        path for path in _NAMED.findall(text) if not any(part.isupper() for part in re.split(r"[/.]", path))
    }


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_and_link_in_a_document_exists(document):
    path = ROOT / document
    text = path.read_text()

    for name in named_paths(text) - _IN_PROJECTS:
        assert any((folder / name).exists() for folder in (ROOT, PACKAGE, path.parent)), name
    for target, anchor in _LINK.findall(text):
        linked = (path.parent / target) if target else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text()), f"{target}#{anchor}"


def test_links_of_the_readme_are_absolute_where_pypi_shows_them() -> None:
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text()
    for one in hooks["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)

    assert not _LINK.findall(text)
    assert f"]({_REPOSITORY}/blob/main/docs/measuring.md#accuracy)" in text
    assert f"({_REPOSITORY.replace('github', 'raw.githubusercontent')}/main/docs/report.png)" in text
