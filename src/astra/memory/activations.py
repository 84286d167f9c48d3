"""What the forward pass keeps for the backward pass, per layer and micro-batch. [bytes]

Starts from Korthikanti et al. 2022 (arXiv 2205.05198), counted tensor by tensor for the layers
of today: fused attention (no S x S matrix), grouped queries, gated MLPs, latent attention,
experts, sequence and context parallelism, fp8 inputs, and each way to recompute.
"""

from dataclasses import dataclass

import numpy as np

from astra.hardware.stack import Stack
from astra.memory.constants import copies_output, memory_constants
from astra.memory.states import FP4_BYTES
from astra.model.kinds import LayerKind
from astra.model.shape import Mla, Model, Moe
from astra.strategy.plans import Flags, Floats, Plans, Task
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.view import View


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ShardSizes:
    """What divides the tensors of a layer. (pipeline, run, plan)"""

    tokens: Floats  # of one micro-batch on this GPU, context parallelism counted
    tp: Floats
    sp: Floats  # tp where the sequence is shared among tensor-parallel ranks, else 1
    kv: Floats  # tp, but never finer than one key-value head
    etp: Floats
    element: Floats  # bytes of an activation
    gemm: Floats  # bytes of a saved input of a matrix product
    modules: Floats  # bits of selectively recomputed modules
    dropout: bool  # masks are kept
    outputs: Floats  # attention's outputs that are kept: 1, or 2 where one is a copy
    routed_copies: float  # of the tokens that experts hand back
    query_copies: float  # of latent attention's queries, and of all of a fused product
    eager: bool  # every operation keeps its own inputs
    hugging_face: bool  # layers are its: a window is a mask

    def recomputes(self, module: str) -> Flags:
        return self.modules.astype(np.int64) >> MODULES.index(module) & 1 == 1


def shard_sizes(view: View, stack: Stack) -> ShardSizes:
    """The divisors of every run."""
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


def _outputs(view: View, stack: Stack) -> Floats:
    copied = [copies_output(pool.gpu, view.task, stack) for pool in view.task.cluster.pools]
    if not any(copied):
        return np.ones((1, 1, 1))
    flash = is_word(view.plans, "attention", "flash")
    return 1.0 + (np.array(copied)[view.stages.of(view.plans.gpu)] & flash)


def layer_bytes(kind: LayerKind, plans: Plans, cut: ShardSizes, task: Task) -> Floats:
    """Kept of one layer of this kind for one micro-batch, selective recompute counted."""
    model = task.model
    per_token = _norms(model, kind, cut) + _attention(model, plans, cut)
    if cut.hugging_face and kind.window is not None:
        per_token = per_token + _mask(model, kind, plans, cut)
    per_token += _experts(model, plans, cut) if kind.mlp == "moe" else _mlp(model, model.ffn, cut)
    return cut.tokens * per_token


def by_operator_bytes(kind: LayerKind, cut: ShardSizes, task: Task) -> Floats:
    """Kept of one layer where operators are chosen: torchtitan's `selective`.

    It keeps the layer's input, attention's output and every second matrix product's, and does
    the rest again. Half of the products' widths stands for every second one.
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
            routed * (ups * model.moe.moe_ffn + hidden) / cut.sp
            + ups * model.moe.shared_ffn / cut.tp
        )
    else:
        mlp = ups * model.ffn / cut.tp + hidden / cut.sp
    attention = (queries / cut.tp + 2 * keys / cut.kv) + (latent + hidden) / cut.sp
    kept = hidden / cut.sp + values / cut.tp + (attention + mlp) / 2
    return cut.tokens * (cut.element * kept + 4.0 * model.heads / cut.tp)


def checkpoint_bytes(model: Model, cut: ShardSizes) -> Floats:
    """The input of a layer, all that full recompute keeps of it."""
    return cut.tokens * cut.element * model.hidden / cut.sp


def _norms(model: Model, kind: LayerKind, cut: ShardSizes) -> Floats:
    """Inputs of the norms (the residual stream), and what they hand to matrix products."""
    inputs = model.norms_per_layer * _normed(model, cut) * model.hidden
    attention_in = cut.gemm * model.hidden
    mlp_in = (cut.element if kind.mlp == "moe" else cut.gemm) * model.hidden
    outputs = np.where(cut.recomputes("layernorm"), 0.0, attention_in + mlp_in)
    return (inputs + outputs) / cut.sp


def _normed(model: Model, cut: ShardSizes) -> Floats:
    """Bytes of an element that a norm keeps."""
    if cut.eager and model.norm == "rmsnorm":
        return np.full(cut.element.shape, memory_constants().eager.normed_bytes)
    return cut.element


def _attention(model: Model, plans: Plans, cut: ShardSizes) -> Floats:
    if model.mla is not None:
        kept = _latent(model, model.mla, cut)
        values = model.heads * model.mla.v_head_dim
    else:
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        kept = cut.element * (queries / cut.tp + 2 * keys / cut.kv)
        if model.qk_norm is not None:
            kept = kept + _normed(model, cut) * (queries / cut.tp + keys / cut.kv)
        if model.fused_qkv:  # values are a view, which holds what queries and keys were turned from
            turned = queries / cut.tp + keys / cut.kv
            kept = kept + cut.query_copies * cut.element * turned
        values = queries
    narrow = cut.gemm < cut.element
    output = (cut.outputs * cut.element + np.where(narrow, cut.gemm, 0.0)) * values / cut.tp
    fused = is_word(plans, "attention", "flash")
    sums = np.where(fused, 4.0 * model.heads / cut.tp, 0.0)  # log-sum-exp of every row, fp32
    return kept + output + sums + _score_matrix(model, plans, cut)


def _score_matrix(model: Model, plans: Plans, cut: ShardSizes) -> Floats:
    """Unfused attention keeps the softmax, and what dropout makes of it and its mask of one byte:
    5 a s^2 b in the paper.
    """
    saved_bytes = cut.element + cut.dropout * (cut.element + 1.0)
    square = saved_bytes * model.heads * plans.seq_len / cut.tp
    kept = is_word(plans, "attention", "unfused") & ~cut.recomputes("core_attn")
    return np.where(kept, square, 0.0)


def _mask(model: Model, kind: LayerKind, plans: Plans, cut: ShardSizes) -> Floats:
    """PyTorch's attention with a mask: keys and values are repeated for every head, and the mask
    of one sample is kept as numbers that are added to the scores.
    """
    repeated = 2 * (model.heads - model.kv_heads) * model.head_dim / cut.tp
    added = plans.seq_len**2 / np.maximum(cut.tokens, 1.0)
    masked = plans.seq_len >= (kind.window or 0)
    return np.where(masked, cut.element * (repeated + added), 0.0)


def _latent(model: Model, mla: Mla, cut: ShardSizes) -> Floats:
    """Latents before and after their norms, and the heads unfolded from them."""
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    queries = (2 + cut.query_copies) * query
    unfolded = model.heads * (queries + mla.qk_nope_head_dim + mla.v_head_dim)
    up = np.where(cut.recomputes("mla_up_proj"), 0.0, cut.element * unfolded / cut.tp)
    return (_normed(model, cut) + cut.gemm) * latents / cut.sp + up


def _mlp(model: Model, width: int, cut: ShardSizes, module: str = "mlp") -> Floats:
    """What goes into the activation (gate and up) and what comes out of it.

    PyTorch's ReLU needs no more than what came out.
    """
    ups = 1 + model.gated_mlp
    if cut.hugging_face and model.activation == "relu" and not model.gated_mlp:
        ups = 0
    kept = (ups * cut.element + _gate(model, cut) + cut.gemm) * width / cut.tp
    return np.where(cut.recomputes(module), 0.0, kept)


def _gate(model: Model, cut: ShardSizes) -> float:
    """Bytes of an element that a gate keeps beside what goes into it and what comes out."""
    return memory_constants().eager.gated_bytes if cut.eager and model.gated_mlp else 0.0


def _experts(model: Model, plans: Plans, cut: ShardSizes) -> Floats:
    """Dispatched tokens, what experts make of them, and the shared experts."""
    moe = model.moe
    assert moe is not None
    routed = routed_tokens(moe, plans) / cut.sp
    ups = 1 + model.gated_mlp
    inputs = routed * cut.etp * model.hidden * (cut.gemm + cut.routed_copies * cut.element)
    before = routed * moe.moe_ffn * (ups * cut.element + _gate(model, cut))
    made = cut.gemm
    if not model.gated_mlp:  # only gated activations weigh by the router's score in one kernel
        made = made + cut.element
    after = np.where(cut.recomputes("moe_act"), 0.0, routed * moe.moe_ffn * made)
    router = 8.0 * moe.experts / cut.sp
    shared = _mlp(model, moe.shared_ffn, cut, "shared_experts")
    return np.where(cut.recomputes("moe"), 0.0, inputs + before + after + router + shared)


def routed_tokens(moe: Moe, plans: Plans) -> Floats:
    """Tokens that experts see for each token that comes in, on the fullest rank."""
    usual = memory_constants().routing.imbalance
    factor = np.where(np.isnan(plans.capacity_factor), usual, plans.capacity_factor)
    return moe.top_k * factor
