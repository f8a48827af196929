"""MEASURE: one module for each operator, found by its name; it defines ``OPERATOR``."""
