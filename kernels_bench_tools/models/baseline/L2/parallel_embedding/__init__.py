"""Embeddings whose rows are split over the ranks."""
