"""No process outlives the build that started it, however either of them ends."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from projects import PYTHON, WITHOUT_RIGHTS, survivors, wait_until

from kernels_bench_tools.run.process.reaper import is_abandoned, reap_orphans, reaper, start_session

BUILD = [PYTHON, "-m", "kernels_bench_tools", "build", "--env", "current"]
ESCAPES = """
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
subprocess.Popen(['sh', '-c', 'trap "" TERM HUP INT; exec ' + ' '.join(sleep)], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execvp(sleep[0], sleep)
    os._exit(0)
"""
"""A child, one in another session, one that ignores signals, and a daemon that forked twice."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of temporary files, of builds alone."""
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    return tmp_path / "t"


def start_build(workspace, seconds: str) -> subprocess.Popen[bytes]:
    """Start a build whose cell starts four sleeping processes, and wait for them."""
    code = f"import os, subprocess, time\nsleep = ['sleep', '{seconds}']\n{ESCAPES}\ntime.sleep(900)"
    workspace.cell("n.md", code)
    build = subprocess.Popen(BUILD, cwd=workspace.root)
    assert wait_until(lambda: len(survivors(seconds)) == 4)
    return build


def reaper_of(build: subprocess.Popen[bytes]) -> psutil.Process:
    return next(one for one in psutil.Process(build.pid).children() if "reaper" in " ".join(one.cmdline()))


def scripts_of(workspace) -> list[psutil.Process]:
    return [
        one
        for one in psutil.process_iter(["cmdline"])
        if str(workspace.root) in " ".join(one.info["cmdline"] or [])
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_process_outlives_a_build(workspace, folder, number):
    seconds = f"6{os.getpid()}.{int(number)}"
    build = start_build(workspace, seconds)

    build.send_signal(number)
    build.wait()

    assert wait_until(lambda: not survivors(seconds))
    assert wait_until(lambda: not scripts_of(workspace))
    assert wait_until(lambda: not list(folder.glob("kbt-*")))


def test_a_process_that_hides_its_variables_ends_with_its_cell(workspace, folder):
    code = "import ctypes, os, time\nr, w = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n"
    code += "    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE\n    os.write(w, b'x'); time.sleep(900)\nos.read(r, 1)"
    workspace.cell("n.md", code)
    subprocess.run([*WITHOUT_RIGHTS, *BUILD], cwd=workspace.root, check=True)

    assert not scripts_of(workspace)


def test_the_next_build_cleans_up_after_a_killed_reaper(workspace, folder):
    seconds = f"7{os.getpid()}.1"
    build = start_build(workspace, seconds)
    reaper_of(build).kill()
    build.kill()
    build.wait()
    assert survivors(seconds)
    assert list(folder.glob("kbt-*"))

    workspace.cell("n.md", "print('fine')")
    subprocess.run(BUILD, cwd=workspace.root, check=True)

    assert not survivors(seconds)
    assert not list(folder.glob("kbt-*"))


def test_a_new_build_does_not_kill_processes_of_a_running_one(workspace, folder, tmp_path):
    seconds = f"8{os.getpid()}.1"
    build = start_build(workspace, seconds)
    other = tmp_path / "other"
    other.mkdir()
    (other / "n.md").write_text("```python id=a\nprint(1)\n```\n")
    subprocess.run(BUILD, cwd=other, check=True)

    try:
        assert survivors(seconds)
        assert list(folder.glob("kbt-*/*/work"))
    finally:
        build.kill()
        build.wait()
    assert wait_until(lambda: not survivors(seconds))


def test_an_owner_is_abandoned_only_if_it_is_known_to_have_ended(folder):
    owner = reaper()
    ended, other = folder / "kbt-build-ended", folder / "mine"
    for path in (ended, other):
        path.mkdir()

    assert is_abandoned(str(ended))
    for name in (owner.owner, str(other), f"{folder}/kbt-build-elsewhere", ended.name, "anything else"):
        assert not is_abandoned(name)


def test_a_folder_that_a_cell_has_removed_is_made_again_and_stays_locked():
    owner = reaper()
    shutil.rmtree(owner.folder)

    assert owner.folder.is_dir()
    assert not is_abandoned(owner.owner)


@pytest.mark.skipif(sys.platform != "linux", reason="lists the children of each thread")
def test_a_process_whose_starting_thread_has_ended_is_no_orphan() -> None:
    """The system moves it to another thread, while others look for orphans."""
    ended = threading.Event()
    looking = [
        threading.Thread(target=lambda: [reap_orphans() for _ in iter(ended.is_set, True)]) for _ in "ab"
    ]
    for thread in looking:
        thread.start()
    codes = []
    for _ in range(80):
        with ThreadPoolExecutor(1) as pool:
            process = pool.submit(start_session, ["sh", "-c", "exit 3"]).result()
        codes.append(process.wait())
    ended.set()
    for thread in looking:
        thread.join()

    assert codes == [3] * 80
