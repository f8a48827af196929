import pytest

from kernels_bench_tools.records.summary import WorkloadSummary
from kernels_bench_tools.results.views import axis_title, in_order, labels, workload_summary


def make(dtype: str = "bfloat16", **axes: object) -> WorkloadSummary:
    return WorkloadSummary(name="_".join(map(str, axes.values())), dtype=dtype, axes=axes)


def test_labels_show_only_the_axes_that_vary():
    found = labels([make(batch=16, seq=2048), make(batch=16, seq=4096)])

    assert found.ticks == ["2048", "4096"]
    assert found.axis == "seq   (batch 16, bfloat16)"


def test_a_dtype_that_varies_is_part_of_the_label():
    assert labels([make("float32", n=1), make("torch.bfloat16", n=1)]).ticks == ["float32", "bfloat16"]


def test_a_switch_is_named_where_it_is_on_or_off():
    assert labels([make(n=1, causal=True), make(n=1, causal=False)]).ticks == ["causal", "not causal"]


def test_workloads_that_differ_only_in_their_name_are_labelled_with_it():
    same = [WorkloadSummary(name=name, axes={"n": 1}) for name in ("sparse", "dense")]

    assert labels(same).ticks == ["sparse", "dense"]


def test_numbers_are_ordered_as_numbers():
    mixed = [make(n=1024), make(n=128), make(n="ragged"), make(other=1)]

    assert [workload.axes for workload in in_order(mixed)] == [
        {"n": 128},
        {"n": 1024},
        {"n": "ragged"},
        {"other": 1},
    ]


def test_workloads_are_sorted_by_truth_values_and_words_before_sizes():
    mixed = [make(n=n, causal=causal) for n in (256, 128) for causal in (True, False)]

    assert [(it.axes["causal"], it.axes["n"]) for it in in_order(mixed)] == [
        (False, 128),
        (False, 256),
        (True, 128),
        (True, 256),
    ]


def test_seed_and_device_are_no_axes():
    found = workload_summary({"name": "w", "n": 2, "dtype": "float32", "device": "cuda", "seed": 0})

    assert (found.name, found.dtype, found.axes) == ("w", "float32", {"n": 2})


@pytest.mark.parametrize(
    ("name", "title"), [("seq_len", "Seq Length"), ("hidden_dim", "Hidden Dim"), ("batch", "Batch")]
)
def test_column_titles_are_those_of_the_first_reports(name, title):
    assert axis_title(name) == title


def test_the_view_of_a_workload_is_no_axis():
    found = workload_summary({"name": "w", "set": "large", "group": "SwiGLU", "mode": "bwd", "causal": True})

    assert (found.set, found.group, found.mode) == ("large", "SwiGLU", "bwd")
    assert found.axes == {"causal": True}
