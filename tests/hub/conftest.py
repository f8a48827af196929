"""A hub, a cache and clean processes for every test of hub kernels; nothing leaves this machine."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# The kit is no part of the package, and tests are no package.
sys.path.insert(0, str(Path(__file__).parent))

from kit import KERNEL, FakeHub, Outcome, Processes, make_kernel

sys.path.pop(0)


@dataclass
class Place:
    """A folder to work in, with a cache of its own and a hub that may be queried."""

    folder: Path
    hub: FakeHub
    processes: Processes
    repo: str = KERNEL

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def make(self, folder: str = "kernel", **options: Any) -> Path:
        """Make a kernel's repository in ``folder``."""
        return make_kernel(self.folder / folder, **options)

    def seed(self, kernel: Path, *refs: str) -> Path:
        """Put a kernel into the cache, as downloads leave it, at a commit that ``refs`` name; return its snapshot."""
        root, commit = self.cache / f"kernels--{self.repo.replace('/', '--')}", "c0ffee" * 6 + "0000"
        for ref in refs or ("v1",):
            (root / "refs").mkdir(parents=True, exist_ok=True)
            (root / "refs" / ref).write_text(commit)
        return Path(shutil.copytree(kernel, root / "snapshots" / commit))

    def variables(self, **more: str) -> dict[str, str]:
        """Return what a process here needs in its environment."""
        here = {"HF_HOME": str(self.folder / "home"), "KERNELS_CACHE": str(self.cache), "NO_PROXY": "*"}
        return {**here, "HF_ENDPOINT": self.hub.url, **more}

    def load(self, *calls: Any, before: str = "", **variables: str) -> Outcome:
        """Call ``get_kernel`` in a fresh process, with each reference or dictionary of arguments."""
        made = [call if isinstance(call, dict) else {"reference": call} for call in calls]
        return self.processes.run(made, self.folder, self.variables(**variables), before)

    def lock(self, commit: str, version: int | str = 1, repo: str = KERNEL) -> Path:
        """Write the lock as ``kernels lock`` does."""
        from kernels._rust import KernelDependency, KernelLock, KernelLocks, KernelVersion

        kind = KernelVersion.Version if isinstance(version, int) else KernelVersion.Revision
        path = self.folder / "kernels.lock"
        path.write_text(KernelLocks({KernelDependency(repo, kind(version)): KernelLock(commit)}).to_json())
        return path


@pytest.fixture(scope="session")
def processes() -> Processes:
    return Processes()


@pytest.fixture
def place(tmp_path: Path, processes: Processes) -> Iterator[Place]:
    # So that no lock or project above the folder is found.
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\ntitle = 'Hub'\n")
    hub = FakeHub()
    yield Place(tmp_path, hub, processes)
    hub.close()
