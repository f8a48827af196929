from pathlib import Path

from kernels_bench_tools.notebooks.calls import KernelCall, find_kernel_calls
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import find_project

NOTEBOOK = """\
---
title: Kernels
---

```python id=one
import kernels_bench_tools as kbt
from kernels_bench_tools import get_kernel

name = "a/b@1"
get_kernel("a/pinned@1")
kbt.get_kernel("a/keyword", version=2, trust=["a"])
get_kernel({"cuda": "a/b@1", "cpu": "a/unpinned"})
get_kernel(name)
get_kernel("./folder")
other("a/c@1")
```

```python id=two
get_kernel("a/unpinned"
```
"""


def calls(folder: Path) -> list[KernelCall]:
    (folder / "pyproject.toml").write_text("[tool.kbt]\ntitle = 'Kernels'\n")
    (folder / "notebook.md").write_text(NOTEBOOK)
    project = find_project(folder)
    return list(find_kernel_calls(read_notebook(project, folder / "notebook.md")))


def test_calls_are_found_with_their_lines_and_settings(tmp_path: Path) -> None:
    found = calls(tmp_path)

    lines = (tmp_path / "notebook.md").read_text().splitlines()
    assert [lines[int(call.where.partition(":")[2]) - 1] for call in found] == lines[9:14]
    assert found[0].reference == "a/pinned@1"
    assert (found[1].reference, found[1].settings) == ("a/keyword", {"version": 2, "trust": ["a"]})
    assert found[2].reference == {"cuda": "a/b@1", "cpu": "a/unpinned"}
    assert found[3].reference is None


def test_a_call_without_a_pin_is_found(tmp_path: Path) -> None:
    assert [call.is_pinned for call in calls(tmp_path)] == [True, True, False, True, True]
