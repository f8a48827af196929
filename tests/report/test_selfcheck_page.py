"""The page of the self-checks."""

from markup import text_of

PAGE = "selfcheck.html"


def rows(page, table_class):
    table = next(table for table in page.elements("table") if table.get("class") == table_class)
    return [text_of(row) for row in table.iter("tr")]


def test_each_check_is_listed_with_its_result(pages):
    page = pages[PAGE]
    assert "2 of 3 checks passed" in page.text
    assert "checked 2026-11-20" in page.text
    assert "T11:00" not in page.html
    floors, same = rows(page, "checks")[1:3]
    assert floors == "Null-kernel overhead ✓ passed 0.64 usdetailshost clock 0.06 us null kernel below 2 us"
    assert "✗ failed 4 of 50 at most 2 false verdicts in 50 pairs" in same


def test_an_invalid_self_check_is_named_on_the_page_and_without_any_the_command(sample, published):
    page = published(PAGE)
    assert "kbt selfcheck" in page.text
    assert not page.elements("table")
    folder = sample.root / "selfcheck"
    folder.mkdir()
    (folder / "gpu.json").write_text("{}")
    assert "selfcheck/gpu.json: is not a self-check" in published(PAGE).text
