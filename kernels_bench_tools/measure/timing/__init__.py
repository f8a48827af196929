"""Timing of calls: CUPTI and CUDA events on a GPU, the monotonic clock on a CPU."""
