"""Global settings and segment options, and tables of plans made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.strategy.complete import fp8_recipe
from astra.strategy.dispatchers import dispatchers_for
from astra.strategy.plans import COLUMNS, PLAN_AXES, Codes, Ints, Plans, code, column_dtype
from astra.strategy.space import Workload

Columns = dict[str, NDArray[Any]]
# What an option says of its stages, by the column it stands in.
OPTION_COLUMNS = {
    "gpu": "pool",
    "tp": "tp",
    "dp": "dp",
    "segment_ep": "ep",
    "segment_etp": "etp",
    "segment_micro_batch": "micro_batch",
}
DEGREES = tuple(name for name in OPTION_COLUMNS if name != "gpu")
RECOMPUTE_COLUMNS = ("recompute", "recompute_layers", "recompute_modules")


@dataclass(frozen=True, slots=True)
class SharedDegrees:
    """What all segments share beyond the global setting; None: each segment has its own."""

    tp: int | None = None
    dp: int | None = None
    ep: int | None = None
    etp: int | None = None


@dataclass(frozen=True, slots=True)
class GlobalSetting:
    """One choice of all that holds for a whole plan but for recompute."""

    samples: int  # of one micro-batch of all replicas: dp x micro-batch of every segment
    micro_batches: int
    cp: int
    cp_comm_type: str
    sharding: str
    overlap_tp: bool
    offload_fraction: float  # of the optimizer's states, on the host
    shared: SharedDegrees = SharedDegrees()
    overlap_ep: bool = False  # interleaved ones alone


@dataclass(frozen=True, slots=True)
class SegmentOption:
    """One way to form stages on one GPU type.

    Where the share of a node or link domain that a job takes depends on how many GPUs it takes,
    each share is an option of its own.
    """

    pool: int
    tp: int
    dp: int
    ep: int
    etp: int
    micro_batch: int
    stage_gpus: int
    stages: tuple[int, ...]  # how many of them a plan may have, ascending

    @property
    def most(self) -> int:
        """Stages where as many GPUs of the type are used as can be in this way."""
        return self.stages[-1]


def option_columns(options: Sequence[SegmentOption]) -> dict[str, Ints]:
    """Options as columns of a table of plans. (option,)"""
    return {
        column: np.array([getattr(option, name) for option in options], np.int64)
        for column, name in OPTION_COLUMNS.items()
    }


def stage_slots(plans: Sequence[Mapping[str, Ints]]) -> Columns:
    """Slots of plans of different depths, a slot for each stage: their columns. (stage,)"""
    shape = max(len(stages["gpu"]) for stages in plans), len(plans)
    names = ("gpu", "stages", "layers", *RECOMPUTE_COLUMNS)
    slots: Columns = {name: np.zeros(shape, np.int64) for name in names}
    slots |= {name: np.ones(shape, np.int64) for name in DEGREES}
    for row, stages in enumerate(plans):
        here = slice(0, len(stages["gpu"]))
        slots["stages"][here, row] = 1
        for name, column in stages.items():
            slots[name][here, row] = column
    return slots


def plans_from_stages(
    workload: Workload,
    settings: Sequence[GlobalSetting],
    which: Ints,
    slots: Columns,
    other: Columns | None = None,
    chunk_layers: tuple[tuple[int, ...], ...] = (),
) -> Plans:
    """Plans with these (slot, plan) columns; `which` of the settings each has. (plan,)

    What a plan has once is its first segment's. `other`: columns that differ from those of plans
    with one chunk for each stage.
    """

    def of(name: str) -> NDArray[Any]:
        return np.array([getattr(setting, name) for setting in settings])[which]

    def word(name: str) -> NDArray[Any]:
        return np.array([code(name, getattr(each, name)) for each in settings], np.int8)[which]

    first, cp = {name: slots[name][0] for name in DEGREES}, of("cp")
    sharding = word("sharding")
    sharded = sharding != code("sharding", "none")
    copies = np.where(slots["stages"] > 0, slots["dp"], 1).max(axis=0) * cp
    recipe = fp8_recipe(workload.task.cluster) if workload.precision == "fp8" else None
    columns: Columns = {
        "global_batch": np.array(workload.global_batch),
        "seq_len": np.array(workload.seq_len),
        "mtp_layers": np.array(workload.mtp_layers),
        "precision": np.array(code("precision", workload.precision)),
        "micro_batch": first["segment_micro_batch"],
        "cp": cp,
        "ep": first["segment_ep"],
        "etp": first["segment_etp"],
        "microbatch_group": slots["stages"].sum(axis=0),
        "vpp": np.array(1),
        "overlap_ep": of("overlap_ep"),
        "shard_group": np.where(sharded, first["dp"] * cp, 1),
        "chunking": np.array(-1),
        "cp_comm_type": word("cp_comm_type"),
        "sharding": sharding,
        "fp8_recipe": np.array(code("fp8_recipe", recipe)),
        "dispatcher": _dispatchers(workload, slots),
        "sequence_parallel": slots["tp"].max(axis=0) > 1,
        "overlap_grad_reduce": copies > 1,
        "overlap_param_gather": (copies > 1) & sharded,
        "overlap_tp": of("overlap_tp"),
        "offload_optimizer_fraction": of("offload_fraction"),
        "capacity_factor": np.array(np.nan),
        "replicas": first["dp"][np.newaxis],
        "micro_batches": of("micro_batches")[np.newaxis],
        **{name: column[np.newaxis] for name, column in slots.items()},
        **(other or {}),
    }
    shapes = {1: which.shape, 2: (1, *which.shape), 3: (1, *slots["stages"].shape)}
    full: dict[str, Any] = {
        name: np.broadcast_to(
            np.asarray(columns.get(name, 0)).astype(column_dtype(name)),
            shapes[PLAN_AXES.get(name, 1)],
        )
        for name in COLUMNS
    }
    return Plans(**full, chunk_layers=chunk_layers)


def _dispatchers(workload: Workload, slots: Columns) -> Codes:
    """One for all stages: what serves the groups of each of them. (plan,)"""
    every = dispatchers_for(workload, slots["segment_ep"], slots["segment_etp"])
    used = slots["stages"] > 0
    equal = ((every == every[:1]) | ~used).all(axis=0)
    alone = code("dispatcher", "alltoall" if workload.task.model.moe else None)
    return np.where(equal, every[0], np.int8(alone))


def equal_stages(workload: Workload, pairs: Sequence[tuple[GlobalSetting, SegmentOption]]) -> Plans:
    """A plan of equal stages for every option in its setting: what rules are asked on. (pair,)"""
    rows: dict[GlobalSetting, int] = {}
    which = np.array([rows.setdefault(setting, len(rows)) for setting, _ in pairs], np.int64)
    options = [option for _, option in pairs]
    zeros = np.zeros((1, len(pairs)), np.int64)
    slots: Columns = {name: column[np.newaxis] for name, column in option_columns(options).items()}
    slots |= dict.fromkeys(RECOMPUTE_COLUMNS, zeros)
    slots["stages"] = zeros + np.array([option.stages[0] for option in options])
    slots["layers"] = zeros + workload.task.model.layers
    return plans_from_stages(workload, list(rows), which, slots)
