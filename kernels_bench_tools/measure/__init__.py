"""MEASURE: what runs inside a cell. Only this layer imports torch."""
