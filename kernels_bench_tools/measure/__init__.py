"""MEASURE: runs inside cells. Only this layer imports torch."""
