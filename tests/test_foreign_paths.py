"""Text of a file becomes a path by one function: it ends below its folder, fits with its ending, and no link leads out."""

import ast
import json
import re
from pathlib import Path

import pytest
from projects import contents, run_kbt

from kernels_bench_tools import own_folders
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.text.words import words

PACKAGE = Path(own_folders.__file__).parent
BAD = [
    "",
    ".",
    "..",
    "../x",
    "a/../../x",
    "/x",
    ".git/x",
    "a\0",
    "a\n",
    "a\\b",
    "\udcff",
    "é" * 101,
    "a/" * 600 + "b",
]


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_leads_out_or_is_no_name_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProjectError, match=r"^f: '.* cannot be a path in .*\. Expected: .*\. Rename it\.$"):
        path_below(tmp_path, text, where="f")


def test_an_ending_counts_and_links_lead_to_no_other_folder(tmp_path: Path) -> None:
    (tmp_path / "own/inner").mkdir(parents=True)
    (tmp_path / "own/out").symlink_to(tmp_path)
    (tmp_path / "own/in").symlink_to("inner")

    assert path_below(tmp_path, f"./a/{'é' * 100}", "." * 55).name == "é" * 100 + "." * 55
    with pytest.raises(ProjectError, match="cannot be a path"):
        path_below(tmp_path, "é" * 100, "." * 56)
    assert path_below(tmp_path / "own", "in/x") == tmp_path / "own/in/x"
    with pytest.raises(ProjectError, match="cannot be a path"):
        path_below(tmp_path / "own", "out/x")


def make_kernel(root: Path, text: str, folder: str = "scale") -> None:
    (root / "source/torch-ext" / folder).mkdir(parents=True)
    (root / "source/torch-ext" / folder / "__init__.py").touch()
    (root / "source/build.toml").write_text(text)
    (root / "outside/build").mkdir(parents=True)
    (root / "outside/secret.py").write_text("key = 1\n")


NOARCH = '[general]\nname = "scale"\nbackends = ["cpu"]\n\n[general.hub]\nrepo-id = "org/scale"\n\n[torch-noarch]\n'
SOURCES = {
    "repository": NOARCH.replace("org/scale", "../../outside"),
    "absolute": NOARCH.replace("org/scale", "/tmp/outside"),
    "name": NOARCH.replace('"scale"', '"../../outside"', 1),
    "abi": NOARCH.replace("[torch-noarch]", '[torch]\nstable-abi = "../x"'),
    "link": NOARCH,
    "folder": NOARCH,
    "settings": NOARCH,
}


@pytest.mark.parametrize("case", SOURCES)
def test_no_source_of_a_kernel_reads_or_writes_outside(tmp_path: Path, case: str) -> None:
    make_kernel(tmp_path, SOURCES[case])
    if case == "link":
        (tmp_path / "source/torch-ext/scale/more.py").symlink_to(tmp_path / "outside/secret.py")
    if case == "folder":
        (tmp_path / "source/torch-ext/scale").rename(tmp_path / "outside/scale")
        (tmp_path / "source/torch-ext/scale").symlink_to(tmp_path / "outside/scale")
    clone = tmp_path / "a/clone"
    clone.mkdir(parents=True)
    setting = 'hub_builds = "../../outside"\n' if case == "settings" else ""
    (clone / "pyproject.toml").write_text(f"[tool.kbt]\n{setting}")
    before = contents(tmp_path / "outside")

    done = run_kbt(clone, "hub", "build", "../../source", "--backend", "cpu", timeout=120)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert ".toml" in done.stderr
    assert contents(tmp_path / "outside") == before
    assert list(tmp_path.rglob("clone/**/secret.py")) == []


def test_problems_whose_records_would_have_no_valid_name_are_named(tmp_path: Path) -> None:
    model = "import torch\n\nclass Model(torch.nn.Module):\n    pass\n\n\nclass ModelNew(Model):\n    pass\n"
    method = "from kernels.benchmark import Benchmark\n\n\nclass B(Benchmark):\n    pass\n\n\n"
    method += (
        "for kind in ('benchmark', 'verify'):\n    setattr(B, f'{kind}_../../../../x', lambda self: None)\n"
    )
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems/1_\udcff.py").write_text(model)
    (tmp_path / "bench.py").write_text(method)
    long = {"name": "n" * 230, "definition": "d", "author": "me", "sources": []}
    spec = {"language": "python", "entry_point": "main.py::run", "target_hardware": ["cpu"]}
    (tmp_path / "set/solutions").mkdir(parents=True)
    (tmp_path / "set/solutions/s.json").write_text(json.dumps({**long, "spec": spec}))

    for kind, path in (("kernelbench", "problems"), ("hf", "bench.py"), ("trace", "set")):
        done = run_kbt(tmp_path, "import", kind, path, timeout=120)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
        said = " ".join(done.stdout.split())
        assert any(why in said for why in ("cannot be a path", "not UTF-8", "not a valid file name")), said


PLACE = re.compile(
    r"(folder|root|path|parent|output|target|home|artifacts|state|cwd\(\)|source|tree|installed|Path\(.*\))$"
)
JOIN = {
    "names that kbt or Python makes": """
        git.py hub/build/__main__.py measure/judge/runner.py measure/traces.py models/derive.py records/hub.py run/cache/key.py
        run/cell.py run/environment/base.py run/environment/variables.py cluster/shipment.py hub/store.py""",
    "notebooks, operators and records that were found below the root": """
        cli/build.py cli/check.py cli/choose.py cli/compare.py cli/importing.py measure/project_operators.py report/folder.py
        report/operators.py report/page.py report/paths.py report/site.py results/counted.py results/history/states.py
        results/missing.py run/plan.py""",
    "what the user names": "cli/gate.py cli/new.py cli/run.py cli/suite.py",
    "checked there, since globs or several roots count": """
        cli/record.py notebooks/cell.py notebooks/graph.py notebooks/harness.py notebooks/header.py notebooks/project.py
        notebooks/upgrade.py report/artifacts.py""",
    "files of an entry, which its list of digests authenticates": "report/cells.py run/cache/store.py run/cell_outputs.py",
    "in the process of a cell": "results/suite.py",
}
"""Modules that join a text to a path other than by ``path_below``, and where it comes from."""
USE = """cli/effect.py cli/importing.py hub/build/plan.py hub/source.py hub/store.py measure/traces.py notebooks/project.py
    records/committed.py records/hub.py records/settings.py"""


def test_a_module_that_makes_a_path_of_text_is_known() -> None:
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            used = isinstance(node, ast.Call) and ast.unparse(node.func) == "path_below"
            joins = (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Div)
                and not isinstance(node.right, ast.Constant)
                and not ast.unparse(node.right).strip("_").isupper()
                and PLACE.search(ast.unparse(node.left))
            )
            if used or joins:
                found[used].add(path.relative_to(PACKAGE).as_posix())

    assert found == {True: {*words(USE)}, False: {*words(" ".join(JOIN.values()))}}
