"""Problems of flashinfer-trace: the reference and the solutions are source text, and a workload says how inputs are made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.file_io import open_regular
from kernels_bench_tools.own_folders import make_folder, path_below
from kernels_bench_tools.records.problem import Definition, Solution, TensorSpec, TraceWorkload

_ABOVE, _ABOVE_INT8, _LARGEST_FP8 = 2**10, 2**7, 2.0
"""Random integers are below one of these and not below its negative, as those of their own harness are."""
_LFS = b"version https://git-lfs"


class TraceProblem:
    def __init__(self, definition: Definition, workload: TraceWorkload, root: Path, folder: Path) -> None:
        """Files of sources are written into ``folder``; those of inputs are below ``root``."""
        self._definition, self._workload, self._root, self._folder = definition, workload, root, folder
        self._run = self._load("reference", {"reference.py": definition.reference}, "reference.py::run")

    def reference(self, *inputs: Any) -> tuple[Tensor, ...]:
        return self._outputs(self._run(*inputs))

    def draw(self) -> list[Any]:
        return [self._input(name, spec) for name, spec in self._definition.inputs.items()]

    def solution(self, given: Solution) -> Callable[..., tuple[Tensor, ...]]:
        sources = {source["path"]: source["content"] for source in given.sources}
        run = self._load("solution", sources, given.spec.entry_point)
        if not given.spec.destination_passing_style:
            return lambda *inputs: self._outputs(run(*inputs))

        made = [(self._shape(spec), _dtype(spec)) for spec in self._definition.outputs.values()]

        def filled(*inputs: Any) -> tuple[Tensor, ...]:
            device = next((one.device for one in inputs if isinstance(one, Tensor)), None)
            outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in made]
            run(*inputs, *outputs)
            return tuple(outputs)

        return filled

    def _load(self, package: str, sources: dict[str, str], entry_point: str) -> Callable[..., Any]:
        """Write sources as a package and return a function of it; their exceptions are raised."""
        home = (self._folder / package).resolve()
        for name, text in sources.items():
            path = path_below(home, name, where=package)
            make_folder(path.parent, home.parent)
            path.write_text(text, encoding="utf-8")
        if str(self._folder) not in sys.path:
            sys.path.insert(0, str(self._folder))
        file, _, function = entry_point.partition("::")
        module = import_module(".".join((package, *Path(file).with_suffix("").parts)))
        found = getattr(module, function, None)
        if not callable(found):
            raise OperatorError(package, f"{file} defines no function {function!r}")
        run: Callable[..., Any] = found
        return run

    def _shape(self, spec: TensorSpec) -> list[int]:
        shape = []
        for axis in spec.shape or []:
            value = self._workload.axes.get(axis, self._definition.axes[axis].value)
            if value is None:
                raise OperatorError(self._workload.uuid, f"gives no value for the axis {axis}")
            shape.append(value)
        return shape

    def _outputs(self, found: Any) -> tuple[Tensor, ...]:
        specs = self._definition.outputs
        if isinstance(found, dict):
            found = [found[name] for name in specs]
        values = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if all(isinstance(value, Tensor) for value in values):
            return values
        kinds = [_dtype(spec) for spec in specs.values()]
        return tuple(torch.as_tensor(one, dtype=kind) for one, kind in zip(values, kinds, strict=True))

    def _input(self, name: str, spec: TensorSpec) -> Any:
        given = self._workload.inputs.get(name)
        if given is None or given.type == "random":
            value = _random(self._shape(spec), _dtype(spec))
            return value if spec.shape is not None else value.item()
        return given.value if given.type == "scalar" else self._stored[name]

    @cached_property
    def _stored(self) -> dict[str, Tensor]:
        from safetensors import safe_open

        found = {}
        for name, given in self._workload.inputs.items():
            if given.type != "safetensors":
                continue
            # Snapshots in the Hub's cache consist of links to other folders of it.
            path = path_below(self._root, given.path, where=self._workload.uuid, linked=True)
            with open_regular(path) as file:
                if file.read(len(_LFS)) == _LFS:
                    raise OperatorError(
                        str(path), "is a pointer of Git LFS", "The file itself", "Run `git lfs pull` there"
                    )
            with safe_open(path, framework="pt") as file:
                found[name] = file.get_tensor(given.tensor_key)
            spec = self._definition.inputs[name]
            has, needs = (list(found[name].shape), found[name].dtype), (self._shape(spec), _dtype(spec))
            if has != needs:
                raise OperatorError(
                    f"{path}: {given.tensor_key}", f"is {has}", f"{needs}, as {name} is defined"
                )
        return found


def _dtype(spec: TensorSpec) -> torch.dtype:
    found = getattr(torch, spec.dtype, None)
    if not isinstance(found, torch.dtype):
        raise OperatorError(spec.dtype, "is no type of torch that can be drawn or allocated")
    return found


def _random(shape: list[int], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        is_small = dtype.itemsize == 1  # which randn does not draw
        drawn = torch.randn(shape, dtype=torch.float32 if is_small else dtype)
        return drawn.clamp(-_LARGEST_FP8, _LARGEST_FP8).to(dtype) if is_small else drawn
    above = 2 if dtype is torch.bool else _ABOVE_INT8 if dtype is torch.int8 else _ABOVE
    return torch.randint(0 if dtype is torch.bool else -above, above, shape, dtype=dtype)
