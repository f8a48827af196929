"""Linear layers whose weights are split over the ranks."""
