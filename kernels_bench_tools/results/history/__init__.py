"""Changes of times from one state of a project to another, and their causes."""
