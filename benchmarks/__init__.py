"""Measurements of this project itself, run by hand."""
