"""Pruning the cache keeps what the report shows."""

import os
import time

import pytest

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.run.cache.store import CellCache, StoredResult, process_key

HALF_MEGABYTE = 500_000
KEY = 64 * "a"


def write(workspace, text):
    workspace.cell("n.md", f"open('a.txt', 'w').write({text!r} * {HALF_MEGABYTE})")


def keys(workspace):
    return {entry.key for entry in CellCache(workspace.project.state).entries()}


def last_key(workspace):
    return (workspace.root / workspace.result("n.md").artifacts["a.txt"]).parents[1].name


@pytest.fixture
def small(workspace):
    """A project with a cache of 1.1 MB."""
    (workspace.root / "pyproject.toml").write_text('[tool.kbt]\ncache_size = "1.1 MB"\n')
    return workspace


def test_a_build_removes_the_least_recently_used_results(small):
    made = []
    for text in "abc":
        write(small, text)
        small.build()
        made.append(last_key(small))
        os.utime(small.project.state / "cache" / made[-1], (100 + len(made), 100 + len(made)))

    assert keys(small) == set(made[1:])


def test_pruning_keeps_what_the_report_shows_and_what_a_session_can_resume_from_for_a_day(small):
    for text in "ab":
        write(small, text)
        small.build()
    (small.root / "pyproject.toml").write_text('[tool.kbt]\ncache_size = "1 KB"\n')
    small.build()
    assert len(keys(small)) == 2  # a build that ran nothing removes nothing
    cache = CellCache(small.project.state)
    entry = cache.commit(cache.draft(), process_key(KEY, 0), StoredResult(cell="n.md:a", status=Status.OK))
    cache.sweep()

    assert len(cache.prune(0)) == 1
    assert keys(small) == {last_key(small), process_key(KEY, 0)}
    assert small.build().started == []
    long_ago = time.time() - 25 * 3600
    os.utime(entry.folder, (long_ago, long_ago))
    cache.sweep()
    assert not entry.folder.exists()
