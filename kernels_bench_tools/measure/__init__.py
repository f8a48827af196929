"""Measuring: what runs inside a cell. The only layer that imports torch."""
