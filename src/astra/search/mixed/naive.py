"""The plan of someone who does not look: every GPU, one tp, equal layers on every stage."""

import numpy as np

from astra.cost.evaluate import memory_fraction, simulate
from astra.hardware.stack import Stack
from astra.hardware.topology import allowed_counts
from astra.memory.stage import memory_of
from astra.search.mixed.cells import Cell, cells_of
from astra.search.mixed.columns import DEGREES, plans_table
from astra.strategy.complete import split_layers
from astra.strategy.plans import Floats, Ints, Plans, Task, code
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space
from astra.strategy.stage_view import stage_view
from astra.timing.layer import LayerCache
from astra.timing.plan_bounds import step_bound_s
from astra.timing.stage import stage_times, stage_work

FEW = 4  # plans that are simulated together
BLOCK = 512  # plans that are bounded together


def even_split_s(space: Space, stack: Stack, margin: float, book: LayerCache) -> float | None:
    """The least step of all even splits over all GPUs; None where none fits. [s]

    Types in order of their names, no recompute or of all layers.
    """
    workload = space.workload
    cells, tps, slots = [], [], []
    # What it does not look at is not listed at all: there may be dozens of modules to recompute.
    alike = Space(workload, {"recompute": ("none",), **space.settings, "mesh_dp": (False,)})
    for cell in cells_of(alike):
        if cell.cp > 1 or cell.sharding != "optimizer" or cell.recompute != Recompute():
            continue
        for tp in (1, 2, 4, 8):
            stages = _stages(space, cell, tp)
            if stages is not None and (tp > 1) == cell.overlap_tp:
                cells += [cell, cell]
                tps += [tp, tp]
                layers = split_layers(workload.task.model.layers, sum(stages))
                slots += [(stages, layers, 0), (stages, layers, 1)]
    if not cells:
        return None
    table = _table(slots, np.array(tps), cells)
    many = plans_table(workload, cells, np.arange(len(cells)), table, np.array(tps) > 1)
    task = workload.task
    many = many.take(check(many, task, rules_for(task.runtime)).allowed)
    bounds = np.full(len(many), np.inf)  # of those that fit
    for start in range(0, len(many), BLOCK):
        some = slice(start, start + BLOCK)
        view = stage_view(many.take(some), task, every_stage=True)
        fits = memory_fraction(view, memory_of(view, stack), stack) <= 1 - margin
        times = stage_times(view, stack, stage_work(view, stack, book))
        bounds[some] = np.where(fits, step_bound_s(view, times), np.inf)
    rows = np.flatnonzero(np.isfinite(bounds))
    return _least_s(many.take(rows), bounds[rows], task, stack, book) if len(rows) else None


def _least_s(plans: Plans, bounds: Floats, task: Task, stack: Stack, book: LayerCache) -> float:
    """The shortest step of these, by bound, until none can be shorter. [s]"""
    order, best = np.argsort(bounds, kind="stable"), np.inf
    while len(order):
        steps = simulate(plans.take(order[:FEW]), task, stack, book)
        best = min(best, float(steps.min()))
        order = order[FEW:]
        order = order[bounds[order] < best]
    return best


def _stages(space: Space, cell: Cell, tp: int) -> tuple[int, ...] | None:
    """Stages of each type where its GPUs divide evenly."""
    found = []
    for pool in space.workload.task.cluster.pools:
        stages, rest = divmod(allowed_counts(pool)[-1], tp * (cell.alike.dp or 1) * cell.cp)
        if rest or not stages:
            return None
        found.append(stages)
    return tuple(found) if sum(found) <= space.workload.task.model.layers else None


def _table(
    slots: list[tuple[tuple[int, ...], tuple[int, ...], int]], tps: Ints, cells: list[Cell]
) -> dict[str, Ints]:
    """A slot per stage."""
    most = max(len(layers) for _, layers, _ in slots)
    names = ("gpu", "stages", "layers", "recompute", "recompute_layers", "recompute_modules")
    table = {name: np.zeros((most, len(slots)), np.int64) for name in names}
    table |= {name: np.ones((most, len(slots)), np.int64) for name in DEGREES}
    for row, (stages, layers, full) in enumerate(slots):
        here, dp = slice(0, len(layers)), cells[row].alike.dp or 1
        table["gpu"][here, row] = np.repeat(np.arange(len(stages)), stages)
        table["stages"][here, row] = 1
        table["layers"][here, row] = layers
        table["tp"][here, row], table["dp"][here, row] = tps[row], dp
        table["segment_ep"][here, row] = cells[row].alike.ep or 1
        table["segment_micro_batch"][here, row] = cells[row].samples // dp
        if full:
            table["recompute"][here, row] = code("recompute", "full:uniform")
            table["recompute_layers"][here, row] = 1
    return table
