"""Weights, gradients and optimizer states of one GPU of each stage. [bytes]

Each parameter is divided by what really cuts it, each state by what really shards it
(Megatron-LM: fp32 main gradients, fp32 master weights, two Adam moments).
"""

from dataclasses import dataclass

import numpy as np

from astra.model.kinds import layer_kinds
from astra.model.parameters import Cut, Weight, end_weights, layer_weights, mtp_weights
from astra.model.shape import Model
from astra.strategy.plans import WORDS, Flags, Floats, Plans, Task
from astra.strategy.rules.rule import is_word
from astra.strategy.stages import Stages

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters that one GPU of a stage holds. (pipeline, run, plan)"""

    dense: Floats  # replicated over dp x cp
    experts: Floats  # replicated over the expert-data-parallel ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes of one GPU of each stage. (pipeline, run, plan)"""

    weights_bytes: Floats
    gradients_bytes: Floats
    optimizer_bytes: Floats
    host_bytes: Floats  # optimizer states kept on the host


def held_parameters(plans: Plans, stages: Stages, task: Task) -> Held:
    """Parameters on one GPU: layers of every kind, and the ends where they lie."""
    model = task.model
    dense = np.zeros(stages.count.shape)
    experts = np.zeros(stages.count.shape)
    for row, kind in enumerate(layer_kinds(model).kinds):
        layers = stages.kind_layers[row]
        inside, routed = _cut(layer_weights(model, kind), plans, stages, task)
        dense += layers * inside
        experts += layers * routed
    for part, where in _ends(plans, stages, model):
        inside, _ = _cut(part, plans, stages, task)
        dense += np.where(where, inside, 0.0)
    if model.mtp_layers:
        inside, routed = _cut(mtp_weights(model), plans, stages, task)
        extra = np.where(stages.head, plans.mtp_layers, 0)
        dense += extra * inside
        experts += extra * routed
    return Held(dense=dense, experts=experts)


def _ends(plans: Plans, stages: Stages, model: Model) -> list[tuple[list[Weight], Flags]]:
    """Embedding on the first stage, head on the last; tied ones live twice when stages differ."""
    weights = end_weights(model)
    first = [weight for weight in weights if weight.part in ("embedding", "positions")]
    last = [weight for weight in weights if weight.part in ("head", "final_norm")]
    found = [(first, stages.embedding), (last, stages.head)]
    if model.tied_embeddings:
        copy = [weight for weight in first if weight.name == "embedding"]
        found.append((copy, stages.head & ~stages.embedding))
    if model.mtp_layers:  # multi-token prediction embeds the next tokens on the last stage
        copy = [weight for weight in first if weight.name == "embedding"]
        if not model.tied_embeddings:
            found.append((copy, stages.head & ~stages.embedding & (plans.mtp_layers > 0)))
    return found


def _cut(
    weights: list[Weight] | tuple[Weight, ...], plans: Plans, stages: Stages, task: Task
) -> tuple[Floats, Floats]:
    """Parameters per GPU of these weights: dense and routed ones."""
    tp = stages.of(plans.tp)
    divisors: dict[Cut, Floats] = {
        "tp": tp,
        "kv": np.minimum(tp, task.model.kv_heads),
        "whole": np.ones_like(tp),
        "ep": stages.of(plans.segment_ep),
        "ep_etp": stages.of(plans.segment_ep) * stages.of(plans.segment_etp),
    }
    dense = np.zeros(tp.shape)
    routed = np.zeros(tp.shape)
    for weight in weights:
        share = _padded(weight, tp, task) / divisors[weight.cut]
        if weight.cut in ("ep", "ep_etp"):
            routed += share
        else:
            dense += share
    return dense, routed


def _padded(weight: Weight, tp: Floats, task: Task) -> Floats:
    """Megatron-LM pads the vocabulary to a multiple of 128 x TP; plain PyTorch does not."""
    vocab = task.model.vocab
    if task.runtime in ("fsdp", "deepspeed") or weight.count % vocab or weight.cut != "tp":
        return np.full(tp.shape, float(weight.count))
    if weight.part not in ("embedding", "head"):
        return np.full(tp.shape, float(weight.count))
    step = 128 * tp
    return weight.count / vocab * (-(-vocab // step) * step)


def states(plans: Plans, stages: Stages, task: Task) -> States:
    """Bytes of weights, gradients and optimizer of one GPU of each stage.

    With P parameters on the GPU, R copies and a shard group of G:
        none        weights 2 P, gradients g P, optimizer (4 + 8) P
        optimizer   optimizer / G
        gradients   gradients too / G
        parameters  weights too / G (what is gathered for a layer is a buffer)
    """
    held = held_parameters(plans, stages, task)
    dense_group = np.maximum(plans.shard_group, 1).astype(np.float64)
    copies = np.maximum(plans.dp[0, 0] * plans.cp, 1)
    expert_copies = stages.of(plans.tp) * plans.cp * stages.of(plans.dp)
    expert_copies = expert_copies / (stages.of(plans.segment_ep) * stages.of(plans.segment_etp))
    expert_group = np.maximum(expert_copies * dense_group / copies, 1.0)
    level = plans.sharding

    def sharded(amount: Floats, group: Floats, from_level: int) -> Floats:
        return np.where(level >= from_level, amount / group, amount)

    def both(bytes_each: Floats, from_level: int) -> Floats:
        dense = sharded(held.dense * bytes_each, dense_group, from_level)
        return dense + sharded(held.experts * bytes_each, expert_group, from_level)

    optimizer = both(_optimizer_bytes(plans), 1)
    host = optimizer * plans.offload_optimizer_fraction
    return States(
        weights_bytes=both(_weight_bytes(plans), 3),
        gradients_bytes=both(_gradient_bytes(plans), 2),
        optimizer_bytes=optimizer - host,
        host_bytes=host,
    )


def _dtype_bytes(plans: Plans, column: str) -> Floats:
    sizes = np.array([DTYPE_BYTES[word] for word in WORDS[column]])
    return sizes[getattr(plans, column)]


def _weight_bytes(plans: Plans) -> Floats:
    """bf16 or fp16 weights; fp8 keeps them and caches an fp8 copy and its transpose."""
    full = is_word(plans, "precision", "fp32")
    eight = is_word(plans, "precision", "fp8")
    four = is_word(plans, "precision", "fp4")
    return np.select([full, eight, four], [4.0, 4.0, 3.5], 2.0)


def _gradient_bytes(plans: Plans) -> Floats:
    """The buffer that micro-batches add into has the dtype that is reduced."""
    return _dtype_bytes(plans, "grad_reduce_dtype")


def _optimizer_bytes(plans: Plans) -> Floats:
    """Master weights and Adam's two moments; training in fp32 needs no master."""
    master = _dtype_bytes(plans, "master_dtype")
    master = np.where(is_word(plans, "precision", "fp32"), 0.0, master)
    moments = _dtype_bytes(plans, "first_moment_dtype") + _dtype_bytes(plans, "second_moment_dtype")
    return master + moments
