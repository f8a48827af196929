"""Whether a time belongs to the work that was asked for."""
