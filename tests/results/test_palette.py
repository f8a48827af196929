from kernels_bench_tools.chart.palette import FAMILIES, assign_styles


def test_a_family_looks_the_same_for_every_operator():
    norm = assign_styles({"torch_layer_norm": "torch", "triton_layer_norm": "triton", "a": ""})
    rotary = assign_styles({"triton_rotary": "triton", "torch_rotary": "torch"})

    assert norm["torch_layer_norm"] == rotary["torch_rotary"]
    assert norm["triton_layer_norm"] == rotary["triton_rotary"]


def test_no_two_lines_of_a_chart_look_alike():
    families = {f"torch_{index}": "torch" for index in range(16)} | {
        f"own_{index}": "" for index in range(16)
    }

    styles = assign_styles(families)

    assert len({(style.colour, style.dashes) for style in styles.values()}) == 32


def test_eight_lines_have_eight_colours():
    styles = assign_styles({f"kernel_{index}": "" for index in range(8)})

    assert len({style.colour for style in styles.values()}) == 8


def test_more_lines_than_styles_are_still_drawn():
    assert len(assign_styles({f"kernel_{index}": "" for index in range(40)})) == 40


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


def test_fourteen_implementations_of_known_families_have_different_markers_or_dashes_for_each_colour():
    families = {family: family for family in FAMILIES} | {f"more_{index}": "" for index in range(3)}

    styles = assign_styles(families)

    assert len({(style.colour, style.dashes) for style in styles.values()}) == 14
    assert len({(style.colour, style.marker) for style in styles.values()}) == 14
