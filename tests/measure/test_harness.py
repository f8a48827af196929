import enum
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
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
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.record import Provenance, Record, Status
from kernels_bench_tools.records.request import CellContext, Request

pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")

Implementation = Callable[..., Any]
ORIGIN = Provenance(
    notebook="layer_norm/impls/mine.md",
    notebook_digest="abc",
    cell="benchmark",
    code_digest="def",
    commit="123",
    dirty=True,
    environment="uv",
)
CONTEXT = CellContext(
    operator="layer_norm",
    implementation="mine",
    origin=ORIGIN,
    request=Request(workloads="wide, smoke"),
    family="ours",
)


@pytest.fixture
def set_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[CellContext], None]:
    """Give a cell this context, as a runner does."""
    monkeypatch.setenv("KBT_CONTEXT", str(tmp_path / "context.json"))
    return lambda context: write_struct(tmp_path / "context.json", context)


def smoke(function: Implementation | None = None, **options: Any) -> Record:
    (record,) = run_benchmark("layer_norm", function, workloads="smoke", device="cpu", **options)
    return record


def raising(error: BaseException) -> Implementation:
    def function(*_: Any) -> Any:
        raise error

    return function


def test_a_correct_implementation_has_a_complete_ok_record(capsys: pytest.CaptureFixture[str]) -> None:
    record = smoke(load=lambda: torch_layer_norm)

    assert record.status is Status.OK
    assert (record.op, record.impl, record.workload) == ("layer_norm", "torch_layer_norm", "smoke_S32_D256")
    assert record.wl["hidden_dim"] == 256
    assert record.lat_ms.p50 > 0
    assert record.work.bytes_moved > 0
    assert record.device.kind == "cpu"
    assert record.env.torch == str(torch.__version__)
    assert record.env.threads > 0
    assert record.provenance.packages["msgspec"]
    assert record.provenance.seed == 0
    assert record.first_call.import_ms is not None
    assert record.first_call.load_ms is not None
    assert record.first_call.first_ms == record.compile_ms is not None
    assert record.first_call.second_ms is not None
    assert record.tags["affinity"]
    assert record.trust
    assert record.peak_bytes is None
    assert record.sentinels == record.ceilings == {}  # the set for a quick try measures no peaks
    title, _, line = capsys.readouterr().out.splitlines()
    assert title.startswith("torch_layer_norm: layer_norm on ")
    assert line.split()[0] == "smoke_S32_D256"
    assert "  ok" in line


def test_the_context_sets_implementation_and_workloads(set_context: Callable[..., None]) -> None:
    set_context(CONTEXT)

    (record,) = run_benchmark(function=torch_layer_norm)

    assert (record.impl, record.workload, record.tags["family"]) == ("mine", "smoke_S32_D256", "ours")
    same = ("notebook", "notebook_digest", "cell", "code_digest", "commit", "dirty")
    assert all(getattr(record.provenance, name) == getattr(ORIGIN, name) for name in same)


def test_each_process_has_other_inputs(set_context: Callable[..., None]) -> None:
    first_values = []
    for process in (0, 2):
        set_context(CellContext(process=process, processes=3))
        seen: list[float] = []

        def watching(x: Tensor, weight: Tensor, bias: Tensor, seen: list[float] = seen) -> Tensor:
            seen.append(float(x[0, 0, 0]))
            return torch_layer_norm(x, weight, bias)

        record = smoke(watching)
        assert record.status is Status.OK, record.err
        assert (record.process, record.provenance.seed, record.wl["seed"]) == (process, 1000 * process, 0)
        first_values.append(seen[0])

    assert first_values[0] != first_values[1]


def test_a_wrong_implementation_is_timed_and_incorrect() -> None:
    record = smoke(lambda x, w, b: torch.zeros_like(x))

    assert record.status is Status.INCORRECT
    assert record.lat_ms is not None
    assert record.absmax is not None
    assert "of 16,384 elements" in record.err.msg


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
    first, *others = [set(record.ceilings) for record in records]
    assert first in ({"read", "write", "copy", "triad", "matmul_float32"}, set())  # on a busy machine none
    assert others == [set(), set()]
    assert not first or all(record.regime and record.roofline for record in records[1:])


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Unsupported("needs a telescope"), Status.UNSUPPORTED, "needs a telescope"),
        (ModuleNotFoundError("", name="nowhere"), Status.UNSUPPORTED, "needs the package 'nowhere', which"),
        (ValueError("typo"), Status.ERROR, "typo"),
    ],
)
def test_an_implementation_that_cannot_be_loaded_has_a_record_of_every_workload(
    error: Exception, status: Status, message: str
) -> None:
    records = run_benchmark("layer_norm", load=raising(error), workloads="cpu", device="cpu")

    assert len(records) == 3
    assert {record.status for record in records} == {status}
    assert records[0].err.msg.startswith(message)
    assert records[0].lat_ms is None


def test_load_is_called_once_and_calls_run_without_gradients() -> None:
    loaded, states = [], set()

    def watching(*inputs: Tensor) -> Tensor:
        states.add(torch.is_grad_enabled())
        return torch_layer_norm(*inputs)

    record = smoke(load=lambda: loaded.append(1) or watching)

    assert loaded == [1]
    assert states == {False}
    assert record.impl == "watching"


def test_a_compiled_module_whose_length_is_unknown_is_measured() -> None:
    import_module(
        "kernels_bench_tools.models.baseline.L4"
    )  # torch.compile replaces methods of their base class

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


@pytest.mark.parametrize(
    ("arguments", "context", "message"),
    [
        ({"workloads": "huge"}, {}, "has no workload set 'huge'"),
        (
            {},
            {"request": Request(workloads="wide")},
            "has no workload set 'wide'",
        ),  # a build for sets of other operators
        ({"function": None}, {}, "has no implementation"),
        ({"kernels": "("}, {}, "is not a regular expression"),
        ({"operator": 3}, {}, r"run_benchmark\(operator=...\): is of type int\. Expected: The name of an"),
        ({"load": 1}, {}, "is of type int. Expected: A function"),
        ({"only": "swiglu"}, {}, "is of type str. Expected: A dictionary"),
        ({"output": 1}, {}, "is of type int. Expected: A path"),
    ],
)
def test_a_call_that_asks_for_the_impossible_is_one_line_and_leaves_no_file(
    set_context: Callable[..., None], arguments: dict[str, Any], context: dict[str, Any], message: str
) -> None:
    set_context(replace(CONTEXT, **context))

    with pytest.raises(KbtError, match=message):
        run_benchmark(**{"operator": "layer_norm", "function": torch_layer_norm} | arguments)

    assert not Path("layer_norm.jsonl").exists()


@pytest.mark.parametrize("option", ["layout", "precision"])
def test_what_the_operator_does_not_define_is_named(option: str) -> None:
    with pytest.raises(OperatorError, match=f"operator layer_norm: has no {option} 'other'"):
        smoke(torch_layer_norm, **{option: "other"})


def test_the_time_since_the_start_of_the_process() -> None:
    program = (
        "import time; time.sleep(0.3)\n"
        "from kernels_bench_tools.measure.device.environment import since_process_start_ms as since\n"
        "first = since(); time.sleep(0.2); print(first, since())"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = map(float, done.stdout.split())

    assert 300 <= first < 60_000
    assert second - first >= 190


def test_what_a_cell_leaves_to_its_end_is_done(tmp_path: Path) -> None:
    script = tmp_path / "cell.py"
    script.write_text(
        "import atexit, threading, time\n"
        "left_open = open('open.txt', 'w')\n"
        "left_open.write('written')\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
    )

    command = [sys.executable, "-m", "kernels_bench_tools.measure.judge.start", str(script)]
    done = subprocess.run(command, input="token\n", cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "thread\nat exit\n"
    assert (tmp_path / "open.txt").read_text() == "written"
