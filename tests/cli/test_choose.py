"""``kbt choose`` on committed records and those of the last build: what it prints, and its mistakes in one line."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builds import build_of, latency, notebook_run
from devices import H200

from kernels_bench_tools.cli.app import find_app, run
from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Record, Status, Timer

CPU = Device(kind="cpu", name="Some CPU", slug="some-cpu")
MINE = "mine_with_a_name_that_is_rather_long"
MODEL = ("--model", "llama-3.1-8b", "--phase", "decode-1")


def rows(implementation: str, ms: float, device: Device = H200, **fields: Any) -> list[Record]:
    """Return what three processes measured for RMS normalization with a residual of one row of 4096."""
    axes = {"function": "add_rms_norm", "batch": 1, "seq_len": 1, "hidden_dim": 4096, "dtype": "bfloat16"}
    workload = {"name": "AddRMS_B1_S1_D4096", "set": "decode", "group": "RMSNorm with residual", **axes}
    samples = [[ms * 0.999, ms, ms * (1.001 + process / 1e6)] for process in range(3)]
    given = {"ts": "2026-11-20T10:00:00Z", "ok": True, "status": Status.OK, "schema": 1}
    given |= {"op": "rms_norm", "wl": workload} | fields
    return [
        Record(
            run=f"r{process}",
            impl=implementation,
            lat_ms=latency(ms, raw_times=samples[process], reps=3, timer=Timer.CUPTI),
            device=device,
            process=process,
            **given,
        )
        for process in range(3)
    ]


def commit(project: Path, records: list[Record]) -> None:
    first = records[0]
    write_records(project / first.op / "results/records" / first.device.slug / f"{first.impl}.jsonl", records)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a baseline and an implementation of ``rms_norm``, measured on an H200 and on a CPU."""
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    folder = tmp_path / "rms_norm" / "impls"
    folder.mkdir(parents=True)
    cell = "\n```python id=benchmark outputs=rms_norm.jsonl\nprint(1)\n```\n"
    (folder / "torch.md").write_text(f"---\nbaseline: true\n---\n{cell}")
    (folder / f"{MINE}.md").write_text(f"---\ntitle: Mine\n---\n{cell}")
    commit(tmp_path, rows("torch", 0.4))
    commit(tmp_path, rows("torch", 4.0, CPU))
    commit(tmp_path, rows(MINE, 0.2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def kbt(*arguments: str) -> int:
    return run(find_app(["choose"]), ["choose", *arguments])


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert kbt(*arguments) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("project")
def test_a_models_kernels_have_choice_prediction_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, *MODEL)

    joined = " ".join(out.split())
    for words in (
        "decode-1 of llama-3.1-8b on NVIDIA H200",
        "64 RMSNorm + residual",
        "2.00× [",
        "left out, no record of matmul with this shape: Linear (129 calls)",
        "(1 of 12 kernels, 64 of 323 calls): 2.00×",
    ):
        assert words in joined
    assert max(map(len, out.splitlines())) <= 80
    start = out.index("  kbt effect")
    shell = "kbt() { printf '%s\\n' \"$@\"; }\n" + out[start : out.index("\n\n", start)]
    read = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert read.stdout.split("\n")[:-1] == ["effect", f"rms_norm/{MINE}", *MODEL]


@pytest.mark.usefixtures("project")
def test_another_shape_is_answered_by_the_nearest_measured(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "rms_norm", "--axes", "hidden_dim=5120")
    shape = json.loads(printed(capsys, "rms_norm", "--axes", "rows=2", "--device", "some-cpu", "--json"))

    assert "nearest measured: hidden_dim 4096, 0.8×\n" in out
    assert f"rms_norm/impls/{MINE}.md" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "nearest" not in printed(capsys, "rms_norm", "--axes", "hidden_dim=4096")
    (choice,) = shape["choices"]
    assert (shape["device"]["slug"], choice["implementation"]) == ("some-cpu", "torch")
    assert choice["near"] == "rows 1, 0.5×"


def test_newer_results_of_the_last_build_count(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = project / ".kbt" / "left.jsonl"
    write_records(left, rows("torch", 0.1, ts="2026-11-21T10:00:00Z"))
    artifacts = {"rms_norm.jsonl": ".kbt/left.jsonl"}
    cell = CellRun(id="benchmark", line=1, code="", status=Status.OK, artifacts=artifacts)
    write_struct(project / ".kbt" / "build.json", build_of(notebook_run("rms_norm/impls/torch.md", cell)))

    (choice,) = json.loads(printed(capsys, "rms_norm", "--json"))["choices"]

    assert (choice["implementation"], choice["p50_ms"]) == ("torch", pytest.approx(0.1))


@pytest.mark.parametrize(
    ("arguments", "where", "remedy"),
    [
        (["rms_nrm"], "rms_nrm", "Did you mean 'rms_norm'?"),
        (["rms_norm", "--axes", "rows=1,rows=2"], "--axes rows=2", "One value for each axis"),
        (["rms_norm", "--device", "h100"], "--device h100", "Devices with records: nvidia-h200"),
        ([], "OPERATOR and --model", "`kbt choose --model llama-3.1-8b`"),
        (["rms_norm", "--model", "qwen3-8b"], "OPERATOR and --model", "cannot be used together"),
        (["rms_norm", "--export", "transformers"], "--export transformers", "needs a model"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_mistake_is_one_line_with_a_remedy(
    arguments: list[str], where: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kbt(*arguments) == 2

    assert (error := capsys.readouterr().err).startswith(f"kbt: {where}: ")
    assert remedy in error
    assert error.count("\n") == 1


def test_an_engine_gets_the_fastest_and_its_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "rms_norm/impls/slow.md").write_text((project / f"rms_norm/impls/{MINE}.md").read_text())
    commit(project, rows("slow", 0.8))

    found = json.loads(printed(capsys, "rms_norm", "--device", "nvidia-h200", "--export", "engine"))

    (line,) = found["lines"]
    assert (line["implementation"], line["verdict"]) == (MINE, "faster")
    assert line["axes"]["hidden_dim"] == 4096
    assert line["avoid"].keys() == {"slow"}
    assert line["records"].keys() == {MINE, "slow"}
    assert all((project / path).is_file() for path in line["records"].values())


@pytest.mark.parametrize(("ms", "taken"), [(0.2, True), (0.8, False)])
def test_a_kernel_config_has_layers_that_are_faster_and_says_where_the_model_is_slower(
    project: Path, capsys: pytest.CaptureFixture[str], ms: float, taken: bool
) -> None:
    (project / "rms_norm/impls/liger_rms_norm.md").write_text(
        (project / f"rms_norm/impls/{MINE}.md").read_text()
    )
    commit(project, rows("liger_rms_norm", ms))

    code = printed(capsys, *MODEL, "--export", "transformers")

    written: dict[str, Any] = {}
    exec(code.replace("from transformers import KernelConfig", "KernelConfig = lambda *a, **k: a"), written)
    (mapping,) = written["kernel_config"]
    assert list(mapping) == (["RMSNorm"] if taken else [])
