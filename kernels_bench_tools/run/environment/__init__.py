"""The environment of a cell: its Python, its packages and its variables."""
