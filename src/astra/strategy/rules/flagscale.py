"""What FlagScale accepts: Megatron-LM's rules, with degrees of its own per mesh (a segment)."""

import numpy as np

from astra.strategy.plans import SLOT_COLUMNS, Flags, Ints, Plans, Task
from astra.strategy.replica_groups import is_one_job
from astra.strategy.rules.megatron_config import CONFIGURATION
from astra.strategy.rules.megatron_parser import PARSER
from astra.strategy.rules.megatron_runtime import LAYOUTS, RUNTIME
from astra.strategy.rules.our_rules import NO_HYBRIDEP
from astra.strategy.rules.rule import (
    Rule,
    any_slot,
    constant,
    every_pipeline,
    every_slot,
    first_dp,
    is_word,
    one_value,
)

MESHES = "flagscale/train/arguments.py"
CONTEXT = "flagscale/train/hetero/parallel_context.py, ParallelContext"


def has_equal_stages(plans: Plans) -> Flags:
    """All stages of each pipeline have equal settings: an ordinary Megatron-LM job. Of replicas on
    several GPU types FlagScale has no meshes: their stages are on whatever GPUs.
    """
    found = constant(plans, True)
    typeless = ((plans.replicas > 0).sum(axis=0) > 1) & is_one_job(plans)
    for name in SLOT_COLUMNS:
        if name not in ("stages", "layers"):
            column = getattr(plans, name)
            equal = every_slot((column == column[:, :1]) | ~plans.used)
            found &= (equal | typeless) if name == "gpu" else equal
    return found


def _ends_agree(plans: Plans, task: Task) -> Flags:
    """Tied embeddings and multi-token prediction need one tp at both ends."""
    if not task.model.tied_embeddings:
        return constant(plans, True) & ((plans.mtp_layers == 0) | _equal_ends(plans))
    return _equal_ends(plans)


def _equal_ends(plans: Plans) -> Flags:
    return every_pipeline(_last(plans, plans.tp) == plans.tp[:, 0], plans)


def _ends_divide(plans: Plans, task: Task) -> Flags:
    """Copies at both ends of tied embeddings: as many, or a whole number of one to each other."""
    if not task.model.tied_embeddings:
        return constant(plans, True)
    first, last = plans.dp[:, 0], _last(plans, plans.dp)
    return every_pipeline((first % last == 0) | (last % first == 0), plans)


def _last(plans: Plans, column: Ints) -> Ints:
    """What the last stage of each pipeline has. (pipeline, plan)"""
    slots = np.arange(column.shape[1])[:, np.newaxis]
    at = np.where(plans.used, slots, 0).max(axis=1, keepdims=True)
    found: Ints = np.take_along_axis(column, at, axis=1)[:, 0]
    return found


def _first_dp_feeds(plans: Plans, _: Task) -> Flags:
    """The first mesh's samples divide over every mesh's replicas."""
    samples = plans.dp[:, :1] * plans.segment_micro_batch[:, :1]
    return every_slot((samples % plans.dp == 0) | ~plans.used)


def _one_instance(plans: Plans, _: Task) -> Flags:
    """Meshes that differ shard the optimizer over all replicas, or not at all."""
    whole = plans.shard_group == first_dp(plans) * plans.cp
    return whole | is_word(plans, "sharding", "none") | has_equal_stages(plans)


def _stage_recompute(plans: Plans, _: Task) -> Flags:
    """Stages that differ in recompute recompute whole layers or nothing."""
    selective = any_slot(is_word(plans, "recompute", "selective") & plans.used)
    equal = one_value(plans, "recompute") & one_value(plans, "recompute_layers")
    return (equal & one_value(plans, "recompute_modules")) | ~selective


MESH_RULES = (
    Rule(
        name="meshes-exclude-vpp",
        layer="parser",
        settings=("vpp", "segments"),
        where=MESHES,
        reason="FlagScale: meshes that differ exclude virtual pipeline stages",
        holds=lambda plans, _: (plans.vpp == 1) | has_equal_stages(plans),
    ),
    Rule(
        name="first-mesh-feeds-all",
        layer="parser",
        settings=("dp", "micro_batch"),
        where=MESHES,
        reason="FlagScale: dp x micro-batch of the first mesh must be divisible by every mesh's dp",
        holds=_first_dp_feeds,
    ),
    Rule(
        name="tied-ends-share-tp",
        layer="parser",
        settings=("tp", "model.tied_embeddings", "mtp_layers"),
        where=MESHES,
        reason="FlagScale: tied embeddings and multi-token prediction need equal tp on the first "
        "and the last mesh",
        holds=_ends_agree,
    ),
    Rule(
        name="tied-ends-divide-dp",
        layer="parser",
        settings=("dp", "model.tied_embeddings"),
        where=MESHES,
        reason="FlagScale: with tied embeddings the dp of the first and of the last mesh must "
        "divide one another",
        holds=_ends_divide,
    ),
    Rule(
        name="tp-overlap-on-every-mesh",
        layer="parser",
        settings=("overlap_tp", "tp"),
        where=MESHES,
        reason="FlagScale: sequence parallelism is off in a mesh of tp 1, so --tp-comm-overlap "
        "needs tp above 1 in every mesh",
        holds=lambda plans, _: ~plans.overlap_tp | every_slot((plans.tp > 1) | ~plans.used),
    ),
    Rule(
        name="stages-recompute-whole-layers",
        layer="parser",
        settings=("recompute",),
        where=MESHES,
        reason="FlagScale: recompute per stage goes only with granularity full",
        holds=_stage_recompute,
    ),
    Rule(
        name="meshes-exclude-cp",
        layer="runtime",
        settings=("cp", "segments"),
        where=CONTEXT,
        reason="FlagScale: meshes that differ exclude context parallelism",
        holds=lambda plans, _: (plans.cp == 1) | has_equal_stages(plans),
    ),
    Rule(
        name="meshes-share-one-optimizer",
        layer="runtime",
        settings=("shard_group", "dp", "cp", "segments"),
        where=CONTEXT,
        reason="FlagScale: meshes that differ have one instance of the distributed optimizer, "
        "sharded over all replicas",
        holds=_one_instance,
    ),
)

RULES = (
    *PARSER,
    *CONFIGURATION,
    *LAYOUTS,
    *RUNTIME,
    *MESH_RULES,
    NO_HYBRIDEP,
)
