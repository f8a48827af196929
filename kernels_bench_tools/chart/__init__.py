"""Charts drawn with matplotlib: tagged SVG, one panel for each view of a device."""
