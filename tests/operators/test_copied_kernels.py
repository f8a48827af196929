"""A notebook is complete in itself, so the kernels that it shares with others are copies, and have to stay copies."""

import ast

import pytest
from implementations import code_of


def functions_of(operator: str, name: str) -> dict[str, str]:
    """Return the source of each function, without decorators: those that choose a configuration may differ."""
    found = {}
    for node in ast.parse(code_of(operator, name)).body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [one for one in node.decorator_list if "autotune" not in ast.unparse(one)]
            found[node.name] = ast.unparse(node)
    return found


@pytest.mark.parametrize(
    ("copy", "original", "names"),
    [
        ("causal_lm/torch_compiled_model", "decoder_layer/torch_compiled_layer", ""),
        ("causal_lm/triton_model", "decoder_layer/triton_layer", ""),
        ("causal_lm/triton_model", "paged_attention/triton_paged_attention", ""),
        ("decoder_layer/triton_layer", "rms_norm/triton_rms_norm", "_load _load_once_more _store _rms_norm"),
        ("decoder_layer/triton_layer", "activation/triton_swiglu", "_silu_times_up"),
        ("decoder_layer/triton_layer", "rotary/triton_rotary", "_offsets _inside _store_rotated _rotary"),
        ("llama4_moe/triton_llama4_moe", "grouped_gemm/triton_grouped", "_grouped _tile triton_grouped"),
        ("llama4_moe/triton_llama4_moe", "activation/triton_swiglu", "tile_of _silu_times_up _forward"),
        ("mlp/triton_swiglu_mlp", "activation/triton_swiglu", "tile_of _silu_times_up _forward"),
        ("moe/triton_moe", "grouped_gemm/triton_grouped", "_grouped _tile triton_grouped"),
        ("moe/triton_moe", "activation/triton_swiglu", "tile_of _silu_times_up _forward"),
        (
            "rms_norm/triton_gated_rms_norm",
            "rms_norm/triton_gate_first_rms_norm",
            "tile_of _gated_norm _rows_of",
        ),
        ("ssd_scan/triton_ssd_scan", "selective_scan/triton_selective_scan", "_softplus"),
    ],
)
def test_copied_functions_are_those_of_the_original(copy: str, original: str, names: str) -> None:
    own, others = functions_of(*copy.split("/")), functions_of(*original.split("/"))
    for name in names.split() or others.keys() - {"load"}:
        assert own[name] == others[name]
