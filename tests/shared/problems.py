"""Problems in the format of KernelBench, made from a few formulas, with candidates for them."""

from pathlib import Path

FORMULAS = (
    ("relu", "torch.relu(x)"),
    ("gelu", "torch.nn.functional.gelu(x)"),
    ("sigmoid", "torch.sigmoid(x)"),
    ("tanh", "torch.tanh(x)"),
    ("softmax", "torch.softmax(x, dim=-1)"),
    ("log_softmax", "torch.log_softmax(x, dim=-1)"),
    ("silu", "torch.nn.functional.silu(x)"),
    ("softplus", "torch.nn.functional.softplus(x)"),
    ("sum", "x.sum(dim=-1)"),
    ("mean", "x.mean(dim=-1, keepdim=True)"),
    ("max", "x.max(dim=-1).values"),
    ("cumsum", "x.cumsum(dim=-1)"),
    ("scale", "3.0 * x + 1.0"),
    ("square", "x * x"),
    ("norm", "x / x.norm(dim=-1, keepdim=True)"),
    ("layer_norm", "torch.nn.functional.layer_norm(x, x.shape[-1:])"),
    ("matmul", "x @ x.T"),
    ("linear", "self.linear(x)"),
    ("linear_relu", "torch.relu(self.linear(x))"),
    ("linear_scale", "0.5 * self.linear(x)"),
)

_PROBLEM = """
import torch


class {model}(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
{init}
    def forward(self, x):
{forward}


def get_inputs():
    return [torch.rand({rows}, {columns})]


def get_init_inputs():
    return [{columns}]
"""
HONEST = "        return {formula}"


def write_file(path: Path, number: int, forward: str = HONEST, model: str = "Model", init: str = "") -> None:
    """Write the file of the problem with this number: one of the formulas, with sizes that follow from the number."""
    formula = FORMULAS[number % len(FORMULAS)][1]
    rows, columns = 16 + number // len(FORMULAS), 32 + 8 * (number // len(FORMULAS))
    path.parent.mkdir(parents=True, exist_ok=True)
    body = forward.format(formula=formula)
    path.write_text(_PROBLEM.format(model=model, init=init, forward=body, rows=rows, columns=columns))


def problem_name(number: int) -> str:
    return f"{number + 1}_{FORMULAS[number % len(FORMULAS)][0]}"


def write_problems(folder: Path, numbers: range) -> None:
    for number in numbers:
        write_file(folder / f"{problem_name(number)}.py", number)


def write_candidates(folder: Path, numbers: range, forward: str = HONEST, init: str = "") -> None:
    for number in numbers:
        write_file(folder / f"{problem_name(number)}.py", number, forward, "ModelNew", init)
