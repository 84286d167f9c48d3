"""What plain PyTorch parallelism accepts: torchtitan 0.3 and accelerate (FSDP2, DTensor TP)."""

from dataclasses import replace

import numpy as np

from astra.strategy.plans import Flags, Plans, Task
from astra.strategy.rules.our_rules import (
    BATCH_ADDS_UP,
    HOLDS_EVERY_LAYER,
    OWN_DISPATCHER_NEEDS_EP,
    same_for_all_stages,
)
from astra.strategy.rules.rule import (
    Rule,
    constant,
    every_slot,
    first_dp,
    first_pp,
    first_tp,
    is_word,
)

DIMS = "torchtitan/distributed/parallel_dims.py"
CONFIG = "torchtitan/config/configs.py"
PARALLELIZE = "torchtitan/models/*/parallelize.py"
SCHEDULES = "torch/distributed/pipelining/schedules.py"


def _expert_grid(plans: Plans, _: Task) -> Flags:
    return (plans.shard_group * first_tp(plans)) % plans.ep == 0


def _experts_shared(plans: Plans, task: Task) -> Flags:
    return task.model.moe.experts % plans.ep == 0 if task.model.moe else plans.ep == 1


def _experts_cut(plans: Plans, task: Task) -> Flags:
    """Experts that are not spread are sharded as all else is; dense models have no say."""
    if task.model.moe is None:
        return constant(plans, True)
    etp = np.where(plans.ep > 1, 1, plans.tp)
    return every_slot((plans.segment_etp == etp) | ~plans.used)


def _sequence_cut(plans: Plans, _: Task) -> Flags:
    """Sequence parallelism and the dispatchers with buffers of their own cut tokens by tp too."""
    buffered = is_word(plans, "dispatcher", "deepep", "hybridep")
    tp = np.where(plans.sequence_parallel | buffered, first_tp(plans), 1)
    return plans.seq_len % (tp * np.where(plans.cp > 1, 2 * plans.cp, 1)) == 0


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
    return every_slot(~plans.used | is_word(plans, "recompute", "none", "selective") | whole)


def _states_fp32(plans: Plans, _: Task) -> Flags:
    columns = ("main_grads_dtype", "master_dtype", "first_moment_dtype", "second_moment_dtype")
    return np.logical_and.reduce([is_word(plans, column, "fp32") for column in columns])


OWN = (
    BATCH_ADDS_UP,
    Rule(
        name="fsdp-shards-gradients",
        layer="ours",
        settings=("sharding",),
        where=CONFIG,
        reason="FSDP2 shards parameters (reshard after forward) or gradients and optimizer (never "
        "reshard); it does not shard the optimizer alone",
        holds=lambda plans, _: ~is_word(plans, "sharding", "optimizer"),
    ),
    Rule(
        name="context-ranks-shard",
        layer="ours",
        settings=("sharding", "cp"),
        where=DIMS,
        reason="the ranks of context parallelism always shard what they hold",
        holds=lambda plans, _: ~is_word(plans, "sharding", "none") | (plans.cp == 1),
    ),
    Rule(
        name="shard-group-holds-cp",
        layer="config",
        settings=("shard_group", "cp"),
        where=DIMS,
        reason="parameters are sharded over data- and context-parallel ranks together",
        holds=lambda plans, _: (
            is_word(plans, "sharding", "none") | (plans.shard_group % plans.cp == 0)
        ),
    ),
    Rule(
        name="expert-grid-divides-shards",
        layer="config",
        settings=("ep", "shard_group", "tp"),
        where=DIMS,
        reason="expert parallelism borrows ranks: ep must divide shard x cp x tp",
        holds=_expert_grid,
    ),
    Rule(
        name="ep-divides-experts",
        layer="runtime",
        settings=("ep", "model.moe"),
        where=PARALLELIZE,
        reason="every rank holds as many experts, and a model without any has none to share out",
        holds=_experts_shared,
    ),
    Rule(
        name="experts-are-spread-or-cut",
        layer="ours",
        settings=("etp", "ep", "tp"),
        where="torchtitan/models/common/moe_sharding.py",
        reason="experts are spread over ranks whole (etp 1) or, with ep 1, cut by tp (etp tp)",
        holds=_experts_cut,
    ),
    replace(
        OWN_DISPATCHER_NEEDS_EP,
        layer="config",
        where="torchtitan/models/common/token_dispatcher.py",
    ),
    Rule(
        name="pipeline-needs-untied-embeddings",
        layer="config",
        settings=("pp", "model.tied_embeddings"),
        where="torchtitan/models/common/decoder.py",
        reason="embeddings that share their weights with the output cannot lie on two stages",
        holds=lambda plans, task: (
            constant(plans, not task.model.tied_embeddings) | (first_pp(plans) == 1)
        ),
    ),
    Rule(
        name="sequence-cut-evenly",
        layer="config",
        settings=("seq_len", "tp", "cp", "sequence_parallel"),
        where="torchtitan/trainer.py",
        reason="the sequence must be divisible by 2 cp, and by tp where tokens are cut by it",
        holds=_sequence_cut,
    ),
    Rule(
        name="tp-divides-heads",
        layer="config",
        settings=("tp", "model.heads", "model.kv_heads"),
        where="torchtitan/models/common/decoder.py",
        reason="heads and KV heads are cut by tp",
        holds=lambda plans, task: every_slot(
            (task.model.heads % plans.tp == 0)
            & ((task.model.heads if task.model.mla else task.model.kv_heads) % plans.tp == 0)
        ),
    ),
    Rule(
        name="interleaving-needs-stages",
        layer="ours",
        settings=("vpp", "pp"),
        where=SCHEDULES,
        reason="a multi-stage schedule needs a pipeline",
        holds=lambda plans, _: (plans.vpp == 1) | (first_pp(plans) > 1),
    ),
    Rule(
        name="rounds-are-equal",
        layer="runtime",
        settings=("vpp", "pp", "micro_batches"),
        where=SCHEDULES,
        reason="interleaved 1F1B needs the micro-batches to divide into equal rounds",
        holds=_rounds,
    ),
    Rule(
        name="group-is-a-round",
        layer="ours",
        settings=("microbatch_group", "vpp", "pp", "micro_batches"),
        where=SCHEDULES,
        reason="interleaved 1F1B runs a round's micro-batches through a chunk before the next; no "
        "other group can be asked for",
        holds=_whole_rounds,
    ),
    Rule(
        name="pipeline-is-filled",
        layer="runtime",
        settings=("pp", "micro_batches"),
        where=SCHEDULES,
        reason="a pipeline needs at least as many micro-batches as stages",
        holds=lambda plans, _: (plans.vpp > 1) | (plans.micro_batches[0] >= first_pp(plans)),
    ),
    Rule(
        name="interleaving-is-filled",
        layer="ours",
        settings=("pp", "vpp", "micro_batches"),
        where=SCHEDULES,
        reason="interleaved 1F1B with fewer micro-batches than stages is slower than without",
        holds=lambda plans, _: (plans.vpp == 1) | (plans.micro_batches[0] >= first_pp(plans)),
    ),
    Rule(
        name="checkpoint-per-layer",
        layer="ours",
        settings=("recompute",),
        where="torchtitan/distributed/activation_checkpoint.py",
        reason="activation checkpointing is per layer: none, selective or full:uniform:1",
        holds=_checkpointing,
    ),
    Rule(
        name="states-in-fp32",
        layer="ours",
        settings=("main_grads_dtype", "master_dtype", "moment_dtypes"),
        where="torch.distributed.fsdp MixedPrecisionPolicy",
        reason="FSDP2 keeps sharded weights, gradients and Adam moments in fp32",
        holds=_states_fp32,
    ),
    Rule(
        name="no-fp16",
        layer="ours",
        settings=("precision",),
        where=CONFIG,
        reason="there is no loss scaling: train in bf16, fp8 or fp32",
        holds=lambda plans, _: is_word(plans, "precision", "bf16", "fp8", "fp32"),
    ),
    Rule(
        name="offload-all-or-nothing",
        layer="ours",
        settings=("offload_optimizer_fraction", "offload_activations", "offload_layers"),
        where="torch.distributed.fsdp CPUOffloadPolicy",
        reason="FSDP2 offloads all optimizer state or none, and no single activations",
        holds=lambda plans, _: (
            np.isin(plans.offload_optimizer_fraction, (0.0, 1.0))
            & (plans.offload_activations == 0)
            & (plans.offload_layers == 0)
        ),
    ),
    Rule(
        name="no-expert-capacity",
        layer="ours",
        settings=("capacity_factor", "dispatcher", "overlap_ep"),
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
        settings=("mtp_layers",),
        where=CONFIG,
        reason="there is no multi-token prediction",
        holds=lambda plans, _: plans.mtp_layers == 0,
    ),
    Rule(
        name="dp-fits-shard-group",
        layer="config",
        settings=("shard_group", "dp", "cp"),
        where=DIMS,
        reason="replicate x shard must be dp",
        holds=lambda plans, _: (first_dp(plans) * plans.cp) % plans.shard_group == 0,
    ),
    Rule(
        name="no-graphs",
        layer="ours",
        settings=("cuda_graph",),
        where=CONFIG,
        reason="CUDA graphs are Megatron-LM's words here; torch.compile has its own",
        holds=lambda plans, _: constant(plans, True) & is_word(plans, "cuda_graph", "none"),
    ),
)

RULES = (*OWN, HOLDS_EVERY_LAYER, *same_for_all_stages("PyTorch's device mesh"))
