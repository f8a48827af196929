import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from implementations import counted
from norms import LAYER_NORM, TINY, torch_layer_norm

from kernels_bench_tools import run_benchmark
from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.measure.inputs import padded_rows, transposed
from kernels_bench_tools.measure.operator import Output, find_operator
from kernels_bench_tools.records.record import Judged, Status
from kernels_bench_tools.records.request import CellContext

pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: find_operator("layernorm"), "Did you mean 'layer_norm'"),
        (lambda: find_operator("..harness"), "'..harness'"),
        (
            lambda: LAYER_NORM.workloads("cpu,smok"),
            "default, large, decode, cpu, smoke.*Did you mean 'smoke'",
        ),
        (
            lambda: replace(LAYER_NORM, workload_sets={"cpu": [TINY], "smoke": [TINY]}).workloads("smoke"),
            "several workloads named 'tiny'",
        ),
        (
            lambda: replace(LAYER_NORM, inputs=lambda *_: {"x": 1}).made_inputs(TINY, "cpu", 0),
            "returned a dict",
        ),
    ],
)
def test_what_an_operator_cannot_be_asked_for_is_named(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        wrong()


def test_the_cpu_has_its_own_default_workloads() -> None:
    assert LAYER_NORM.default_sets("cpu") == "cpu"
    assert LAYER_NORM.default_sets("cuda").split(",")[0] == "default"


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    first, again, other = (LAYER_NORM.inputs(TINY, "cpu", seed) for seed in (0, 0, 1))

    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(parameter.std() > 0.5 for parameter in first[1:])  # never ones and zeros


def test_work_counts_each_tensor_once_and_of_others_the_part_that_a_call_touches() -> None:
    numbers = 2 * 8 * 64
    inputs = LAYER_NORM.inputs(TINY, "cpu", 0)
    partly = replace(
        LAYER_NORM,
        unread=(0,),
        partly_read=lambda inputs: {0: 7, 1: 8},
        outputs=(Output(written=lambda inputs: inputs[0].nbytes // 4),),
    )

    work = partly.work(inputs, torch.empty_like(inputs[0]))

    assert counted(LAYER_NORM, TINY) == ((numbers + 2 * 64) * 4, numbers * 4, 7 * numbers)
    assert (work.bytes_read, work.bytes_written) == (8 + 64 * 4, numbers)


def test_the_reference_is_the_formula() -> None:
    x, weight, bias = (value.double() for value in LAYER_NORM.inputs(TINY, "cpu", 0))
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)

    expected = (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    assert torch.allclose(LAYER_NORM.reference(x, weight, bias), expected, rtol=1e-12, atol=1e-12)


def test_the_smaller_workload_has_fewer_rows_of_the_same_length() -> None:
    for workload in LAYER_NORM.workloads("default"):
        smaller = LAYER_NORM.smaller(workload)

        assert smaller.axes["hidden_dim"] == workload.axes["hidden_dim"]
        assert smaller.axes["batch"] * smaller.axes["seq_len"] <= 256


def test_edge_cases_have_names_of_their_own_and_do_not_change_their_inputs() -> None:
    inputs = LAYER_NORM.inputs(TINY, "cpu", 0)
    before = [value.clone() for value in inputs]

    names = [name for name, _ in LAYER_NORM.edge_cases(TINY, inputs)]

    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))
    assert len(names) == len(set(names)) > 5


def test_strided_inputs_have_the_same_values() -> None:
    x = torch.randn(3, 4, 16)

    for made in (transposed(x), padded_rows(x)):
        assert not made.is_contiguous()
        assert made.stride(-1) == 1
        assert torch.equal(made, x)


# Operators that a project defines in modules of its own, and operators that a cell defines.
MODULE = """
from dataclasses import replace
from kernels_bench_tools.operators import layer_norm
from ._shared import title
OPERATOR = replace(layer_norm.OPERATOR, name="mine", title=title("Mine"))
"""
SHARED = "def title(name):\n    return name + ' of {0}'\n"


def write_project(root: Path, module: str = MODULE, name: str = "mine") -> str:
    """Write a project with one operator, and return the folder of its operators."""
    folder = root / "operators"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "pyproject.toml").write_text("[tool.kbt]\n")
    (folder / f"{name}.py").write_text(module)
    (folder / "_shared.py").write_text(SHARED.format(root.name))
    return str(folder)


def test_a_module_may_import_shared_ones_and_neither_reads_nor_leaves_bytecode(tmp_path: Path) -> None:
    path = list(sys.path)
    folder = write_project(tmp_path / "a")
    bytecode = Path(folder) / "__pycache__" / f"_shared.{sys.implementation.cache_tag}.pyc"
    bytecode.parent.mkdir()
    bytecode.write_bytes(b"not used either")

    assert find_operator("mine", folder).title == "Mine of a"
    assert find_operator("mine", folder) is find_operator("mine", folder)
    assert sys.path == path
    assert list(bytecode.parent.iterdir()) == [bytecode]


def test_operators_of_the_same_name_in_two_projects_are_two(tmp_path: Path) -> None:
    first, second = (find_operator("mine", write_project(tmp_path / name)) for name in "ab")

    assert (first.title, second.title) == ("Mine of a", "Mine of b")


def test_the_projects_module_is_taken_before_a_built_in_one(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "a", MODULE.replace('name="mine"', 'name="layer_norm"'), "layer_norm")

    assert find_operator("layer_norm", folder).title == "Mine of a"
    assert find_operator("layer_norm").title == "Layer Normalization"
    assert find_operator("rms_norm", folder) is find_operator("rms_norm")


def test_the_sources_are_those_of_the_first_look(tmp_path: Path) -> None:
    late = "\ndef later():\n    from ._late import WORD\n    return WORD\n"
    folder = write_project(tmp_path / "a", MODULE + late)
    (Path(folder) / "_late.py").write_text("WORD = 'before'\n")
    operator = find_operator("mine", folder)
    (Path(folder) / "_late.py").write_text("WORD = 'after'\n")
    (Path(folder) / "_new.py").write_text("")
    module = sys.modules[
        next(name for name in sys.modules if vars(sys.modules[name]).get("OPERATOR") is operator)
    ]

    assert module.later() == "before"
    with pytest.raises(ImportError, match="No module named '_new'"):
        __import__(f"{module.__package__}._new")


def test_without_a_folder_the_output_that_a_cell_needs_is_named() -> None:
    with pytest.raises(OperatorError, match="own, write `outputs=mine"):
        find_operator("mine")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("x = 1\nraise ValueError('no')\n", "operators/mine.py:2: cannot be imported: ValueError: no."),
        ("def f(:\n", "operators/mine.py:1: cannot be imported: SyntaxError: invalid syntax."),
        (
            "from .rms import x\n",
            "operators/mine.py:1: cannot be imported: ImportError: a module of an operator may not",
        ),
        ("raise SystemExit(3)\n", "operators/mine.py:1: cannot be imported: SystemExit: 3."),
        ("", "operators/mine.py: defines no OPERATOR."),
        ("OPERATOR = 3\n", "operators/mine.py: OPERATOR is of type int."),
        (MODULE.replace('"mine"', '"yours"'), "operators/mine.py: OPERATOR has the name 'yours'."),
    ],
)
def test_a_wrong_module_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, message: str
) -> None:
    root = tmp_path / "a"
    folder = write_project(root, module)
    (root / "operators" / "rms.py").write_text("x = 1\n")
    monkeypatch.chdir(root)

    for _ in range(2):
        with pytest.raises(OperatorError) as caught:
            find_operator("mine", folder)

        assert str(caught.value).startswith(message)
        assert len(str(caught.value).splitlines()) == 1


def test_an_error_of_the_device_is_not_said_to_be_the_operators() -> None:
    def inputs(*_: Any) -> Any:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    operator = replace(find_operator("layer_norm"), inputs=inputs)
    with pytest.raises(torch.AcceleratorError):  # an earlier call of an implementation caused it
        operator.made_inputs(operator.workloads("smoke")[0], "cpu", 0)


def test_an_unknown_operator_names_where_modules_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_project(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")

    with pytest.raises(OperatorError) as caught:
        find_operator("minne", folder)

    assert "there is no such module in operators or kernels_bench_tools/operators" in str(caught.value)
    assert "Did you mean 'mine'" in str(caught.value)
    with pytest.raises(OperatorError, match="matmul, mine, mlp, moe, paged_attention, rms_norm"):
        find_operator("sigmoid", folder)


def test_without_a_runner_the_folder_is_that_of_the_project_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path / "a")
    (tmp_path / "a" / "mine" / "impls").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "mine" / "impls")

    (record,) = run_benchmark("mine", torch_layer_norm, workloads="smoke", device="cpu")

    assert (record.op, record.status) == ("mine", Status.OK)


def test_an_operator_of_the_cell_is_measured_in_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    context = CellContext(operator="mine", implementation="x", judge=str(tmp_path / "nobody listens here"))
    write_struct(tmp_path / "context.json", context)
    monkeypatch.setenv("KBT_CONTEXT", str(tmp_path / "context.json"))

    operator = replace(LAYER_NORM, name="mine")
    (record,) = run_benchmark(operator, torch_layer_norm, workloads="smoke", device="cpu")

    assert (record.op, record.impl, record.status) == ("mine", "x", Status.OK)
    assert record.judged is Judged.IN_PROCESS
    assert Path("mine.jsonl").exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine is defined by this cell and judged by it, so its rows get no rank."
