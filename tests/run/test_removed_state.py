"""Cells that remove, replace or plant what kbt makes beside them: that costs their own results at most."""

import json
import shutil
import subprocess
from itertools import zip_longest
from pathlib import Path

import pytest
from projects import contents, run_kbt
from workspace import MEASURING, WRITE_MEASURED

HEAD = """import os, pathlib, shutil
root, outside = pathlib.Path({!r}), pathlib.Path({!r})
state, site, cache = root / ".kbt", root / "site", pathlib.Path(os.environ["HF_HOME"]).parent / "kbt"
def replace(path, how=lambda path: None):
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    how(path)
write = lambda path: path.write_text("planted")
link = lambda path: path.symlink_to(outside)
folder = lambda path: (path / "x").mkdir(parents=True)
"""
OF_THE_STATE = {
    "no state": "replace(state)",
    "no cache": "replace(state / 'cache')",
    "no drafts": "for path in (state / 'cache').glob('.draft-*'): replace(path)",
    "no scripts": "replace(state / 'cells')",
    "a file for the state": "replace(state, write)",
    "a link for the state": "replace(state, link)",
    "a link for the cache": "replace(state / 'cache', link)",
    "a link for scripts": "replace(state / 'cells', link)",
    "folders for files": "for n in ('last.json', 'build.json', 'lock', 'lock.owner', 'summaries.json'): replace(state / n, folder)",
    "a link for the lock": "replace(state / 'lock', lambda path: path.symlink_to(outside / 'index.html'))",
    "no temporary folder": "for path in pathlib.Path(os.environ['TMPDIR']).glob('kbt-*'): replace(path)",
    "a link for locks": "replace(cache / 'locks', link)",
    "a folder for a lock": "for path in [*(cache / 'locks').iterdir(), cache / 'locks/x.lock']: replace(path, folder)",
    "a file for compiled kernels": "replace(cache / 'compiled', write)",
    "damaged settings": "(root / 'pyproject.toml').write_text('[')",
}
OF_THE_SITE = {
    "a page": "replace(site / 'index.html', write)",
    "a folder for a page": "replace(site / 'index.html', folder)",
    "a file for a folder": "replace(site / 'static', write)",
    "a link for a folder": "replace(site / 'static', link)",
    "a link for a page": "replace(site / 'index.html', lambda path: path.symlink_to(outside / 'index.html'))",
    "a link for the site": "replace(site, link)",
    "a file for the site": "replace(site, write)",
    "a manifest": "replace(site / '.kbt-site.json', lambda path: path.write_text('{\"files\": [\"../n.md\"]}'))",
    "a folder for the manifest": "replace(site / '.kbt-site.json', folder)",
}


def build(root: Path, harm: str = "") -> subprocess.CompletedProcess[str]:
    harm = HEAD.format(str(root), str(root.parent / "outside")) + harm if harm else "print(1)"
    cells = {"a": "print('first')", "harm": harm, "z": "print('last')"}
    text = "".join(f"```python id={name}\n{code}\n```\n\n" for name, code in cells.items())
    (root / "n.md").write_text(f"# N\n\n{text}")
    places = {"TMPDIR": str(root.parent / "t"), "XDG_CACHE_HOME": str(root.parent / "cache")}
    done = run_kbt(root, "build", "--env", "current", "--jobs", "1", "--json", **places)
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("harms", "again"),
    [(names, at % 4 == 0) for at, names in enumerate(zip_longest(OF_THE_STATE, OF_THE_SITE, fillvalue=""))],
    ids=str,
)
def test_a_cell_that_removes_or_plants_what_kbt_makes_costs_no_other_cell(
    tmp_path: Path, harms: tuple[str, str], again: bool
) -> None:
    state, site = harms
    harm = f"{OF_THE_STATE[state]}\n{OF_THE_SITE.get(site, '')}"
    root = tmp_path / "project"
    for name in ("outside", "t", "cache/kbt/locks", "project/op/impls"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside/index.html").write_text("kept")
    (root / "pyproject.toml").write_text("[tool.kbt]\n")
    (root / "op/impls/x.md").write_text(f"# X\n\n```python {MEASURING}\n{WRITE_MEASURED}\n```\n")
    if again:
        assert build(root).returncode == 0
        shutil.rmtree(root / ".kbt/cache")

    done = build(root, harm)

    assert done.returncode in {0, 1}, done.stderr
    found = {one["cell"]: one["status"] for one in json.loads(done.stdout)["cells"]}
    lost = {name for name, status in found.items() if status != "ok"}
    assert lost <= {"n.md:harm", "n.md:a"}, done.stdout
    assert contents(tmp_path / "outside") == {"index.html": b"kept"}
    assert "planted" not in (root / "site/index.html").read_text()
    assert (root / "site/n.html").is_file()
    assert list((root / "site/static").iterdir())

    (root / "pyproject.toml").write_text("[tool.kbt]\n")
    after = build(root)

    assert after.returncode == 0, after.stderr
    assert {one["status"] for one in json.loads(after.stdout)["cells"]} == {"ok"}


def test_a_result_that_another_cell_has_changed_is_invalid_and_made_again(tmp_path: Path) -> None:
    cells = {
        "a": "open('x.csv', 'w').write('right\\n1\\n')",
        "b": f"import pathlib\nfor path in pathlib.Path({str(tmp_path)!r}).glob('.kbt/cache/*/artifacts/x.csv'):\n"
        "    path.write_text('wrong\\n1\\n')",
    }
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    text = "".join(f"```python id={name}\n{code}\n```\n\n" for name, code in cells.items())
    (tmp_path / "n.md").write_text(f"![artifact:x.csv]\n\n{text}")

    done, again = (run_kbt(tmp_path, "build", "--env", "current", "--jobs", "1", "--json") for _ in range(2))

    found = {one["cell"]: one["status"] for one in json.loads(done.stdout)["cells"]}
    assert (done.returncode, found) == (1, {"n.md:a": "invalid", "n.md:b": "ok"})
    assert again.returncode == 0, again.stderr
    assert "right" in (tmp_path / "site/n.html").read_text()
