"""RUN: a Dask cluster as executor, so that cells run on several GPUs and hosts."""
