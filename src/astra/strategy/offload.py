"""Activations that leave the GPU: layers that are offloaded whole, and how many values of a layer
each offloaded module saves.
"""

import numpy as np

from astra.model.layer_kinds import LayerKind, layer_kinds
from astra.model.shape import Model
from astra.strategy.plans import OFFLOAD_MODULES, Floats, Ints, Plans
from astra.strategy.rules.rule import is_word
from astra.strategy.stage_view import StageView


def offloaded_layers(plans: Plans, model: Model, kind: int) -> Ints:
    """Layers of this kind among the first ones, which are offloaded whole. (plan,)"""
    of_kind = np.cumsum(np.array(layer_kinds(model).of_layer) == kind)
    found: Ints = np.concatenate([[0], of_kind])[np.minimum(plans.offload_layers, model.layers)]
    return found


def offloaded_values(view: StageView, kind: LayerKind) -> Floats:
    """Values of one layer and micro-batch that go to the host. (pipeline, slot, plan)

    The inputs of the modules as Megatron-LM names them (`--offload-modules`): what tensor,
    sequence and expert parallelism leave of each on one GPU.
    """
    plans, stages = view.plans, view.stages
    tokens = stages.of(plans.segment_micro_batch) * plans.seq_len / plans.cp
    total = np.zeros(np.broadcast_shapes(tokens.shape, plans.offload_activations.shape))
    if not plans.offload_activations.any():
        return total
    tp = stages.of(plans.tp)
    shards = {
        "tp": tp,
        "kv": np.minimum(tp, view.task.model.kv_heads),
        "sp": np.where(plans.sequence_parallel, tp, 1),
    }
    for place, module in enumerate(OFFLOAD_MODULES):
        chosen = plans.offload_activations >> place & 1
        for width, sharded_by in _inputs(view.task.model, kind, module):
            total = total + chosen * tokens * width / shards[sharded_by]
        if module == "core_attn":  # all that it saves goes, also an unfused softmax
            square = is_word(plans, "attention", "unfused") * plans.seq_len * view.task.model.heads
            total = total + chosen * tokens * square / tp
    return total


def _inputs(model: Model, kind: LayerKind, module: str) -> list[tuple[float, str]]:
    """Width of a module's inputs per token, and what shards them."""
    hidden = float(model.hidden)
    if module in ("attn_norm", "mlp_norm", "qkv_linear"):
        return [(hidden, "sp")]
    if module == "core_attn":
        if model.mla is not None:
            query = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
            return [(float(model.heads * (2 * query + model.mla.v_head_dim)), "tp")]
        keys = 2.0 * model.kv_heads * model.head_dim
        return [(float(model.heads * model.head_dim), "tp"), (keys, "kv")]
    if module == "attn_proj":
        head = model.mla.v_head_dim if model.mla is not None else model.head_dim
        return [(float(model.heads * head), "tp")]
    if model.moe is None or kind.mlp != "moe":
        return []
    ups = 1 + model.gated_mlp
    width = hidden if module == "expert_fc1" else float(ups * model.moe.moe_ffn)
    return [(model.moe.top_k * width, "sp")]
