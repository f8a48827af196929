"""Child processes: start, wait, limit, log, and end with everything they started."""
