"""Which pipelines over several GPU types a query asks for, and which types they can use."""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from astra.hardware.cluster import Pool
from astra.notes import Note, NoteCode, note
from astra.strategy.enumerate import usual_settings
from astra.strategy.plan import Runtime
from astra.strategy.space import Space

# Dimensions of a pipeline over several types that can be narrowed.
SEARCHED = (
    "tp",
    "dp",
    "micro_batch",
    "cp",
    "cp_comm_type",
    "sharding",
    "ep",
    "etp",
    "mesh_dp",
    "recompute",
    "offload_optimizer_fraction",
)
INTERLEAVED = ("vpp", "overlap_ep")  # and of one for Megatron-LM
MIXES: tuple[Runtime, ...] = ("megatron", "flagscale")  # whose pipelines may mix types


def narrowed_by(runtime: str) -> tuple[str, ...]:
    """The dimensions of a pipeline over several types that can be narrowed."""
    return SEARCHED + (INTERLEAVED if runtime == "megatron" else ())


def why_not_mixed(space: Space) -> Note | None:
    """Why no pipelines over several types are searched; None where they are."""
    runtime, names = space.workload.task.runtime, narrowed_by(space.workload.task.runtime)
    if runtime not in (*MIXES, "any"):
        return note(NoteCode.NO_MIXED_PIPELINES, runtime=runtime)
    cps = space.settings.get("cp", (1,))
    if runtime == "flagscale" and 1 not in cps:
        return note(NoteCode.NO_CONTEXT_OVER_TYPES, cp=list(cps))
    usual = usual_settings(space.workload)
    unknown = [
        name
        for name, values in space.settings.items()
        if name not in names and (name not in usual or usual[name] not in values)
    ]
    if not unknown:
        return None
    return note(
        NoteCode.NOT_NARROWED_OVER_TYPES,
        settings=unknown,
        runtime=runtime,
        narrowed_by=list(names),
        interleaved=bool(set(unknown) & set(INTERLEAVED)),
    )


def without_types(
    space: Space, kept: set[int], why: Callable[[Pool, str], Note]
) -> tuple[Space, dict[str, Note]]:
    """The space on these pools, and why not on the others; all where none would be left."""
    cluster = space.workload.task.cluster
    if not kept or len(kept) == len(cluster.pools):
        return space, {}
    pools = tuple(pool for row, pool in enumerate(cluster.pools) if row in kept)
    gone = [pool for row, pool in enumerate(cluster.pools) if row not in kept]
    smaller = msgspec.structs.replace(cluster, pools=pools)
    task = msgspec.structs.replace(space.workload.task, cluster=smaller)
    narrower = Space(replace(space.workload, task=task), space.settings)
    return narrower, {pool.gpu.name: why(pool, space.workload.precision) for pool in gone}


def too_small(pool: Pool, _: str) -> Note:
    """No stage on the type can hold a layer."""
    usable_bytes = float(pool.gpu.usable_bytes)
    return note(NoteCode.TYPE_TOO_SMALL, gpu=pool.gpu.name, usable_bytes=usable_bytes)


def lacking(pool: Pool, precision: str) -> Note:
    """What a type lacks that all its plans would need."""
    gpu = pool.gpu
    if getattr(gpu, f"{precision}_flops_per_s") is not None:
        return note(NoteCode.TYPE_AGAINST_RULES, gpu=gpu.name)
    return note(
        NoteCode.TYPE_WITHOUT_UNITS,
        gpu=gpu.name,
        precision=precision,
        has_fp16=gpu.fp16_flops_per_s is not None,
    )
