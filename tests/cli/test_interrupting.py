"""Ctrl-C, as the terminal sends it, and what is there afterwards."""

import re
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from subprocess import PIPE

import pytest
from projects import PYTHON, run_kbt, wait_until

from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.device import current_device

BUILD = (PYTHON, "-m", "kernels_bench_tools", "build", "--env", "current")


MEASURE = """
from pathlib import Path
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.record import Latency, Record
from kernels_bench_tools.records.codec import write_records
latency = Latency(p10=1.0, p50=1.0, p90=1.0, mean=1.0, iqr=0.0, raw_times=[1.0], reps=1)
row = dict(ts="", op="op", wl={"name": "w"}, lat_ms=latency, ok=True)
write_records(Path("op.jsonl"), [Record(**row, run="r", impl=IMPL, device=current_device())])
"""


def waiting(begun: Path, seconds: int = 600) -> str:
    """Return a cell's code that makes a file and then waits, by default longer than any test."""
    return f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep({seconds})\n"


def interrupt_build(folder: Path, begun: Path, *options: str) -> str:
    """Build, press Ctrl-C once a file is there, and return what was said."""
    build = subprocess.Popen((*BUILD, *options), cwd=folder, stderr=PIPE, text=True)
    assert wait_until(lambda: begun.exists() or build.poll() is not None, 60)
    build.send_signal(signal.SIGINT)
    said = build.communicate(timeout=30)[1]
    assert build.returncode == 130
    return said


def measuring_project(folder: Path, **cells: str) -> Path:
    """Make a project of one operator with these implementations; return where its records go."""
    (folder / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    impls = folder / "op" / "impls"
    impls.mkdir(parents=True)
    for name, code in cells.items():
        text = f"```python id=benchmark outputs=op.jsonl\nIMPL = {name!r}\n{code}```\n"
        (impls / f"{name}.md").write_text(text)
    return folder / "op" / "results" / "records" / current_device().slug


def record(folder: Path) -> str:
    done = run_kbt(folder, "record")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_interrupted_build_keeps_finished_results_and_continues(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    (tmp_path / "a.md").write_text("```python id=quick outputs=x.txt\nopen('x.txt', 'w').write('1')\n```\n")
    slow = waiting(tmp_path / "begun")
    (tmp_path / "b.md").write_text(f"```python id=slow needs=./a.md:quick\n{slow}```\n")

    said = interrupt_build(tmp_path, tmp_path / "begun")

    assert "kbt: interrupted. Finished results are kept." in said
    assert "Traceback" not in said
    (tmp_path / "b.md").write_text("```python id=slow needs=./a.md:quick\nprint(1)\n```\n")
    again = run_kbt(tmp_path, "build", "--env", "current")
    assert again.stdout.startswith("1 cell ran, 1 unchanged")


def test_an_interruption_while_an_operator_is_loaded_is_no_error_of_its_cells(tmp_path: Path) -> None:
    measuring_project(tmp_path, x="from kernels_bench_tools import run_benchmark\nrun_benchmark('op', abs)\n")
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "op.py").write_text(waiting(tmp_path / "begun"))

    assert "error" not in interrupt_build(tmp_path, tmp_path / "begun")


def test_processes_that_had_ended_can_be_recorded_although_their_cells_had_not(tmp_path: Path) -> None:
    second = f"if Path({str(tmp_path / 'ran')!r}).exists():\n" + textwrap.indent(
        waiting(tmp_path / "begun"), "    "
    )
    slow = f"{MEASURE}{second}Path({str(tmp_path / 'ran')!r}).touch()\n"
    records = measuring_project(tmp_path, quick=MEASURE, slow=slow)
    interrupt_build(tmp_path, tmp_path / "begun", "--processes", "3")  # in the fourth of six processes

    told = record(tmp_path)

    assert {path.name: len(read_records(path)) for path in records.iterdir()} == {
        "quick.jsonl": 1,
        "slow.jsonl": 1,
    }
    assert "slow.jsonl: 1 of 1 workloads measured, 1 process" in told


def test_an_interrupted_first_build_leaves_the_committed_records_on_complete_pages(tmp_path: Path) -> None:
    records = measuring_project(tmp_path, **dict.fromkeys("abcd", waiting(tmp_path / "begun")))
    other = records.with_name("nvidia-h200") / "a.jsonl"
    other.parent.mkdir(parents=True)
    h200 = "cuda_device('NVIDIA H200')"
    code = MEASURE.replace("current_device()", h200).replace("import current_device", "import cuda_device")
    exec(code.replace('Path("op.jsonl")', f"Path({str(other)!r})"), {"IMPL": "a"})

    said = interrupt_build(tmp_path, tmp_path / "begun")

    site = tmp_path / "site"
    assert "site/index.html has the results of 0 of 4 implementations and the committed records" in said
    for page in ("index.html", "op/index.html"):
        text = (site / page).read_text()
        assert ("This machine has measured 0 of 4 implementations" in text) is (page == "index.html")
        assert "none passed" not in text
        assert "NVIDIA H200" in text
    for page in site.rglob("*.html"):
        for url in re.findall(r'(?:href|src)="([^"#:]+)[#"]', page.read_text()):
            assert (page.parent / url).exists(), (page, url)

    assert run_kbt(tmp_path, "build", "--env", "current", "--no-measure").returncode == 0
    assert "This machine has measured" not in (site / "index.html").read_text()


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05, 0.2])
def test_pressed_twice_a_command_ends_without_a_traceback_and_with_json(
    tmp_path: Path, seconds: float
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    (tmp_path / "a.md").write_text(f"```python id=slow\n{waiting(tmp_path / 'begun')}```\n")
    build = subprocess.Popen((*BUILD, "--json"), cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert wait_until((tmp_path / "begun").exists)
    build.send_signal(signal.SIGINT)
    time.sleep(seconds)
    build.send_signal(signal.SIGINT)
    printed, said = build.communicate(timeout=30)

    assert (build.returncode, printed) == (130, '{"interrupted": true}\n'), said
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize("verb", ["list", "build", "check", "record", "init", "plan"])
def test_in_a_folder_that_is_gone_a_command_says_so_in_one_line(tmp_path: Path, verb: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone} && exec {PYTHON} -m kernels_bench_tools {verb}"
    done = subprocess.run(["sh", "-c", command], cwd=gone, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith("kbt: the current folder: no longer exists")
    assert done.stderr.count("\n") == 1


def test_a_build_whose_folder_is_removed_ends_without_a_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    begun = tmp_path / "begun"
    (folder / "a.md").write_text(f"```python id=a\n{waiting(begun, seconds=2)}```\n")
    build = subprocess.Popen(BUILD, cwd=folder, stderr=PIPE, text=True)
    assert wait_until(begun.exists)
    shutil.rmtree(folder, ignore_errors=True)
    said = build.communicate(timeout=60)[1]

    assert build.returncode in {1, 2}
    assert "Traceback" not in said
