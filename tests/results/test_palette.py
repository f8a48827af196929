import pytest

from kernels_bench_tools.chart.palette import FAMILIES, assign_styles


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


def test_a_failed_family_member_does_not_change_colours():
    few = assign_styles({"torch_x": "torch", "triton_x": "triton"})
    more = assign_styles({"torch_x": "torch", "triton_x": "triton", "liger_x": "liger", "hf_x": "hf-kernels"})

    assert few.items() <= more.items()
