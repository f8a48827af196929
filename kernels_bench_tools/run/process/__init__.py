"""Child processes: starting, limits, logs, and ending everything that they started."""
