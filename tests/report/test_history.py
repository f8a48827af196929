"""What pages show of the history of records."""

from history import make_repository, rows
from projects import run_kbt

THEN, SLOWER = (0.1000, 0.1001, 0.0999), (0.1040, 0.1041, 0.1039)
LESS = (0.1030, 0.10301, 0.10299)


def test_pages_draw_each_step_with_its_cause(tmp_path, read_page, find_flaws):
    versions = [rows("r1", *THEN), rows("r2", *SLOWER, torch="2.13.0"), rows("r3", *LESS, torch="2.13.0")]
    root = make_repository(tmp_path / "project", versions)

    done = run_kbt(root, "build", "--no-measure", "--env", "current", "--since", "HEAD~2")

    assert done.returncode == 0, done.stderr
    front = (root / "site/index.html").read_text()
    assert "<strong>Since HEAD~2:</strong> 1 slower (by torch 2.12.0 → 2.13.0), 0 faster" in front
    steps = read_page(root / "site", "op/impls/mine.html").elements("rect")
    assert [one.attrib["class"].split()[1] for one in steps] == ["nothing", "toolchain", "nothing"]
    assert ["".join(one.itertext()).partition(" ")[2].partition(";")[0] for one in steps] == [
        f"version {number}" for number in range(3)
    ]
    assert find_flaws(root / "site") == []
