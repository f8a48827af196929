"""Models of Hugging Face transformers with random weights, and their forward passes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.errors import ModelError, Unsupported
from kernels_bench_tools.measure.operator import failed_status
from kernels_bench_tools.models.config import config_from_huggingface
from kernels_bench_tools.models.forward_pass import change_tokens, random_tokens, randomize
from kernels_bench_tools.records.build import EffectRequest
from kernels_bench_tools.records.model import phase_sizes
from kernels_bench_tools.records.record import Status


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
            f"the cell's environment has no transformers that can be imported ({error}); with `--env current` it is kbt's"
        ) from error
    known = config_from_huggingface(request.config, request.model)
    # All layers are of one type, and a list of them would need as many as are measured.
    left_out = {"model_type", "source", "layer_types"}
    given = {name: value for name, value in request.config.items() if name not in left_out}
    given["num_hidden_layers"] = request.layers or known.num_hidden_layers
    make: Any = transformers.AutoModelForCausalLM
    try:
        config = transformers.AutoConfig.for_model(known.model_type, **given)
        with torch.device(device):
            model = make.from_config(config, dtype=getattr(torch, known.dtype))
    except Exception as error:
        if failed_status(error) is not Status.ERROR:  # such as out of memory
            raise
        what, expected = f"transformers refuses the configuration ({error})", "Values that it accepts"
        raise ModelError(request.model, what, expected) from error
    randomize(model, device)
    return model


class TransformersPass:
    """A pass of a model of transformers. Decoding appends to the cache by copying it, as its default does."""

    def __init__(self, model: Any, device: str, name: str) -> None:
        """Make the tokens, and for decoding a cache with random keys and values."""
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
                "past_key_values": _filled_cache(model, device, sizes.sequences, sizes.context - 1),
                "position_ids": torch.full(shape, sizes.context - 1, device=device),
            }

    def __call__(self) -> Tensor:
        """Return the logits of all new tokens, or, of training, the loss; the weights have their gradients then."""
        if not self.trains:
            logits: Tensor = self._model(**self._named).logits
            return logits.flatten(0, 1)
        self._model.zero_grad()
        with torch.enable_grad():
            loss: Tensor = self._model(**self._named).loss
            loss.backward()
        return loss.detach()

    def change(self) -> None:
        """Replace the tokens by others, in the same memory."""
        change_tokens(self._named["input_ids"], self._model.config.vocab_size)

    def context(self) -> AbstractContextManager[object]:
        """Return a context that does nothing, because modules get all that they need as arguments."""
        return nullcontext()


def _filled_cache(model: Any, device: str, sequences: int, tokens: int) -> Any:
    """Return a cache of random keys and values which no call changes."""
    from transformers import DynamicCache

    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (sequences, config.num_key_value_heads, tokens, head_dim)
    generator = torch.Generator(device).manual_seed(2)
    cache: Any = DynamicCache(config=config)
    for number in range(config.num_hidden_layers):
        keys, values = (
            torch.empty(shape, dtype=model.dtype, device=device).normal_(generator=generator)
            for _ in range(2)
        )
        cache.update(keys, values, number)
        layer = cache.layers[number]
        layer.update = partial(_appended, layer.keys, layer.values)
    return cache


def _appended(keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, *_: Any, **__: Any) -> Any:
    return torch.cat((keys, new_keys), dim=-2), torch.cat((values, new_values), dim=-2)
