"""The folder that a site is written to: what changed is rendered and written, the rest is kept."""
