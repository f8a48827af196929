"""Entries of the cache are complete or absent, whatever happens to the disk or to the build."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.run.cache.key import source_files
from kernels_bench_tools.run.cache.store import CellCache, DamagedEntryError, StoredResult, read_entry
from kernels_bench_tools.run.environment.base import ignore_folder

KEY = 8 * "0123abcd"


def store(state: Path, seconds: float = 0.0, content: str = "some\n") -> Path:
    cache = CellCache(state)
    draft = cache.draft()
    draft.stdout.write_text("printed\n")
    (draft.artifacts / "deep").mkdir()
    (draft.artifacts / "deep" / "a.txt").write_text(content)
    return cache.commit(draft, KEY, StoredResult(cell="n.md:a", status=Status.OK, seconds=seconds)).folder


def test_every_truncation_and_a_changed_bit_of_any_byte_of_any_file_are_found(tmp_path):
    entry = store(tmp_path)
    for path in [path for path in entry.rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        for number in range(len(whole)):
            flipped = bytearray(whole)
            flipped[number] ^= 1 << number % 8
            for damaged in (flipped, whole[:number]):
                path.write_bytes(damaged)
                with pytest.raises(DamagedEntryError):
                    read_entry(entry)
        path.write_bytes(whole)
    assert read_entry(entry) is not None


@pytest.mark.parametrize(
    ("damage", "flaw"),
    [
        (lambda entry: (entry / "result.json").unlink(), "result.json is missing"),
        (lambda entry: (entry / "artifacts/deep/a.txt").unlink(), "artifacts/deep/a.txt is missing"),
        (lambda entry: (entry / "artifacts/more.txt").touch(), "artifacts/more.txt was added"),
        (lambda entry: (entry / "artifacts/link").symlink_to("deep"), "artifacts/link was added"),
        (lambda entry: shutil.rmtree(entry / "artifacts"), "artifacts is missing"),
        (lambda entry: (entry / "environment.txt").write_text("x"), "environment.txt was"),
        (lambda entry: (entry / "digests.txt").unlink(), "digests.txt is missing"),
    ],
)
def test_a_flaw_is_named(tmp_path, damage, flaw):
    entry = store(tmp_path)
    damage(entry)

    with pytest.raises(DamagedEntryError, match=flaw):
        read_entry(entry)


def test_results_are_removed_only_while_they_are_more_than_the_limit(tmp_path):
    os.utime(store(tmp_path), (1, 1))
    cache = CellCache(tmp_path)
    cache.remember(CellName("n.md", "a"), cache.find(KEY))
    (entry,) = cache.entries()
    cache.forget_all_but([])

    assert entry.used > 1
    assert cache.prune(entry.size) == []
    assert [one.key for one in cache.prune(entry.size - 1)] == [KEY]


def test_what_a_build_of_a_package_writes_is_not_its_source(tmp_path):
    names = ("own.py", "sub/own.txt", "site/x", "build/x", "dist/x.whl", "x.egg-info/x", ".venv/x")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    found = {path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)}

    assert found == {*names[:2]}


def test_an_entry_of_another_version_is_absent_not_damaged(tmp_path):
    entry = store(tmp_path)
    (entry / "result.json").write_text('{"format": 1, "cell": "n.md:a", "status": "ok", "old": true}')
    (entry / "digests.txt").unlink()

    assert read_entry(entry) is None


def test_only_slow_results_are_synced_and_before_they_become_entries(tmp_path, monkeypatch):
    ignore_folder(tmp_path)  # its file is synced once
    synced, states = [], []
    real = os.fsync

    def fsync(number):
        synced.append(Path(f"/proc/self/fd/{number}").readlink())
        states.append((tmp_path / "cache" / KEY).exists())
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    store(tmp_path)
    assert synced == []
    shutil.rmtree(tmp_path / "cache")
    store(tmp_path, seconds=5.0)

    names = [path.name for path in synced]
    assert {"result.json", "digests.txt", "stdout.txt", "a.txt", "deep", "artifacts"} <= set(names)
    # All of it before the rename, and then the folder that holds the new name.
    assert states == [False] * (len(states) - 1) + [True]
    assert names[-1] == "cache"


WRITER = """
import sys
from pathlib import Path
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.cache.store import StoredResult
from kernels_bench_tools.records.record import Status
cache = CellCache(Path(sys.argv[1]))
cache.sweep()
for number in range(100_000):
    draft = cache.draft()
    for name in "abc":
        (draft.artifacts / name).write_text(f"{number}" * 5000)
    cache.commit(draft, sys.argv[2], StoredResult(cell="n.md:a", status=Status.OK, exit_code=number, seconds=number % 2))
    print(number, flush=True)
"""


def test_killing_the_writer_never_leaves_a_partial_entry_or_loses_a_finished_one(tmp_path):
    generator = random.Random(5)
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), KEY], stdout=subprocess.PIPE, text=True
        )
        first = writer.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.03))
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().splitlines()
        writer.wait()
        writer.stdout.close()
        finished = int(rest[-1] if rest else first)
        cache = CellCache(tmp_path)
        cache.sweep()

        entry = cache.find(KEY)
        assert cache.damaged == {}
        assert entry.result.exit_code in {finished, finished + 1}
        texts = {(entry.artifacts / name).read_text() for name in "abc"}
        assert texts == {f"{entry.result.exit_code}" * 5000}
        assert [path.name for path in (tmp_path / "cache").iterdir()] == [KEY]
