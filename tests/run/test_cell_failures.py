"""Each way in which a cell can fail has a status and a reason, and does not affect later cells."""

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from projects import PYTHON, run_kbt

from kernels_bench_tools.run.logs import HEAD_BYTES, TAIL_BYTES
from kernels_bench_tools.run.process import run as processes
from kernels_bench_tools.run.process.reaper import reaper

FAILURES = {
    "a segmentation fault": (
        "def f():\n    import ctypes; ctypes.string_at(0)\nf()",
        "crashed",
        r'killed by SIGSEGV; last output: File ".*ctypes/__init__\.py", line \d+ in string_at',
    ),
    "an abort": (
        "import os; os.write(2, b'assertion failed\\n'); os.abort()",
        "crashed",
        r'killed by SIGABRT; last output: File "\.kbt/cells/n__c1\.py", line 1 in <module>',
    ),
    "a SIGKILL": (
        "import os; print('step 7', flush=True); os.kill(os.getpid(), 9)",
        "crashed",
        r"killed by SIGKILL \(out of memory\?\); last output: step 7",
    ),
    "a MemoryError": ("x = bytearray(10**18)", "oom", "MemoryError"),
    "an allocator's message": (
        'raise RuntimeError("[enforce fail] . DefaultCPUAllocator: can\'t allocate memory: you tried")',
        "oom",
        "RuntimeError: .*can't allocate memory.*",
    ),
    "a std::bad_alloc": (
        """import os, faulthandler
faulthandler.disable()
os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'")
os.abort()""",
        "oom",
        "killed by SIGABRT; last output: terminate called .*'std::bad_alloc'",
    ),
    "an exit code": ("import sys; print('no licence'); sys.exit(3)", "error", "exit code 3: no licence"),
    "an exception of two lines": ("raise ValueError('two\\nlines')", "error", "ValueError: two"),
    "no Python": ("this is no python", "error", "SyntaxError: invalid syntax"),
    "the exit code of a killed shell": ("exit(137)", "crashed", r"killed by SIGKILL \(out of memory\?\)"),
    "an exit code without a word": ("import os; os._exit(3)", "error", "exit code 3"),
    "a hang": (
        "import time; print('waiting for a lock', flush=True); time.sleep(600)",
        "timeout",
        "timed out after 1 s; last output: waiting for a lock",
    ),
    "a hang that ignores signals": (
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)",
        "timeout",
        "timed out after 1 s",
    ),
    "output that is not text": ("import os; os.write(1, bytes(range(256)) * 100)", "ok", ""),
    "a closed stdout": ("import os; os.close(1); os.close(2); open('x', 'w').write('x')", "ok", ""),
    "/dev/shm itself opened": ("import os, time; os.open('/dev/shm', 0); time.sleep(0.6)", "ok", ""),
    "a daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n",
        "ok",
        "",
    ),
    "its own folder deleted": ("import os, shutil; shutil.rmtree(os.getcwd())", "ok", ""),
    "its own folder deleted before it wrote": (
        "import os, shutil; shutil.rmtree(os.path.dirname(os.getcwd())); open('x', 'w')",
        "error",
        r"FileNotFoundError: \[Errno 2\] .*",
    ),
    "its own folder replaced by a link": (
        "import os; here = os.getcwd(); os.rmdir(here); os.symlink('/etc', here)",
        "ok",
        "",
    ),
}


EXIT_CODES = {"a segmentation fault": -11, "a SIGKILL": -9, "no Python": 1, "an exit code": 3, "a daemon": 0}


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch):
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 0.2)


def test_each_failure_is_a_status_with_the_last_line_and_costs_no_other_cell(workspace):
    ids = {name: f"c{number}" for number, name in enumerate(FAILURES)}
    texts = [
        f"```python id={ids[name]} timeout={1 if status == 'timeout' else 60}\n{code}\n```\n"
        for name, (code, status, _) in FAILURES.items()
    ]
    workspace.write("n.md", "\n".join([*texts, "```python id=alive\nprint('alive')\n```\n"]))
    workspace.build()

    for name, (_, status, reason) in FAILURES.items():
        run = workspace.result("n.md", ids[name])
        assert run.status == status, (name, run.reason)
        assert re.fullmatch(reason, run.reason), (name, run.reason)
        assert set(run.artifacts) <= {"x"}
        assert run.exit_code == EXIT_CODES.get(name, run.exit_code)
    assert workspace.text(workspace.result("n.md", "alive").stdout) == "alive\n"


def test_a_crash_leaves_no_folder_or_core_file(workspace):
    # The limit is set right after the start of the process.
    run = workspace.run_cell(
        "import resource, os, time; time.sleep(1); print(resource.getrlimit(resource.RLIMIT_CORE)); os.abort()"
    )

    assert workspace.text(run.stdout) == "(0, 0)\n"
    assert list(reaper().folder.iterdir()) == []


def test_the_middle_of_a_long_log_is_replaced_by_its_size(workspace):
    code = "import sys\nfor n in range(100_000): sys.stdout.write(f'line {n:07}\\n')\nraise ValueError('in the end')"
    run = workspace.run_cell(code)
    lines = workspace.text(run.stdout).splitlines()
    (notice,) = [line for line in lines if line.startswith("---")]

    assert run.reason == "ValueError: in the end"
    assert (workspace.root / run.stdout).stat().st_size < HEAD_BYTES + TAIL_BYTES + 200
    assert (lines[0], lines[-1]) == ("line 0000000", "line 0099999")
    missing = 100_000 * 13 - 13 * (len(lines) - 1)
    assert notice == f"--- {missing:,} bytes omitted: the log is too long ---"


def test_endless_output_is_stopped_and_the_log_is_cut(workspace, monkeypatch):
    monkeypatch.setattr(processes, "LOG_LIMIT", 8 * 2**20)
    run = workspace.run_cell("while True: print('x' * 1000)")

    assert run.status == "error"
    assert run.reason.startswith("printed more than ")
    assert " bytes omitted: " in workspace.text(run.stdout)


SHARED = Path("/dev/shm")
OURS = f"kbt-test-{os.getpid()}"
"""In the names of files there: other programs make some, too."""
USE_SHARED_MEMORY = """
import glob, mmap, os, sys, time
while len(names := [*filter(os.path.getsize, glob.glob(f"/dev/shm/{sys.argv[1]}-[ab]-*"))]) < 2: time.sleep(0.01)
held = [open(name, "r+b") for name in sorted(names)]
mapped = mmap.mmap(held[1].fileno(), 0)
held[1].close()
time.sleep(60)
"""
MEMORY = {
    "children": "for _ in range(2):\n    if os.fork() == 0:\n        x = fill(160); time.sleep(600)",
    "daemons": (
        "for _ in range(2):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n"
        "        x = fill(160); time.sleep(600)"
    ),
    "a closed file in /dev/shm": "os.makedirs(f'{ours}/a'); put(f'{ours}/a/b')",
    "a removed file": "p = ours; f = put(p); f = open(p); os.remove(p)",
    "a file without a name": "m = os.memfd_create('m'); [os.write(m, fill(1)) for _ in range(320)]",
    "segments": (
        "import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p\n"
        "for _ in range(4):\n    i = c.shmget(0, ctypes.c_size_t(80 << 20), 0o1600)\n"
        "    p = ctypes.c_void_p(c.shmat(i, None, 0)); ctypes.memset(p, 1, 80 << 20); c.shmdt(p)"
    ),
    "shared pages": "import mmap; m = mmap.mmap(-1, 320 << 20); m.write(fill(320))",
}


def segments() -> set[str]:
    """Return the numbers of System V's segments of shared memory."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_memory_over_the_limit_is_oom_with_the_size(workspace):
    head = (
        f"import os, time\nours = f'/dev/shm/{OURS}-{{os.getpid()}}'\nprint('filling', flush=True)\nfill = lambda size: bytearray(b'x') * (size << 20)\n"
        "def put(path):\n    with open(path, 'wb') as f:\n        for _ in range(320): f.write(fill(1)); time.sleep(0.002)\n"
    )
    for number, code in enumerate(MEMORY.values()):
        workspace.cell(f"{number}.md", f"{head}{code}\ntime.sleep(600)")
    before = segments()
    workspace.build(memory_limit=200 * 2**20, jobs=2)

    assert segments() <= before
    for number, way in enumerate(MEMORY):
        run = workspace.result(f"{number}.md")
        assert run.status == "oom", way
        assert re.fullmatch(
            r"used \d+ MiB of memory, more than its limit; last output: filling", run.reason
        ), way
    for left in SHARED.glob(f"{OURS}*"):  # one that was never seen open, on a busy machine
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def test_shared_memory_that_a_cell_left_is_removed_unless_another_process_uses_it(workspace):
    code = (
        f"import os, time\nfiles = [open(f'/dev/shm/{OURS}-{{n}}-{{os.getpid()}}', 'w') for n in 'abc']\n"
        "for file in files: file.write('x'); file.flush()\nprint(os.getpid()); time.sleep(2)"
    )
    with subprocess.Popen([PYTHON, "-c", USE_SHARED_MEMORY, OURS]) as user:
        other = SHARED / f"{OURS}-other"
        workspace.write("n.md", f"```python id=a\n{code}\n```\n")
        building = threading.Timer(0.5, other.touch)  # by a program that kbt has not started
        building.start()
        workspace.build()
        run = workspace.result("n.md")
        used = {SHARED / f"{OURS}-{name}-{workspace.text(run.stdout).strip()}" for name in "ab"}

        assert run.status == "ok"
        assert {*SHARED.glob(f"{OURS}*")} == {*used, other}
        for path in (*used, other):
            path.unlink()
        user.kill()


def test_memory_that_processes_share_counts_once(workspace):
    code = (
        "import os, time\nx = bytearray(b'x') * (150 << 20)\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        time.sleep(1.5); os._exit(0)\ntime.sleep(1)"
    )
    run = workspace.run_cell(code, memory_limit=300 * 2**20)

    assert run.status == "ok"


@pytest.mark.parametrize("then", ["", "os.mkfifo(log)", "os.symlink('/dev/zero', log)", "os.mkdir(log)"])
def test_what_a_cell_prints_is_in_its_logs_whatever_it_puts_there(workspace, then):
    code = "import os, pathlib\nprint('before', flush=True)\n"
    code += f"for log in pathlib.Path({str(workspace.root)!r}).glob('.kbt/cache/.draft-*/std*.txt'):\n"
    code += f"    os.remove(log)\n    {then}\nprint('after')\nraise ValueError('in the end')"
    run = workspace.run_cell(code)

    assert (run.status, run.reason) == ("error", "ValueError: in the end")
    assert workspace.text(run.stdout) == "before\nafter\n"
    assert workspace.text(run.stderr).endswith("ValueError: in the end\n")


@pytest.mark.parametrize("then", ["mkfifo", "mkdir"])
def test_no_build_waits_for_what_a_cell_puts_in_place_of_a_file_of_its_draft(tmp_path, then):
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    code = f"import os, pathlib, time\nfor draft in pathlib.Path({str(tmp_path)!r}).glob('.kbt/cache/.draft-*'):\n"
    code += (
        "    for name in ('environment.txt', 'stdout.txt', 'result.json', 'digests.txt', 'artifacts/more'):\n"
    )
    code += (
        f"        (draft / name).unlink(missing_ok=True)\n        os.{then}(draft / name)\ntime.sleep(0.2)\n"
    )
    cells = f"```python id=a\n{code}```\n\n```python id=b needs=a\nprint('later')\n```\n"
    (tmp_path / "n.md").write_text(f"# N\n\n{cells}")

    for _ in range(2):
        done = run_kbt(tmp_path, "build", "--env", "current", timeout=60)
        assert (done.returncode in {0, 1}, "Traceback" in done.stderr) == (True, False), done.stderr


@pytest.mark.gpu
def test_a_device_error_in_one_cell_does_not_affect_the_next(workspace):
    broken = "import torch\nx = torch.zeros(4, device='cuda')\nx[torch.tensor([9], device='cuda')].cpu()"
    fine = "import torch\nprint(int(torch.ones(4, device='cuda').sum()))"
    workspace.write("n.md", f"```python id=a\n{broken}\n```\n\n```python id=b needs=a\n{fine}\n```\n")
    workspace.build()

    assert workspace.result("n.md").status in {"error", "crashed"}
    assert workspace.text(workspace.result("n.md", "b").stdout) == "4\n"
