"""A chart of ours is shown panel by panel, cleaned of whatever does not draw; any other SVG file is an image."""

import pytest

from kernels_bench_tools.report.artifacts import ChartPanel, read_panels

HEAD = '<svg class="panel" data-view="v">'


def inline(inner: str) -> str:
    return str(
        ChartPanel(f"{HEAD}{inner}</svg>").inlined(lambda url: f"page/{url}" if url == "x.html" else None)
    )


def test_each_panel_is_a_figure_of_its_own_with_everything_that_was_drawn(many_site):
    panels = read_panels((many_site / "activation/results/artifacts/combine/speedup.svg").read_bytes())

    assert len(panels) == 8
    assert (panels[1].view, panels[1].chart) == ("nvidia-h200-swiglu-large", "speedup")
    assert panels[1].title == "NVIDIA H200 · SwiGLU · large: speed-up"
    for panel in panels[:2]:
        drawn, shown = panel.source, str(panel.inlined(lambda url: url))
        for part in (
            "<path",
            "<use",
            "<text",
            "<a ",
            "data-value=",
            "data-series=",
            "viewBox=",
            "stroke-dasharray:",
        ):
            assert 0 < drawn.count(part) == shown.count(part), part
        # They would be there twice where a page shows two charts.
        assert 'id="series' not in shown


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"<svg/>",
        b'<svg xmlns="http://www.w3.org/2000/svg"><svg class="panel" ></svg></svg>',
        b"\xff\x00",
    ],
)
def test_any_other_file_has_no_panels(file):
    assert read_panels(file) == []


def test_links_lead_to_the_pages_of_the_site_or_nowhere():
    assert (
        inline('<a href="x.html"><text>x</text></a>')
        == f'{HEAD}<a href="page/x.html"><text>x</text></a></svg>'
    )
    assert inline('<a href="gone.html"><text>x</text></a>') == f"{HEAD}<a><text>x</text></a></svg>"


@pytest.mark.parametrize(
    "inner",
    [
        "<script>alert(1)</script>",
        '<g onload="alert(1)" onclick="alert(1)"/>',
        '<a href="javascript:alert(1)"><text>x</text></a>',
        '<a href="java&#10;script:alert(1)"><text>x</text></a>',
        '<a xlink:href="javascript:alert(1)"><text>x</text></a>',
        '<a href="data:text/html,alert(1)"><text>x</text></a>',
        '<a href="//alert.example/x.html"><text>x</text></a>',
        '<foreignObject><p xmlns="http://www.w3.org/1999/xhtml" onclick="alert(1)">x</p></foreignObject>',
        '<image href="https://example.org/alert.png"/>',
        '<use href="https://example.org/alert.svg#a"/>',
        '<path fill="url(https://example.org/alert)"/>',
        "<path style=\"fill: URL( 'https://example.org/alert')\"/>",
        '<path style="fill:u\\72l(https://example.org/alert)"/>',
        '<path style="position:fixed;inset:0;content:alert"/>',
        '<path style="fill:red;}.alert{color:red"/>',
        '<animate attributeName="href" to="javascript:alert(1)"/>',
        "<style>.alert{}</style>",
        '<a href="https://example.org" ping="https://alert.example" target="alert"><text>x</text></a>',
        '<path autofocus="alert" slot="alert" tabindex="9999alert" class="alert" id="main" data-pick="alert"/>',
        '</svg><b onclick="alert(1)">x</b><svg>',
    ],
)
def test_a_panel_keeps_only_what_draws(inner):
    inlined = inline(inner)

    assert "alert" not in inlined
    assert "<script" not in inlined


def test_shapes_of_a_panel_cannot_multiply():
    doubled = "".join(f'<g id="g{n}"><use href="#g{n + 1}"/><use href="#g{n + 1}"/></g>' for n in range(40))

    assert "id=" not in inline(doubled)
