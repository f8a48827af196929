"""Operators, one module each; a new one is a new file that defines ``OPERATOR``."""
