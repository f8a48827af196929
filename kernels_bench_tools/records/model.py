"""What the forward passes of models consist of: derived from their modules by ``models.derive``, read by the command."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.records.request import TRANSFORMERS
from kernels_bench_tools.text.words import did_you_mean

_PHASE = re.compile(r"(prefill|decode|train)-([1-9]\d{0,5})")
DECODE_CONTEXT = 1024
"""Tokens of a sequence that decodes, with the new one."""
CONFIGS = Path(__file__).parents[1] / "models" / "configs"
DERIVED = CONFIGS.parent / "derived"
MODEL_LEVEL = 4
"""Level of a whole model."""
RANKS = (1, 2, 4, 8)
"""Sizes of tensor-parallel groups whose tasks are derived, as far as a model can be split over them."""


OPERATORS = {
    *("rms_norm", "activation", "rotary", "flash_attn", "paged_attention", "embedding", "kv_store", "matmul"),
    *("grouped_gemm", "mlp", "moe", "decoder_layer", "causal_lm"),
    *("causal_conv1d", "selective_scan", "gated_delta_rule"),
}
"""The operators of this package that compute a kernel, a block or the whole of a model."""
REPLACEABLE_OPERATORS = OPERATORS - {"kv_store", "decoder_layer", "causal_lm"}
"""Those whose implementations ``kbt effect`` can measure in a model; a test compares them with ``models.replacement``."""


HUB_DEVICES = ("cuda", "rocm", "xpu")
"""Kinds of devices for which transformers' kernels of the Hub are shown."""


class CalledWorkload(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a module computes in a call, as a workload of an operator, without a name."""

    operator: str
    group: str = ""
    dtype: str
    axes: dict[str, int | bool | str]


class ModelTask(msgspec.Struct, kw_only=True, omit_defaults=True):
    level: int
    """1 for single kernels, 2 for blocks, 3 for decoder layers, 4 for whole models."""
    module: str
    inputs: list[str]
    """Tensors by argument, such as ``x bfloat16[2048, 4096]``."""
    calls: int
    """Number of calls in a forward pass."""
    paths: dict[str, int]
    """The calls of each module, by its path with ``*`` for the number of the layer."""

    workloads: list[CalledWorkload] = []
    """The first is what an implementation of an operator is chosen for; none if no operator computes it."""

    @property
    def workload(self) -> CalledWorkload | None:
        return self.workloads[0] if self.workloads else None

    @property
    def operator(self) -> str:
        return self.workloads[0].operator if self.workloads else ""


class Phase(msgspec.Struct, kw_only=True):
    name: str
    sequences: int
    tokens: int
    """New tokens of each sequence."""
    context: int
    """All tokens of each sequence, with the new ones."""
    tasks: list[ModelTask]

    @property
    def kernels(self) -> list[ModelTask]:
        """The tasks of level 1, the most frequent call first."""
        return sorted((task for task in self.tasks if task.level == 1), key=lambda task: -task.calls)

    @property
    def blocks(self) -> list[ModelTask]:
        """The tasks of levels 2 to 4 that an operator computes; their time contains that of kernels."""
        return [task for task in self.tasks if task.level > 1 and task.workloads]


class ModelTasks(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The tasks of a model, or of one of its ranks; see ``derived_folder`` for its file."""

    model: str
    source: str
    """Where its configuration is from."""
    parameters: int
    """Number of parameters of the rank."""
    phases: list[Phase]
    kernels: dict[str, dict[str, list[str]]] = {}
    """Of a model of which only transformers has modules, the layers and functions that may be a kernel of the Hub, by their names
    in transformers' table: the modes in which it has one, by kind of device."""

    def phase(self, name: str) -> Phase:
        names = [phase.name for phase in self.phases]
        if name not in names:
            raise ModelError(f"--phase {name}", "is not a phase", ", ".join(names), did_you_mean(name, names))
        return self.phases[names.index(name)]


def model_of_framework(model: str, framework: str) -> str:
    """Return the name that records of effects have for a model: that of another framework is a model of its own."""
    return f"{model}-{framework}" if framework else model


def model_and_framework(name: str) -> tuple[str, str]:
    """Return a model and its framework, empty for this project's, from the name in records of effects."""
    model = name.removesuffix(f"-{TRANSFORMERS}")
    return model, TRANSFORMERS if model != name else ""


class Sizes(msgspec.Struct, frozen=True):
    """The sizes of a batch whose sequences are all alike."""

    sequences: int
    tokens: int
    """New tokens of each sequence."""
    context: int
    """All tokens of each sequence, with the new ones."""
    trains: bool = False
    """Whether a backward pass follows."""


def phase_sizes(name: str) -> Sizes:
    """Return the batch of ``prefill-<tokens>``, ``train-<tokens>`` or ``decode-<sequences>``.

    Raises:
        ModelError: It is another name, or training has no next token.
    """
    match = _PHASE.fullmatch(name)
    if match is None or name == "train-1":
        expected = (
            "prefill-2048 or train-2048 (tokens), or decode-32 (sequences), or the same with other numbers"
        )
        raise ModelError(f"--phase {name}", "is not a phase", expected)
    kind, count = match[1], int(match[2])
    if kind == "decode":
        return Sizes(count, 1, DECODE_CONTEXT)
    return Sizes(1, count, count, trains=kind == "train")


def read_model_tasks(model: str, ranks: int = 1) -> ModelTasks:
    """Return the tasks of a model such as ``llama-3.1-8b``, or of one of several tensor-parallel ranks.

    Raises:
        ModelError: The model is not known, or its tasks for this number of ranks are not.
    """
    return msgspec.json.decode(find_model(derived_folder(ranks), model).read_bytes(), type=ModelTasks)


def derived_folder(ranks: int) -> Path:
    """Return the folder with the tasks of one of several ranks, in a file ``<model>.json`` for each model."""
    return DERIVED / f"tp{ranks}" if ranks > 1 else DERIVED


def find_model(folder: Path, model: str) -> Path:
    known = model_files(folder)
    if model not in known:
        remedy = did_you_mean(model, known, "`kbt effect` also takes the path of a config.json")
        raise ModelError(f"--model {model}", "is not a known model", ", ".join(known), remedy)
    return known[model]


def model_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by model, with those of models of which only transformers has modules."""
    return {
        path.stem: path for each in (folder, folder / TRANSFORMERS) for path in sorted(each.glob("*.json"))
    }


def model_keys(folder: Path) -> list[str]:
    """Return the models of which this project has modules."""
    return sorted(path.stem for path in folder.glob("*.json"))
