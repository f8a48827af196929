import enum
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from norms import torch_layer_norm
from torch import Tensor

from kernels_bench_tools import run_benchmark
from kernels_bench_tools.errors import KbtError, OperatorError, Unsupported
from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.records.build import CellContext
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.record import Flag, Provenance, Record, Status

pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")

Implementation = Callable[..., Any]


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellContext:
    given = CellContext(
        operator="layer_norm",
        implementation="mine",
        origin=Provenance(
            notebook="layer_norm/impls/mine.md",
            notebook_digest="abc",
            cell="benchmark",
            code_digest="def",
            commit="123",
            dirty=True,
            environment="uv",
        ),
        workloads="wide, smoke",
        family="ours",
    )
    write_struct(tmp_path / "context.json", given)
    monkeypatch.setenv("KBT_CONTEXT", str(tmp_path / "context.json"))
    return given


def smoke(function: Implementation | None = None, **options: Any) -> Record:
    (record,) = run_benchmark("layer_norm", function, workloads="smoke", device="cpu", **options)
    return record


def test_a_correct_implementation_has_a_complete_ok_record() -> None:
    record = smoke(torch_layer_norm)

    assert record.status is Status.OK
    assert record.impl == "torch_layer_norm"
    assert record.op == "layer_norm"
    assert record.workload == "smoke_S32_D256"
    assert record.wl["hidden_dim"] == 256
    assert record.lat_ms.p50 > 0
    assert record.compile_ms is not None
    assert record.peak_bytes is None
    assert record.work.bytes_moved > 0
    assert record.device.kind == "cpu"
    assert record.env.torch == str(torch.__version__)
    assert record.env.threads > 0
    assert record.provenance.packages["msgspec"]
    assert record.provenance.seed == 0


def test_the_context_sets_implementation_mode_and_workloads(context: CellContext) -> None:
    (record,) = run_benchmark(function=torch_layer_norm)

    assert record.impl == "mine"
    assert record.workload == "smoke_S32_D256"
    assert record.tags["family"] == "ours"
    assert record.provenance.notebook == "layer_norm/impls/mine.md"
    assert record.provenance.notebook_digest == "abc"
    assert (record.provenance.cell, record.provenance.code_digest) == ("benchmark", "def")
    assert (record.provenance.commit, record.provenance.dirty) == ("123", True)


def test_a_wrong_implementation_is_timed_and_incorrect() -> None:
    record = smoke(lambda x, w, b: torch.zeros_like(x))

    assert record.status is Status.INCORRECT
    assert record.lat_ms is not None
    assert record.absmax is not None
    assert re.search(
        r"; [\d,]+ of 16,384 elements beyond the tolerance, the worst by a factor of", record.err.msg
    )


def test_an_exception_is_a_record_and_the_next_workload_still_runs(capfd: pytest.CaptureFixture[str]) -> None:
    def fails_once(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.shape == (1, 128, 1024):
            raise RuntimeError("no luck\nwith this one")
        return torch_layer_norm(x, weight, bias)

    records = run_benchmark("layer_norm", fails_once, workloads="cpu", device="cpu")

    assert records[0].status is Status.ERROR
    assert (records[0].err.type, records[0].err.msg) == ("RuntimeError", "no luck with this one")
    assert all(record.outcome.ran for record in records[1:])
    assert len(read_records(Path("layer_norm.jsonl"))) == len(records) == 3
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("can't allocate memory: 1 TB"),
    ],
)
def test_out_of_memory_is_a_status(error: Exception) -> None:
    def greedy(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        raise error

    assert smoke(greedy).status is Status.OOM


def test_an_unsupported_load_is_unsupported_on_every_workload() -> None:
    def load() -> Implementation:
        raise Unsupported("needs a very large telescope")

    records = run_benchmark("layer_norm", load=load, workloads="cpu", device="cpu")

    assert len(records) == 3
    assert {record.status for record in records} == {Status.UNSUPPORTED}
    assert records[0].err.msg == "needs a very large telescope"
    assert records[0].lat_ms is None


def test_a_missing_package_is_named() -> None:
    def load() -> Implementation:
        import no_such_package_anywhere

        return no_such_package_anywhere.layer_norm

    record = smoke(load=load)

    assert record.status is Status.UNSUPPORTED
    assert record.err.msg == (
        "needs the package 'no_such_package_anywhere', which is not installed in this environment"
    )


def test_a_broken_load_is_an_error_on_every_workload() -> None:
    def load() -> Implementation:
        raise ValueError("typo")

    assert smoke(load=load).status is Status.ERROR


def test_load_is_called_once() -> None:
    calls = []

    def load() -> Implementation:
        calls.append(1)
        return torch_layer_norm

    record = smoke(load=load)

    assert calls == [1]
    assert record.impl == "torch_layer_norm"


def test_a_compiled_module_whose_length_is_unknown_is_measured() -> None:
    class LayerNorm(torch.nn.Module):
        def forward(self, *inputs: Any) -> torch.Tensor:
            output: torch.Tensor = torch_layer_norm(*inputs)
            return output

    compiled = torch.compile(LayerNorm(), backend="eager")

    with pytest.raises(TypeError):
        bool(compiled)
    assert smoke(compiled).outcome is Status.OK


def test_the_call_style_of_kernels_benchmarks_works(capsys: pytest.CaptureFixture[str]) -> None:
    class KernelType(enum.Enum):
        LAYER_NORM = "layer_norm"

    (record,) = run_benchmark(
        kernel_type=KernelType.LAYER_NORM,
        impl_name="theirs",
        impl_tags={"family": "torch", "backend": "eager"},
        impl_func=torch_layer_norm,
        reps=5,
        warmup=2,
        workloads="smoke",
        device="cpu",
    )

    assert record.impl == "theirs"
    assert record.tags.items() >= {"family": "torch", "backend": "eager"}.items()
    assert "ignored: reps, warmup" in capsys.readouterr().out


@pytest.mark.parametrize("workloads", ["huge", "smoke, huge"])
def test_an_unknown_workload_set_leaves_no_file(workloads: str) -> None:
    with pytest.raises(OperatorError, match="has no workload set 'huge'"):
        run_benchmark("layer_norm", torch_layer_norm, workloads=workloads, device="cpu")

    assert not Path("layer_norm.jsonl").exists()


def test_a_build_for_sets_of_other_operators_only_is_an_error(context: CellContext, tmp_path: Path) -> None:
    write_struct(tmp_path / "context.json", replace(context, workloads="wide"))

    with pytest.raises(OperatorError, match="has no workload set 'wide'"):
        run_benchmark(function=torch_layer_norm)


def test_a_missing_implementation_is_an_error() -> None:
    with pytest.raises(OperatorError, match="has no implementation"):
        run_benchmark("layer_norm")


def test_the_printed_table_has_a_line_per_workload(capsys: pytest.CaptureFixture[str]) -> None:
    smoke(torch_layer_norm)

    lines = capsys.readouterr().out.splitlines()
    assert "torch_layer_norm: layer_norm on " in lines[0]
    assert lines[2].startswith("smoke_S32_D256 ")
    assert " ms " in lines[2]
    assert " % " in lines[2]
    assert "  ok" in lines[2]


def test_two_calls_append_to_one_file_with_different_runs() -> None:
    first, second = smoke(torch_layer_norm), smoke(torch_layer_norm)

    assert read_records(Path("layer_norm.jsonl")) == [first, second]
    assert first.run != second.run


def test_calls_run_without_gradients() -> None:
    states = set()

    def watching(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        states.add(torch.is_grad_enabled())
        return torch_layer_norm(x, weight, bias)

    smoke(watching)

    assert states == {False}


def test_a_record_has_process_affinity_first_calls_and_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_struct(tmp_path / "context.json", CellContext(process=2, processes=3))
    monkeypatch.setenv("KBT_CONTEXT", str(tmp_path / "context.json"))

    record = smoke(load=lambda: torch_layer_norm)

    assert record.process == 2
    assert record.provenance.seed == 2000
    assert record.wl["seed"] == 0
    assert record.tags["affinity"]
    assert record.first_call.import_ms is not None
    assert record.first_call.load_ms is not None
    assert record.first_call.first_ms == record.compile_ms
    assert record.first_call.second_ms is not None
    assert record.trust
    assert record.sentinels == {}


def test_each_process_has_other_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_values = []
    monkeypatch.setenv("KBT_CONTEXT", str(tmp_path / "context.json"))
    for process in range(2):
        write_struct(tmp_path / "context.json", CellContext(process=process, processes=2))
        seen: list[float] = []

        def watching(x: Tensor, weight: Tensor, bias: Tensor, seen: list[float] = seen) -> Tensor:
            seen.append(float(x[0, 0, 0]))
            return torch_layer_norm(x, weight, bias)

        record = smoke(watching)
        assert record.status is Status.OK, record.err
        first_values.append(seen[0])

    assert first_values[0] != first_values[1]


def test_timed_calls_rotate_through_different_values() -> None:
    seen: list[float] = []

    def watching(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.shape == (2, 32, 256):
            seen.append(float(x[0, 0, 0]))
        return torch_layer_norm(x, weight, bias)

    record = smoke(watching)

    assert len(set(seen)) >= min(record.lat_ms.input_sets, record.lat_ms.reps) > 4  # on a busy machine


def test_outputs_that_share_memory_are_rejected() -> None:
    buffers: dict[torch.Size, Tensor] = {}

    def reusing(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        result = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
        return buffers.setdefault(x.shape, torch.empty_like(x)).copy_(result)

    record = smoke(reusing)

    assert record.status is Status.REJECTED, record.err
    assert Flag.ALIASED_OUTPUT in record.flags
    assert record.err.msg.startswith("aliased_output: its output shares memory")
    assert record.lat_ms is not None


def test_an_invalid_kernel_pattern_is_an_error() -> None:
    with pytest.raises(KbtError, match="is not a regular expression"):
        smoke(torch_layer_norm, kernels="(")


def test_without_recorded_kernels_there_is_no_fallback_flag() -> None:
    assert Flag.FALLBACK not in smoke(torch_layer_norm, kernels="my_kernel").flags


def test_the_first_record_has_the_peaks_and_every_record_a_regime() -> None:
    records = run_benchmark("layer_norm", torch_layer_norm, workloads="cpu", device="cpu")

    assert {"read", "write", "copy", "triad", "matmul_float32"} <= set(records[0].ceilings)
    assert all(not record.ceilings for record in records[1:])
    assert all(record.regime is not None for record in records)
    assert all(record.roofline is not None for record in records)


def test_the_smoke_set_measures_no_peaks() -> None:
    assert smoke(torch_layer_norm).ceilings == {}
