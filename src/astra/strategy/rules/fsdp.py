"""What plain PyTorch parallelism accepts: torchtitan 0.3 and accelerate (FSDP2, DTensor TP)."""

import numpy as np

from astra.strategy.plans import Flags, Plans, Task
from astra.strategy.rules.ours import BATCH_ADDS_UP, HOLDS_EVERY_LAYER, one_cut
from astra.strategy.rules.rule import (
    Rule,
    constant,
    every,
    first_dp,
    first_pp,
    first_tp,
    is_word,
)

DIMS = "torchtitan/distributed/parallel_dims.py"
CONFIG = "torchtitan/config/configs.py"
PARALLELIZE = "torchtitan/models/*/parallelize.py"
SCHEDULES = "torch/distributed/pipelining/schedules.py"


def _expert_grid(plans: Plans, task: Task) -> Flags:
    if task.model.moe is None:
        return plans.ep == 1
    ranks = plans.shard_group * first_tp(plans)
    cut = ranks % plans.ep == 0
    return cut & (task.model.moe.experts % plans.ep == 0)


def _rounds(plans: Plans, _: Task) -> Flags:
    """Interleaved 1F1B runs the micro-batches in equal rounds of about one per stage."""
    count = plans.micro_batches[0]
    rounds = np.maximum(count // first_pp(plans), 1)
    return (plans.vpp == 1) | (count % rounds == 0)


def _whole_rounds(plans: Plans, _: Task) -> Flags:
    """The group that PyTorch takes: its micro-batches over its rounds."""
    count = plans.micro_batches[0]
    rounds = np.maximum(count // np.maximum(first_pp(plans), 1), 1)
    return (plans.vpp == 1) | (plans.microbatch_group == count // rounds)


def _checkpointing(plans: Plans, _: Task) -> Flags:
    whole = is_word(plans, "recompute", "full:uniform") & (plans.recompute_layers == 1)
    return every(~plans.used | is_word(plans, "recompute", "none", "selective") | whole)


def _states_fp32(plans: Plans, _: Task) -> Flags:
    columns = ("main_grads_dtype", "master_dtype", "first_moment_dtype", "second_moment_dtype")
    return np.logical_and.reduce([is_word(plans, column, "fp32") for column in columns])


OWN = (
    BATCH_ADDS_UP,
    Rule(
        name="fsdp-shards-gradients",
        layer="config",
        about="sharding",
        where=CONFIG,
        reason="FSDP2 shards parameters (reshard after forward) or gradients and optimizer (never "
        "reshard); it does not shard the optimizer alone",
        holds=lambda plans, _: ~is_word(plans, "sharding", "optimizer"),
    ),
    Rule(
        name="replicas-only-without-tp",
        layer="config",
        about="sharding tp cp",
        where="accelerate/parallelism_config.py",
        reason="tensor and context parallelism need sharded, not only replicated, data parallelism",
        holds=lambda plans, _: (
            ~is_word(plans, "sharding", "none") | ((first_tp(plans) == 1) & (plans.cp == 1))
        ),
    ),
    Rule(
        name="shard-group-holds-cp",
        layer="config",
        about="shard_group cp",
        where=DIMS,
        reason="parameters are sharded over data- and context-parallel ranks together",
        holds=lambda plans, _: (
            is_word(plans, "sharding", "none") | (plans.shard_group % plans.cp == 0)
        ),
    ),
    Rule(
        name="expert-grid-divides-shards",
        layer="config",
        about="ep shard_group tp model.moe",
        where=DIMS,
        reason="expert parallelism borrows ranks: ep must divide shard x cp x tp and the experts",
        holds=_expert_grid,
    ),
    Rule(
        name="etp-is-1-or-tp",
        layer="config",
        about="etp tp",
        where=DIMS,
        reason="experts are cut by tp or not at all",
        holds=lambda plans, _: every(
            (plans.segment_etp == 1) | (plans.segment_etp == plans.tp) | ~plans.used
        ),
    ),
    Rule(
        name="sequence-cut-evenly",
        layer="config",
        about="seq_len tp cp",
        where=PARALLELIZE,
        reason="the sequence length must be divisible by tp x 2 cp",
        holds=lambda plans, _: (
            plans.seq_len % (first_tp(plans) * np.where(plans.cp > 1, 2 * plans.cp, 1)) == 0
        ),
    ),
    Rule(
        name="tp-divides-heads",
        layer="runtime",
        about="tp model.heads model.kv_heads",
        where=PARALLELIZE,
        reason="heads and KV heads are cut by tp",
        holds=lambda plans, task: every(
            (task.model.heads % plans.tp == 0)
            & ((task.model.heads if task.model.mla else task.model.kv_heads) % plans.tp == 0)
        ),
    ),
    Rule(
        name="interleaving-needs-stages",
        layer="runtime",
        about="vpp pp",
        where=SCHEDULES,
        reason="a multi-stage schedule needs a pipeline",
        holds=lambda plans, _: (plans.vpp == 1) | (first_pp(plans) > 1),
    ),
    Rule(
        name="rounds-are-equal",
        layer="runtime",
        about="vpp pp micro_batches",
        where=SCHEDULES,
        reason="interleaved 1F1B needs the micro-batches to divide into equal rounds",
        holds=_rounds,
    ),
    Rule(
        name="group-is-a-round",
        layer="runtime",
        about="microbatch_group vpp pp micro_batches",
        where=SCHEDULES,
        reason="interleaved 1F1B runs a round's micro-batches through a chunk before the next; no "
        "other group can be asked for",
        holds=_whole_rounds,
    ),
    Rule(
        name="pipeline-is-filled",
        layer="runtime",
        about="pp micro_batches",
        where=SCHEDULES,
        reason="a pipeline needs at least as many micro-batches as stages",
        holds=lambda plans, _: plans.micro_batches[0] >= first_pp(plans),
    ),
    Rule(
        name="checkpoint-per-layer",
        layer="ours",
        about="recompute",
        where="torchtitan/distributed/activation_checkpoint.py",
        reason="activation checkpointing is per layer: none, selective or full:uniform:1",
        holds=_checkpointing,
    ),
    Rule(
        name="states-in-fp32",
        layer="ours",
        about="main_grads_dtype master_dtype moment_dtypes",
        where="torch.distributed.fsdp MixedPrecisionPolicy",
        reason="FSDP2 keeps sharded weights, gradients and Adam moments in fp32",
        holds=_states_fp32,
    ),
    Rule(
        name="no-fp16",
        layer="ours",
        about="precision",
        where=CONFIG,
        reason="there is no loss scaling: train in bf16, fp8 or fp32",
        holds=lambda plans, _: is_word(plans, "precision", "bf16", "fp8", "fp32"),
    ),
    Rule(
        name="offload-all-or-nothing",
        layer="ours",
        about="offload_optimizer_fraction offload_activations",
        where="torch.distributed.fsdp CPUOffloadPolicy",
        reason="FSDP2 offloads all optimizer state or none, and no single activations",
        holds=lambda plans, _: (
            np.isin(plans.offload_optimizer_fraction, (0.0, 1.0)) & (plans.offload_activations == 0)
        ),
    ),
    Rule(
        name="no-expert-capacity",
        layer="ours",
        about="capacity_factor dispatcher overlap_ep",
        where=CONFIG,
        reason="tokens are never dropped, dispatch is alltoall, DeepEP or HybridEP and not hidden",
        holds=lambda plans, _: (
            np.isnan(plans.capacity_factor)
            & ~is_word(plans, "dispatcher", "allgather")
            & ~plans.overlap_ep
        ),
    ),
    Rule(
        name="no-mtp",
        layer="ours",
        about="mtp_layers",
        where=CONFIG,
        reason="there is no multi-token prediction",
        holds=lambda plans, _: plans.mtp_layers == 0,
    ),
    Rule(
        name="dp-fits-shard-group",
        layer="config",
        about="shard_group dp cp",
        where=DIMS,
        reason="replicate x shard must be dp",
        holds=lambda plans, _: (first_dp(plans) * plans.cp) % plans.shard_group == 0,
    ),
    Rule(
        name="no-graphs",
        layer="ours",
        about="cuda_graph",
        where=CONFIG,
        reason="CUDA graphs are Megatron-LM's words here; torch.compile has its own",
        holds=lambda plans, _: constant(plans, True) & is_word(plans, "cuda_graph", "none"),
    ),
)

RULES = (*OWN, HOLDS_EVERY_LAYER, *one_cut("PyTorch's device mesh"))
