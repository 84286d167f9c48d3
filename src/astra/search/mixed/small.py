"""Candidate stages priced by the product's own functions.

A candidate is priced as part of a small plan: as its first stage, inside, or as its last, beside
stages of another type. Whatever holds for the stage in that plan holds in any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from astra.hardware.stack import Stack
from astra.memory.stage import ActivationBytes as MemoryLoads
from astra.memory.stage import activation_bytes as memory_loads
from astra.search.mixed.cells import Cell, Kind
from astra.search.mixed.columns import DEGREES, Columns, kind_columns, plans_table
from astra.search.mixed.loads import FIRST, INSIDE, LAST, Loads
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.space import Space
from astra.strategy.stage_view import StageView, stage_view
from astra.timing.layer import LayerCache
from astra.timing.stage import StageTime, stage_times, stage_work

MANY = 1 << 15  # small plans of one table

# Columns of a stage that no recompute changes, those that it does, and its traffic once a step.
STILL = ("forward_s", "backward_s", "ahead_s", "back_s", "wait_s", "room_bytes", "logits_bytes")
AGAIN = ("again_s", "kept_bytes", "working_bytes")
TRAFFIC = ("opening_s", "after_s", "gather_s", "reduce_s", "slowdown")


@dataclass(frozen=True, slots=True)
class Pricer:
    """What all tables of one search have in common."""

    space: Space
    stack: Stack
    margin: float
    book: LayerCache
    loads: Loads
    weights: tuple[Floats, Floats]  # of loads, and of the layers left, in mean layers


@dataclass(frozen=True, slots=True)
class Asked:
    """Candidate stages under each other. (row,)"""

    cell: Ints  # of those given
    kind: Ints  # likewise
    load: Ints
    mode: Ints  # of recompute
    number: Ints
    modules: Ints

    def part(self, rows: slice) -> "Asked":
        return Asked(*(getattr(self, each.name)[rows] for each in fields(self)))


def priced(
    pricer: Pricer,
    cells: Sequence[Cell],
    kinds: Sequence[Kind],
    asked: Asked,
    place: int,
    names: Sequence[str],
) -> dict[str, Floats]:
    """These columns of candidates at one place of the pipeline. (row,)"""
    found = {name: np.zeros(len(asked.cell)) for name in names}
    cuts, counts = kind_columns(kinds), np.array([kind.stages[0] for kind in kinds])
    for start in range(0, len(asked.cell), MANY):
        some = slice(start, start + MANY)
        part = asked.part(some)
        cut = {name: column[part.kind] for name, column in cuts.items()}
        plans = _small_plans(pricer, cells, part, cut, counts[part.kind], place)
        for name, column in _columns(pricer, plans, place, names).items():
            found[name][some] = column
    return found


def _small_plans(
    pricer: Pricer, cells: Sequence[Cell], asked: Asked, cut: Columns, count: Ints, place: int
) -> Plans:
    """Each candidate in a plan where it lies at this place, holding the layers it would there.

    Further stages of its kind hold nothing: they are there for the GPUs they take.
    """
    workload, loads = pricer.space.workload, pricer.loads
    layers = loads.layers
    size, before = loads.sizes[asked.load], loads.starts[place, asked.load]
    other = (cut["gpu"] + 1) % len(workload.task.cluster.pools)
    more, one, none = count - 1, np.ones_like(size), np.zeros_like(size)
    own = (cut["gpu"], one, size, asked.mode, asked.number, asked.modules)
    same = (cut["gpu"], more, none, none, none, none)
    above = (other, one, before, none, none, none)
    below = (other, one, layers - before - size, none, none, none)
    order = {FIRST: (own, same, below), INSIDE: (above, own, same, below), LAST: (above, same, own)}
    names = ("gpu", "stages", "layers", "recompute", "recompute_layers", "recompute_modules")
    columns = zip(*order[place], strict=True)
    slots = {name: np.stack(column) for name, column in zip(names, columns, strict=True)}
    used, its = slots["stages"] > 0, slots["gpu"] == cut["gpu"]
    for name in DEGREES:  # the stages beside it are cut as simply as can be
        alike = its if name in ("tp", "segment_ep", "segment_etp") else used
        slots[name] = np.where(used & alike, cut[name], 1)
    return plans_table(workload, cells, asked.cell, slots, np.ones(len(size), np.bool_))


def _columns(pricer: Pricer, plans: Plans, place: int, names: Sequence[str]) -> dict[str, Floats]:
    """What is asked of the candidate of every row. (row,)"""
    view = stage_view(plans, pricer.space.workload.task)
    times = stage_times(view, pricer.stack, stage_work(view, pricer.stack, pricer.book))
    stages, count = view.stages, len(view.plans)
    flags = {FIRST: stages.embedding[0], LAST: stages.head[0]}
    run = flags[place].argmax(axis=0) if place in flags else np.ones(count, np.int64)
    ways = _of_time(view, times, pricer.stack)
    if any(name.endswith("_bytes") for name in names):
        ways |= _of_memory(view, memory_loads(view, pricer.stack), pricer)

    def pick(column: Floats) -> Floats:
        return np.broadcast_to(column, (1, *stages.count.shape[1:]))[0, run, np.arange(count)]

    return {name: pick(ways[name]()) for name in names}


def _of_time(view: StageView, times: StageTime, stack: Stack) -> dict[str, Callable[[], Floats]]:
    def waited() -> Floats:
        return times.other_s() - np.where(view.stages.count > 0, stack.step_s, 0.0)

    return {
        "forward_s": lambda: times.plain_forward_s,
        "backward_s": lambda: times.plain_backward_s,
        "ahead_s": lambda: times.part("forward_s"),
        "back_s": lambda: times.part("backward_s"),
        "wait_s": lambda: waited() / np.log2(view.plans.gpus),
        "again_s": lambda: times.recompute_s,
        "opening_s": times.first_gather_s,
        "after_s": lambda: times.step_end_s() - times.tied_s() - waited(),
        "gather_s": lambda: times.work.data_parallel.gather_s[..., times.rows],
        "reduce_s": lambda: times.work.data_parallel.reduce_s[..., times.rows],
        "slowdown": lambda: times.work.data_parallel.slowdown[..., times.rows],
    }


def _of_memory(
    view: StageView, loads: MemoryLoads, pricer: Pricer
) -> dict[str, Callable[[], Floats]]:
    def room() -> Floats:
        hosted = view.plans.offload_optimizer_fraction
        states = loads.part("weights") + loads.part("gradients") + loads.part("buffers")
        states = states + loads.part("optimizer") * (1 - hosted)
        if hosted.any():
            states = states + np.where(hosted > 0, loads.part("offload"), 0.0)
        usable = np.array([pool.gpu.usable_bytes for pool in view.task.cluster.pools])
        free = usable[view.stages.of(view.plans.gpu)] * (1 - pricer.margin) - loads.part("runtime")
        return free / (1 + pricer.stack.slack_fraction) - states

    return {
        "room_bytes": room,
        "logits_bytes": lambda: loads.part("logits"),
        "kept_bytes": lambda: loads.saved_bytes,
        "working_bytes": lambda: loads.working_bytes,
    }
