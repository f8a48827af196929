"""``--workloads random:COUNT:SEED`` from the build to committed records, the choice of an implementation, and the page."""

import json
import re
from pathlib import Path

from projects import run_kbt

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.record import Flag
from kernels_bench_tools.records.summary import Summary


def test_drawn_shapes_are_measured_recorded_listed_chosen_and_shown_apart(project: Path) -> None:
    run_kbt(project, "record")
    built = run_kbt(project, "build", "--env", "current", "--workloads", "random:4:5")
    recorded = run_kbt(project, "record")
    listed = json.loads(run_kbt(project, "list", "layer_norm", "--records", "--json").stdout)["records"]

    files = [*(project / "layer_norm/results/records").glob("*/torch_*.jsonl")]
    records = [one for file in files for one in read_records(file)]
    drawn = [one for one in records if one.wl.get("set") == "random:4:5"]
    assert "4 of 4 workloads measured, 1 process, 1 kept" in recorded.stdout, built.stderr
    assert len(files) == 2
    assert len({one.workload for one in drawn}) == 4
    assert all(one.lat_ms and not one.lat_ms.raw_times for one in drawn)
    sets = {(one["implementation"], one["set"], one["measured"]) for one in listed}
    assert sets >= {("torch_layer_norm", "random", 4), ("torch_layer_norm", "smoke", 1)}

    axes = {axis: drawn[0].wl[axis] for axis in ("batch", "seq_len", "hidden_dim")}
    shape = ",".join(f"{axis}={size}" for axis, size in axes.items())
    (choice,) = json.loads(run_kbt(project, "choose", "layer_norm", "--axes", shape, "--json").stdout)[
        "choices"
    ]
    assert (choice["workload"], choice["near"]) == (drawn[0].workload, "")

    summary = read_struct(project / "site/layer_norm/results/artifacts/combine/summary.json", Summary)
    assert [view.workloads[0].set for view in summary.devices] == ["smoke"]
    (section,) = re.findall(
        r'<table class="drawn">.*?</table>', (project / "site/layer_norm/index.html").read_text(), re.S
    )
    # A workload that another process has disturbed has no ratio, of neither implementation if it was the baseline's.
    disturbed = {one.workload for one in drawn if Flag.DISTURBED in one.flags}
    quiet = 4 - len(disturbed)
    assert quiet * 2 <= section.count('class="ratio"') <= quiet * 2 + len(disturbed)
    assert section.count('class="strip"') == 2 or not quiet
