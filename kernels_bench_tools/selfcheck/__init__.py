"""MEASURE: accuracy of the timings on this machine, from calls with known results."""
