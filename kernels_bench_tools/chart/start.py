"""Runs the scripts of combine cells in forks of a process that has imported what they draw charts with."""

from __future__ import annotations

import gc

from kernels_bench_tools.forking import fork_for_messages, run_script

if __name__ == "__main__":
    from kernels_bench_tools.chart import figure  # noqa: F401
    from kernels_bench_tools.results import combine  # noqa: F401

    gc.freeze()
    run_script(fork_for_messages())
