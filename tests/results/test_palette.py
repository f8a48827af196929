import pytest

from kernels_bench_tools.chart.palette import COLOURS, FAMILIES, assign_styles


def test_a_family_looks_the_same_for_every_operator():
    norm = assign_styles({"torch_layer_norm": "torch", "triton_layer_norm": "triton", "a": ""})
    rotary = assign_styles({"triton_rotary": "triton", "torch_rotary": "torch"})

    assert norm["torch_layer_norm"] == rotary["torch_rotary"]
    assert norm["triton_layer_norm"] == rotary["triton_rotary"]


@pytest.mark.parametrize(
    ("families", "looks"),
    [
        ({f"torch_{number}": "torch" for number in range(16)} | {f"own_{n}": "" for n in range(16)}, 32),
        ({family: family for family in FAMILIES} | {f"more_{n}": "" for n in range(3)}, 14),
    ],
)
def test_no_two_lines_of_a_chart_look_alike(families, looks):
    styles = assign_styles(families).values()

    assert len({(style.colour, style.dashes) for style in styles}) == looks
    assert len({(style.colour, style.marker) for style in styles}) == looks


@pytest.mark.parametrize(("lines", "colours"), [(8, 8), (40, len(COLOURS))])
def test_lines_have_colours_of_their_own_as_long_as_there_are_some(lines, colours):
    styles = assign_styles({f"kernel_{index}": "" for index in range(lines)})

    assert len(styles) == lines
    assert len({style.colour for style in styles.values()}) == colours


def test_a_failed_family_member_does_not_change_colours():
    few = assign_styles({"torch_x": "torch", "triton_x": "triton"})
    more = assign_styles({"torch_x": "torch", "triton_x": "triton", "liger_x": "liger", "hf_x": "hf-kernels"})

    assert few.items() <= more.items()


def test_a_family_has_its_colour_in_each_panel_where_only_one_of_it_is():
    families = {"torch_gelu": "torch", "torch_swiglu": "torch", "triton_gelu": "triton"}

    styles = assign_styles(families, [{"torch_gelu", "triton_gelu"}, {"torch_swiglu"}])

    assert styles["torch_gelu"] == styles["torch_swiglu"] == assign_styles({"x": "torch"})["x"]


def test_the_baseline_has_the_colour_of_its_family():
    families = {"cudnn": "torch", "flash": "torch", "math": "torch"}

    styles = assign_styles(families, first={"flash"})

    assert styles["flash"] == assign_styles({"x": "torch"})["x"]
    assert len(set(styles.values())) == 3
