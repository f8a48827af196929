"""A small project as a build leaves it, for tests of publishing and of the published pages."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builds import build_of, latency, notebook_run
from devices import EPYC, H200
from made_summaries import PROVENANCE, made_point, made_row, made_view
from projects import ENVIRONMENT, once_per_run

from kernels_bench_tools.chart.figure import chart_svg
from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.records.build import BuildRun, CellRun, NotebookRun, Prose
from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import (
    SCHEMA,
    Clocks,
    Environment,
    FirstCall,
    Flag,
    Provenance,
    Record,
    Regime,
    Status,
)
from kernels_bench_tools.records.selfcheck import Check, KernelAgreement, SelfCheck
from kernels_bench_tools.records.summary import Row, Summary, WorkloadSummary
from kernels_bench_tools.results.export import latency_csv

# For torch in tests and in the cells that they run: threads of small operations wait for one another, and on a busy
# machine for the cores that other tests have, which takes up to fifteen times as long.
os.environ["OMP_NUM_THREADS"] = "1"
# The user's key stays as it is; not beside temporary files, which cells could not make then.
os.environ["XDG_STATE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache")
# Importing torch and drawing charts make many objects and little garbage: looking for it less often saves a twelfth.
gc.set_threshold(20_000, 20, 20)
# A script that starts the tests in the background ignores it, and so would all processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    "test_judge.py",
    "test_importing.py",
    "test_selfcheck.py",
    "test_budgets.py",
    "test_notebooks.py",
    "test_init.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that at the end no process waits for it."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``gpu`` without a GPU; take what earlier ones have imported out of garbage collections."""
    gc.freeze()  # each trial collects twice, and transformers alone are 200,000 objects
    if item.get_closest_marker("gpu"):
        import torch  # slow, and other tests do without

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def pytest_collection_finish() -> None:
    """Take what was imported out of garbage collections: torch alone is a million objects, also in forked processes."""
    gc.collect()
    gc.freeze()


if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from kernels_bench_tools.report.site import Published

ROOT = Path(__file__).parent.parent
TITLES = {
    "torch_layer_norm": "PyTorch layer norm",
    "triton_layer_norm": "Triton layer norm",
    "hf_kernels_layer_norm": "HF Kernels layer norm",
    "wrong_layer_norm": "Wrong layer norm",
}
SHAPES = {
    "nvidia-h200": [(2048, 4096), (2048, 8192), (4096, 4096), (4096, 8192)],
    "amd-epyc-2-cores": [(64, 256), (128, 1024)],
}
TRUST = "Outputs of timed calls, threads and timers were checked; native code was not."
CODE = '''# /// script
# requires-python = ">=3.11"
# dependencies = ["kernels-bench-tools", "torch"]
# ///
from kernels_bench_tools import run_benchmark


def layer_norm(x, weight, bias, eps):
    """One call into the framework."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)  # a < b & c


run_benchmark("layer_norm", layer_norm)
'''


ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]


def find_chromium() -> str:
    """Return the browser's path; without one the test is skipped, except where CI promises it.

    A page in Debian's headless shell takes a third of the processor time of one in a chromium with windows.
    """
    names = ("chromium-headless-shell", "/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    if os.environ.get("CI"):
        pytest.fail("CI must have a chromium: apt-get install chromium-headless-shell")
    pytest.skip("no chromium is installed: apt-get install chromium-headless-shell")


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give each worker of a test run its own device lock, so that they do not wait for each other's builds."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in (("UV_CACHE_DIR", "uv"), ("HF_HOME", "huggingface")):
            patch.setenv(name, os.environ.get(name) or str(home / folder))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_environment() -> Iterator[None]:
    """Remove the environment of commands; workers of a test run end without Python's own clean-up."""
    yield
    ENVIRONMENT.cleanup()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One chromium for all tests of a process: Playwright runs once at a time."""
    from playwright.sync_api import sync_playwright

    executable = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class SampleProject:
    """A project's folder and the build of it."""

    root: Path
    build: BuildRun

    @property
    def site(self) -> Path:
        return self.root / "site"

    def publish(self, *rest: Any, **options: Any) -> Published:
        """Publish it as it is now."""
        from kernels_bench_tools.report.site import publish

        return publish(self.root, self.build, self.site, *rest, **options)

    def read_summary(self) -> Summary:
        return msgspec.json.decode(self.artifact("summary.json").read_bytes(), type=Summary)

    def write_summary(self, summary: Summary) -> None:
        self.artifact("summary.json").write_bytes(msgspec.json.encode(summary))

    def edit(self, old: str, new: str, count: int = -1) -> None:
        """Replace text of the summary, where it is."""
        file = self.artifact("summary.json")
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, count))

    def notebook(self, path: str) -> NotebookRun:
        return next(notebook for notebook in self.build.notebooks if notebook.path == path)

    def log(self, notebook: str, stream: str = "stdout") -> Path:
        """The file of what the notebook's cell printed."""
        return self.root / getattr(self.notebook(notebook).cells[0], stream)

    def artifact(self, name: str) -> Path:
        return self.root / self.notebook("layer_norm/results/combined_results.md").cells[0].artifacts[name]


def make_row(device: Device, implementation: str, factor: float, status: Status, rank: int | None) -> Row:
    gpu = device.kind == "cuda"
    reasons = {
        Status.UNSUPPORTED: "RuntimeError: no hub is reachable",
        Status.INCORRECT: "largest error 0.5 exceeds the tolerance 0.016",
        Status.REJECTED: "work ran outside of the call",
    }
    points = []
    for rows, columns in SHAPES[device.slug]:
        point = made_point(
            *(device, f"N{rows}_D{columns}", rows * columns, factor, status, reasons.get(status, "")),
            regime=Regime.HBM if columns > 4096 else Regime.L2,
            processes=3 if gpu else 1,
        )
        if status.ran and gpu:
            point.host_submit_ms, point.intervals = 0.0123, {"host_submit_ms": (0.0101, 0.0149)}
            point.e2e_ms = (point.p50_ms or 0.0) + 0.0211
        if status.ran and (rows, columns) == (2048, 4096):
            point.flags = [Flag.HOST_BOUND]
        if status is Status.REJECTED:
            point.flags = [Flag.STREAM_ESCAPE]
        points.append(point)
    environment = {"torch": "2.13.0", "cuda": "13.0" if gpu else "", "py": "3.11.14", "threads": 2}
    clocks = {"l2_bytes": 62914560, "sm_clock_mhz": 1980 * gpu, "memory_clock_mhz": 3201 * gpu}
    return made_row(
        *(device, implementation, points, factor),
        title=TITLES[implementation],
        rank=rank,
        trust=TRUST,
        environment=Environment(**environment, **clocks),
        provenance=Provenance(
            notebook=f"layer_norm/impls/{implementation}.md",
            notebook_digest="ab" * 32,
            packages={"torch": "2.13.0", "numpy": "2.4.1"},
            seed=0,
            **PROVENANCE,
        ),
        tags={"backend": "eager"},
    )


def make_summary() -> Summary:
    devices = []
    for device in (H200, EPYC):
        gpu = device.kind == "cuda"
        rows = [
            make_row(device, "triton_layer_norm", 1.62 if gpu else 0.4, Status.OK, 1 if gpu else 2),
            make_row(device, "torch_layer_norm", 1.0, Status.OK, 2 if gpu else 1),
            make_row(device, "wrong_layer_norm", 2.5, Status.INCORRECT if gpu else Status.REJECTED, None),
            make_row(device, "hf_kernels_layer_norm", 1.0, Status.UNSUPPORTED, None),
        ]
        rows.sort(key=lambda row: row.rank or 3)
        dtype = "bfloat16" if gpu else "float32"
        workloads = [WorkloadSummary(name=point.workload, dtype=dtype) for point in rows[0].points]
        peaks = {"read": 4380.0, "copy": 4270.0, "matmul_bfloat16": 781.0} if gpu else {"copy": 18.2}
        devices.append(made_view(device, "torch_layer_norm", workloads, rows, ceilings=peaks))
    return Summary(operator="layer_norm", title="Layer Normalization", devices=devices)


def implementation_notebook(name: str, status: Status) -> NotebookRun:
    folder, ran = f".kbt/cache/{name}", status is not Status.UNSUPPORTED
    cell = CellRun(
        id="benchmark",
        code=CODE,
        line=12,
        status=status if status is not Status.INCORRECT else Status.OK,
        reason="" if ran else "RuntimeError: no hub is reachable",
        seconds=4.25,
        exit_code=0,
        stdout=f"{folder}/stdout.txt",
        stderr=f"{folder}/stderr.txt",
        environment_log=f"{folder}/environment.txt",
        artifacts={"layer_norm.jsonl": f"{folder}/artifacts/layer_norm.jsonl"},
    )
    return notebook_run(
        f"layer_norm/impls/{name}.md",
        Prose(text=f"# {TITLES[name]}\n\nSee [the baseline](torch_layer_norm.md).\n"),
        cell,
        title=TITLES[name],
        description=f"{TITLES[name]}, as it comes.",
        family=name.split("_")[0],
        baseline=name.startswith("torch"),
        links={"source": "https://example.org/source"},
    )


def make_build(root: Path) -> BuildRun:
    index = (ROOT / "index.md").read_text(encoding="utf-8").split("---\n", 2)[2]
    (root / "docs").mkdir(parents=True, exist_ok=True)
    (root / "docs/measuring.md").touch()  # the front page links to it
    index = re.sub(r"## (Models|Suites)\n.*?(?=## )", "", index, flags=re.DOTALL)  # the sample has none
    statuses = {
        "torch_layer_norm": Status.OK,
        "triton_layer_norm": Status.OK,
        "hf_kernels_layer_norm": Status.UNSUPPORTED,
        "wrong_layer_norm": Status.INCORRECT,
    }
    operator = "What it computes.\n\n## Formula\n\n```python\ny = (x - x.mean(-1)) * rstd\n```\n\n## Workloads\n\n| N | D |\n| - | - |\n| 2048 | 4096 |\n\nBack to [the front page](../index.md#methodology).\n"
    combined = "Every implementation in one chart.\n\n## Chart\n\n![artifact:latency.svg]\n\n## Table\n\n![artifact:latency.csv]\n"
    names = ["latency.csv", "latency.svg", "summary.json"]
    cell = CellRun(
        id="combine",
        code="from kernels_bench_tools import combine\n\ncombine()\n",
        line=14,
        collapse_code=True,
        collapse_output=True,
        status=Status.OK,
        seconds=1.5,
        exit_code=0,
        stdout=".kbt/cache/combine/stdout.txt",
        artifacts={name: f".kbt/cache/combine/artifacts/{name}" for name in names},
    )
    build = build_of(
        notebook_run("index.md", Prose(text=index), title="Kernels Community Benchmarks"),
        notebook_run(
            "layer_norm/index.md",
            Prose(text=operator),
            title="Layer Normalization",
            description="Centre and scale each row.",
        ),
        *[implementation_notebook(name, status) for name, status in statuses.items()],
        notebook_run(
            "layer_norm/results/combined_results.md",
            *(Prose(text=combined), cell),
            title="Layer Norm: combined results",
            description="All implementations on all devices.",
        ),
        device=H200,
        repository="https://example.org/kernels",
    )
    build.project.title, build.project.commit = "Kernels Community Benchmarks", "c0ffee" * 6
    return build


@cache
def sample_chart() -> bytes:
    """Draw the chart once for all copies of the project."""
    return chart_svg(make_summary(), "latency")


def write_artifacts(root: Path, summary: Summary) -> None:
    folder = root / ".kbt/cache/combine/artifacts"
    folder.mkdir(parents=True)
    (folder.parent / "stdout.txt").write_text("LAYER NORM\n")
    (folder / "summary.json").write_bytes(msgspec.json.encode(summary))
    (folder / "latency.svg").write_bytes(sample_chart())
    (folder / "latency.csv").write_text(latency_csv(summary), encoding="utf-8")
    for name in TITLES:
        file = root / f".kbt/cache/{name}/artifacts/layer_norm.jsonl"
        file.parent.mkdir(parents=True)
        (file.parents[1] / "stdout.txt").write_text("N2048_D4096  0.0028 ms\n\x1b[32mdone\x1b[0m\n")
        (file.parents[1] / "stderr.txt").write_text("a warning\n")
        (file.parents[1] / "environment.txt").write_text("Installed 22 packages in 81ms\n")
        record = Record(
            ts="2026-11-18T10:00:00Z",
            run="r",
            impl=name,
            op="layer_norm",
            schema=SCHEMA,
            wl={"name": "N2048_D4096"},
            status=Status.OK,
            device=H200,
            lat_ms=latency(),
            ok=True,
            first_call=FirstCall(import_ms=2100.0, load_ms=345.0, first_ms=812.5, second_ms=0.0123),
            clocks=Clocks(sm_mhz=1965, memory_mhz=3201, power_w=412.5, temperature_c=41, samples=50),
            sentinels={"copy": [0.5031, 0.5034], "null": [0.0011, 0.0011]},
        )
        write_records(file, [record])


def make_selfcheck() -> SelfCheck:
    def kernel(name: str, us: float) -> KernelAgreement:
        near = {"ci_low_us": us * 0.998, "ci_high_us": us * 1.002, "ncu_us": us * 1.004}
        medians = [us, us * 1.001, us * 0.999]
        return KernelAgreement(
            name=name, ours_us=us, kernels=1, process_medians_us=medians, variation=0.001, **near
        )

    floors = Check(
        name="floors",
        title="Null-kernel overhead",
        expected="null kernel below 2 us",
        found="0.64 us",
        passed=True,
        detail="host clock 0.06 us",
    )
    same = Check(
        name="same_function_twice",
        title="The same function under two names is the same",
        expected="at most 2 false verdicts in 50 pairs",
        found="4 of 50",
        passed=False,
    )
    agreement = Check(
        name="ncu_agreement",
        title="Times agree with Nsight Compute",
        expected="within max(0.3 us, 2 %)",
        found="1 of 2 within, these at most 0.4% apart",
        passed=True,
        detail="beyond the bound: SiLU 128x1536 -14.7%",
    )
    return SelfCheck(
        ts="2026-11-20T11:00:00+00:00",
        device=H200,
        env=Environment(torch="2.11.0+cu130"),
        commit="c0ffee" * 6,
        checks=[floors, same, agreement],
        kernels=[kernel("SiLU 128x1536", 1.983), kernel("layer_norm 65536x8192", 1731.0)],
        floors_us={"empty_event_pair": 4.1, "null_kernel": 1.1},
    )


@pytest.fixture
def sample(tmp_path: Path) -> SampleProject:
    root = tmp_path / "project"
    write_artifacts(root, make_summary())
    return SampleProject(root, make_build(root))


@pytest.fixture(scope="session")
def sample_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample project's site, published once for all tests that only look at it."""
    from kernels_bench_tools.report.site import publish

    def make(folder: Path) -> None:
        write_artifacts(folder, make_summary())
        write_struct(folder / "selfcheck" / f"{H200.slug}.json", make_selfcheck())
        publish(folder, make_build(folder), folder / "site")

    return once_per_run(tmp_path_factory, "sample", make) / "site"


@pytest.fixture(scope="session")
def many_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of an operator with many views and implementations."""
    from many_views import many_views_site

    return many_views_site(tmp_path_factory)


@pytest.fixture(scope="session")
def real_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of this repository, of committed records alone."""
    from committed import committed_site

    return committed_site(tmp_path_factory)
