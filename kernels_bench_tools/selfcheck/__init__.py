"""How good the numbers of this machine are: a measurement of what is known, and of what others report."""
