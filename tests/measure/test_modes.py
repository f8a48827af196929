import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from implementations import attempt
from norms import LAYER_NORM, compile_for, torch_layer_norm
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.modes import in_mode, start_autograd
from kernels_bench_tools.measure.operator import Workload
from kernels_bench_tools.measure.trial import Trial
from kernels_bench_tools.records.record import Status

pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")

WORKLOAD = Workload(name="w", axes={"batch": 2, "seq_len": 16, "hidden_dim": 256}, dtype="float32")
SLOW_SECONDS = 0.04
"""Long beside a backward pass, also where other tests use the cores."""


class SlowForward(torch.autograd.Function):
    """Right in both directions; only the forward pass is slow."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        time.sleep(SLOW_SECONDS)
        context.save_for_backward(x, weight, bias)
        return torch_layer_norm(x, weight, bias)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        leaves = [value.detach().requires_grad_() for value in context.saved_tensors]
        with torch.enable_grad():
            output = torch_layer_norm(*leaves)
        return torch.autograd.grad(output, leaves, gradients)


def tried(function: Callable[..., Any], mode: str) -> Trial:
    start_autograd("cpu")
    return attempt(LAYER_NORM, function, replace(WORKLOAD, name=f"w_{mode}", mode=mode), mode=mode)


def test_a_wrong_forward_pass_before_a_right_backward_pass_is_incorrect() -> None:
    class Wrong(SlowForward):
        @staticmethod
        def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            context.save_for_backward(x, weight, bias)
            return torch.zeros_like(x)

    trial = tried(Wrong.apply, "bwd")

    assert trial.status is Status.INCORRECT
    assert "its output 'out'" in trial.failure.msg


def test_only_the_backward_pass_is_timed() -> None:
    backward = tried(SlowForward.apply, "bwd")
    both = tried(SlowForward.apply, "fwd_bwd")

    assert backward.status is both.status is Status.OK
    assert backward.timing.latency.p50 < 1e3 * SLOW_SECONDS / 2
    assert both.timing.latency.p50 > 1e3 * SLOW_SECONDS


@pytest.mark.parametrize("mode", ["bwd", "fwd_bwd"])
@pytest.mark.parametrize("formula", [True, False])
def test_an_implementation_without_a_backward_pass_is_unsupported(mode: str, formula: bool) -> None:
    def detached(*inputs: Tensor) -> Tensor:
        return torch_layer_norm(*inputs).detach()

    library = torch.library.Library("kbt_test_modes", "FRAGMENT")
    name = f"normalize_{mode}"
    if not formula:
        library.define(f"{name}(Tensor x, Tensor weight, Tensor bias) -> Tensor")
        library.impl(name, lambda *inputs: torch.from_numpy(detached(*inputs).numpy()), "CPU")

    with warnings.catch_warnings(action="ignore", category=UserWarning):
        trial = tried(detached if formula else getattr(torch.ops.kbt_test_modes, name), mode)

    assert trial.status is Status.UNSUPPORTED
    assert ("its result carries no gradient" if formula else "no gradient reaches") in trial.failure.msg


@pytest.mark.parametrize(
    ("gradients", "mode", "message"),
    [((), "bwd", "has no bwd mode"), ((0,), "backward", "fwd, bwd, fwd_bwd")],
)
def test_a_mode_that_there_is_not_is_an_error(gradients: tuple[int, ...], mode: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        in_mode(replace(LAYER_NORM, gradients=gradients), mode)


def test_a_compiled_backward_pass_can_be_timed_repeatedly() -> None:
    trial = tried(compile_for(WORKLOAD, torch_layer_norm), "bwd")

    assert trial.status is Status.OK, trial.failure


def test_only_the_first_process_checks_edge_cases_and_drawn_shapes() -> None:
    first, second = (attempt(LAYER_NORM, torch_layer_norm, WORKLOAD, process=number) for number in (0, 1))

    nan_and_infinities, mixed = 3, 1
    assert second.correctness.corr["cases"] == 3 + nan_and_infinities + mixed
    assert first.correctness.corr["cases"] > 3 + nan_and_infinities + 2 * mixed + 2


def test_the_inputs_of_a_backward_pass_need_no_compiler() -> None:
    program = """
import sys
from kernels_bench_tools.measure.modes import in_mode
from kernels_bench_tools.measure.operator import find_operator

backward = in_mode(find_operator("layer_norm"), "bwd")
(workload,) = backward.workloads("smoke")
backward.inputs(workload, "cpu", 0)
print("torch._dynamo" in sys.modules)
"""

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout == "False\n"
