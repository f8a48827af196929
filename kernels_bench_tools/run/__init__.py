"""RUN: from cells to results. Plans a build, runs its cells and caches what they write."""
