"""What Megatron-LM's layouts, process groups, layers and schedules can run."""

from dataclasses import replace

import numpy as np

from astra.strategy.dispatchers import dispatch_libraries
from astra.strategy.plans import Flags, Plans, Task
from astra.strategy.replica_groups import replicas_of_segment
from astra.strategy.rules.our_rules import HOLDS_EVERY_LAYER, OWN_DISPATCHER_NEEDS_EP
from astra.strategy.rules.rule import (
    Rule,
    constant,
    every_pipeline,
    every_slot,
    first_dp,
    first_pp,
    first_tp,
    is_word,
)

LAYOUT = "megatron/core/transformer/pipeline_parallel_layer_layout.py"
SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
GROUPS = "megatron/core/parallel_state.py initialize_model_parallel"
LAYERS = "megatron/core/tensor_parallel/layers.py"
TE = "transformer_engine/pytorch/attention"


def _expert_grid(plans: Plans, task: Task) -> Flags:
    if task.model.moe is None:
        return constant(plans, True)
    ranks = plans.tp * plans.cp * replicas_of_segment(plans)
    return every_slot((ranks % (plans.segment_etp * plans.segment_ep) == 0) | ~plans.used)


def _instances_divide_expert_copies(plans: Plans, task: Task) -> Flags:
    if task.model.moe is None:
        return constant(plans, True)
    copies = first_dp(plans) * plans.cp
    experts = first_tp(plans) * copies // np.maximum(plans.etp * plans.ep, 1)
    instances = np.maximum(copies // plans.shard_group, 1)
    return is_word(plans, "sharding", "none") | (experts % instances == 0)


def _dispatch_group(plans: Plans, _: Task) -> Flags:
    sizes = dispatch_libraries()["deepep"].group_sizes
    sized = np.isin(plans.segment_ep * plans.segment_etp, (1, *sizes))  # of one: another rule
    return ~is_word(plans, "dispatcher", "deepep") | every_slot(sized | ~plans.used)


def _rank_order(plans: Plans, task: Task) -> Flags:
    """With stages inside the data-parallel ranks, dense and expert copies must be as many."""
    if task.model.moe is None:
        return constant(plans, True)
    equal = plans.etp * plans.ep == first_tp(plans) * plans.cp
    return is_word(plans, "rank_order", "tp-cp-ep-dp-pp") | (first_pp(plans) == 1) | equal


def _group_range(plans: Plans, _: Task) -> Flags:
    group, count = plans.microbatch_groups, plans.micro_batches
    inside = (plans.pp <= group) & (group <= count)
    return (plans.vpp == 1) | every_pipeline(inside, plans)


def _group_remainder(plans: Plans, _: Task) -> Flags:
    rest = plans.micro_batches % np.maximum(plans.microbatch_groups, 1)
    good = (rest == 0) | (rest >= plans.pp)
    return (plans.vpp == 1) | every_pipeline(good, plans)


def _widths(plans: Plans, task: Task) -> Flags:
    """Every column-parallel width is a multiple of what shards it."""
    model = task.model
    divides = every_slot(model.ffn % plans.tp == 0)
    if model.moe:
        divides &= every_slot(model.moe.moe_ffn % plans.segment_etp == 0)
        divides &= every_slot(model.moe.shared_ffn % plans.tp == 0)
    return divides


def _sequence_cut(plans: Plans, _: Task) -> Flags:
    ranks = np.where(plans.sequence_parallel, first_tp(plans), 1) * plans.cp
    return plans.seq_len % ranks == 0


def _cp_heads(plans: Plans, task: Task) -> Flags:
    """Ulysses-style context parallelism exchanges heads."""
    groups = task.model.heads if task.model.mla else task.model.kv_heads
    parts = first_tp(plans) * plans.cp
    shared = (task.model.heads % parts == 0) & (groups % parts == 0)
    return (plans.cp == 1) | ~is_word(plans, "cp_comm_type", "a2a") | shared


LAYOUTS = (
    replace(
        HOLDS_EVERY_LAYER,
        layer="layout",
        where=LAYOUT,
        reason="Megatron: the layout's decoder layers must be the model's",
    ),
)

RUNTIME = (
    Rule(
        name="expert-grid-divides-world",
        layer="runtime",
        settings=("tp", "cp", "dp", "ep", "etp"),
        where=GROUPS,
        reason="Megatron: the GPUs of a stage must be divisible by ep x etp",
        holds=_expert_grid,
    ),
    OWN_DISPATCHER_NEEDS_EP,
    Rule(
        name="dispatch-group-has-a-size",
        layer="runtime",
        settings=("dispatcher", "ep", "etp"),
        where="deep_ep/buffer.py Buffer.get_dispatch_config",
        reason="DeepEP serves groups (ep x etp) of 2, 4, 8, 16, 24, 32, 64, 128, 144 or 160 GPUs",
        holds=_dispatch_group,
    ),
    Rule(
        name="optimizer-instances-divide-expert-copies",
        layer="runtime",
        settings=("shard_group", "ep", "etp"),
        where=GROUPS,
        reason="Megatron: the copies of the experts must be divisible by the number of "
        "distributed-optimizer instances",
        holds=_instances_divide_expert_copies,
    ),
    Rule(
        name="rank-order-keeps-expert-copies",
        layer="runtime",
        settings=("rank_order", "ep", "etp", "tp", "cp"),
        where=GROUPS,
        reason="Megatron: with pipeline ranks inside data-parallel ranks, dense and expert copies "
        "must be as many",
        holds=_rank_order,
    ),
    Rule(
        name="microbatch-group-in-range",
        layer="runtime",
        settings=("microbatch_group", "pp", "micro_batches", "vpp"),
        where=SCHEDULES,
        reason="Megatron: the micro-batch group of an interleaved schedule lies between the "
        "pipeline-parallel size and the number of micro-batches",
        holds=_group_range,
    ),
    Rule(
        name="microbatch-group-remainder",
        layer="runtime",
        settings=("microbatch_group", "pp", "micro_batches", "vpp"),
        where=SCHEDULES,
        reason="Megatron: the micro-batches left after whole groups must be none, or at least the "
        "pipeline-parallel size",
        holds=_group_remainder,
    ),
    Rule(
        name="tp-divides-widths",
        layer="runtime",
        settings=("tp", "etp", "model.ffn", "model.moe"),
        where=LAYERS,
        reason="Megatron: the MLP width must be divisible by tp, an expert's by etp",
        holds=_widths,
    ),
    Rule(
        name="sequence-cut-by-tp",
        layer="runtime",
        settings=("seq_len", "cp", "tp", "sequence_parallel"),
        where="megatron/core/tensor_parallel/mappings.py",
        reason="Megatron: the sequence must be divisible by cp, and by tp x cp with sequence "
        "parallelism",
        holds=_sequence_cut,
    ),
    Rule(
        name="a2a-divides-heads",
        layer="runtime",
        settings=("cp", "cp_comm_type", "tp", "model.kv_heads"),
        where=TE,
        reason="Transformer Engine: context parallelism by all-to-all needs heads and KV groups "
        "divisible by tp x cp",
        holds=_cp_heads,
    ),
    Rule(
        name="cp-needs-fused-attention",
        layer="runtime",
        settings=("cp", "attention"),
        where=TE,
        reason="Transformer Engine: context parallelism needs flash or fused attention",
        holds=lambda plans, _: (plans.cp == 1) | is_word(plans, "attention", "flash"),
    ),
)
