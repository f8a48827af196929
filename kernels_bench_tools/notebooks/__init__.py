"""RUN: reads a project's notebooks and checks them; nothing here runs a cell."""
