"""Blocks of several kernels."""
