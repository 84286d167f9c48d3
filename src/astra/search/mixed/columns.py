"""Tables of plans out of cells and kinds: what the product's own functions take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from astra.strategy.complete import fp8_recipe
from astra.strategy.plans import COLUMNS, PLAN_AXES, Ints, Plans, code, column_dtype
from astra.strategy.space import Workload

Columns = dict[str, NDArray[Any]]
# What a kind says of its stages, by the column it stands in.
OF_KIND = {
    "gpu": "pool",
    "tp": "tp",
    "dp": "dp",
    "segment_ep": "ep",
    "segment_etp": "etp",
    "segment_micro_batch": "micro_batch",
}
DEGREES = tuple(name for name in OF_KIND if name != "gpu")


class StageKind(Protocol):
    """One way to form the stages of one GPU type, as `cells.Kind` has it."""

    @property
    def stages(self) -> Sequence[int]: ...


class MixedCell(Protocol):
    """One choice of what holds for a whole plan."""

    @property
    def micro_batches(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def cp_comm_type(self) -> str: ...
    @property
    def sharding(self) -> str: ...
    @property
    def overlap_tp(self) -> bool: ...
    @property
    def offload(self) -> float: ...
    @property
    def vpp(self) -> int: ...
    @property
    def overlap_ep(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Chunks:
    """How stages are cut into chunks that take turns."""

    group: Ints  # (plan,) micro-batches in turn
    listed: Ints  # (plan,) of the lists; -1: all chunks of a stage are alike
    lists: tuple[tuple[int, ...], ...]  # layers of every chunk, virtual stage major

    @property
    def columns(self) -> Columns:
        turns = np.ones(len(self.group), np.bool_)
        schedule = np.full(len(self.group), code("schedule", "interleaved"))
        own = {"microbatch_group": self.group, "chunking": self.listed}
        return own | {"overlap_p2p": turns, "schedule": schedule}


def kind_columns(kinds: Sequence[StageKind]) -> Columns:
    """Their cuts as columns. (kind,)"""
    return {
        column: np.array([getattr(kind, name) for kind in kinds], np.int64)
        for column, name in OF_KIND.items()
    }


def plans_table(
    workload: Workload,
    cells: Sequence[MixedCell],
    which: Ints,
    slots: Columns,
    sequence_parallel: NDArray[np.bool_],
    chunks: Chunks | None = None,
) -> Plans:
    """Plans with these slots, (slot, plan) columns, in these cells. (plan,)

    What a plan has once is its first segment's. `chunks`: those of interleaved plans.
    """

    def of(name: str) -> NDArray[Any]:
        return np.array([getattr(cell, name) for cell in cells])[which]

    def word(name: str) -> NDArray[Any]:
        return np.array([code(name, getattr(cell, name)) for cell in cells], np.int8)[which]

    moe = workload.task.model.moe is not None
    first = {name: slots[name][0] for name in DEGREES}
    copies = first["dp"] * of("cp")
    sharded = word("sharding") != code("sharding", "none")
    most = np.where(slots["stages"] > 0, slots["dp"], 1).max(axis=0) * of("cp")
    recipe = fp8_recipe(workload.task.cluster) if workload.precision == "fp8" else None
    columns: Columns = {
        "global_batch": np.array(workload.global_batch),
        "seq_len": np.array(workload.seq_len),
        "mtp_layers": np.array(workload.mtp_layers),
        "precision": np.array(code("precision", workload.precision)),
        "micro_batch": first["segment_micro_batch"],
        "cp": of("cp"),
        "ep": first["segment_ep"],
        "etp": first["segment_etp"],
        "microbatch_group": slots["stages"].sum(axis=0),
        "vpp": of("vpp"),
        "overlap_ep": of("overlap_ep"),
        "shard_group": np.where(sharded, copies, 1),
        "chunking": np.array(-1),
        **({} if chunks is None else chunks.columns),
        "cp_comm_type": word("cp_comm_type"),
        "sharding": word("sharding"),
        "fp8_recipe": np.array(code("fp8_recipe", recipe)),
        "dispatcher": np.array(code("dispatcher", "alltoall" if moe else None)),
        "sequence_parallel": sequence_parallel,
        "overlap_grad_reduce": most > 1,
        "overlap_param_gather": (most > 1) & sharded,
        "overlap_tp": of("overlap_tp"),
        "offload_optimizer_fraction": of("offload"),
        "capacity_factor": np.array(np.nan),
        "replicas": first["dp"][np.newaxis],
        "micro_batches": of("micro_batches")[np.newaxis],
        **{name: column[np.newaxis] for name, column in slots.items()},
    }
    shapes = {1: which.shape, 2: (1, *which.shape), 3: (1, *slots["stages"].shape)}
    full: dict[str, Any] = {
        name: np.broadcast_to(
            np.asarray(columns.get(name, 0)).astype(column_dtype(name)),
            shapes[PLAN_AXES.get(name, 1)],
        )
        for name in COLUMNS
    }
    return Plans(**full, chunk_layers=() if chunks is None else chunks.lists)


def one_stage(
    workload: Workload, cells: Sequence[MixedCell], which: Ints, kinds: Sequence[StageKind]
) -> Plans:
    """A plan of equal stages for every kind: what rules and layer times are asked on."""
    zeros = np.zeros((1, len(kinds)), np.int64)
    slots = {name: column[np.newaxis] for name, column in kind_columns(kinds).items()}
    slots |= {
        "stages": zeros + np.array([k.stages[0] for k in kinds], np.int64),
        "layers": zeros + workload.task.model.layers,
        "recompute": zeros,
        "recompute_layers": zeros,
        "recompute_modules": zeros,
    }
    return plans_table(workload, cells, which, slots, slots["tp"][0] > 1)
