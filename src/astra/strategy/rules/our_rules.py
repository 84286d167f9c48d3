"""What no runtime checks but every plan must meet, whoever runs it."""

import numpy as np

from astra.hardware.vendors import vendor_of
from astra.strategy.dispatchers import dispatch_libraries
from astra.strategy.plans import OFFLOAD_MODULES, Flags, Ints, Plans, Task
from astra.strategy.replica_groups import is_one_job, replicas_of_segment
from astra.strategy.rules.rule import (
    Holds,
    Rule,
    constant,
    every_slot,
    is_word,
    one_value,
    recomputes,
)


def _within_caps(plans: Plans, task: Task) -> Flags:
    allowed = constant(plans, True)
    counts = plans.stages * plans.tp * plans.dp
    for row, pool in enumerate(task.cluster.pools):
        used = np.where(plans.gpu == row, counts, 0).sum(axis=(0, 1)) * plans.cp
        allowed &= used <= pool.count
    if task.cluster.max_gpus is not None:
        allowed &= plans.gpus <= task.cluster.max_gpus
    return allowed


def _batch_adds_up(plans: Plans, _: Task) -> Flags:
    samples = (plans.replicas * plans.micro_batches).sum(axis=0) * plans.micro_batch
    return (samples == plans.global_batch) & every_slot(
        (plans.micro_batches >= 1) | (plans.replicas == 0)
    )


def _segments_feed_each_other(plans: Plans, _: Task) -> Flags:
    """dp x micro-batch is the same in every segment of a pipeline."""
    samples = plans.dp * plans.segment_micro_batch
    return every_slot((samples == samples[:, :1]) | ~plans.used)


def largest_chunk(plans: Plans) -> Ints:
    """Layers of the largest chunk of each slot, rounded up where it does not divide."""
    even = -(-plans.layers // plans.vpp)
    if not plans.chunk_layers:
        return even
    largest = np.array([max(chunks) for chunks in plans.chunk_layers] + [0], np.int64)
    return np.where(plans.chunking >= 0, largest[plans.chunking], even)


def _recompute_once(plans: Plans, _: Task) -> Flags:
    """A smaller chunk is recomputed whole; a number above the largest is one plan twice."""
    most = largest_chunk(plans).max(axis=(0, 1))
    return every_slot(plans.recompute_layers <= most)


def _module_exists(plans: Plans, task: Task) -> Flags:
    allowed = constant(plans, True)
    if task.model.moe is None:
        for module in ("moe", "moe_act", "shared_experts"):
            allowed &= ~recomputes(plans, module)
        offloaded = sum(1 << OFFLOAD_MODULES.index(module) for module in ("expert_fc1", "moe_act"))
        allowed &= plans.offload_activations & offloaded == 0
    elif not task.model.moe.shared_ffn:
        allowed &= ~recomputes(plans, "shared_experts")
    return allowed


def _dense_has_no_experts(plans: Plans, task: Task) -> Flags:
    if task.model.moe is not None:
        return plans.dispatcher >= 0
    plain = every_slot(plans.segment_etp == 1) & (plans.dispatcher < 0)
    return plain & np.isnan(plans.capacity_factor)


def _gpu_has_precision(plans: Plans, task: Task) -> Flags:
    """A GPU has the units, or falls back to bf16 ones: bf16 and fp16 need their own."""
    allowed = constant(plans, True)
    for row, pool in enumerate(task.cluster.pools):
        gpu = pool.gpu
        here = ((plans.gpu == row) & plans.used).any(axis=(0, 1))
        rates = {
            "bf16": gpu.bf16_flops_per_s,
            "fp16": gpu.fp16_flops_per_s,
            "fp8": gpu.fp8_flops_per_s,
            "fp4": gpu.fp4_flops_per_s,
        }
        for precision, rate in rates.items():
            if rate is None:
                allowed &= ~(here & is_word(plans, "precision", precision))
    return allowed


def _one_vendor(plans: Plans, task: Task) -> Flags:
    names = [vendor_of(pool.gpu) for pool in task.cluster.pools]
    if len(set(names)) == 1:
        return constant(plans, True)
    vendors = np.array([names.index(name) for name in names])[plans.gpu]
    return every_slot((vendors == vendors[:1, :1]) | ~plans.used)


def _mxfp8_needs_blackwell(plans: Plans, task: Task) -> Flags:
    allowed = constant(plans, True)
    for row, pool in enumerate(task.cluster.pools):
        head = (pool.gpu.compute_capability or "").partition(".")[0]
        if head.isdigit() and int(head) < 10:
            here = ((plans.gpu == row) & plans.used).any(axis=(0, 1))
            narrow = is_word(plans, "fp8_recipe", "mxfp8") | is_word(plans, "precision", "fp4")
            allowed &= ~(here & narrow)
    return allowed


def _dispatcher_runs(plans: Plans, task: Task) -> Flags:
    """In its formats, on all GPUs whose chip is known."""
    allowed = constant(plans, True)
    for name, library in dispatch_libraries().items():
        has = is_word(plans, "dispatcher", name)
        if not has.any():
            continue
        good = is_word(plans, "precision", *library.precisions)
        for row, pool in enumerate(task.cluster.pools):
            if pool.gpu.compute_capability and not library.runs_on(pool.gpu):
                good &= every_slot((plans.gpu != row) | ~plans.used)
        allowed &= ~has | good
    return allowed


def _overlap_over_links(plans: Plans, task: Task) -> Flags:
    domains = np.array([pool.gpu.link.domain_gpus for pool in task.cluster.pools])
    return ~plans.overlap_tp | every_slot((plans.tp <= domains[plans.gpu]) | ~plans.used)


def _reduce_dtype(plans: Plans, _: Task) -> Flags:
    """Gradients are reduced in fp32 or in the 16-bit type of the training."""
    wide = is_word(plans, "grad_reduce_dtype", "fp32")
    half = is_word(plans, "grad_reduce_dtype", "fp16") & is_word(plans, "precision", "fp16")
    brain = is_word(plans, "grad_reduce_dtype", "bf16") & is_word(
        plans, "precision", "bf16", "fp8", "fp4"
    )
    return wide | half | brain


def _shard_group(plans: Plans, _: Task) -> Flags:
    """The group divides the ranks that hold copies; without sharding it is one.

    Of a mesh with a dp of its own, or of another replica group, the same share of its ranks.
    """
    copies = replicas_of_segment(plans) * plans.cp
    first = copies[0, 0]
    shares = every_slot((copies * plans.shard_group % first == 0) | ~plans.used)
    shares &= first % plans.shard_group == 0
    return np.where(is_word(plans, "sharding", "none"), plans.shard_group == 1, shares)


def _experts_on_one_type(plans: Plans, task: Task) -> Flags:
    """Ranks of a stage that one pipeline has are whole expert groups."""
    if task.model.moe is None or plans.replicas.shape[0] == 1:
        return constant(plans, True)
    ranks = plans.tp * plans.cp * plans.dp
    return every_slot((ranks % (plans.segment_etp * plans.segment_ep) == 0) | ~plans.used)


OWN_DISPATCHER_NEEDS_EP = Rule(
    name="own-dispatcher-needs-ep",
    layer="ours",
    settings=("dispatcher", "ep"),
    where="dispatcher",
    reason="DeepEP and HybridEP need expert parallelism",
    holds=lambda plans, _: (
        ~is_word(plans, "dispatcher", "deepep", "hybridep")
        | every_slot((plans.segment_ep > 1) | ~plans.used)
    ),
)
NO_HYBRIDEP = Rule(
    name="no-hybridep",
    layer="ours",
    settings=("dispatcher",),
    where="data/dispatchers.toml",
    reason="the dispatcher hybridep is Megatron-LM's and torchtitan's alone",
    holds=lambda plans, _: ~is_word(plans, "dispatcher", "hybridep"),
)

RULES = (
    Rule(
        name="one-vendor",
        layer="ours",
        settings=("gpu",),
        where="--gpus",
        reason="the GPUs of a job are of one vendor: the collective libraries of two (NCCL, RCCL, "
        "HCCL) do not speak to each other",
        holds=_one_vendor,
    ),
    Rule(
        name="gpus-within-caps",
        layer="ours",
        settings=("tp", "cp", "dp", "pp", "gpus"),
        where="--gpus, --max-gpus",
        reason="a plan cannot use more GPUs of a type than there are",
        holds=_within_caps,
    ),
    Rule(
        name="whole-chunks",
        layer="ours",
        settings=("vpp", "layers", "chunk_layers"),
        where="chunk_layers",
        reason="the layers of a stage must divide evenly into its virtual stages "
        "unless chunk_layers says how they are cut",
        holds=lambda plans, _: (plans.chunking >= 0) | every_slot(plans.layers % plans.vpp == 0),
    ),
    Rule(
        name="schedule-matches-vpp",
        layer="ours",
        settings=("schedule", "vpp"),
        where="schedule",
        reason="the schedule is interleaved exactly when vpp is above 1",
        holds=lambda plans, _: is_word(plans, "schedule", "interleaved") == (plans.vpp > 1),
    ),
    Rule(
        name="segments-feed-each-other",
        layer="ours",
        settings=("dp", "micro_batch"),
        where="segments",
        reason="dp x micro-batch must be the same in every segment of a pipeline",
        holds=_segments_feed_each_other,
    ),
    Rule(
        name="sequence-parallel-needs-tp",
        layer="ours",
        settings=("sequence_parallel", "tp"),
        where="Megatron-LM switches it off without a word",
        reason="sequence parallelism shares the work of a tensor-parallel group; with tp 1 it is "
        "silently off, and two names for one plan would be counted twice",
        holds=lambda plans, _: ~plans.sequence_parallel | (plans.tp > 1).any(axis=(0, 1)),
    ),
    Rule(
        name="recompute-counted-once",
        layer="ours",
        settings=("recompute", "layers", "vpp"),
        where="Megatron-LM clips the number without a word",
        reason="the layers to recompute cannot exceed the layers of a model chunk",
        holds=_recompute_once,
    ),
    Rule(
        name="module-exists",
        layer="ours",
        settings=("recompute", "offload_activations", "model.moe"),
        where="recompute, offload_activations",
        reason="a module that the model does not have cannot be recomputed or offloaded",
        holds=_module_exists,
    ),
    Rule(
        name="experts-only-in-moe",
        layer="ours",
        settings=("etp", "dispatcher", "capacity_factor", "model.moe"),
        where="etp, dispatcher, capacity_factor",
        reason="expert settings belong to models with experts, and those need a dispatcher",
        holds=_dense_has_no_experts,
    ),
    Rule(
        name="dispatcher-runs-there",
        layer="ours",
        settings=("dispatcher", "precision", "gpu"),
        where="data/dispatchers.toml",
        reason="DeepEP and HybridEP need bf16 or fp8, and Hopper or Blackwell GPUs that links join "
        "in their nodes, DeepEP in nodes of eight",
        holds=_dispatcher_runs,
    ),
    Rule(
        name="tp-overlap-inside-link-domain",
        layer="ours",
        settings=("overlap_tp", "tp", "gpu"),
        where="transformer_engine/pytorch/module/base.py initialize_ub",
        reason="tensor-parallel traffic is overlapped through buffers that the GPUs of a link "
        "domain share, so tp must fit in one",
        holds=_overlap_over_links,
    ),
    Rule(
        name="gpu-has-the-precision",
        layer="ours",
        settings=("precision", "gpu"),
        where="GPU data",
        reason="the GPU has no units for this precision",
        holds=_gpu_has_precision,
    ),
    Rule(
        name="block-scaling-needs-blackwell",
        layer="ours",
        settings=("fp8_recipe", "precision", "gpu"),
        where="GPU data",
        reason="mxfp8 and fp4 need compute capability 10 or later",
        holds=_mxfp8_needs_blackwell,
    ),
    Rule(
        name="recipe-needs-fp8",
        layer="ours",
        settings=("fp8_recipe", "precision"),
        where="fp8_recipe",
        reason="precision fp8 and an fp8 recipe come together",
        holds=lambda plans, _: (plans.fp8_recipe >= 0) == is_word(plans, "precision", "fp8"),
    ),
    Rule(
        name="reduce-in-a-training-dtype",
        layer="ours",
        settings=("grad_reduce_dtype", "precision"),
        where="grad_reduce_dtype",
        reason="gradients are reduced in fp32 or in the 16-bit type of the training",
        holds=_reduce_dtype,
    ),
    Rule(
        name="experts-on-one-type",
        layer="ours",
        settings=("ep", "etp", "tp", "cp", "dp"),
        where="pipelines",
        reason="an expert group lies on one GPU type: the ranks that a type has of a stage must be "
        "a multiple of ep x etp",
        holds=_experts_on_one_type,
    ),
    Rule(
        name="shard-group-divides",
        layer="ours",
        settings=("shard_group", "dp", "cp", "sharding"),
        where="shard_group",
        reason="the shard group must divide dp x cp, and is 1 without sharding",
        holds=_shard_group,
    ),
)

# Of every runtime but the one that lets replicas differ.
ONE_JOB = Rule(
    name="one-job",
    layer="ours",
    settings=("pipelines",),
    where="pipelines",
    reason="no public runtime lets replicas differ in layers, degrees, recompute or micro-batches; "
    "only --runtime any plans them",
    holds=lambda plans, _: is_one_job(plans),
)

BATCH_ADDS_UP = Rule(
    name="batch-adds-up",
    layer="ours",
    settings=("global_batch", "micro_batch", "dp"),
    where="global_batch",
    reason="replicas x micro-batches x micro-batch must be the global batch",
    holds=_batch_adds_up,
)

HOLDS_EVERY_LAYER = Rule(
    name="holds-every-layer",
    layer="ours",
    settings=("layers", "model.layers"),
    where="layers",
    reason="the stages together must hold the layers of the model",
    holds=lambda plans, task: every_slot(
        (plans.total_layers == task.model.layers) | (plans.replicas == 0)
    ),
)


def _one_dp(plans: Plans, _: Task) -> Flags:
    """Every stage of a pipeline has as many copies."""
    return every_slot((plans.dp == plans.dp[:, :1]) | ~plans.used)


def same_for_all_stages(runtime: str) -> tuple[Rule, ...]:
    """One value for all stages, where the runtime has no words for more."""

    def one_value_of(*columns: str) -> Holds:
        return lambda plans, _: np.logical_and.reduce([one_value(plans, name) for name in columns])

    per_stage = (
        ("tp", "tensor-parallel size", one_value_of("tp")),
        ("dp", "data-parallel size", _one_dp),
        ("ep", "expert-parallel size", one_value_of("segment_ep", "segment_etp")),
        ("micro_batch", "micro-batch", one_value_of("segment_micro_batch")),
        (
            "recompute",
            "recompute setting",
            one_value_of("recompute", "recompute_layers", "recompute_modules"),
        ),
    )
    return tuple(
        Rule(
            name=f"one-{setting.replace('_', '-')}",
            layer="ours",
            settings=(setting,),
            where=runtime,
            reason=f"{runtime} has one {what} for all stages; "
            "the runtime flagscale lets segments differ",
            holds=holds,
        )
        for setting, what, holds in per_stage
    )
