"""The code of every implementation is the code that its committed records were measured with."""

from pathlib import Path

from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.records.code import has_other_code
from kernels_bench_tools.records.codec import read_records

ROOT = Path(__file__).parents[2]

AWAITING_MEASUREMENT: set[str] = {
    "activation/triton_activations",
    "activation/triton_gelu",
    "activation/triton_swiglu",
    "causal_conv1d/triton_causal_conv1d",
    "causal_lm/triton_model",
    "decoder_layer/torch_compiled_layer",
    "decoder_layer/triton_layer",
    "layer_norm/triton_layer_norm",
    "mlp/triton_swiglu_mlp",
    "moe/triton_moe",
    "rms_norm/triton_rms_norm",
}
"""Implementations whose code was changed on purpose and which will be measured again, such as ``"rotary/triton_rotary"``."""


def stale_implementations() -> set[str]:
    project = find_project(ROOT)
    stale = set()
    for path in project.notebook_paths():
        notebook = read_notebook(project, path)
        for records in path.parent.parent.glob(f"results/records/*/{path.stem}.jsonl"):
            measured = [record.provenance for record in read_records(records) if record.outcome.ran]
            assert all(
                provenance.code_digest and provenance.cell in notebook.digests for provenance in measured
            ), records
            if any(has_other_code(provenance, notebook.digests) for provenance in measured):
                stale.add(f"{notebook.operator}/{notebook.implementation}")
    return stale


def test_committed_records_were_measured_with_the_code_of_today():
    """Comments and prose of a notebook may change; its code may not, unless it is listed and measured again."""
    assert stale_implementations() == AWAITING_MEASUREMENT
