"""Models with the configurations of production models. Only ``config`` and ``configs/`` are read without torch."""
