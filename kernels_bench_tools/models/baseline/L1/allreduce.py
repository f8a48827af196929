"""Sum over the ranks."""

from __future__ import annotations

from torch import Tensor, distributed, nn


class AllReduce(nn.Module):
    """Add up the ranks' tensors, like vLLM's function ``tensor_model_parallel_all_reduce``.

    Where ``torch.distributed`` is not initialized, the rank is simulated and its own part is returned.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, in ``x``."""
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(x)
        return x
