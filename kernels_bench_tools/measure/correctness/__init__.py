"""Whether an implementation's outputs are right, checked before it is timed."""
