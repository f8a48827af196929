"""Integrity checks of outputs, memory, threads and timers."""
