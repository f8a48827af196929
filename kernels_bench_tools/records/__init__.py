"""Types of the files that layers exchange, and how they are read and written."""
