"""One kernel each."""
