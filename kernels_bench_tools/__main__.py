"""``python -m kernels_bench_tools`` is ``kbt``, for machines where nothing may be installed."""

from kernels_bench_tools.cli import main

main()
