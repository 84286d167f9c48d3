"""Ways to share out the layers of a model among stages, and those of a stage among chunks."""

from itertools import groupby
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from astra.model.flops import forward_flops
from astra.strategy.complete import deepspeed_split, split_layers
from astra.strategy.plan import Plan
from astra.strategy.plans import Ints, task_of
from astra.strategy.space import Space, Workload, divisors

SLOTS = 3  # first stages, middle stages, last stages

ColumnTable = dict[str, NDArray[Any]]


def take_rows(table: ColumnTable, rows: Any) -> ColumnTable:
    """These rows of every column; a number that stands for all rows stays one."""
    return {name: column[rows] if column.ndim else column for name, column in table.items()}


def repeat_rows(counts: Ints) -> tuple[Ints, Ints]:
    """So many entries of every row, one after the other: the row of each, its place in it."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


class LayerSplits:
    """For every number of stages: the ways to share out the layers among stages and chunks."""

    def __init__(self, space: Space) -> None:
        model, workload = space.workload.task.model, space.workload
        self.chunk_layers: tuple[tuple[int, ...], ...] = ()
        chunkings: dict[tuple[int, ...], int] = {}
        rows: list[tuple[int, ...]] = []
        self.counts = np.zeros(model.layers + 1, np.int64)
        self.starts = np.zeros(model.layers + 1, np.int64)
        self.interleaved = np.zeros(
            model.layers + 1, np.bool_
        )  # any of them, or there is one stage
        interleaves = workload.task.runtime != "deepspeed"
        head = _layers_of_the_head(workload)
        for pp in range(1, model.layers + 1):
            self.starts[pp] = len(rows)
            for slots in (
                layer_splits(model.layers, pp)
                if interleaves
                else [_deepspeed_slots(model.layers, pp)]
            ):
                for vpp in _virtual_stages(slots, pp) if interleaves else (1,):
                    if space.allows("vpp", vpp):
                        rows.append((*slots, vpp, -1))
            for vpp, chunks in _unlike_chunks(model.layers, pp, head) if interleaves else ():
                if space.allows("vpp", vpp):
                    at = chunkings.setdefault(chunks, len(chunkings))
                    rows.append((*_chunk_slots(chunks, pp), vpp, at))
            self.counts[pp] = len(rows) - self.starts[pp]
            self.interleaved[pp] = pp == 1 or any(row[-2] > 1 for row in rows[self.starts[pp] :])
        self.table = np.array(rows, np.int64).reshape(-1, 2 * SLOTS + 2).T
        self.chunk_layers = tuple(chunkings)

    def join(self, base: ColumnTable, counts: Ints) -> ColumnTable:
        """Each row with the first so many splits for its number of stages."""
        rows, within = repeat_rows(counts)
        table = take_rows(base, rows)
        chosen = self.table[:, self.starts[table["pp"]] + within]
        for slot in range(SLOTS):
            table[f"stages{slot}"] = chosen[2 * slot]
            table[f"layers{slot}"] = chosen[2 * slot + 1]
        table["vpp"], table["chunking"] = chosen[-2], chosen[-1]
        return table


def layer_cuts(plan: Plan) -> list[Plan]:
    """The plan with every split of its layers that a search tries for its stages and chunks."""
    (pipeline,) = plan.pipelines
    (segment,) = pipeline.segments
    workload = Workload(task_of(plan), plan.global_batch, plan.seq_len, plan.mtp_layers)
    splits = LayerSplits(Space(workload, {"vpp": (plan.vpp,)}))
    start, found = splits.starts[plan.pp], []
    for row in splits.table[:, start : start + splits.counts[plan.pp]].T:
        slots = row[: 2 * SLOTS].reshape(SLOTS, 2).tolist()
        layers = tuple(held for stages, held in slots for _ in range(stages))
        own = msgspec.structs.replace(segment, layers=layers)
        whole = msgspec.structs.replace(pipeline, segments=(own,))
        chunks = splits.chunk_layers[row[-1]] if row[-1] >= 0 else None
        found.append(msgspec.structs.replace(plan, pipelines=(whole,), chunk_layers=chunks))
    return found


def layer_splits(layers: int, pp: int) -> list[tuple[int, ...]]:
    """Ways to share out layers: (stages, layers) of the first, middle and last stages.

    The even split; shorter first and last stages around an even middle; and the split whose
    left-over layers lie in the middle.
    """
    found = [_slots_of(split_layers(layers, pp))]
    if pp >= 2:
        for middle in {-(-(layers + extra) // pp) for extra in (0, 1, 2)}:
            ends = layers - (pp - 2) * middle
            for first in range(max(ends - middle, 1), min(middle, ends - 1) + 1):
                found.append(_slots_of((first, *[middle] * (pp - 2), ends - first)))
    return list(dict.fromkeys(found))


def _deepspeed_slots(layers: int, pp: int) -> tuple[int, ...]:
    """DeepSpeed's only split: as even as can be, the first stages first."""
    return _slots_of(deepspeed_split(layers, pp))


def _slots_of(stages: tuple[int, ...]) -> tuple[int, ...]:
    """Stages as slots of equal layers, padded to the number of slots."""
    slots = [(len(list(equal)), layers) for layers, equal in groupby(stages)]
    assert len(slots) <= SLOTS
    flat = [number for slot in slots for number in slot]
    return tuple(flat + [0] * (2 * SLOTS - len(flat)))


def _virtual_stages(slots: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """Numbers of virtual stages that divide the layers of every stage evenly."""
    if pp == 1:
        return (1,)
    return divisors(int(np.gcd.reduce([layers for layers in slots[1::2] if layers])))


def _unlike_chunks(layers: int, pp: int, head: float) -> list[tuple[int, tuple[int, ...]]]:
    """Numbers of virtual stages, and layers of all chunks where these are not alike.

    Either the last chunk has what is left, or the last stage has fewer layers, since its head does
    the work of so many. So embedding and loss may stand alone: 61 layers in 32 chunks are 1, 30
    times 2, and none.
    """
    found: dict[tuple[int, tuple[int, ...]], None] = {}
    for vpp in range(2, (layers + 2) // pp + 1) if pp > 1 else ():
        size = -(-layers // (pp * vpp))
        if size * pp * (vpp - 1) >= layers:  # fewer chunks of this size do
            continue
        last = _last_stage_layers(layers, pp, head)
        left = layers - size * (pp * vpp - 1)
        for chunks in (
            _chunks_with_light_end(layers, pp, vpp, last),
            (*[size] * (pp * vpp - 1), left),
        ):
            if len(set(chunks)) > 1 and min(chunks[1:-1]) > 0 and chunks[-1] >= 0:
                found[vpp, chunks] = None
    return list(found)


def _last_stage_layers(layers: int, pp: int, head: float) -> int:
    """Layers of the last stage, as many as can be, that keep the busiest stage short."""

    def busiest(last: int) -> tuple[float, int]:
        return max(-(-(layers - last) // (pp - 1)), last + head), -last

    return min(range(layers // pp + 1), key=busiest)


def _chunks_with_light_end(layers: int, pp: int, vpp: int, last: int) -> tuple[int, ...]:
    """Chunks of nearly one size, the first ones smaller; so many layers on the last stage.

    What this stage has fewer than the others is missing in its last chunks.
    """
    each, larger = divmod(layers - last, (pp - 1) * vpp)
    others = [each] * ((pp - 1) * vpp - larger) + [each + 1] * larger
    size = max(each + (2 * larger > len(others)), -(-last // vpp))  # what most others have
    ends = [min(size, max(last - row * size, 0)) for row in range(vpp)]
    chunks: list[int] = []
    for row, end in enumerate(ends):
        chunks += [*others[row * (pp - 1) : (row + 1) * (pp - 1)], end]
    return tuple(chunks)


def _layers_of_the_head(workload: Workload) -> float:
    """How many layers the work of the head is, and of multi-token prediction, by FLOPs.

    Experts and their traffic make a layer take longer than its FLOPs say.
    """
    model = workload.task.model
    flops = forward_flops(model, workload.seq_len)
    ends = flops.head_flops + (flops.mtp_flops if workload.mtp_layers else 0.0)
    head = ends * model.layers / (flops.matmul_flops + flops.attention_flops)
    return 0.75 * head if model.moe else head


def _chunk_slots(chunks: tuple[int, ...], pp: int) -> tuple[int, ...]:
    return _slots_of(tuple(sum(chunks[stage::pp]) for stage in range(pp)))


def every_split(layers: int, stages: int) -> Ints:
    """All ways to share out layers, one at least to each stage. (stage, way)"""
    ways: list[list[int]] = [[]]
    for stage in range(stages - 1):
        rest = stages - 1 - stage
        ways = [[*way, own] for way in ways for own in range(1, layers - sum(way) - rest + 1)]
    return np.array([[*way, layers - sum(way)] for way in ways], np.int64).T
