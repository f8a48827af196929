"""MEASURE: how accurate the timings of this machine are, from calls whose result is known."""
