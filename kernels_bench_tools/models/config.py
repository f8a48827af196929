"""Configurations of production models, as far as the shapes of their operators depend on them.

A file of ``configs/`` holds the facts under the names of Hugging Face's ``config.json``, and their ``source``. So that
the command can read it, this module needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal, get_args

import msgspec

from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.records.model import CONFIGS, find_model

VOCAB_PADDING = 64
"""The vocabulary is padded to a multiple of this many tokens, as in vLLM."""

Count = Annotated[int, msgspec.Meta(gt=0, le=1 << 24)]
"""More is a mistake."""
Number = Annotated[float, msgspec.Meta(gt=0)]
ModelType = Literal["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"]
DType = Literal["bfloat16", "float16", "float32"]


class RopeScaling(msgspec.Struct, kw_only=True, frozen=True):
    factor: Number
    low_freq_factor: Number
    high_freq_factor: Number
    original_max_position_embeddings: Count


class Experts(msgspec.Struct, kw_only=True, frozen=True):
    num_experts: Count
    num_experts_per_tok: Count
    intermediate_size: Count
    """Of one expert."""
    norm_topk_prob: bool
    """Whether the weights of the chosen experts are scaled to a sum of 1."""

    def __post_init__(self) -> None:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError("num_experts_per_tok is larger than the number of experts")


class ModelConfig(msgspec.Struct, kw_only=True, frozen=True):
    """A decoder of the Llama kind; the fields have Hugging Face's names."""

    name: str
    source: str = ""
    """Where the facts are from."""
    model_type: ModelType
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Annotated[int, msgspec.Meta(gt=0, le=1 << 12)]
    """Each needs a module: more are a mistake, with which a model would take hours to build."""
    num_attention_heads: Count
    num_key_value_heads: Annotated[int, msgspec.Meta(ge=0)] = 0
    """0 when constructing: as many as there are of queries."""
    head_dim: Annotated[int, msgspec.Meta(ge=0)] = 0
    """0 when constructing: ``hidden_size`` divided by the number of heads."""
    vocab_size: Count
    max_position_embeddings: Count
    rms_norm_eps: Number
    rope_theta: Number
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    experts: Experts | None = None
    dtype: DType = "bfloat16"
    hidden_act: Literal["silu"] = "silu"

    def __post_init__(self) -> None:
        if not self.num_key_value_heads:
            msgspec.structs.force_setattr(self, "num_key_value_heads", self.num_attention_heads)
        if not self.head_dim:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    "hidden_size is not a multiple of num_attention_heads, and there is no head_dim"
                )
            msgspec.structs.force_setattr(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads is not a multiple of num_key_value_heads")
        if self.head_dim % 2 or not self.head_dim:
            raise ValueError(f"head_dim {self.head_dim} is not a positive even number")
        if self.experts is None and self.model_type in _EXPERTS:
            raise ValueError("experts are missing")

    @property
    def qkv_bias(self) -> bool:
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.model_type in {"qwen3", "qwen3_moe"}

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // VOCAB_PADDING) * VOCAB_PADDING


class TransformersConfig(msgspec.Struct, kw_only=True, frozen=True):
    """A model that only transformers has: the fields that a forward pass depends on."""

    name: str
    source: str = ""
    model_type: str
    num_hidden_layers: Annotated[int, msgspec.Meta(gt=0, le=1 << 12)]
    max_position_embeddings: Count | None = None
    """None of a model that has a state instead."""
    dtype: DType = "bfloat16"
    facts: dict[str, Any]
    """All fields of the file."""


_COMMON = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("vocab_size", "max_position_embeddings", "rms_norm_eps", "model_type"),
)
_OPTIONAL = ("source", "num_key_value_heads", "head_dim", "tie_word_embeddings", "dtype")
_OTHER_NAMES = {
    "dtype": "torch_dtype",
    "num_experts": "num_local_experts",
    "num_local_experts": "num_experts",
}
"""Names by which older or newer files have the same field."""
_CHOSEN = {"num_experts_per_tok": "num_experts_per_tok"}
_EXPERTS = {
    "mixtral": {"num_experts": "num_local_experts", "intermediate_size": "intermediate_size", **_CHOSEN},
    "qwen3_moe": {"num_experts": "num_experts", "intermediate_size": "moe_intermediate_size", **_CHOSEN},
}
"""By ``model_type``, the names of fields of :class:`Experts` in Hugging Face's file."""
_LLAMA = {"rope_theta": 1e4, "rms_norm_eps": 1e-6}
_ASSUMED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(get_args(ModelType), _LLAMA),
    "mistral": {**_LLAMA, "sliding_window": 4096},
    "mixtral": {"rope_theta": 1e6, "rms_norm_eps": 1e-5},
}
"""By ``model_type``, what transformers assumes where a file has no such field."""
_QUANTIZED = re.compile(r"quant|compress|(^|_)w?bits?(_|$)|\dbit", re.IGNORECASE)
"""Keys that say, unless their value is empty, that weights are not stored in the model's type."""
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1.0, None),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    "dtype": (*get_args(DType), None),
    "torch_dtype": (*get_args(DType), None),
}
"""Values of keys with which the modules of ``baseline`` compute what the model does; absent keys mean the same."""


def load_config(key: str) -> ModelConfig:
    """Return the configuration of a model that comes with this package, such as ``llama-3.1-8b``.

    Raises:
        ModelError: There is no such model.
    """
    return config_from_huggingface(msgspec.json.decode(find_model(CONFIGS, key).read_bytes()), key)


def config_from_huggingface(data: Mapping[str, Any], name: str) -> ModelConfig:
    """Return what the content of a ``config.json`` of the Hugging Face Hub says; ``name`` is for messages.

    Raises:
        ModelError: The model is of an unknown kind, a field is missing or wrong, or the modules of ``baseline`` would
            compute something else than the model does.
    """
    known = get_args(ModelType)
    kind: Any = data.get("model_type")
    if kind not in known:
        raise ModelError(
            name,
            f"model_type {_json(kind)} is not supported",
            " or ".join(known),
            "Use `--framework transformers` for other models that transformers has",
        )
    # A window of None is none, while any other field of None is absent.
    given = {key: value for key, value in data.items() if value is not None or key == "sliding_window"}
    data = {**_ASSUMED[kind], **given}
    names = _EXPERTS.get(kind, {})
    # Fields for which transformers has a number of its own, such as 128, where a file of that kind has none.
    counts = ["num_key_value_heads"] if kind != "llama" else []
    sizes = ["head_dim"] if kind == "qwen3" else []
    required = [*_COMMON, *counts, *sizes, *names.values()]
    missing = [key for key in dict.fromkeys(required) if _value(data, key) is None]
    try:
        rope = _rope(data)
        if missing:
            raise ModelError(name, f"has no {', '.join(missing)}", "The fields of Hugging Face's config.json")
        _refuse_unsupported({**rope, **data}, kind, name)
        fields = {
            "name": name,
            "rope_theta": rope["rope_theta"],
            "rope_scaling": _rope_scaling(rope, name),
            **_given(data, (*_COMMON, *_OPTIONAL)),
        }
        if names:
            fields["experts"] = {
                **{field: _value(data, key) for field, key in names.items()},
                # Mixtral always scales; the other kind's file says whether it does.
                "norm_topk_prob": data.get("norm_topk_prob", kind == "mixtral"),
            }
        return msgspec.convert(fields, ModelConfig)
    except msgspec.ValidationError as error:
        raise ModelError(name, str(error), "The values of Hugging Face's config.json") from error


def config_for(framework: str, data: Mapping[str, Any], name: str) -> ModelConfig | TransformersConfig:
    """Return :func:`config_from_huggingface`, or, for a model that only transformers has, the fields that all models have.

    Raises:
        ModelError: As by that function, or the weights are quantized.
    """
    kind = data.get("model_type")
    if not framework or not isinstance(kind, str) or kind in get_args(ModelType):
        return config_from_huggingface(data, name)
    _refuse_quantized(data, name)
    fields = _given(data, TransformersConfig.__struct_fields__)
    facts = {key: value for key, value in data.items() if key != "source"}
    try:
        return msgspec.convert({**fields, "name": name, "facts": facts}, TransformersConfig)
    except msgspec.ValidationError as error:
        raise ModelError(name, str(error), "The values of Hugging Face's config.json") from error


def config_digest(config: ModelConfig | TransformersConfig) -> str:
    """Return six hexadecimal digits that identify a model, whatever its name and source."""
    facts = msgspec.structs.replace(config, name="", source="")
    return sha256(msgspec.json.encode(facts)).hexdigest()[:6]


def check_tensor_parallel(config: ModelConfig, size: int) -> None:
    """Raise ``ModelError`` if the model cannot be split evenly over ``size`` ranks; fewer key heads are repeated."""
    wrong = splitting_problems(config, size) if size > 0 else ["The model"]
    if wrong:
        sizes = range(1, config.num_attention_heads + 1)
        legal = " or ".join(str(ranks) for ranks in sizes if not splitting_problems(config, ranks))
        where = f"{config.name}, tensor parallel {size}"
        raise ModelError(where, f"{', '.join(wrong)} cannot be split over {size} ranks", legal)


def splitting_problems(config: ModelConfig, size: int) -> list[str]:
    """Return the fields that ``size`` ranks do not divide, with their values; none if the model can be split."""
    counts = {
        "num_attention_heads": config.num_attention_heads,
        "padded vocab_size": config.padded_vocab_size,
        f"intermediate_size{' of an expert' if config.experts else ''}": (
            config.experts or config
        ).intermediate_size,
    }
    wrong = [f"{name} {count}" for name, count in counts.items() if count % size]
    keys = config.num_key_value_heads
    if max(keys, size) % min(keys, size):
        wrong.append(f"num_key_value_heads {keys}")
    return wrong


def _refuse_unsupported(data: Mapping[str, Any], kind: str, name: str) -> None:
    architecture = kind.replace("_", " ").title().replace(" ", "") + "ForCausalLM"
    only: dict[str, tuple[Any, ...]] = {**_ONLY, "architectures": ([architecture], None)}
    if kind in {"mistral", "mixtral"}:
        only["sliding_window"] = (None,)
    for key, values in only.items():
        if key in data and data[key] not in values:
            expected = " or ".join(map(_json, values))
            raise ModelError(name, f"{key} {_json(data[key])} is not supported", expected)
    _refuse_quantized(data, name)
    for key in ("num_key_value_heads", "head_dim"):
        if data.get(key) == 0:
            raise ModelError(name, f"{key} 0 is not supported", "A positive number, or null")
    for layer in msgspec.convert(data.get("layer_types") or [], list[Any]):
        if layer != "full_attention":
            raise ModelError(name, f"{_json(layer)} in layer_types is not supported", "full_attention")


def _refuse_quantized(data: Mapping[str, Any], name: str, where: str = "") -> None:
    """Refuse a key at any depth of a configuration that says that weights are quantized."""
    for key, value in data.items():
        if value and value != "none" and _QUANTIZED.search(key):
            what = f"{where}{key} {_json(value)} is not supported"
            raise ModelError(name, what, "Weights that are not quantized")
        if isinstance(value, dict):
            _refuse_quantized(value, name, f"{where}{key}.")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _value(data: Mapping[str, Any], key: str) -> Any:
    value = data.get(key)
    return data.get(_OTHER_NAMES.get(key, key)) if value is None else value


def _given(data: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key in keys if (value := _value(data, key)) is not None}


def _rope(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what newer files have in ``rope_parameters`` and older ones in two fields, which are used first, as by transformers."""
    parameters = data.get("rope_scaling") or data.get("rope_parameters") or {}
    return {"rope_theta": data["rope_theta"], **msgspec.convert(parameters, dict[str, Any])}


def _rope_scaling(rope: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(name, f"rope_type {_json(kind)} is not supported", "default or llama3")
    return dict(rope)
