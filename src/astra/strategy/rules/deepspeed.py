"""What DeepSpeed accepts: ZeRO stages, AutoTP, Ulysses sequence parallelism, its pipelines."""

import numpy as np

from astra.strategy.plans import Flags, Plans, Task
from astra.strategy.rules.fsdp import _states_fp32 as states_fp32
from astra.strategy.rules.ours import BATCH_ADDS_UP, HOLDS_EVERY_LAYER, one_cut
from astra.strategy.rules.rule import Rule, every, first_dp, first_pp, first_tp, is_word

CONFIG = "deepspeed/runtime/config.py"
PIPELINE = "deepspeed/runtime/pipe/engine.py"
ZERO = "deepspeed/runtime/zero/config.py"
AUTOTP = "deepspeed/runtime/tensor_parallel"
ULYSSES = "deepspeed/sequence/layer.py"
MOE = "deepspeed/moe/layer.py"


def _expert_grid(plans: Plans, task: Task) -> Flags:
    if task.model.moe is None:
        return plans.ep == 1
    return ((first_dp(plans) * plans.cp) % plans.ep == 0) & (task.model.moe.experts % plans.ep == 0)


def _shard_group(plans: Plans, _: Task) -> Flags:
    """Only MiCS, a form of stage 3, shards over fewer ranks than hold copies."""
    whole = plans.shard_group == first_dp(plans) * plans.cp
    return is_word(plans, "sharding", "none", "parameters") | whole


def _heads_cut(plans: Plans, task: Task) -> Flags:
    groups = task.model.heads if task.model.mla else task.model.kv_heads
    return every((task.model.heads % plans.tp == 0) & (groups % plans.tp == 0))


def _ratio(plans: Plans, _: Task) -> Flags:
    """Offloading part of the optimizer is stage 3's; all of it needs some sharding."""
    ratio = plans.offload_optimizer_fraction
    some = (ratio > 0) & (ratio < 1)
    return (
        ((ratio == 0) | ~is_word(plans, "sharding", "none"))
        & (~some | is_word(plans, "sharding", "parameters"))
        & (plans.offload_activations == 0)
    )


def _checkpointing(plans: Plans, _: Task) -> Flags:
    whole = is_word(plans, "recompute", "full:uniform") & (plans.recompute_layers == 1)
    return every(~plans.used | is_word(plans, "recompute", "none") | whole)


OWN = (
    Rule(
        name="batch-adds-up",
        layer="config",
        about="global_batch micro_batch dp",
        where=CONFIG,
        reason="DeepSpeed: train_batch_size = micro-batch x gradient accumulation x data-parallel "
        "size",
        holds=BATCH_ADDS_UP.holds,
    ),
    Rule(
        name="pipeline-excludes-zero-2",
        layer="runtime",
        about="pp sharding",
        where=PIPELINE,
        reason="DeepSpeed: the pipeline engine forbids ZeRO 2 and 3",
        holds=lambda plans, _: (
            (first_pp(plans) == 1) | is_word(plans, "sharding", "none", "optimizer")
        ),
    ),
    Rule(
        name="pipeline-excludes-tp",
        layer="runtime",
        about="pp tp",
        where=AUTOTP,
        reason="DeepSpeed: automatic tensor parallelism does not work with pipelines",
        holds=lambda plans, _: (first_pp(plans) == 1) | (first_tp(plans) == 1),
    ),
    Rule(
        name="pipeline-excludes-sequence-parallel",
        layer="runtime",
        about="pp cp",
        where=PIPELINE,
        reason="DeepSpeed: Ulysses sequence parallelism does not work with pipelines",
        holds=lambda plans, _: (first_pp(plans) == 1) | (plans.cp == 1),
    ),
    Rule(
        name="no-virtual-stages",
        layer="ours",
        about="vpp",
        where=PIPELINE,
        reason="DeepSpeed's pipeline has no virtual stages",
        holds=lambda plans, _: plans.vpp == 1,
    ),
    Rule(
        name="zero-3-excludes-tp",
        layer="runtime",
        about="sharding tp",
        where=AUTOTP,
        reason="DeepSpeed: automatic tensor parallelism goes with ZeRO 0 to 2",
        holds=lambda plans, _: ~is_word(plans, "sharding", "parameters") | (first_tp(plans) == 1),
    ),
    Rule(
        name="zero-3-excludes-experts",
        layer="runtime",
        about="sharding ep",
        where=MOE,
        reason="DeepSpeed: its expert parallelism does not work with ZeRO 3",
        holds=lambda plans, _: ~is_word(plans, "sharding", "parameters") | (plans.ep == 1),
    ),
    Rule(
        name="expert-grid-divides-copies",
        layer="runtime",
        about="ep dp cp model.moe",
        where=MOE,
        reason="DeepSpeed: ep must divide the data-parallel ranks and the experts",
        holds=_expert_grid,
    ),
    Rule(
        name="experts-are-not-cut",
        layer="ours",
        about="etp",
        where=MOE,
        reason="DeepSpeed does not cut single experts",
        holds=lambda plans, _: every(plans.segment_etp == 1),
    ),
    Rule(
        name="ulysses-divides-heads",
        layer="runtime",
        about="cp model.heads",
        where=ULYSSES,
        reason="DeepSpeed: heads must be divisible by the sequence-parallel size",
        holds=lambda plans, task: task.model.heads % (plans.cp * first_tp(plans)) == 0,
    ),
    Rule(
        name="ulysses-exchanges-heads",
        layer="ours",
        about="cp cp_comm_type",
        where=ULYSSES,
        reason="DeepSpeed's sequence parallelism is an all-to-all",
        holds=lambda plans, _: (plans.cp == 1) | is_word(plans, "cp_comm_type", "a2a"),
    ),
    Rule(
        name="sequence-divides",
        layer="runtime",
        about="seq_len cp",
        where=ULYSSES,
        reason="DeepSpeed: the sequence must be divisible by the sequence-parallel size",
        holds=lambda plans, _: plans.seq_len % plans.cp == 0,
    ),
    Rule(
        name="tp-divides-heads",
        layer="runtime",
        about="tp model.heads model.kv_heads",
        where=AUTOTP,
        reason="DeepSpeed: heads and KV heads are cut by the tensor-parallel size",
        holds=_heads_cut,
    ),
    Rule(
        name="no-sequence-parallel-tp",
        layer="ours",
        about="sequence_parallel",
        where=AUTOTP,
        reason="DeepSpeed's tensor parallelism does not share the sequence",
        holds=lambda plans, _: ~plans.sequence_parallel,
    ),
    Rule(
        name="mics-is-zero-3",
        layer="config",
        about="shard_group sharding",
        where=ZERO,
        reason="DeepSpeed: only stage 3 (MiCS) shards over fewer ranks than hold copies",
        holds=_shard_group,
    ),
    Rule(
        name="offload-needs-zero",
        layer="config",
        about="offload_optimizer_fraction sharding offload_activations",
        where=ZERO,
        reason="DeepSpeed: optimizer offload needs ZeRO, a part of it stage 3; activations stay",
        holds=_ratio,
    ),
    Rule(
        name="half-precision",
        layer="config",
        about="precision",
        where=CONFIG,
        reason="DeepSpeed's configuration knows bf16, fp16 and fp32",
        holds=lambda plans, _: is_word(plans, "precision", "bf16", "fp16", "fp32"),
    ),
    Rule(
        name="checkpoint-per-layer",
        layer="ours",
        about="recompute",
        where="deepspeed/runtime/activation_checkpointing",
        reason="activation checkpointing is per layer: none or full:uniform:1",
        holds=_checkpointing,
    ),
    Rule(
        name="states-in-fp32",
        layer="ours",
        about="main_grads_dtype master_dtype moment_dtypes",
        where=ZERO,
        reason="ZeRO keeps master weights, gradients and Adam moments in fp32",
        holds=states_fp32,
    ),
    Rule(
        name="no-megatron-switches",
        layer="ours",
        about="cuda_graph overlap_tp overlap_ep mtp_layers",
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

RULES = (*OWN, HOLDS_EVERY_LAYER, *one_cut("DeepSpeed"))
