"""Decoder layers."""
