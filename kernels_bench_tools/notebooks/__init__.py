"""Reading and checking a project's notebooks; nothing here runs a cell."""
