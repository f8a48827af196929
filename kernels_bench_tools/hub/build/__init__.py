"""Compiling hub kernels from source. Cells import none of it."""
