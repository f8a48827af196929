"""A suite: rows of several operators, from their summaries."""

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest
from devices import EPYC, H200
from made_records import record

from kernels_bench_tools.errors import SuiteError
from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Regime, Roofline, Status
from kernels_bench_tools.records.request import NEEDS_VARIABLE, Need, Needs
from kernels_bench_tools.records.summary import Summary
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.suite import (
    NOT_MEASURED,
    Suite,
    SuiteKernel,
    SuiteReport,
    read_suite,
    report_csv,
    report_markdown,
    report_suite,
    report_text,
    suite_report,
)
from kernels_bench_tools.results.summary import summarize

NORM, GELU = "trainscale_LN_S2048", "trainscale_GELU_T4096"
FRONTS = {
    "torch": FrontMatter(title="PyTorch", family="torch", baseline=True),
    "triton": FrontMatter(title="Triton", family="triton"),
    "liger": FrontMatter(title="Liger", family="liger"),
}
SUITE = Suite(
    title="Two kernels",
    workloads="trainscale",
    ours="triton",
    kernel=[
        SuiteKernel(name="LayerNorm (S=2048)", operator="layer_norm", workload=NORM),
        SuiteKernel(name="GELU (4096)", operator="activation", workload=GELU),
    ],
)


def summary_of(
    operator: str, workload: str, device: Any = H200, within: str = "trainscale", **times: Any
) -> Summary:
    """Summarize an operator from the times of its implementations on one workload; a text is a reason."""
    given = {"wl": {"name": workload, "set": within, "seq_len": 2048, "dtype": "float16"}, "device": device}
    near = Roofline(ceiling="copy", value=4200.0, fraction=0.97)
    sources = []
    for name, time in times.items():
        made = (
            record(name, time, regime=Regime.HBM, roofline=near, **given)
            if isinstance(time, float)
            else record(name, status=Status.UNSUPPORTED, reason=time, **given)
        )
        sources.append(Source(records=[made], front=FRONTS[name]))
    return summarize(operator, operator, sources)


def report(*summaries: Summary, suite: Suite = SUITE) -> SuiteReport:
    return suite_report("two", suite, summaries)


def test_a_row_has_ours_the_baseline_and_the_best_other() -> None:
    found = report(
        summary_of("layer_norm", NORM, torch=0.4, triton=0.2, liger=0.25),
        summary_of("activation", GELU, torch=0.1, triton=0.2),
    )

    norm, gelu = found.rows
    assert (norm["Ours"], norm["Base"], norm["Best Other"]) == ("Triton", "PyTorch", "Liger")
    assert norm["Speedup"] == pytest.approx(2.0)
    assert norm["Metric"] == "GB/s"
    assert norm["Our Perf"] == pytest.approx(2**30 / 0.2 / 1e6)
    assert (norm["Of Ceiling"], norm["Ceiling"]) == (0.97, "copy")
    assert gelu["Speedup"] == pytest.approx(0.5)
    assert gelu["Best Other"] == "PyTorch"


def test_a_failed_implementation_is_a_row_with_its_reason() -> None:
    norm, gelu = report(summary_of("layer_norm", NORM, torch=0.4, triton="needs a CUDA device")).rows

    assert norm["Our Latency (ms)"] is None
    assert norm["Base Latency (ms)"] == pytest.approx(0.4)
    assert norm["Speedup"] is None
    assert norm["Reason"] == "Triton: unsupported, needs a CUDA device"
    assert gelu["Reason"] == NOT_MEASURED
    text = report_text(report(summary_of("layer_norm", NORM, torch=0.4, triton="needs a CUDA device")))
    assert "needs a CUDA device" in text
    assert NOT_MEASURED in text


def test_without_a_record_of_its_own_set_a_suite_names_the_command() -> None:
    assert report(summary_of("layer_norm", NORM, within="large", torch=0.4, triton=0.2)).rows == []
    found = report(summary_of("rotary", NORM, torch=0.4, triton=0.2))

    assert found.rows == []
    assert "Two kernels: no records. `kbt suite two` measures it" in report_text(found)


def test_each_device_with_a_record_has_a_table() -> None:
    both = summary_of("layer_norm", NORM, torch=0.4, triton=0.2)
    both.devices += summary_of(
        "layer_norm", NORM, device=EPYC, torch=9.0, triton="needs a CUDA device"
    ).devices

    found = report(both)

    assert list(dict.fromkeys(row["Device"] for row in found.rows)) == [H200.name, EPYC.name]
    markdown = report_markdown(found)
    assert f"## {H200.name}\n" in markdown
    assert "| LayerNorm (S=2048) | 0.2000 | 0.4000 | 2.00× \\[" in markdown
    rows = list(csv.DictReader(report_csv(found).splitlines()))
    assert [row["Device"] for row in rows] == [H200.name] * 2 + [EPYC.name] * 2
    assert rows[0]["Our Latency (ms)"] == "0.2"
    assert rows[2]["Our Latency (ms)"] == ""


def test_a_row_has_the_fewer_processes_and_a_backward_pass_none() -> None:
    found = summary_of("layer_norm", NORM, torch=0.4, triton=0.2)
    for row in found.devices[0].rows:
        row.points[0].processes = 1 if row.baseline else 3

    assert report(found).rows[0]["Processes"] == 1
    found.devices[0].workloads[0].mode = "bwd"
    assert report(found).rows == []


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Needs:
    """The needs of a suite's cell, which is where the test now is."""
    needs = Needs(project=str(tmp_path), notebook="suites/two.md", device=EPYC)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv(NEEDS_VARIABLE, str(tmp_path / "needs.json"))
    file = tmp_path / "suites" / "two.toml"
    file.parent.mkdir()
    file.write_text(
        'title = "Two"\nworkloads = "trainscale"\nours = "triton"\n[[kernel]]\nname = "LayerNorm"\n'
        f'operator = "layer_norm"\nworkload = "{NORM}"\n'
    )
    needs.files.append(str(file))
    return needs


def need(root: Path, summary: Summary | None, status: Status = Status.OK) -> Need:
    """A combine cell and its folder."""
    directory = root / f"cell-{status}"
    directory.mkdir()
    if summary:
        write_struct(directory / "summary.json", summary)
    notebook = "layer_norm/results/combined_results.md"
    return Need(
        notebook=notebook, cell="combine", front=FrontMatter(), status=status, directory=str(directory)
    )


def test_a_cell_writes_and_prints_the_tables(
    cell: Needs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = summary_of("layer_norm", NORM, torch=0.4, triton=0.2)
    cell.cells = [need(tmp_path, summary), need(tmp_path, None, Status.ERROR)]
    write_struct(tmp_path / "needs.json", cell)

    report_suite("two.toml")

    printed = capsys.readouterr().out
    assert "FINAL BENCHMARK REPORT · NVIDIA H200" in printed
    assert (
        "Skipped: layer_norm/results/combined_results.md:combine: its summary.json cannot be read" in printed
    )
    assert sorted(path.name for path in Path().iterdir()) == ["report.csv", "report.md", "suite.json"]
    left = msgspec.json.decode(Path("suite.json").read_bytes(), type=SuiteReport)
    assert left.rows[0]["Speedup"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = 1", "two.toml: Expected `str`, got `int`"),
        ('title = "x"\nworkloads = "y"\nours = "z"\nkernel = []', "two.toml: it has no [[kernel]]"),
        ('title = "x"\nworkloads = "y"\nours = "z"\nkernels = []', "kernels"),
    ],
)
def test_an_invalid_definition_is_reported_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(text)

    with pytest.raises(SuiteError) as error:
        read_suite(path)

    assert said in str(error.value)
    assert "\n" not in str(error.value)
