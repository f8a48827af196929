"""Tasks that come from the configurations of production models. Only ``tasks.baseline`` imports torch."""
