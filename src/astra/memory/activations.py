"""What the forward pass saves for the backward pass, per layer and micro-batch. [bytes]

Starts from Korthikanti et al. 2022 (arXiv 2205.05198), counted tensor by tensor for the layers
of today: fused attention (no S x S matrix), grouped queries, gated MLPs, latent attention,
experts, sequence and context parallelism, fp8 inputs, and each way to recompute.
"""

from dataclasses import dataclass

import numpy as np

from astra.hardware.stack import Stack
from astra.memory.constants import copies_output, memory_constants
from astra.memory.states import FP4_BYTES
from astra.model.layer_kinds import LayerKind
from astra.model.shape import Mla, Model, Moe
from astra.strategy.plans import Flags, Floats, Plans, Task
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.stage_view import StageView


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ShardSizes:
    """What one GPU holds of the tensors of a layer. (pipeline, slot, plan)"""

    tokens: Floats  # of one micro-batch on this GPU, context parallelism counted
    tp: Floats
    sp: Floats  # tp where the sequence is shared among tensor-parallel ranks, else 1
    kv: Floats  # tp, but never finer than one key-value head
    etp: Floats
    element: Floats  # bytes of an activation
    gemm: Floats  # bytes of a saved input of a matrix product
    modules: Floats  # bits of selectively recomputed modules
    dropout: bool  # masks are saved
    outputs: Floats  # attention's outputs that are saved: 1, or 2 where one is a copy
    routed_copies: float  # of the tokens that experts hand back
    query_copies: float  # of latent attention's queries, and of all of a fused product
    eager: bool  # every operation saves its own inputs
    hugging_face: bool  # layers are its: a window is a mask

    def recomputes(self, module: str) -> Flags:
        return self.modules.astype(np.int64) >> MODULES.index(module) & 1 == 1


def shard_sizes(view: StageView, stack: Stack) -> ShardSizes:
    """Sizes and divisors of every slot."""
    plans, stages, task = view.plans, view.stages, view.task
    tp = stages.of(plans.tp).astype(np.float64)
    wide = is_word(plans, "precision", "fp32")
    element = np.where(wide, 4.0, 2.0)
    saved = np.where(is_word(plans, "precision", "fp8"), 1.0, element)
    saved = np.where(is_word(plans, "precision", "fp4"), FP4_BYTES, saved)
    return ShardSizes(
        tokens=stages.of(plans.segment_micro_batch) * plans.seq_len / plans.cp,
        tp=tp,
        sp=np.where(plans.sequence_parallel, tp, 1.0),
        kv=np.minimum(tp, task.model.kv_heads),
        etp=stages.of(plans.segment_etp).astype(np.float64),
        element=np.broadcast_to(element, tp.shape),
        gemm=np.broadcast_to(saved, tp.shape),
        modules=stages.of(plans.recompute_modules).astype(np.float64),
        dropout=stack.dropout,
        outputs=_outputs(view, stack),
        routed_copies=stack.routed_copies,
        query_copies=stack.query_copies,
        eager=stack.layers == "eager",
        hugging_face=stack.layers != "fused",
    )


def _outputs(view: StageView, stack: Stack) -> Floats:
    copied = [copies_output(pool.gpu, view.task, stack) for pool in view.task.cluster.pools]
    if not any(copied):
        return np.ones((1, 1, 1))
    flash = is_word(view.plans, "attention", "flash")
    return 1.0 + (np.array(copied)[view.stages.of(view.plans.gpu)] & flash)


def layer_bytes(kind: LayerKind, plans: Plans, shards: ShardSizes, task: Task) -> Floats:
    """Saved of one layer of this kind for one micro-batch, selective recompute counted."""
    model = task.model
    per_token = _norms(model, kind, shards) + _attention(model, plans, shards)
    if shards.hugging_face and kind.window is not None:
        per_token = per_token + _mask(model, kind, plans, shards)
    per_token += (
        _experts(model, plans, shards) if kind.mlp == "moe" else _mlp(model, model.ffn, shards)
    )
    return shards.tokens * per_token


def by_operator_bytes(kind: LayerKind, shards: ShardSizes, task: Task) -> Floats:
    """Saved of one layer where operators are chosen: torchtitan's `selective`.

    It saves the layer's input, attention's output and every second matrix product's, and
    recomputes the rest. Half of the products' widths stands for every second one.
    """
    model = task.model
    hidden, queries = model.hidden, model.heads * model.head_dim
    latent = model.mla.kv_lora_rank + (model.mla.q_lora_rank or 0) if model.mla else 0
    values = model.heads * model.mla.v_head_dim if model.mla else queries
    keys = values if model.mla else model.kv_heads * model.head_dim
    ups = 1 + model.gated_mlp
    if kind.mlp == "moe" and model.moe:
        routed = model.moe.top_k * memory_constants().routing.imbalance
        mlp = (
            routed * (ups * model.moe.moe_ffn + hidden) / shards.sp
            + ups * model.moe.shared_ffn / shards.tp
        )
    else:
        mlp = ups * model.ffn / shards.tp + hidden / shards.sp
    attention = (queries / shards.tp + 2 * keys / shards.kv) + (latent + hidden) / shards.sp
    saved = hidden / shards.sp + values / shards.tp + (attention + mlp) / 2
    return shards.tokens * (shards.element * saved + 4.0 * model.heads / shards.tp)


def checkpoint_bytes(model: Model, shards: ShardSizes) -> Floats:
    """The input of a layer, all that full recompute saves of it."""
    return shards.tokens * shards.element * model.hidden / shards.sp


def _norms(model: Model, kind: LayerKind, shards: ShardSizes) -> Floats:
    """Inputs of the norms (the residual stream), and what they hand to matrix products."""
    inputs = model.norms_per_layer * _normed(model, shards) * model.hidden
    attention_in = shards.gemm * model.hidden
    mlp_in = (shards.element if kind.mlp == "moe" else shards.gemm) * model.hidden
    outputs = np.where(shards.recomputes("layernorm"), 0.0, attention_in + mlp_in)
    return (inputs + outputs) / shards.sp


def _normed(model: Model, shards: ShardSizes) -> Floats:
    """Bytes of an element that a norm saves."""
    if shards.eager and model.norm == "rmsnorm":
        return np.full(shards.element.shape, memory_constants().eager.normed_bytes)
    return shards.element


def _attention(model: Model, plans: Plans, shards: ShardSizes) -> Floats:
    if model.mla is not None:
        saved = _latent(model, model.mla, shards)
        values = model.heads * model.mla.v_head_dim
    else:
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        saved = shards.element * (queries / shards.tp + 2 * keys / shards.kv)
        if model.qk_norm is not None:
            saved = saved + _normed(model, shards) * (queries / shards.tp + keys / shards.kv)
        if model.fused_qkv:  # values are a view, which holds what queries and keys were turned from
            turned = queries / shards.tp + keys / shards.kv
            saved = saved + shards.query_copies * shards.element * turned
        values = queries
    narrow = shards.gemm < shards.element
    output = (
        (shards.outputs * shards.element + np.where(narrow, shards.gemm, 0.0)) * values / shards.tp
    )
    fused = is_word(plans, "attention", "flash")
    sums = np.where(fused, 4.0 * model.heads / shards.tp, 0.0)  # log-sum-exp of every row, fp32
    return saved + output + sums + _score_matrix(model, plans, shards)


def _score_matrix(model: Model, plans: Plans, shards: ShardSizes) -> Floats:
    """Unfused attention saves the softmax, and what dropout makes of it and its mask of one byte:
    5 a s^2 b in the paper.
    """
    saved_bytes = shards.element + shards.dropout * (shards.element + 1.0)
    square = saved_bytes * model.heads * plans.seq_len / shards.tp
    saved = is_word(plans, "attention", "unfused") & ~shards.recomputes("core_attn")
    return np.where(saved, square, 0.0)


def _mask(model: Model, kind: LayerKind, plans: Plans, shards: ShardSizes) -> Floats:
    """PyTorch's attention with a mask: keys and values are repeated for every head, and the mask
    of one sample is saved as numbers that are added to the scores.
    """
    repeated = 2 * (model.heads - model.kv_heads) * model.head_dim / shards.tp
    added = plans.seq_len**2 / np.maximum(shards.tokens, 1.0)
    masked = plans.seq_len >= (kind.window or 0)
    return np.where(masked, shards.element * (repeated + added), 0.0)


def _latent(model: Model, mla: Mla, shards: ShardSizes) -> Floats:
    """Latents before and after their norms, and the heads unfolded from them."""
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    queries = (2 + shards.query_copies) * query
    unfolded = model.heads * (queries + mla.qk_nope_head_dim + mla.v_head_dim)
    up = np.where(shards.recomputes("mla_up_proj"), 0.0, shards.element * unfolded / shards.tp)
    return (_normed(model, shards) + shards.gemm) * latents / shards.sp + up


def _mlp(model: Model, width: int, shards: ShardSizes, module: str = "mlp") -> Floats:
    """What goes into the activation (gate and up) and what comes out of it.

    PyTorch's ReLU needs no more than what came out.
    """
    ups = 1 + model.gated_mlp
    if shards.hugging_face and model.activation == "relu" and not model.gated_mlp:
        ups = 0
    saved = (ups * shards.element + _gate(model, shards) + shards.gemm) * width / shards.tp
    return np.where(shards.recomputes(module), 0.0, saved)


def _gate(model: Model, shards: ShardSizes) -> float:
    """Bytes of an element that a gate saves beside what goes into it and what comes out."""
    return memory_constants().eager.gated_bytes if shards.eager and model.gated_mlp else 0.0


def _experts(model: Model, plans: Plans, shards: ShardSizes) -> Floats:
    """Dispatched tokens, what experts make of them, and the shared experts."""
    moe = model.moe
    assert moe is not None
    routed = routed_tokens(moe, plans) / shards.sp
    ups = 1 + model.gated_mlp
    inputs = (
        routed * shards.etp * model.hidden * (shards.gemm + shards.routed_copies * shards.element)
    )
    before = routed * moe.moe_ffn * (ups * shards.element + _gate(model, shards))
    made = shards.gemm
    if not model.gated_mlp:  # only gated activations weigh by the router's score in one kernel
        made = made + shards.element
    after = np.where(shards.recomputes("moe_act"), 0.0, routed * moe.moe_ffn * made)
    router = 8.0 * moe.experts / shards.sp
    shared = _mlp(model, moe.shared_ffn, shards, "shared_experts")
    return np.where(shards.recomputes("moe"), 0.0, inputs + before + after + router + shared)


def routed_tokens(moe: Moe, plans: Plans) -> Floats:
    """Tokens that experts see for each token that comes in, on the fullest rank."""
    usual = memory_constants().routing.imbalance
    factor = np.where(np.isnan(plans.capacity_factor), usual, plans.capacity_factor)
    return moe.top_k * factor
