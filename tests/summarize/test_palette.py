from __future__ import annotations

from kernels_bench_tools.summarize.palette import assign_styles


def test_a_family_looks_the_same_for_every_operator():
    norm = assign_styles({"torch_layer_norm": "torch", "triton_layer_norm": "triton", "a": ""})
    rotary = assign_styles({"triton_rotary": "triton", "torch_rotary": "torch"})

    assert norm["torch_layer_norm"] == rotary["torch_rotary"]
    assert norm["triton_layer_norm"] == rotary["triton_rotary"]


def test_no_two_lines_of_a_chart_look_alike():
    families = {f"torch_{index}": "torch" for index in range(14)} | {
        f"own_{index}": "" for index in range(14)
    }

    styles = assign_styles(families)

    assert len({(style.colour, style.dashes) for style in styles.values()}) == 28


def test_seven_lines_have_seven_colours():
    styles = assign_styles({f"kernel_{index}": "" for index in range(7)})

    assert len({style.colour for style in styles.values()}) == 7


def test_more_lines_than_styles_are_still_drawn():
    assert len(assign_styles({f"kernel_{index}": "" for index in range(40)})) == 40


def test_a_failed_family_member_does_not_change_who_has_which_colour():
    few = assign_styles({"torch_x": "torch", "triton_x": "triton"})
    more = assign_styles({"torch_x": "torch", "triton_x": "triton", "liger_x": "liger", "hf_x": "hf-kernels"})

    assert few.items() <= more.items()
