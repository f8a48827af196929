"""Fixtures of the tests in this folder."""

from workspace import uv_cache, workspace

__all__ = ["uv_cache", "workspace"]
