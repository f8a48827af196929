"""Plans builds, runs cells and caches their results."""
