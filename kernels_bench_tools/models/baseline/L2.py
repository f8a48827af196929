"""Blocks of several kernels; weights are split over the ranks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.forward_context import get_forward_context
from kernels_bench_tools.models.baseline.L1 import (
    AllReduce,
    Embedding,
    FlashAttnDecode,
    FlashAttnPrefill,
    Linear,
    MoEAlign,
    MoEGroupedGemm,
    MoESum,
    RMSNorm,
    SiluAndMul,
    StoreKVCache,
    TopKSoftmax,
)
from kernels_bench_tools.models.baseline.parallel_state import (
    divide,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    part,
)
from kernels_bench_tools.models.config import VOCAB_PADDING, ModelConfig


class ReplicatedLinear(nn.Module):
    """Compute all outputs on every rank.

    Differs from vLLM: no ``params_dtype``, ``quant_config``, ``prefix`` and ``return_bias``.
    """

    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, skip_bias_add: bool = False
    ) -> None:
        super().__init__()
        self.skip_bias_add = skip_bias_add
        self.weight = nn.Parameter(torch.empty(output_size, input_size))
        self.bias = nn.Parameter(torch.zeros(output_size)) if bias else None
        self.linear = Linear()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs (tokens, outputs), and the bias if ``skip_bias_add`` left it out."""
        added = None if self.skip_bias_add else self.bias
        return self.linear(x, self.weight, added), self.bias if self.skip_bias_add else None


class ColumnParallelLinear(nn.Module):
    """Compute this rank's share of the outputs.

    Differs from vLLM: no ``gather_output``, ``params_dtype``, ``quant_config``, ``prefix`` and ``return_bias``.
    """

    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, *, skip_bias_add: bool = False
    ) -> None:
        super().__init__()
        self.tp_rank = get_tensor_model_parallel_rank()
        self.tp_size = get_tensor_model_parallel_world_size()
        self.skip_bias_add = skip_bias_add
        rows = divide(output_size, self.tp_size)
        self.weight = nn.Parameter(torch.empty(rows, input_size))
        self.bias = nn.Parameter(torch.zeros(rows)) if bias else None
        self.linear = Linear()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return this rank's outputs (tokens, outputs / ranks), and the bias if ``skip_bias_add`` left it out."""
        added = None if self.skip_bias_add else self.bias
        return self.linear(x, self.weight, added), self.bias if self.skip_bias_add else None

    def load_rows(self, param: Tensor, loaded_weight: Tensor, index: int, start: int, size: int) -> None:
        """Copy the ``index``-th ``size`` rows of a whole weight or bias to the rows from ``start``."""
        param.data[start : start + size].copy_(part(loaded_weight, 0, index, size))


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Compute this rank's share of each output, side by side; differs from vLLM as its base class does."""

    def __init__(
        self, input_size: int, output_sizes: list[int], bias: bool = True, *, skip_bias_add: bool = False
    ) -> None:
        super().__init__(input_size, sum(output_sizes), bias, skip_bias_add=skip_bias_add)
        self.own_sizes = [divide(size, self.tp_size) for size in output_sizes]

    def weight_loader(self, param: Tensor, loaded_weight: Tensor, loaded_shard_id: int) -> None:
        """Copy this rank's rows of the whole weight or bias of one of the outputs."""
        start, size = sum(self.own_sizes[:loaded_shard_id]), self.own_sizes[loaded_shard_id]
        self.load_rows(param, loaded_weight, self.tp_rank, start, size)


class QKVParallelLinear(ColumnParallelLinear):
    """Compute queries, keys and values of this rank's heads; ranks share a key head where there are fewer of them.

    Differs from vLLM as its base class does.
    """

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
        skip_bias_add: bool = False,
    ) -> None:
        tp_size = get_tensor_model_parallel_world_size()
        total_num_kv_heads = total_num_kv_heads or total_num_heads
        self.head_size = head_size
        self.num_heads = divide(total_num_heads, tp_size)
        if total_num_kv_heads < tp_size:
            self.num_kv_heads, self.num_kv_head_replicas = 1, divide(tp_size, total_num_kv_heads)
        else:
            self.num_kv_heads, self.num_kv_head_replicas = divide(total_num_kv_heads, tp_size), 1
        heads = self.num_heads + 2 * self.num_kv_heads
        super().__init__(hidden_size, heads * tp_size * head_size, bias, skip_bias_add=skip_bias_add)

    def weight_loader(
        self, param: Tensor, loaded_weight: Tensor, loaded_shard_id: Literal["q", "k", "v"]
    ) -> None:
        """Copy this rank's heads of the whole weight or bias of queries, keys or values."""
        if loaded_shard_id == "q":
            self.load_rows(param, loaded_weight, self.tp_rank, 0, self.num_heads * self.head_size)
            return
        before = self.num_heads + (self.num_kv_heads if loaded_shard_id == "v" else 0)
        index, size = self.tp_rank // self.num_kv_head_replicas, self.num_kv_heads * self.head_size
        self.load_rows(param, loaded_weight, index, before * self.head_size, size)


class RowParallelLinear(nn.Module):
    """Multiply this rank's share of the inputs, and add up the ranks' products; rank 0 adds the bias.

    Differs from vLLM: no ``input_is_parallel`` (it is), ``params_dtype``, ``quant_config``, ``prefix``, ``return_bias``.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        *,
        skip_bias_add: bool = False,
        reduce_results: bool = True,
    ) -> None:
        super().__init__()
        self.tp_rank = get_tensor_model_parallel_rank()
        self.tp_size = get_tensor_model_parallel_world_size()
        self.skip_bias_add = skip_bias_add
        self.reduce_results = reduce_results
        self.weight = nn.Parameter(torch.empty(output_size, divide(input_size, self.tp_size)))
        self.bias = nn.Parameter(torch.zeros(output_size)) if bias else None
        self.linear = Linear()
        self.all_reduce = AllReduce()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs (tokens, outputs) of (tokens, inputs / ranks), and the bias if ``skip_bias_add``."""
        added = None if self.skip_bias_add or self.tp_rank else self.bias
        output = self.linear(x, self.weight, added)
        if self.reduce_results and self.tp_size > 1:
            output = self.all_reduce(output)
        return output, self.bias if self.skip_bias_add else None

    def weight_loader(self, param: Tensor, loaded_weight: Tensor) -> None:
        """Copy this rank's columns of the whole weight, or the bias."""
        own = part(loaded_weight, 1, self.tp_rank, self.weight.shape[1]) if param.dim() > 1 else loaded_weight
        param.data.copy_(own)


class VocabParallelEmbedding(nn.Module):
    """Look up the tokens of this rank's range, and add up the ranks' results; rows that fill the padding are 0.

    Differs from vLLM: no ``params_dtype``, ``org_num_embeddings``, ``quant_config`` and ``prefix``.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, padding_size: int = VOCAB_PADDING) -> None:
        super().__init__()
        self.tp_size = get_tensor_model_parallel_world_size()
        padded = -(-num_embeddings // padding_size) * padding_size
        rows = divide(padded, self.tp_size)
        self.start = get_tensor_model_parallel_rank() * rows
        self.own_rows = max(0, min(rows, num_embeddings - self.start))
        self.weight = nn.Parameter(torch.zeros(rows, embedding_dim))
        self.embedding = Embedding()
        self.all_reduce = AllReduce()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return (tokens, embedding_dim) of (tokens,)."""
        if self.tp_size == 1:
            return self.embedding(input_ids, self.weight)
        own = input_ids - self.start
        foreign = (own < 0) | (own >= self.own_rows)
        rows = self.embedding(own.masked_fill(foreign, 0), self.weight)
        return self.all_reduce(rows.masked_fill(foreign[:, None], 0))

    def weight_loader(self, param: Tensor, loaded_weight: Tensor) -> None:
        """Copy this rank's rows of the whole weight."""
        param.data[: self.own_rows].copy_(loaded_weight[self.start : self.start + self.own_rows])


class ParallelLMHead(VocabParallelEmbedding):
    """Compute the logits of this rank's tokens, without those of the padding.

    Differs from vLLM, besides as its base class does: ``forward`` computes, where vLLM's raises an error.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        *,
        padding_size: int = VOCAB_PADDING,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_size=padding_size)
        self.bias = nn.Parameter(torch.zeros(self.weight.shape[0])) if bias else None
        self.linear = Linear()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return this rank's logits (tokens, own tokens of the vocabulary) of (tokens, embedding_dim)."""
        return self.linear(hidden_states, self.weight, self.bias)[..., : self.own_rows]


class LlamaAttention(nn.Module):
    """Attend to the earlier tokens of each sequence in the cache, with this rank's heads.

    Differs from vLLM: ``rotary_emb`` is given, ``qk_norm`` as in its ``Qwen3Attention``, and the cache is an attribute.
    """

    def __init__(
        self,
        config: ModelConfig,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        rotary_emb: nn.Module,
        bias: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.qkv_proj = QKVParallelLinear(hidden_size, self.head_dim, num_heads, num_kv_heads, bias)
        self.o_proj = RowParallelLinear(num_heads * self.head_dim, hidden_size, bias=False)
        self.num_heads, self.num_kv_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if qk_norm else None
        self.rotary_emb = rotary_emb
        self.store_kvcache = StoreKVCache()
        self.prefill = FlashAttnPrefill()
        self.decode = FlashAttnDecode()
        self.kv_cache: Tensor | None = None

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Make an empty cache (keys and values, num_blocks, block_size, kv_heads, head_dim) where the weights are."""
        shape = (2, num_blocks, block_size, self.num_kv_heads, self.head_dim)
        self.kv_cache = self.o_proj.weight.new_zeros(shape)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``; ``positions`` is (tokens,).

        Raises:
            RuntimeError: There is no cache.
            LookupError: Called outside of ``set_forward_context``.
        """
        qkv, _ = self.qkv_proj(hidden_states)
        keys = self.num_kv_heads * self.head_dim
        q, k, v = qkv.split([self.num_heads * self.head_dim, keys, keys], dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = (self._normalize(norm, x) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        q, k = self.rotary_emb(positions, q, k)
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        output, _ = self.o_proj(self._attend(q, k, v).flatten(1))
        return output

    def _normalize(self, norm: RMSNorm, x: Tensor) -> Tensor:
        return norm(x.unflatten(-1, (-1, self.head_dim))).flatten(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return (tokens, heads, head_dim): the first sequences decode, the others prefill."""
        if self.kv_cache is None:
            raise RuntimeError("allocate_kv_cache has not been called")
        batch, caches = get_forward_context(), self.kv_cache.unbind()
        self.store_kvcache(key, value, *caches, batch.slot_mapping)
        first = batch.num_decodes
        outputs = []
        if first:
            outputs.append(
                self.decode(query[:first], *caches, batch.block_tables[:first], batch.seq_lens[:first])
            )
        if batch.query_lens[first:]:
            lengths = batch.query_lens[first:], batch.lengths[first:]
            outputs.append(self.prefill(query[first:], *caches, batch.block_tables[first:], *lengths))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class LlamaMLP(nn.Module):
    """Project up, apply SwiGLU and project down; differs from vLLM: no ``quant_config``, ``prefix``, ``reduce_results``."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, hidden_act: str = "silu", *, bias: bool = False
    ) -> None:
        super().__init__()
        if hidden_act != "silu":
            raise ValueError(f"hidden_act {hidden_act!r} is not silu")
        self.gate_up_proj = MergedColumnParallelLinear(hidden_size, [intermediate_size] * 2, bias)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias)
        self.act_fn = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``x``."""
        gate_up, _ = self.gate_up_proj(x)
        output, _ = self.down_proj(self.act_fn(gate_up))
        return output


class FusedMoE(nn.Module):
    """Apply each token's experts, of which every rank has a share of the intermediate columns.

    Differs from vLLM: no expert parallelism, grouped choice of experts, shared experts or quantization.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        reduce_results: bool = False,
        renormalize: bool = True,
    ) -> None:
        super().__init__()
        self.tp_rank = get_tensor_model_parallel_rank()
        self.tp_size = get_tensor_model_parallel_world_size()
        self.reduce_results = reduce_results
        self.top_k = top_k
        self.own_size = divide(intermediate_size, self.tp_size)
        self.w13_weight = nn.Parameter(torch.empty(num_experts, 2 * self.own_size, hidden_size))
        self.w2_weight = nn.Parameter(torch.empty(num_experts, hidden_size, self.own_size))
        self.topk_softmax = TopKSoftmax(top_k, renormalize)
        self.align = MoEAlign(num_experts)
        self.grouped_gemm = MoEGroupedGemm()
        self.act_fn = SiluAndMul()
        self.sum = MoESum()
        self.all_reduce = AllReduce()

    def forward(self, hidden_states: Tensor, router_logits: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``; logits are (tokens, experts)."""
        weights, experts = self.topk_softmax(router_logits)
        order, ends = self.align(experts)
        gate_up = self.grouped_gemm(hidden_states[order // self.top_k], self.w13_weight, ends)
        down = self.grouped_gemm(self.act_fn(gate_up), self.w2_weight, ends)
        output = self.sum(down, order, weights)
        if self.reduce_results and self.tp_size > 1:
            output = self.all_reduce(output)
        return output

    def weight_loader(
        self, param: Tensor, loaded_weight: Tensor, shard_id: Literal["w1", "w2", "w3"], expert_id: int
    ) -> None:
        """Copy this rank's share of one expert's gate (w1), up (w3) or down (w2) projection."""
        expert = param.data[expert_id]
        own = part(loaded_weight, 1 if shard_id == "w2" else 0, self.tp_rank, self.own_size)
        if shard_id != "w2":
            expert = part(expert, 0, 0 if shard_id == "w1" else 1, self.own_size)
        expert.copy_(own)


class MixtralMoE(nn.Module):
    """Route each token to its experts; differs from vLLM: no dtypes, ``quant_config``, ``tp_size`` and ``prefix``."""

    def __init__(self, num_experts: int, top_k: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate = ReplicatedLinear(hidden_size, num_experts, bias=False)
        self.experts = FusedMoE(num_experts, top_k, hidden_size, intermediate_size, reduce_results=True)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``."""
        router_logits, _ = self.gate(hidden_states)
        return self.experts(hidden_states, router_logits)


class Qwen3MoeSparseMoeBlock(nn.Module):
    """Route each token to its experts; differs from vLLM: ``config`` instead of vLLM's own, and no ``prefix``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.experts
        experts = config.experts
        self.gate = ReplicatedLinear(config.hidden_size, experts.num_experts, bias=False)
        self.experts = FusedMoE(
            experts.num_experts,
            experts.num_experts_per_tok,
            config.hidden_size,
            experts.intermediate_size,
            reduce_results=True,
            renormalize=experts.norm_topk_prob,
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``."""
        router_logits, _ = self.gate(hidden_states)
        return self.experts(hidden_states, router_logits)
