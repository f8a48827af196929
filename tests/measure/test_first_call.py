import subprocess
import sys
from pathlib import Path


def test_the_time_since_the_start_of_the_process() -> None:
    program = (
        "import time; time.sleep(0.3)\n"
        "from kernels_bench_tools.measure.device.environment import since_process_start_ms as since\n"
        "first = since(); time.sleep(0.2); print(first, since())"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = map(float, done.stdout.split())

    assert 300 <= first < 60_000
    assert second - first >= 190


def test_what_a_cell_leaves_to_its_end_is_done(tmp_path: Path) -> None:
    script = tmp_path / "cell.py"
    script.write_text(
        "import atexit, threading, time\n"
        "left_open = open('open.txt', 'w')\n"
        "left_open.write('written')\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
    )

    command = [sys.executable, "-m", "kernels_bench_tools.measure.judge.start", str(script)]
    done = subprocess.run(command, input="token\n", cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "thread\nat exit\n"
    assert (tmp_path / "open.txt").read_text() == "written"
