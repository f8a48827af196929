"""``kbt export``."""

import json

import pytest
from projects import run_kbt


@pytest.fixture
def exported(sample):
    sample.publish()

    def exported(form):
        done = run_kbt(sample.root, "export", form)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return exported


def points(sample):
    summary = sample.read_summary()
    return {
        (row.implementation, point.workload, view.device.slug): point
        for view in summary.devices
        for row in view.rows
        for point in row.points
        if point.status == "ok"
    }


def test_bencher_gets_nanoseconds_with_their_intervals(exported, sample):
    found = exported("bencher")

    expected = points(sample)
    assert len(found) == len(expected) > 3
    for (implementation, workload, device), point in expected.items():
        latency = found[f"layer_norm/{implementation} {workload} {device}"]["latency"]
        assert latency["value"] == pytest.approx(point.p50_ms * 1e6)
        assert latency["lower_value"] <= latency["value"] <= latency["upper_value"]


def test_pytorchs_database_gets_a_record_for_each_time_with_texts_in_extra_information(exported, sample):
    found = exported("pytorch")

    values = sorted(value for one in found for value in one["metric"]["benchmark_values"])
    assert values == pytest.approx(sorted(point.p50_ms for point in points(sample).values()))
    for one in found:
        assert (one["model"]["name"], one["metric"]["name"]) == ("layer_norm", "latency_ms")
        extra = one["benchmark"]["extra_info"] | one["metric"]["extra_info"]
        assert {type(value) for value in extra.values()} == {str}
        assert one["runners"][0]["name"] == extra["device"]
