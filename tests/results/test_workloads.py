from kernels_bench_tools.records.summary import WorkloadSummary
from kernels_bench_tools.results.views import in_order, labels, workload_summary


def make(dtype: str = "bfloat16", **axes: object) -> WorkloadSummary:
    return WorkloadSummary(name="_".join(map(str, axes.values())), dtype=dtype, axes=axes)


def test_labels_show_only_the_axes_that_vary():
    found = labels([make(batch=16, seq=2048), make(batch=16, seq=4096)])

    assert found.ticks == ["2048", "4096"]
    assert found.axis == "seq   (batch 16, bfloat16)"


def test_a_dtype_that_varies_is_part_of_the_label():
    assert labels([make("float32", n=1), make("torch.bfloat16", n=1)]).ticks == ["float32", "bfloat16"]


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


def test_seed_and_device_are_no_axes():
    found = workload_summary({"name": "w", "n": 2, "dtype": "float32", "device": "cuda", "seed": 0})

    assert (found.name, found.dtype, found.axes) == ("w", "float32", {"n": 2})
