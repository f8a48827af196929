"""A project in a temporary folder, and builds of it that remember what ran."""

import base64
import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kernels_bench_tools.cluster import cluster_executor
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.records.build import BuildRun, CellRun
from kernels_bench_tools.records.request import Request
from kernels_bench_tools.run.build import build
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.run.progress import Progress

RECORD = {"ts": "t", "run": "r", "impl": "x", "wl": {"name": "w"}, "status": "unsupported", "schema": 1}
WRITE = f"open('op.jsonl', 'a').write({json.dumps(RECORD)!r} + chr(10))\n"
"""Code of a cell that writes this record; its attributes are ``MEASURING``."""
LATENCY = {"p10": 1.0, "p50": 1.0, "p90": 1.0, "mean": 1.0, "iqr": 0.0, "reps": 1}
MEASURED = RECORD | {"status": "ok", "ok": True, "lat_ms": LATENCY}
"""A record with a time."""
WRITE_MEASURED = f"open('op.jsonl', 'a').write({json.dumps(MEASURED)!r} + chr(10))\n"
MEASURING = "id=a outputs=op.jsonl"


def with_this_package(path: str, extras: str = "") -> str:
    """Return the header of a cell that needs this package, which is at a path from its script."""
    dependencies = f"# dependencies = ['kernels-bench-tools{extras}']\n"
    return f"# /// script\n{dependencies}# [tool.uv.sources]\n# kernels-bench-tools = {{ path = '{path}' }}\n# ///\n"


def make_wheel(folder: Path, name: str, code: str = "VALUE = 1\n", version: str = "1.0") -> Path:
    """Write a wheel of a module, with its RECORD."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        for name, text in files.items()
    }
    record = "".join(f"{name},sha256={digest},{len(files[name])}\n" for name, digest in digests.items())
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)
    return folder


@dataclass
class Recorder(Progress):
    """Records the steps of a build."""

    started: list[str] = field(default_factory=list)
    processes: list[tuple[str, int]] = field(default_factory=list)
    finished: dict[str, CellRun] = field(default_factory=dict)
    environments: list[str] = field(default_factory=list)
    ready: int = 0
    """How many environments were ready when the first cell began."""
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    expected: list[dict[str, float]] = field(default_factory=list)

    def build_started(self, expected: Mapping[str, float]) -> None:
        self.expected.append({**expected})

    def environment_finished(self, name: str, seconds: float, ok: bool) -> None:
        self.environments.append(name)

    def cell_started(self, name: str) -> None:
        self.ready = self.ready or len(self.environments)
        self.started.append(name)

    def process_started(self, name: str, process: int, processes: int) -> None:
        self.processes.append((name, process))
        if process == 0:
            self.started.append(name)

    def cell_output(self, name: str, line: str) -> None:
        self.lines.append(line)

    def cell_finished(self, name: str, run: CellRun) -> None:
        self.finished[name] = run

    def note(self, text: str) -> None:
        self.notes.append(text)


def build_options(**options: Any) -> BuildOptions:
    """Return options of a build, those of its request among them."""
    asked = {name: options.pop(name) for name in Request.__struct_fields__ if name in options}
    return BuildOptions(request=Request(**asked), **options)


@dataclass
class Workspace:
    """A project to write notebooks into and to build."""

    root: Path
    recorder: Recorder = field(default_factory=Recorder)
    run: BuildRun | None = None

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def cell(
        self, name: str, code: str, attributes: str = "id=a", front: str = "", prose: str = "Prose."
    ) -> Path:
        """Write a notebook of one cell."""
        block = f"---\n{front}\n---\n" if front else ""
        return self.write(name, f"{block}{prose}\n\n```python {attributes}\n{code}\n```\n")

    @property
    def project(self) -> Project:
        return find_project(self.root)

    def build(self, *targets: str, environment: str = "current", **options: Any) -> Recorder:
        """Build; return the recorded steps.

        Most tests need no environment of uv's, and one process per cell, since more take longer.
        """
        self.recorder = Recorder()
        options["executor"] = cluster_executor(options.pop("cluster", None))
        chosen = build_options(environment=environment, **{"processes": 1} | options)
        self.run = build(self.project, targets, chosen, self.recorder)
        return self.recorder

    def result(self, notebook: str, cell: str = "a") -> CellRun:
        """Return a cell as the last build's report has it."""
        run = next(one for one in self.run.notebooks if one.path == notebook)
        return next(one for one in run.cells if one.id == cell)

    def run_cell(self, code: str, attributes: str = "id=a", **options: Any) -> CellRun:
        """Build the notebook ``n.md`` of one cell; return its result."""
        self.cell("n.md", code, attributes)
        self.build(**options)
        return self.result("n.md")

    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def records(self, notebook: str, cell: str = "a", file: str = "op.jsonl") -> list[dict[str, Any]]:
        text = self.text(self.result(notebook, cell).artifacts[file])
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that goes with the tests, so that the user's is not filled with their environments."""
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def workspace(tmp_path: Path, uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("UV_CACHE_DIR", str(uv_cache))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("UVNOTE_PLATFORM", raising=False)
    # The packages of these tests are tens of thousands of files, which most of them need not compare around each cell.
    monkeypatch.setattr(
        "kernels_bench_tools.run.environment.base.packages_folder", lambda: tmp_path / "packages"
    )
    (tmp_path / "packages").mkdir()
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Test"\n')
    return Workspace(root)
