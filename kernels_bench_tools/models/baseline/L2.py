"""Blocks of several kernels; weights are split over the ranks."""

from __future__ import annotations

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
)
from kernels_bench_tools.models.config import VOCAB_PADDING, ModelConfig


class ReplicatedLinear(nn.Module):
    """Compute all outputs on every rank.

    Differs from vLLM, as all linear layers here: ``forward`` returns the outputs only, and there is no
    ``skip_bias_add``, ``params_dtype``, ``quant_config``, ``prefix`` and ``return_bias``.
    """

    def __init__(self, input_size: int, output_size: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_size, input_size))
        self.bias = nn.Parameter(torch.zeros(output_size)) if bias else None
        self.linear = Linear()

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs (tokens, outputs)."""
        return self.linear(x, self.weight, self.bias)


class ColumnParallelLinear(ReplicatedLinear):
    """Compute this rank's share of the outputs; no ``gather_output``."""

    def __init__(self, input_size: int, output_size: int, bias: bool = True) -> None:
        super().__init__(input_size, divide(output_size, get_tensor_model_parallel_world_size()), bias)


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Compute this rank's share of each output, side by side."""

    def __init__(self, input_size: int, output_sizes: list[int], bias: bool = True) -> None:
        ranks = get_tensor_model_parallel_world_size()
        super().__init__(input_size, ranks * sum(divide(size, ranks) for size in output_sizes), bias)


class QKVParallelLinear(ColumnParallelLinear):
    """Compute queries, keys and values of this rank's heads; ranks share a key head where there are fewer of them."""

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
    ) -> None:
        ranks = get_tensor_model_parallel_world_size()
        total_num_kv_heads = total_num_kv_heads or total_num_heads
        self.num_heads = divide(total_num_heads, ranks)
        heads_a_rank = divide(max(total_num_kv_heads, ranks), min(total_num_kv_heads, ranks))
        self.num_kv_heads = heads_a_rank if total_num_kv_heads >= ranks else 1
        super().__init__(hidden_size, ranks * (self.num_heads + 2 * self.num_kv_heads) * head_size, bias)


class RowParallelLinear(ReplicatedLinear):
    """Multiply this rank's share of the inputs, and add up the ranks' products; rank 0 adds the bias.

    Besides, it differs from vLLM in having no ``input_is_parallel`` (it is) and ``reduce_results``.
    """

    def __init__(self, input_size: int, output_size: int, bias: bool = True) -> None:
        self.tp_rank = get_tensor_model_parallel_rank()
        self.tp_size = get_tensor_model_parallel_world_size()
        super().__init__(divide(input_size, self.tp_size), output_size, bias)
        self.all_reduce = AllReduce()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (tokens, outputs) of (tokens, inputs / ranks)."""
        output = self.linear(x, self.weight, None if self.tp_rank else self.bias)
        return self.all_reduce(output) if self.tp_size > 1 else output


class VocabParallelEmbedding(nn.Module):
    """Look up the tokens of this rank's range, and add up the ranks' results; rows that fill the padding are 0.

    Differs from vLLM: no ``params_dtype``, ``org_num_embeddings``, ``padding_size``, ``quant_config`` and ``prefix``.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.tp_size = get_tensor_model_parallel_world_size()
        padded = -(-num_embeddings // VOCAB_PADDING) * VOCAB_PADDING
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


class ParallelLMHead(VocabParallelEmbedding):
    """Compute the logits of this rank's tokens, without those of the padding.

    Differs from vLLM, besides as its base class does: no ``bias``, and ``forward`` computes, where vLLM's raises an error.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__(num_embeddings, embedding_dim)
        self.linear = Linear()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return this rank's logits (tokens, own tokens of the vocabulary) of (tokens, embedding_dim)."""
        return self.linear(hidden_states, self.weight)[..., : self.own_rows]


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
        qkv = self.qkv_proj(hidden_states)
        keys = self.num_kv_heads * self.head_dim
        q, k, v = qkv.split([self.num_heads * self.head_dim, keys, keys], dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            both = (self.q_norm, q), (self.k_norm, k)
            q, k = (norm(x.unflatten(-1, (-1, self.head_dim))).flatten(1) for norm, x in both)
        q, k = self.rotary_emb(positions, q, k)
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        return self.o_proj(self._attend(q, k, v).flatten(1))

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
    """Project up, apply SwiGLU and project down; differs from vLLM: two arguments only, always SiLU without bias."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(hidden_size, [intermediate_size] * 2, bias=False)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias=False)
        self.act_fn = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``x``."""
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class FusedMoE(nn.Module):
    """Apply each token's experts, of which every rank has a share of the intermediate columns; the ranks' results are added up.

    Differs from vLLM: no ``reduce_results``, expert parallelism, grouped choice of experts, shared experts or quantization.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        renormalize: bool = True,
    ) -> None:
        super().__init__()
        self.tp_size = get_tensor_model_parallel_world_size()
        self.top_k = top_k
        own_size = divide(intermediate_size, self.tp_size)
        self.w13_weight = nn.Parameter(torch.empty(num_experts, 2 * own_size, hidden_size))
        self.w2_weight = nn.Parameter(torch.empty(num_experts, hidden_size, own_size))
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
        return self.all_reduce(output) if self.tp_size > 1 else output


class MixtralMoE(nn.Module):
    """Route each token to its experts; differs from vLLM: no dtypes, ``quant_config``, ``tp_size`` and ``prefix``."""

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        renormalize: bool = True,
    ) -> None:
        super().__init__()
        self.gate = ReplicatedLinear(hidden_size, num_experts, bias=False)
        self.experts = FusedMoE(num_experts, top_k, hidden_size, intermediate_size, renormalize=renormalize)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``."""
        return self.experts(hidden_states, self.gate(hidden_states))


class Qwen3MoeSparseMoeBlock(MixtralMoE):
    """The same, constructed of this package's ``config``."""

    def __init__(self, config: ModelConfig) -> None:
        experts = config.experts
        assert experts
        sizes = (
            experts.num_experts,
            experts.num_experts_per_tok,
            config.hidden_size,
            experts.intermediate_size,
        )
        super().__init__(*sizes, renormalize=experts.norm_topk_prob)
