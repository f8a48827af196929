"""RUN: reads a project's notebooks, and runs those cells whose result is not known yet."""
