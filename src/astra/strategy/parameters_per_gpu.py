"""Parameters that one GPU of every stage holds, each divided by what really shards it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astra.model.layer_kinds import layer_kinds
from astra.model.parameters import ShardedBy, Weight, end_weights, layer_weights, mtp_weights
from astra.model.shape import Model
from astra.strategy.plans import Flags, Floats, Plans, Task
from astra.strategy.stages import Stages


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ParametersPerGpu:
    """Parameters that one GPU of a stage holds. (pipeline, slot, plan)"""

    dense: Floats  # replicated over dp x cp
    experts: Floats  # replicated over the expert-data-parallel ranks


def parameters_per_gpu(plans: Plans, stages: Stages, task: Task) -> ParametersPerGpu:
    """Parameters on one GPU: layers of every kind, and the ends where they lie."""
    model = task.model
    dense = np.zeros(stages.count.shape)
    experts = np.zeros(stages.count.shape)
    for row, kind in enumerate(layer_kinds(model).kinds):
        layers = stages.kind_layers[row]
        inside, routed = _sharded(layer_weights(model, kind), plans, stages, task)
        dense += layers * inside
        experts += layers * routed
    for part, where in _ends(plans, stages, model):
        inside, _ = _sharded(part, plans, stages, task)
        dense += np.where(where, inside, 0.0)
    if model.mtp_layers:
        inside, routed = _sharded(mtp_weights(model), plans, stages, task)
        extra = np.where(stages.head, plans.mtp_layers, 0)
        dense += extra * inside
        experts += extra * routed
    return ParametersPerGpu(dense=dense, experts=experts)


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


def _sharded(
    weights: Sequence[Weight], plans: Plans, stages: Stages, task: Task
) -> tuple[Floats, Floats]:
    """Parameters per GPU of these weights: dense and routed ones."""
    tp = stages.of(plans.tp)
    divisors: dict[ShardedBy, Floats] = {
        "tp": tp,
        "kv": np.minimum(tp, task.model.kv_heads),
        "whole": np.ones_like(tp),
        "ep": stages.of(plans.segment_ep),
        "ep_etp": stages.of(plans.segment_ep) * stages.of(plans.segment_etp),
    }
    dense = np.zeros(tp.shape)
    routed = np.zeros(tp.shape)
    for weight in weights:
        share = _padded(weight, tp, task) / divisors[weight.sharded_by]
        if weight.sharded_by in ("ep", "ep_etp"):
            routed += share
        else:
            dense += share
    return dense, routed


def _padded(weight: Weight, tp: Floats, task: Task) -> Floats:
    """Parameters of a weight with the rows that the vocabulary is padded by."""
    if weight.part not in ("embedding", "head") or weight.sharded_by != "tp":
        return np.full(tp.shape, float(weight.count))
    return weight.count / task.model.vocab * padded_vocab(task, tp)


def padded_vocab(task: Task, tp: Floats) -> Floats:
    """Megatron-LM pads the vocabulary to a multiple of 128 x TP; plain PyTorch does not. [rows]"""
    step = np.ones_like(tp) if task.runtime in ("fsdp", "deepspeed") else 128.0 * tp
    return np.ceil(task.model.vocab / step) * step
