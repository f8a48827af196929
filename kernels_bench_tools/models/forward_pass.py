"""Models with random weights, of this project and of Hugging Face transformers, and forward passes that can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from kernels_bench_tools.errors import ModelError, Unsupported
from kernels_bench_tools.measure.operator import failed_status
from kernels_bench_tools.models.baseline.forward_context import BLOCK_SIZE, plan_batch, set_forward_context
from kernels_bench_tools.models.baseline.L4 import CausalLM, build_model
from kernels_bench_tools.models.config import config_for, config_from_huggingface
from kernels_bench_tools.records.model import phase_sizes
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.request import TRANSFORMERS, EffectRequest

_WEIGHT_STD = 0.02
"""As models have; in those narrower than 2500, layers would then hardly change what they add to."""


class EffectError(Exception):
    """The model cannot be measured with the implementation, or returns different results with it."""


def random_model(request: EffectRequest, device: str) -> CausalLM:
    """Return a model of this project with random weights, the same in every process; on ``meta`` with none."""
    config = config_from_huggingface(request.config, request.model)
    if request.layers:
        config = msgspec.structs.replace(config, num_hidden_layers=request.layers)
    model = build_model(config, device)
    randomize(model, device)
    return model


def transformers_model(request: EffectRequest, device: str) -> Any:
    """Return transformers' model of a configuration, with weights that are the same in every process.

    Raises:
        Unsupported: transformers is not installed.
        ModelError: transformers has no such model; it also checks fields that this project's modules do not read.
    """
    try:
        import transformers
    except ImportError as error:
        raise Unsupported(
            f"transformers cannot be imported in the cell's environment ({error}). `--env current` uses that of kbt"
        ) from error
    known = config_for(TRANSFORMERS, request.config, request.model)
    layers = request.layers or known.num_hidden_layers
    left_out = {"model_type", "source"}
    given = {name: value for name, value in request.config.items() if name not in left_out}
    given["num_hidden_layers"] = layers
    if types := given.get("layer_types"):
        given["layer_types"] = msgspec.convert(types, list[Any])[:layers]
    make: Any = transformers.AutoModelForCausalLM
    try:
        config = transformers.AutoConfig.for_model(known.model_type, **given)
        with torch.device(device):
            model = make.from_config(config, dtype=getattr(torch, known.dtype))
    except Exception as error:
        if failed_status(error) is not Status.ERROR:  # such as out of memory
            raise
        what, expected = f"transformers rejects the configuration ({error})", "Values that it accepts"
        raise ModelError(request.model, what, expected) from error
    randomize(model, device)
    return model


def randomize(model: nn.Module, device: str) -> None:
    """Give a model the weights that are the same in every process; ``meta`` has none."""
    model.eval()
    if device == "meta":  # where drawing numbers makes torch import what compiles, which takes a second
        return
    generator = torch.Generator(device).manual_seed(0)
    for name, weight in model.named_parameters():
        std = _WEIGHT_STD if weight.dim() == 1 else max(_WEIGHT_STD, weight.shape[-1] ** -0.5)
        weight.data.normal_(1.0 if "norm" in name else 0.0, std, generator=generator)


def random_tokens(vocabulary: int, shape: Sequence[int], device: str) -> Tensor:
    generator = torch.Generator(device).manual_seed(1)
    return torch.randint(vocabulary, tuple(shape), generator=generator, device=device)


def change_tokens(tokens: Tensor, vocabulary: int) -> None:
    """Replace tokens by others, in the same memory and different in each process."""
    tokens.random_(vocabulary)
    if tokens.is_cuda:
        torch.cuda.synchronize()


class PagedPass:
    """A forward pass of a model of this project, with a paged cache. There is no backward pass through the cache."""

    trains = False
    """Whether a backward pass follows."""

    def __init__(self, model: CausalLM, device: str, name: str) -> None:
        self._model = model
        self._sizes = sizes = phase_sizes(name)
        self.decodes = sizes.tokens == 1
        """Whether each sequence gets one token, so that a CUDA graph can be replayed."""
        blocks = sizes.sequences * -(-sizes.context // BLOCK_SIZE)
        model.allocate_kv_cache(blocks, BLOCK_SIZE)
        generator = torch.Generator(device).manual_seed(2)
        for layer in model.model.layers:
            layer.self_attn.kv_cache.normal_(generator=generator)
        order = torch.randperm(blocks, generator=generator, device=device)
        self._tables = order.view(sizes.sequences, -1)
        self._plan([0] * sizes.sequences)
        self._ids = random_tokens(len(model.model.embed_tokens.weight), self._positions.shape, device)

    def __call__(self) -> Tensor:
        """Return the logits of all new tokens, (tokens, vocabulary)."""
        with self.context():
            return self._model.compute_logits(self._model(self._ids, self._positions))

    def change(self) -> None:
        change_tokens(self._ids, len(self._model.model.embed_tokens.weight))

    def shorten(self) -> None:
        """Make each context 1 to 15 tokens shorter, so that it ends inside of a block of the cache."""
        self._plan([1 + number % (BLOCK_SIZE - 1) for number in range(self._sizes.sequences)])

    def _plan(self, less: Sequence[int]) -> None:
        """Set the positions of the new tokens and what attention needs, with that many tokens less in each context."""
        new = [self._sizes.tokens] * self._sizes.sequences
        lengths = [self._sizes.context - count for count in less]
        self._positions, self._batch = plan_batch(new, lengths, self._tables, BLOCK_SIZE)

    def context(self) -> AbstractContextManager[object]:
        """Return the context in which modules of the model can be called alone."""
        return set_forward_context(self._batch)


class TransformersPass:
    """A pass of a model of transformers.

    Decoding appends to keys and values by copying them, as its default does, and changes a copy of a recurrent state.
    """

    def __init__(self, model: Any, device: str, name: str) -> None:
        """Make the tokens, and for decoding a cache with random keys and values, or states."""
        sizes = phase_sizes(name)
        self._model = model
        self.decodes, self.trains = sizes.tokens == 1, sizes.trains
        shape = (sizes.sequences, sizes.tokens)
        self._named: dict[str, Any] = {
            "input_ids": random_tokens(model.config.vocab_size, shape, device),
            "use_cache": False,
        }
        if self.trains:
            self._named["labels"] = self._named["input_ids"]
        if self.decodes:
            self._named |= {
                "use_cache": True,
                **_filled_cache(model, device, sizes.sequences, sizes.context - 1),
                "position_ids": torch.full(shape, sizes.context - 1, device=device),
            }

    def __call__(self) -> Tensor:
        """Return the logits, or, of training, the loss; the weights have their gradients then."""
        if not self.trains:
            logits: Tensor = self._model(**self._named).logits
            # Some models return them in float32, with the roundings of their own type.
            return logits.flatten(0, 1).to(self._model.dtype)
        self._model.zero_grad()
        with torch.enable_grad():
            loss: Tensor = self._model(**self._named).loss
            loss.backward()
        return loss.detach()

    def change(self) -> None:
        change_tokens(self._named["input_ids"], self._model.config.vocab_size)

    def context(self) -> AbstractContextManager[object]:
        return nullcontext()


ForwardPass = PagedPass | TransformersPass


def _filled_cache(model: Any, device: str, sequences: int, tokens: int) -> dict[str, Any]:
    """Return a cache of random keys, values and states which no call changes, by the name of the model's argument.

    It is that of a pass of two tokens, which says what each layer keeps, in which shapes and types.
    """
    generator = torch.Generator(device).manual_seed(2)
    ids = random_tokens(model.config.vocab_size, (sequences, 2), device)
    cache = cache_after(model, ids)
    for layer in next(iter(cache.values())).layers:
        if getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = (
                kept.new_empty((*kept.shape[:2], tokens, kept.shape[3])).normal_(generator=generator)
                for kept in (layer.keys, layer.values)
            )
            layer.update = partial(_appended, layer.keys, layer.values)
        for name in ("conv_states", "recurrent_states"):
            states = _Copied(getattr(layer, name, {}))
            for state in states.values():
                if state is not None:
                    state.normal_(generator=generator)
            setattr(layer, name, states)
        layer.update_recurrent_state = lambda state, *_, **__: state
    return cache


def cache_after(model: Any, ids: Tensor) -> dict[str, Any]:
    """Return the cache that a pass of these tokens leaves, by the name of the model's argument."""
    output = model(input_ids=ids, use_cache=True)
    return {name: output[name] for name in ("past_key_values", "cache_params") if name in output}


class _Copied(dict[int, Any]):
    """States of a layer, of which each reader gets a copy: kernels for one token write into what they read."""

    def __getitem__(self, number: int) -> Any:
        state = super().__getitem__(number)
        return None if state is None else state.clone()


def _appended(keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, *_: Any, **__: Any) -> Any:
    return torch.cat((keys, new_keys), dim=-2), torch.cat((values, new_values), dim=-2)
