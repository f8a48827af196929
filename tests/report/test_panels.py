"""A chart is shown panel by panel; an SVG file without panels is shown as a whole."""

import re

import pytest

from kernels_bench_tools.report.chart import inline_chart

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 220" class="figure"><title>Latency</title>'


def panel(view, size="100 90", more=""):
    shape = f'<defs><path id="m-{view}" d="M0 0"/></defs>'
    return (
        f'<g class="panel" data-view="{view}" data-size="{size}" data-title="View {view}" {more}>{shape}'
        f'<g class="series" data-series="s-{view}"><use href="#m-{view}"/></g></g>'
    )


def inline(*parts, elsewhere=frozenset(), taken=()):
    ids = set(taken)

    def unique(wanted):
        while wanted in ids:
            wanted += "x"
        ids.add(wanted)
        return wanted

    drawn = HEAD + "".join(parts) + "</svg>"
    return inline_chart(drawn.encode(), "latency.svg", unique, lambda url: url, elsewhere)


def test_each_panel_is_a_figure_of_its_own_size():
    panels, whole = inline(
        panel("a"), panel("b", "100 120", 'transform="translate(0 100)" data-label="Op: latency"')
    )

    assert whole is None
    assert [(one.view, one.title) for one in panels] == [("a", "View a"), ("b", "View b")]
    assert 'viewBox="0 0 100 90"' in panels[0].figure
    assert 'viewBox="0 0 100 120"' in panels[1].figure
    assert "transform" not in panels[1].figure
    assert [re.search('aria-label="([^"]*)"', one.figure)[1] for one in panels] == ["Latency", "Op: latency"]


def test_panels_of_views_that_are_shown_elsewhere_are_left_out():
    panels, _ = inline(panel("a"), panel("b"), elsewhere={"a"})

    assert [one.view for one in panels] == ["b"]


def test_ids_of_a_panel_are_unique_on_the_page():
    (one,), _ = inline(panel("a"), taken={"m-a"})

    assert 'id="m-ax"' in one.figure
    assert 'href="#m-ax"' in one.figure


@pytest.mark.parametrize("size", ["", "wide high", "100", "1 2 3", '"><script>'])
def test_an_svg_file_without_panels_stays_whole(size):
    panels, whole = inline(panel("a", size.replace('"', "&quot;").replace("<", "&lt;")))

    assert panels == []
    assert whole is not None
    assert "<script" not in whole
