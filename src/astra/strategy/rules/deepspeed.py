"""What DeepSpeed 0.19 accepts: ZeRO stages, AutoTP, Ulysses sequence parallelism, its pipelines."""

import numpy as np

from astra.strategy.plans import Flags, Plans, Task
from astra.strategy.rules.fsdp import _states_fp32 as states_fp32
from astra.strategy.rules.our_rules import (
    BATCH_ADDS_UP,
    HOLDS_EVERY_LAYER,
    NO_HYBRIDEP,
    OWN_DISPATCHER_NEEDS_EP,
    same_for_all_stages,
)
from astra.strategy.rules.rule import Rule, every_slot, first_dp, first_pp, first_tp, is_word

CONFIG = "deepspeed/runtime/config.py"
PIPELINE = "deepspeed/runtime/pipe/engine.py"
ZERO = "deepspeed/runtime/zero/config.py"
AUTOTP = "deepspeed/runtime/tensor_parallel"
ULYSSES = "deepspeed/runtime/sequence_parallel/ulysses_sp.py"
FOLDING = "deepspeed/module_inject/auto_ep_folding.py"


def _expert_grid(plans: Plans, _: Task) -> Flags:
    ranks = first_dp(plans) * plans.cp * first_tp(plans)
    return every_slot(ranks % (plans.ep * plans.segment_etp) == 0)


def _experts_shared(plans: Plans, task: Task) -> Flags:
    return task.model.moe.experts % plans.ep == 0 if task.model.moe else plans.ep == 1


def _folding(plans: Plans, _: Task) -> Flags:
    """Expert groups that lie across tensor-parallel ranks."""
    folded = (plans.ep > 1) & (first_tp(plans) > 1)
    return ~folded | ((plans.cp == 1) & (plans.offload_optimizer_fraction == 0))


def _shard_group(plans: Plans, _: Task) -> Flags:
    whole = plans.shard_group == first_dp(plans) * plans.cp
    return is_word(plans, "sharding", "none") | whole


def _heads_exchanged(plans: Plans, task: Task) -> Flags:
    """Every rank of a sequence gets some of the heads, and KV heads or copies of them."""
    groups = task.model.heads if task.model.mla else task.model.kv_heads
    tp = np.maximum(first_tp(plans), 1)
    heads, pairs = task.model.heads // tp, np.maximum(groups // tp, 1)
    return (heads % plans.cp == 0) & ((pairs % plans.cp == 0) | (plans.cp % pairs == 0))


def _shared_out(plans: Plans, task: Task) -> Flags:
    """As even as can be, the first stages first: what `PipelineModule` makes of its layers."""
    pp = first_pp(plans)
    least = task.model.layers // pp
    even = (plans.layers == least) | (plans.layers == least + 1)
    falling = (plans.layers[:, 1:] <= plans.layers[:, :-1]) | ~plans.used[:, 1:]
    return (pp == 1) | (every_slot(even | ~plans.used) & every_slot(falling))


def _heads_cut(plans: Plans, task: Task) -> Flags:
    groups = task.model.heads if task.model.mla else task.model.kv_heads
    return every_slot((task.model.heads % plans.tp == 0) & (groups % plans.tp == 0))


def _ratio(plans: Plans, _: Task) -> Flags:
    ratio = plans.offload_optimizer_fraction
    return (ratio == 0) | (ratio == 1) | is_word(plans, "sharding", "parameters")


def _checkpointing(plans: Plans, _: Task) -> Flags:
    whole = is_word(plans, "recompute", "full:uniform") & (plans.recompute_layers == 1)
    return every_slot(~plans.used | is_word(plans, "recompute", "none") | whole)


OWN = (
    Rule(
        name="batch-adds-up",
        layer="config",
        settings=("global_batch", "micro_batch", "dp"),
        where=CONFIG,
        reason="DeepSpeed: train_batch_size = micro-batch x gradient accumulation x data-parallel "
        "size",
        holds=BATCH_ADDS_UP.holds,
    ),
    Rule(
        name="pipeline-excludes-zero-2",
        layer="runtime",
        settings=("pp", "sharding"),
        where=PIPELINE,
        reason="DeepSpeed: the pipeline engine forbids ZeRO 2 and 3",
        holds=lambda plans, _: (
            (first_pp(plans) == 1) | is_word(plans, "sharding", "none", "optimizer")
        ),
    ),
    Rule(
        name="pipeline-excludes-tp",
        layer="runtime",
        settings=("pp", "tp"),
        where=AUTOTP,
        reason="DeepSpeed: automatic tensor parallelism does not work with pipelines",
        holds=lambda plans, _: (first_pp(plans) == 1) | (first_tp(plans) == 1),
    ),
    Rule(
        name="pipeline-excludes-sequence-parallel",
        layer="runtime",
        settings=("pp", "cp"),
        where=PIPELINE,
        reason="DeepSpeed: Ulysses sequence parallelism does not work with pipelines",
        holds=lambda plans, _: (first_pp(plans) == 1) | (plans.cp == 1),
    ),
    Rule(
        name="no-virtual-stages",
        layer="ours",
        settings=("vpp",),
        where=PIPELINE,
        reason="DeepSpeed's pipeline has no virtual stages",
        holds=lambda plans, _: plans.vpp == 1,
    ),
    Rule(
        name="stages-are-shared-out",
        layer="ours",
        settings=("layers", "pp"),
        where="deepspeed/runtime/pipe/module.py",
        reason="DeepSpeed's PipelineModule shares its layers out evenly, the first stages first",
        holds=_shared_out,
    ),
    Rule(
        name="zero-3-experts-exclude-ulysses",
        layer="runtime",
        settings=("sharding", "ep", "cp"),
        where="deepspeed/runtime/engine.py",
        reason="DeepSpeed: expert parallelism with ZeRO 3 does not work with sequence parallelism",
        holds=lambda plans, _: (
            ~is_word(plans, "sharding", "parameters") | (plans.ep == 1) | (plans.cp == 1)
        ),
    ),
    Rule(
        name="expert-grid-divides-stage",
        layer="config",
        settings=("ep", "etp", "dp", "cp", "tp"),
        where=FOLDING,
        reason="DeepSpeed: ep x etp must divide the ranks of a stage",
        holds=_expert_grid,
    ),
    Rule(
        name="ep-divides-experts",
        layer="config",
        settings=("ep", "model.moe"),
        where="deepspeed/module_inject/auto_ep_config.py",
        reason="DeepSpeed: ep must divide the experts, and a model without any has none",
        holds=_experts_shared,
    ),
    Rule(
        name="experts-are-not-cut",
        layer="config",
        settings=("etp",),
        where=FOLDING,
        reason="DeepSpeed does not cut single experts",
        holds=lambda plans, _: every_slot((plans.segment_etp == 1) | ~plans.used),
    ),
    Rule(
        name="folded-experts-exclude-ulysses-and-offload",
        layer="config",
        settings=("ep", "tp", "cp", "offload_optimizer_fraction"),
        where=FOLDING,
        reason="DeepSpeed: expert and tensor parallelism exclude sequence parallelism and offload",
        holds=_folding,
    ),
    Rule(
        name="ulysses-divides-heads",
        layer="runtime",
        settings=("cp", "tp", "model.heads", "model.kv_heads"),
        where=ULYSSES,
        reason="DeepSpeed: heads must be divisible by the sequence-parallel size, KV heads too or "
        "it by them",
        holds=_heads_exchanged,
    ),
    Rule(
        name="ulysses-exchanges-heads",
        layer="ours",
        settings=("cp", "cp_comm_type"),
        where=ULYSSES,
        reason="DeepSpeed's sequence parallelism is an all-to-all",
        holds=lambda plans, _: (plans.cp == 1) | is_word(plans, "cp_comm_type", "a2a"),
    ),
    Rule(
        name="sequence-divides",
        layer="runtime",
        settings=("seq_len", "cp"),
        where=ULYSSES,
        reason="DeepSpeed: the sequence must be divisible by the sequence-parallel size",
        holds=lambda plans, _: plans.seq_len % plans.cp == 0,
    ),
    Rule(
        name="tp-divides-heads",
        layer="runtime",
        settings=("tp", "model.heads", "model.kv_heads"),
        where=AUTOTP,
        reason="DeepSpeed: heads and KV heads are cut by the tensor-parallel size",
        holds=_heads_cut,
    ),
    Rule(
        name="no-sequence-parallel-tp",
        layer="ours",
        settings=("sequence_parallel",),
        where=AUTOTP,
        reason="DeepSpeed's tensor parallelism does not share the sequence",
        holds=lambda plans, _: ~plans.sequence_parallel,
    ),
    Rule(
        name="shards-over-all-copies",
        layer="config",
        settings=("shard_group", "sharding"),
        where=CONFIG,
        reason="DeepSpeed shards over all ranks that hold copies; it has no MiCS since 0.19",
        holds=_shard_group,
    ),
    Rule(
        name="part-offload-needs-zero-3",
        layer="config",
        settings=("offload_optimizer_fraction", "sharding"),
        where=ZERO,
        reason="DeepSpeed: offload of a part of the optimizer needs ZeRO 3",
        holds=_ratio,
    ),
    Rule(
        name="offload-needs-zero",
        layer="ours",
        settings=(
            "offload_optimizer_fraction",
            "sharding",
            "offload_activations",
            "offload_layers",
        ),
        where=ZERO,
        reason="DeepSpeed: optimizer offload needs ZeRO; activations stay",
        holds=lambda plans, _: (
            ((plans.offload_optimizer_fraction == 0) | ~is_word(plans, "sharding", "none"))
            & (plans.offload_activations == 0)
            & (plans.offload_layers == 0)
        ),
    ),
    Rule(
        name="half-precision",
        layer="ours",
        settings=("precision",),
        where=CONFIG,
        reason="DeepSpeed's configuration knows bf16, fp16 and fp32",
        holds=lambda plans, _: is_word(plans, "precision", "bf16", "fp16", "fp32"),
    ),
    Rule(
        name="checkpoint-per-layer",
        layer="ours",
        settings=("recompute",),
        where="deepspeed/runtime/activation_checkpointing",
        reason="activation checkpointing is per layer: none or full:uniform:1",
        holds=_checkpointing,
    ),
    Rule(
        name="states-in-fp32",
        layer="ours",
        settings=("main_grads_dtype", "master_dtype", "moment_dtypes"),
        where=ZERO,
        reason="ZeRO keeps master weights, gradients and Adam moments in fp32",
        holds=states_fp32,
    ),
    Rule(
        name="no-megatron-switches",
        layer="ours",
        settings=("cuda_graph", "overlap_tp", "overlap_ep", "mtp_layers"),
        where=CONFIG,
        reason="CUDA graphs, TP and EP overlap and multi-token prediction are not DeepSpeed's",
        holds=lambda plans, _: (
            is_word(plans, "cuda_graph", "none")
            & ~plans.overlap_tp
            & ~plans.overlap_ep
            & (plans.mtp_layers == 0)
            & ~np.isfinite(np.where(plans.dispatcher >= 0, np.nan, plans.capacity_factor))
        ),
    ),
)

RULES = (
    *OWN,
    NO_HYBRIDEP,
    OWN_DISPATCHER_NEEDS_EP,
    HOLDS_EVERY_LAYER,
    *same_for_all_stages("DeepSpeed"),
)
