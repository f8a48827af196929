"""The notebooks of `transformers_models/` and kernels that were built from source, in models of transformers on a CPU."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_models import LAYERS, NORMS, HubNorm, measured, with_kernels
from implementations import ROOT, function_of
from kernels import Mode

from kernels_bench_tools.hub.build.__main__ import main
from kernels_bench_tools.records.hub import BUILDS_VARIABLE, BuildRequest
from kernels_bench_tools.records.record import Record, Status

pytestmark = [pytest.mark.usefixtures("few_samples"), pytest.mark.filterwarnings("ignore")]

NORM = """\
import torch


class RMSNorm(torch.nn.Module):
    def forward(self, hidden_states):
        return torch.nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)
"""
ATTENTION = """\
import torch


def flash_attn_func(q, k, v, softmax_scale=None, causal=False):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False):
    raise NotImplementedError
"""
BUILD = """\
[general]
name = "{name}"
version = 1
license = "Apache-2.0"
backends = ["cpu"]

[general.hub]
repo-id = "kernels-community/{name}"

[torch-noarch]
"""


@pytest.fixture(scope="module", autouse=True)
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build two kernels from source, which are all there are; nothing asks the Hub."""
    folder = tmp_path_factory.mktemp("sources")
    for name, files in {
        "rmsnorm": {"__init__.py": "from . import layers\n", "layers.py": NORM},
        "flash-attn3": {"__init__.py": ATTENTION},
    }.items():
        source = folder / name / "torch-ext" / name.replace("-", "_")
        source.mkdir(parents=True)
        (folder / name / "build.toml").write_text(BUILD.format(name=name))
        for file, text in files.items():
            (source / file).write_text(text)
        request = BuildRequest(sources=[str(folder / name)], output=str(folder / "builds"), commit="c0ffee")
        assert main(request) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BUILDS_VARIABLE, str(folder / "builds"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.delenv("USE_HUB_KERNELS", raising=False)
        yield folder / "builds"


def way(name: str) -> Any:
    """Return what a notebook changes a model with."""
    return function_of("transformers_models", name)


def loaded(record: Record) -> dict[str, str]:
    return {kernel.repo: kernel.origin for kernel in record.provenance.hub}


def test_a_kernel_config_chooses_a_kernel_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import kernel_config  # slow

    devices = [*kernel_config.KERNELS_SUPPORTED_DEVICE_TYPES, "cpu"]
    monkeypatch.setattr(kernel_config, "KERNELS_SUPPORTED_DEVICE_TYPES", devices)
    change = way("kernel_config")
    change.__globals__["RMS_NORM"]["cpu"] = "kernels-community/rmsnorm:RMSNorm"

    for record in measured(change, "prefill-16", "train-16"):
        assert record.effect is not None, record.err
        assert (record.effect.replaced, record.effect.kept) == (NORMS, {"SiLU": LAYERS, "rotary_pos_emb": 1})
        assert loaded(record)["kernels-community/rmsnorm"] == "source build"


@pytest.mark.parametrize("name", ["use_kernels", "kernel_config", "use_kernels_compiled"])
def test_a_table_without_kernels_for_this_device_is_an_error(name: str) -> None:
    (record,) = measured(way(name), "prefill-16")

    assert record.err.type == "NothingChanged"


@pytest.mark.parametrize("name", ["attention_eager", "attention_flash_3"])
def test_attention_is_replaced_in_each_layer_for_inference_and_training(name: str) -> None:
    records = measured(way(name), "prefill-16", "decode-2", "train-16")

    assert [one.err for one in records if one.err] == []
    assert [(one.effect.replaced, one.effect.called) for one in records if one.effect] == 3 * [
        (LAYERS, LAYERS)
    ]
    assert ("kernels-community/flash-attn3" in loaded(records[0])) is (name == "attention_flash_3")


def test_kernels_for_torch_compile_are_counted_inside_of_the_compiled_model() -> None:
    class Norm(HubNorm):
        can_torch_compile = True

    def change(model: Any) -> None:
        with_kernels(RMSNorm=Norm, mode=Mode.INFERENCE | Mode.TORCH_COMPILE)(model)
        model.forward = torch.compile(model.forward, backend="eager")

    (record,) = measured(change, "prefill-16", kind="qwen3")

    assert record.effect is not None, record.err
    assert record.effect.replaced == record.effect.called == NORMS + 2 * LAYERS + 1
    assert record.effect.missing == []


SWITCHED_OFF = """\
import sys

from changed_models import measured
from implementations import function_of

for name in ("use_kernels", "kernel_config", "attention_flash_3"):
    for record in measured(function_of("transformers_models", name), "prefill-16", "train-16"):
        print(record.outcome, len(record.provenance.hub), record.err.msg if record.err else "", sep="|")
"""


def test_the_switch_leaves_nothing_replaced_and_is_named(builds: Path) -> None:
    variables = {"USE_HUB_KERNELS": "OFF", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'shared'}"}
    done = subprocess.run(
        [sys.executable, "-c", SWITCHED_OFF],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )

    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert len(lines) == 3
    for outcome, kernels, message in lines:
        assert (outcome, kernels) == (Status.UNSUPPORTED, "0")
        assert "USE_HUB_KERNELS=OFF" in message
