"""MEASURE: one module for each operator; it defines ``OPERATOR`` and is found by its name."""
