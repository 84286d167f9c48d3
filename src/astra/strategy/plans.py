"""Many plans as columns: the one table that rules, memory, timing and search work on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from astra.errors import InputError
from astra.hardware.cluster import Cluster
from astra.model.shape import Model
from astra.strategy import plan as schema
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.recompute import MODES, Recompute

Ints = NDArray[np.int64]
Codes = NDArray[np.int8]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Rows = slice | NDArray[np.intp] | NDArray[np.bool_] | list[int]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Model, cluster, runtime and stack: the same for all plans of a table."""

    model: Model
    cluster: Cluster
    runtime: schema.Runtime = "megatron"
    stack: str = "megatron"


# The words of every coded column; a code is the index into its words, -1 is "not set".
WORDS: dict[str, tuple[str, ...]] = {
    "cp_comm_type": get_args(schema.CpCommType),
    "schedule": get_args(schema.Schedule),
    "rank_order": get_args(schema.RankOrder),
    "sharding": get_args(schema.Sharding),
    "attention": get_args(schema.Attention),
    "precision": get_args(schema.Precision),
    "fp8_recipe": get_args(schema.Fp8Recipe),
    "main_grads_dtype": get_args(schema.Dtype),
    "grad_reduce_dtype": get_args(schema.Dtype),
    "master_dtype": get_args(schema.Dtype),
    "first_moment_dtype": get_args(schema.Dtype),
    "second_moment_dtype": get_args(schema.Dtype),
    "dispatcher": get_args(schema.Dispatcher),
    "cuda_graph": get_args(schema.CudaGraph),
    "recompute": MODES,
}
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
OFFLOAD_MODULES: tuple[str, ...] = get_args(schema.OffloadModule)


def code(column: str, word: str | None) -> int:
    """The code of a word in a coded column; -1 for None."""
    return -1 if word is None else WORDS[column].index(word)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Plans:
    """Many plans of one task as columns. The plan axis is last; new axes go in front.

    A slot is consecutive stages of one pipeline with equal settings and equal layers. An unused
    slot has stages 0, layers 0 and degrees 1: harmless in any formula.
    """

    # (plan,)
    micro_batch: Ints  # samples per replica
    global_batch: Ints
    seq_len: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    vpp: Ints
    # the stages of the pipeline where nothing is interleaved; 0: of several, those of each
    microbatch_group: Ints
    shard_group: Ints  # ranks over which states are sharded
    mtp_layers: Ints
    chunking: Ints  # row of `chunk_layers`, -1: every stage divides its layers evenly
    cp_comm_type: Codes
    schedule: Codes
    rank_order: Codes
    sharding: Codes
    attention: Codes
    precision: Codes
    fp8_recipe: Codes
    main_grads_dtype: Codes
    grad_reduce_dtype: Codes
    master_dtype: Codes
    first_moment_dtype: Codes
    second_moment_dtype: Codes
    dispatcher: Codes
    cuda_graph: Codes
    sequence_parallel: Flags
    overlap_grad_reduce: Flags
    overlap_param_gather: Flags
    overlap_p2p: Flags
    overlap_tp: Flags
    overlap_ep: Flags
    offload_optimizer_fraction: Floats
    capacity_factor: Floats  # nan: tokens are never dropped
    offload_activations: Ints  # bits in the order of OFFLOAD_MODULES
    offload_layers: Ints  # the first ones, whose activations go to the host
    # (pipeline, plan)
    replicas: Ints
    micro_batches: Ints  # per replica and step
    # (pipeline, slot, plan)
    gpu: Ints  # row of the task's pools
    stages: Ints
    layers: Ints  # of one stage
    tp: Ints
    dp: Ints
    segment_ep: Ints
    segment_etp: Ints
    segment_micro_batch: Ints
    recompute: Codes
    recompute_layers: Ints
    recompute_modules: Ints  # bits in the order of recompute.MODULES
    # not a column: the distinct uneven chunkings, virtual stage major
    chunk_layers: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return int(self.micro_batch.shape[-1])

    def columns(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in COLUMNS}

    def take(self, rows: Rows) -> "Plans":
        """The plans at `rows`, as numpy would index them."""
        taken = {name: _taken(column, rows) for name, column in self.columns().items()}
        return Plans(**taken, chunk_layers=self.chunk_layers)

    def without(self, names: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Neighbouring plans that differ only in these columns, counted once.

        The row of the first of each, and for every plan which of them it is.
        """
        changed = np.zeros(len(self), np.bool_)
        changed[:1] = True
        for name, column in self.columns().items():
            if name in names or len(self) < 2 or column.strides[-1] == 0:
                continue
            for values in column.reshape(-1, len(self)):
                differs = values[1:] != values[:-1]
                if column.dtype.kind == "f":
                    differs &= ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
                changed[1:] |= differs
        return np.flatnonzero(changed), np.cumsum(changed) - 1

    # What follows from the columns, by the names people use.

    @property
    def pp(self) -> Ints:
        """Stages of each pipeline. (pipeline, plan)"""
        total: Ints = self.stages.sum(axis=1)
        return total

    @property
    def microbatch_groups(self) -> Ints:
        """Micro-batches in a row on one chunk. (pipeline, plan)"""
        if self.replicas.shape[0] == 1:
            return self.microbatch_group[np.newaxis]
        return np.where(self.microbatch_group, self.microbatch_group, np.maximum(self.pp, 1))

    @property
    def used(self) -> Flags:
        """Which slots hold stages. (pipeline, slot, plan)"""
        return self.stages > 0

    @property
    def gpus(self) -> Ints:
        """GPUs a plan runs on."""
        total: Ints = (self.stages * self.tp * self.dp).sum(axis=(0, 1)) * self.cp
        return total

    @property
    def total_layers(self) -> Ints:
        """Layers of all stages of each pipeline. (pipeline, plan)"""
        total: Ints = (self.stages * self.layers).sum(axis=1)
        return total


COLUMNS = tuple(field.name for field in fields(Plans) if field.name != "chunk_layers")
PLAN_AXES = {"replicas": 2, "micro_batches": 2}  # axes of a column; 1 where not named
SLOT_COLUMNS = (
    "gpu",
    "stages",
    "layers",
    "tp",
    "dp",
    "segment_ep",
    "segment_etp",
    "segment_micro_batch",
    "recompute",
    "recompute_layers",
    "recompute_modules",
)
PLAN_AXES |= dict.fromkeys(SLOT_COLUMNS, 3)
UNUSED = {"stages": 0, "layers": 0, "gpu": 0, "recompute": 0, "recompute_layers": 0}
UNUSED |= {"recompute_modules": 0, "replicas": 0, "micro_batches": 0}  # any other: 1
FLAGS = (
    "sequence_parallel",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_p2p",
    "overlap_tp",
    "overlap_ep",
)
FLOATS = ("offload_optimizer_fraction", "capacity_factor")
NUMBERS = (
    "micro_batch",
    "global_batch",
    "seq_len",
    "cp",
    "ep",
    "etp",
    "vpp",
    "shard_group",
    "mtp_layers",
    "offload_layers",
)  # plan columns that a plan holds under the same name
PLAN_WORDS = tuple(
    name for name in WORDS if name not in ("recompute", "first_moment_dtype", "second_moment_dtype")
)  # likewise, as words


def column_dtype(name: str) -> type[np.generic]:
    """The type of a column's entries."""
    if name in WORDS:
        return np.int8
    if name in FLAGS:
        return np.bool_
    return np.float64 if name in FLOATS else np.int64


def plans_of(plans: Sequence[Plan]) -> Plans:
    """Plans of one task as a table."""
    chunkings: dict[tuple[int, ...], int] = {}
    rows = [_row(plan, chunkings) for plan in plans]
    pipelines = max(len(plan.pipelines) for plan in plans)
    slots = max(len(slots) for row in rows for slots in row["slots"])
    columns: dict[str, NDArray[Any]] = {}
    for name in COLUMNS:
        shape = (pipelines, slots, len(rows))[3 - PLAN_AXES.get(name, 1) :]
        if PLAN_AXES.get(name, 1) == 2:
            shape = (pipelines, len(rows))
        columns[name] = np.full(shape, UNUSED.get(name, 1), column_dtype(name))
    for i, row in enumerate(rows):
        for name, value in row["plan"].items():
            columns[name][i] = value
        for p, (pipeline, slots_of) in enumerate(zip(row["pipelines"], row["slots"], strict=True)):
            for name, value in pipeline.items():
                columns[name][p, i] = value
            for s, slot in enumerate(slots_of):
                for name, value in slot.items():
                    columns[name][p, s, i] = value
    return Plans(**columns, chunk_layers=tuple(chunkings))


def task_of(plan: Plan) -> Task:
    return Task(model=plan.model, cluster=plan.cluster, runtime=plan.runtime, stack=plan.stack)


def _row(plan: Plan, chunkings: dict[tuple[int, ...], int]) -> dict[str, Any]:
    """One plan as the values of its columns."""
    first, second = plan.moment_dtypes
    chunking = -1
    if plan.chunk_layers is not None:
        chunking = chunkings.setdefault(plan.chunk_layers, len(chunkings))
    values = {
        **{name: getattr(plan, name) for name in (*NUMBERS, *FLAGS)},
        **{name: code(name, getattr(plan, name)) for name in PLAN_WORDS},
        "microbatch_group": plan.microbatch_group or (plan.pp if _one_depth(plan) else 0),
        "chunking": chunking,
        "first_moment_dtype": code("first_moment_dtype", first),
        "second_moment_dtype": code("second_moment_dtype", second),
        "offload_optimizer_fraction": plan.offload_optimizer_fraction,
        "capacity_factor": np.nan if plan.capacity_factor is None else plan.capacity_factor,
        "offload_activations": sum(
            1 << OFFLOAD_MODULES.index(module) for module in set(plan.offload_activations)
        ),
    }
    return {
        "plan": values,
        "pipelines": [
            {"replicas": pipeline.replicas, "micro_batches": pipeline.micro_batches}
            for pipeline in plan.pipelines
        ],
        "slots": [_slots(plan, pipeline) for pipeline in plan.pipelines],
    }


def _one_depth(plan: Plan) -> bool:
    return len({pipeline.stages for pipeline in plan.pipelines}) == 1


def _slots(plan: Plan, pipeline: Pipeline) -> list[dict[str, int]]:
    """The slots of equal stages of one pipeline."""
    names = [pool.gpu.name for pool in plan.cluster.pools]
    slots: list[dict[str, int]] = []
    for segment in pipeline.segments:
        recompute = Recompute.parse(segment.recompute)
        settings = {
            "gpu": names.index(segment.gpu),
            "tp": segment.tp,
            "dp": segment.dp or pipeline.replicas,
            "segment_ep": segment.ep or plan.ep,
            "segment_etp": segment.etp or plan.etp,
            "segment_micro_batch": segment.micro_batch or plan.micro_batch,
            "recompute": code("recompute", recompute.mode),
            "recompute_layers": recompute.layers,
            "recompute_modules": recompute.module_bits,
        }
        for layers in segment.layers:
            last = slots[-1] if slots else {}
            if {**settings, "layers": layers} == {k: v for k, v in last.items() if k != "stages"}:
                last["stages"] += 1
            else:
                slots.append({**settings, "layers": layers, "stages": 1})
    return slots


def plan_at(plans: Plans, row: int, task: Task) -> Plan:
    """One row as people write it."""

    def number(name: str) -> int:
        return int(getattr(plans, name)[row])

    def word(name: str) -> Any:
        value = int(getattr(plans, name)[row])
        return None if value < 0 else WORDS[name][value]

    if not -len(plans) <= row < len(plans):
        raise InputError(f"there is no plan {row}; the table has {len(plans)}.")
    chunking = number("chunking")
    capacity = float(plans.capacity_factor[row])
    bits = number("offload_activations")
    modules: Any = tuple(name for i, name in enumerate(OFFLOAD_MODULES) if bits >> i & 1)
    values: dict[str, Any] = {
        **{name: number(name) for name in NUMBERS},
        **{name: bool(getattr(plans, name)[row]) for name in FLAGS},
        **{name: word(name) for name in PLAN_WORDS},
    }
    return Plan(
        model=task.model,
        cluster=task.cluster,
        stack=task.stack,
        runtime=task.runtime,
        pipelines=tuple(
            _pipeline_at(plans, p, row, task)
            for p in range(plans.replicas.shape[0])
            if plans.replicas[p, row] > 0
        ),
        chunk_layers=None if chunking < 0 else plans.chunk_layers[chunking],
        microbatch_group=(number("microbatch_group") or None) if number("vpp") > 1 else None,
        moment_dtypes=(word("first_moment_dtype"), word("second_moment_dtype")),
        offload_optimizer_fraction=float(plans.offload_optimizer_fraction[row]),
        offload_activations=modules,
        capacity_factor=None if np.isnan(capacity) else capacity,
        **values,
    )


def _pipeline_at(plans: Plans, pipeline: int, row: int, task: Task) -> Pipeline:
    """One group of replicas; adjacent slots that differ in layers only are one segment."""
    replicas = int(plans.replicas[pipeline, row])
    segments: list[Segment] = []
    for slot in range(plans.stages.shape[1]):
        at = (pipeline, slot, row)
        stages = int(plans.stages[at])
        if stages == 0:
            continue
        segment_values = _segment_values(plans, at, replicas, row)
        recompute = Recompute.of_codes(
            int(plans.recompute[at]),
            int(plans.recompute_layers[at]),
            int(plans.recompute_modules[at]),
        )
        segment = Segment(
            gpu=task.cluster.pools[int(plans.gpu[at])].gpu.name,
            stages=stages,
            layers=(int(plans.layers[at]),) * stages,
            tp=int(plans.tp[at]),
            recompute=str(recompute),
            **segment_values,
        )
        previous = segments[-1] if segments else None
        if previous and _same_settings(previous, segment):
            segments[-1] = msgspec.structs.replace(
                previous,
                stages=previous.stages + stages,
                layers=previous.layers + segment.layers,
            )
        else:
            segments.append(segment)
    return Pipeline(
        replicas=replicas,
        micro_batches=int(plans.micro_batches[pipeline, row]),
        segments=tuple(segments),
    )


def _segment_values(
    plans: Plans, at: tuple[int, int, int], replicas: int, row: int
) -> dict[str, Any]:
    """What a segment sets for itself; None where it is the plan's."""
    dp = int(plans.dp[at])
    values: dict[str, Any] = {"dp": None if dp == replicas else dp}
    for name in ("ep", "etp", "micro_batch"):
        value = int(getattr(plans, f"segment_{name}")[at])
        values[name] = None if value == int(getattr(plans, name)[row]) else value
    return values


def _same_settings(one: Segment, other: Segment) -> bool:
    """Whether two segments differ in nothing but their stages and layers."""
    return all(
        getattr(one, field) == getattr(other, field)
        for field in Segment.__struct_fields__
        if field not in ("stages", "layers")
    )


def _taken(column: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """A column at `rows`; one value that stands for all of them stays one in memory."""
    if column.strides[-1] or not column.shape[-1]:
        return column[..., rows]
    count = len(range(column.shape[-1])[rows]) if isinstance(rows, slice) else _length(rows)
    return np.broadcast_to(column[..., :1], (*column.shape[:-1], count))


def _length(rows: Any) -> int:
    """How many rows an index names: numbers, or flags of which some are true."""
    index = np.asarray(rows)
    return int(np.count_nonzero(index)) if index.dtype == np.bool_ else len(index)


def concatenate(tables: Sequence[Plans]) -> Plans:
    """Tables of one task under each other, padded to the largest number of slots."""
    pipelines = max(table.stages.shape[0] for table in tables)
    slots = max(table.stages.shape[1] for table in tables)
    chunkings: dict[tuple[int, ...], int] = {}
    parts: list[dict[str, NDArray[Any]]] = []
    for table in tables:
        renumber = [chunkings.setdefault(chunk, len(chunkings)) for chunk in table.chunk_layers]
        columns = table.columns()
        columns["chunking"] = np.array([*renumber, -1], np.int64)[table.chunking]
        parts.append({name: _pad(name, columns[name], pipelines, slots) for name in COLUMNS})
    joined = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in COLUMNS}
    return Plans(**joined, chunk_layers=tuple(chunkings))


def _pad(name: str, column: NDArray[Any], pipelines: int, slots: int) -> NDArray[Any]:
    """A column with unused pipelines and slots behind the used ones."""
    axes = PLAN_AXES.get(name, 1)
    missing = [(0, 0)] * column.ndim
    if axes >= 2:
        missing[0] = (0, pipelines - column.shape[0])
    if axes == 3:
        missing[1] = (0, slots - column.shape[1])
    if not any(after for _, after in missing):
        return column
    return np.pad(column, missing, constant_values=UNUSED.get(name, 1))


def dtype_bytes(plans: Plans, column: str) -> Floats:
    """Bytes of one element in the type that a column names."""
    sizes = np.array([DTYPE_BYTES[word] for word in WORDS[column]])
    return sizes[getattr(plans, column)]
