"""Which files in a cell's folder are kept."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from workspace import MEASURING

from kernels_bench_tools.run import cell_outputs as collecting
from kernels_bench_tools.run.cell_outputs import collect_outputs


@pytest.fixture
def collect(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()

    def run(*outputs: str, limit: int = 2**20, write=lambda folder: None):
        write(folder)
        return collect_outputs(folder, outputs, tmp_path / "artifacts", limit, judged={})

    run.folder = folder
    run.artifacts = tmp_path / "artifacts"
    return run


def test_only_regular_files_are_kept(collect, tmp_path):
    folder: Path = collect.folder
    (tmp_path / "secret").write_text("s")
    (folder / "fine.txt").write_text("f")
    (folder / "d").mkdir()
    (folder / "d" / "b.txt").write_text("b")
    (folder / ".hidden").write_text("h")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(folder)
        one.bind("socket")
        os.chdir(here)

    collected = collect()

    assert collected.kept == ["d/b.txt", "fine.txt"]
    assert collected.refused == {
        "'link'": "it is a symbolic link",
        "'folder'": "it is a symbolic link",
        "'fifo'": "it is not a regular file",
        "'socket'": "it is not a regular file",
    }
    assert (collect.artifacts / "d" / "b.txt").read_text() == "b"
    assert sorted(path.name for path in collect.artifacts.iterdir()) == ["d", "fine.txt"]


@pytest.mark.parametrize("name", [b"a\nb", b"\x1b[31mred", b"caf\xe9", "a\u202egnp.exe".encode(), b"a\x7f"])
def test_an_unprintable_name_is_rejected_in_a_printable_line(collect, name):
    shown = os.fsdecode(name)
    (collect.folder / f"d{shown}").mkdir()
    (collect.folder / shown).write_text("x")
    (collect.folder / f"d{shown}" / "x").write_text("x")

    collected = collect()

    assert collected.kept == []
    assert len(collected.refused) == 2
    for shown, why in collected.refused.items():
        assert shown.isprintable()
        assert shown.isascii()
        assert why == "its name contains unprintable characters"


def test_paths_that_are_too_long_or_deep_and_files_over_the_limits_are_rejected(collect, monkeypatch):
    collect.folder.joinpath(*["d"] * 30).mkdir(parents=True)
    assert collect().refused == {repr("/".join(["d"] * 21)): "it is more than 20 folders deep"}

    shutil.rmtree(collect.folder / "d")
    (collect.folder / ("é" * 101)).write_text("x")
    deep = collect.folder.joinpath(*["y" * 190] * 6)
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    assert list(collect().refused.values()) == ["its name is too long"] * 2

    shutil.rmtree(collect.folder / ("y" * 190))
    (collect.folder / ("é" * 101)).unlink()
    (collect.folder / "a.bin").write_bytes(bytes(900))
    (collect.folder / "z.jsonl").write_bytes(b"{}")
    with (collect.folder / "sparse").open("wb") as file:
        file.truncate(2**40)
    collected = collect(limit=1000)
    assert collected.kept == ["a.bin", "z.jsonl"]
    assert collected.excess == "its files total 1024 GiB; the limit is 1000 B"
    assert collected.refused == {"'sparse'": "it is 1024 GiB large"}

    monkeypatch.setattr(collecting, "MOST_FILES", 1)
    collected = collect(limit=2**41)
    assert collected.kept == ["z.jsonl"]
    assert collected.excess == "it wrote 3 files; the limit is 1"


def test_a_rejected_output_makes_the_cell_invalid_with_the_reason(workspace):
    run = workspace.run_cell("import os; os.symlink('/etc/passwd', 'a.csv')", "id=a outputs=a.csv")

    assert (run.status, run.reason) == ("invalid", "did not keep 'a.csv': it is a symbolic link")
    assert workspace.text(run.stderr) == "kbt: did not keep 'a.csv': it is a symbolic link\n"


def test_files_written_outside_the_cells_folder_are_removed(workspace):
    code = "from pathlib import Path\nPath('../x.txt').write_text('')\nprint(Path('../x.txt').resolve())"
    run = workspace.run_cell(code)

    assert run.artifacts == {}
    assert not Path(workspace.text(run.stdout).strip()).exists()
    assert not list(workspace.root.rglob("x.txt"))


NEAR = {"impl": "x", "wl": {"name": "w"}, "lat_ms": {"p99": 1.0}}
FOREIGN = NEAR | {"lat_ms": {"mean": 1.0}}


@pytest.mark.parametrize(("lines", "line"), [([FOREIGN, NEAR], 2), ([FOREIGN], None)])
def test_lines_of_another_harness_that_are_no_records_are_notes(workspace, lines, line):
    text = "".join(json.dumps(one) + "\n" for one in lines)
    workspace.cell("op/impls/x.md", f"open('op.jsonl', 'w').write({text!r})", MEASURING)
    told = workspace.build(processes=2).notes
    run = workspace.result("op/impls/x.md")
    expected = f"op.jsonl:{line} is not a record: lat_ms has no numeric p50, median or mean"

    assert run.status == "ok"
    assert told == ([f"op/impls/x.md:a: {expected}"] if line else [])
    assert bool(run.stderr) == bool(line)
    assert sum(run.workloads.values()) == (FOREIGN in lines)
