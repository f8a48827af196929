"""The cell cache: results stored by the content of everything that led to them."""
