"""Correctness of an implementation's outputs, checked before it is timed."""
