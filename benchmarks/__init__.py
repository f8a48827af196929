"""Benchmarks of this package itself, run by hand."""
