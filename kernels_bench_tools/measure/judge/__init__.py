"""The judge: the process that decides what a measurement is worth, and what watches a cell's own process."""
