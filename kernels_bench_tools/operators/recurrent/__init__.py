"""Layers of models that carry a state from token to token."""
