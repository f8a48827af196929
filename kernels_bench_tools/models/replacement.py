"""Replacement of the kernels of a model by an implementation of an operator, instance by instance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.measure.modes import Prepared
from kernels_bench_tools.measure.operator import Inputs, Operator
from kernels_bench_tools.measure.task import Task
from kernels_bench_tools.models.baseline.L1 import (
    Embedding,
    FlashAttnDecode,
    FlashAttnPrefill,
    Linear,
    MoEGroupedGemm,
    RMSNorm,
    RotaryEmbedding,
    SiluAndMul,
)
from kernels_bench_tools.models.baseline.L2 import FusedMoE, LlamaMLP
from kernels_bench_tools.models.calls import first_calls
from kernels_bench_tools.operators import activation
from kernels_bench_tools.operators.matmul import GROUPS


@dataclass(frozen=True)
class Adapter:
    """How a module of level 1 or 2 calls an implementation of an operator."""

    module: type[nn.Module] | str
    """A class of this project, or what the names of transformers' classes end with."""
    forward: Callable[..., Any]
    """Called with the module, a caller of the implementation and the arguments of the module's own ``forward``."""
    group: str = ""
    """The group of the operator's workloads that the module computes."""
    layouts: tuple[str, ...] = ("",)
    """The operator's layouts in which ``forward`` can pass the inputs."""
    uses: frozenset[str] = frozenset()
    """Names of functions or attributes, one of which a ``forward`` of transformers has to use."""

    @property
    def name(self) -> str:
        if not isinstance(self.module, str):
            return self.module.__name__
        return " with ".join(filter(None, [self.module, " or ".join(sorted(self.uses))]))

    def fits(self, module: nn.Module) -> bool:
        kind = type(module)
        if not isinstance(self.module, str):
            return kind is self.module
        if not kind.__name__.endswith(self.module) or not kind.__module__.startswith("transformers.models."):
            return False
        return not self.uses or not self.uses.isdisjoint(_function_of(kind).__code__.co_names)


def _of_functions(**functions: Callable[..., Any]) -> Adapter:
    """Return the adapter of transformers' modules that call any of these functions, which belong to the modules' file.

    Each gets the caller of an implementation, and then the arguments of transformers' function of its name.
    """

    def forward(module: nn.Module, call: Caller, *args: Any, **named: Any) -> Any:
        names = _function_of(type(module)).__globals__
        others = {name: partial(one, call) for name, one in functions.items() if name in names}
        with _replaced(names, others):
            return call.forward(*args, **named)

    return Adapter("", forward, uses=frozenset(functions))


@contextmanager
def _replaced(functions: MutableMapping[str, Any], others: Mapping[str, Any]) -> Iterator[None]:
    before = {name: functions[name] for name in others}
    functions.update(others)
    try:
        yield
    finally:
        functions.update(before)


def _function_of(kind: type[nn.Module]) -> Any:
    return unwrap(kind.forward)


def _rms_norm(module: Any, call: Caller, x: Tensor, residual: Tensor | None = None) -> Any:
    return call(x, module.weight, residual, module.variance_epsilon)


def _transformers_mlp(module: Any, call: Caller, x: Tensor) -> Any:
    if type(module.act_fn).__name__ not in {"SiLU", "SiLUActivation"}:
        raise ReplacementError(f"{type(module).__name__} computes {type(module.act_fn).__name__}, not SiLU")
    gate, up = module.gate_proj, module.up_proj
    if call.layout:
        return module.down_proj(call(gate(x), up(x)))
    if gate.bias is not None:
        raise ReplacementError(f"{type(module).__name__} has a bias, which needs the layout two_tensors")
    # One product gives both halves in one tensor, as this layout has them.
    weight = call.keep("gate and up", lambda: torch.cat((gate.weight, up.weight)))
    return module.down_proj(call((x @ weight.t()).flatten(0, -2)).unflatten(0, x.shape[:-1]))


def _transformers_attention(module: Any, call: Caller, *args: Any, **named: Any) -> Any:
    from transformers import modeling_utils

    def attend(_: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_named: Any) -> Any:
        if mask is not None:
            raise ReplacementError("transformers passes an attention mask, which flash_attn does not take")
        inputs = (tensor.transpose(1, 2) for tensor in (query, key, value))
        return call(*inputs, query.shape[2] > 1), None

    others = {module.config._attn_implementation: attend}
    with _replaced(modeling_utils.ALL_ATTENTION_FUNCTIONS, others):
        return type(module).forward(module, *args, **named)


def _require(name: str, named: Mapping[str, Any]) -> None:
    if not named.get(name):
        raise ReplacementError(f"transformers calls this without {name}, which the operator always applies")


def _conv1d(
    call: Caller, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None, **_: Any
) -> Any:
    if bias is None:
        bias = call.keep("no bias", lambda: torch.zeros_like(weight[:, 0]))
    return call(x, weight, bias, activation)


def _conv1d_update(call: Caller, x: Tensor, state: Tensor, *args: Any, **named: Any) -> Any:
    tokens = torch.cat((state, x), dim=-1)
    state.copy_(tokens[..., -state.shape[-1] :])
    return _conv1d(call, tokens, *args, **named)[..., -x.shape[-1] :]


def _scan(call: Caller, *args: Tensor, return_last_state: bool = False, **named: Any) -> Any:
    _require("delta_softplus", named)
    out, state = call(*args, *(named[name] for name in ("D", "z", "delta_bias")), None)
    return (out, state) if return_last_state else out


def _scan_update(call: Caller, state: Tensor, *args: Tensor, **named: Any) -> Any:
    _require("dt_softplus", named)
    x, dt, decay, b, c, through = args
    x, dt, b, c, z = (one[..., None] for one in (x, dt, b, c, named["z"]))
    out, after = call(x, dt, decay, b, c, through.float(), z, named["dt_bias"], state)
    state.copy_(after)
    return out[..., 0]


def _delta_rule(call: Caller, *args: Tensor, output_final_state: bool = False, **named: Any) -> Any:
    _require("use_qk_l2norm_in_kernel", named)
    out, state = call(*args, *(named[name] for name in ("g", "beta", "initial_state")))
    return out, state if output_final_state else None


def _rotary(module: RotaryEmbedding, call: Caller, positions: Tensor, query: Tensor, key: Tensor) -> Any:
    cos, sin = module.cos_sin_cache[positions].chunk(2, dim=-1)
    heads = (x.unflatten(-1, (-1, module.head_size))[None] for x in (query, key))
    return tuple(x[0].flatten(1) for x in call(*heads, cos, sin))


def _same(_: nn.Module, call: Caller, *args: Tensor | None) -> Any:
    return call(*(given for given in args if given is not None))


def _mlp(module: LlamaMLP, call: Caller, x: Tensor) -> Any:
    return call(x, module.gate_up_proj.weight, module.down_proj.weight)


def _moe(module: FusedMoE, call: Caller, hidden_states: Tensor, router_logits: Tensor) -> Any:
    if not module.topk_softmax.renormalize:
        raise ReplacementError(
            "the model does not scale the weights of a token's experts to a sum of 1, as moe does"
        )
    return call(hidden_states, router_logits, module.w13_weight, module.w2_weight, module.top_k)


ADAPTERS: dict[str, tuple[Adapter, ...]] = {
    "rms_norm": (
        Adapter(RMSNorm, _rms_norm),
        Adapter("RMSNorm", _rms_norm, uses=frozenset({"variance_epsilon"})),
        Adapter(
            "RMSNormGated",
            lambda module, call, x, gate: call(x, gate, module.weight, module.variance_epsilon),
            layouts=("gated", "gate_first"),
        ),
    ),
    "activation": (
        Adapter(
            SiluAndMul,
            lambda _, call, x: call(*x.chunk(2, dim=-1)) if call.layout else call(x),
            activation.GROUPS["swiglu"],
            layouts=("", "two_tensors"),
        ),
        Adapter("MLP", _transformers_mlp, activation.GROUPS["swiglu"], layouts=("", "two_tensors")),
    ),
    "rotary": (Adapter(RotaryEmbedding, _rotary),),
    "embedding": (Adapter(Embedding, lambda _, call, ids, weight: call(weight, ids)),),
    "flash_attn": (
        Adapter(
            FlashAttnPrefill, lambda module, call, *args: type(module).forward(module, *args, attend=call)
        ),
        Adapter("Attention", _transformers_attention),
    ),
    "grouped_gemm": (Adapter(MoEGroupedGemm, _same),),
    "mlp": (Adapter(LlamaMLP, _mlp),),
    "moe": (Adapter(FusedMoE, _moe),),
    "matmul": (Adapter(Linear, _same, GROUPS["linear"]),),
    "paged_attention": (Adapter(FlashAttnDecode, _same),),
    "causal_conv1d": (_of_functions(causal_conv1d_fn=_conv1d, causal_conv1d_update=_conv1d_update),),
    "selective_scan": (_of_functions(mamba_selective_scan=_scan, mamba_selective_state_update=_scan_update),),
    "gated_delta_rule": (
        _of_functions(torch_chunk_gated_delta_rule=_delta_rule, torch_recurrent_gated_delta_rule=_delta_rule),
    ),
}
"""By operator."""


@dataclass(frozen=True)
class Substitute:
    task: Task
    operator: Operator
    function: Callable[..., Any]
    prepare: Callable[..., Any] | None = None


class ReplacementError(Unsupported):
    """An implementation cannot be what a model calls; the message says why."""


@dataclass
class Replacement:
    """Implementations in place of the instances of a model that can call them; inactive at first."""

    instances: dict[str, nn.Module]
    """Replaced modules, by path."""
    forwards: dict[str, Callable[..., Any]] = field(repr=False)
    """What replaces their ``forward``, by path."""
    in_place: bool = False
    """Whether one of the implementations may overwrite its inputs."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Always empty: what a changed model has that could be replaced, but is not."""
    _used: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set), repr=False)
    """Names of functions that are replaced already, by path: one module may call those of several operators."""

    @property
    def classes(self) -> set[type[nn.Module]]:
        return {type(module) for module in self.instances.values()}

    def add(self, path: str, module: nn.Module, adapter: Adapter, call: Caller) -> None:
        if path in self.instances and adapter.uses <= self._used[path]:
            raise ReplacementError(f"{call.operator.name} is replaced twice, for example in {path}")
        self._used[path] |= adapter.uses
        call.forward = self.forwards.get(path, partial(type(module).forward, module))
        self.instances[path] = module
        self.forwards[path] = partial(adapter.forward, module, call)

    @contextmanager
    def active(self) -> Iterator[None]:
        for path, module in self.instances.items():
            module.forward = self.forwards[path]
        try:
            yield
        finally:
            for module in self.instances.values():
                del module.forward  # then that of the class is found again

    def called(self, forward: Callable[[], Any]) -> set[str]:
        with self.active():
            return {*first_calls(forward, self.instances)}


def replace(model: nn.Module, substitutes: Iterable[Substitute]) -> Replacement:
    """Return the replacement of what implementations compute in a model.

    Raises:
        ReplacementError: No module of the model calls an operator, or an implementation computes another function of it,
            takes a layout that models do not have, or cannot be called as they do, or two compute the same.
    """
    replacement = Replacement({}, {})
    for given in substitutes:
        operator, task = given.operator, given.task
        if operator.name not in ADAPTERS:
            known = ", ".join(ADAPTERS)
            raise ReplacementError(f"no module of a model calls {operator.name}, only {known}")
        computed = {workload.group.partition(", ")[0] for workload in task.selected(operator)}
        adapters = [adapter for adapter in ADAPTERS[operator.name] if task.layout in adapter.layouts]
        if not adapters:
            others = " or ".join(adapter.name for adapter in ADAPTERS[operator.name])
            raise ReplacementError(f"takes the layout {task.layout}, which {others} does not provide")
        found = False
        for adapter in adapters:
            if adapter.group and adapter.group not in computed:
                needed = f"{adapter.name} needs {adapter.group}"
                raise ReplacementError(f"computes {', '.join(sorted(computed))}, but {needed}")
            for path, module in model.named_modules():
                if adapter.fits(module):
                    call = Caller(operator, given.function, given.prepare, task.layout)
                    replacement.add(path, module, adapter, call)
                    found = True
        if not found:
            names = " or ".join(dict.fromkeys(adapter.name for adapter in adapters))
            raise ReplacementError(f"the model has no module {names}")
        replacement.in_place |= task.in_place
    return replacement


@dataclass(eq=False)
class Caller:
    """Calls an implementation for one module; what is prepared of its parameters is kept."""

    operator: Operator
    function: Callable[..., Any]
    prepare: Callable[..., Any] | None = None
    layout: str = ""
    forward: Callable[..., Any] = field(init=False)
    """The module's own, or what replaces another function that it calls."""
    _given: Inputs = ()
    _made: dict[int, Any] = field(default_factory=dict)
    _kept: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return what ``make`` returned when it was first called for this name; in training make it each time."""
        if torch.is_grad_enabled():
            return make()
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def __call__(self, *inputs: Any) -> Any:
        if self.prepare is not None:
            given = tuple(inputs[number] for number in self.operator.parameters)
            same = self._given and all(now is then for now, then in zip(given, self._given, strict=True))
            if not same or torch.is_grad_enabled():
                prepared = Prepared(self.operator, self.prepare)(*inputs)
                self._given = given
                self._made = {number: prepared[number] for number in self.operator.parameters}
            inputs = tuple(self._made.get(number, value) for number, value in enumerate(inputs))
        output = self.function(*inputs)
        return tuple(output) if isinstance(output, list) else output
