"""Seconds and bytes of every stage a mixed pipeline may have, by the product's own functions.

A candidate stage is priced as part of a small plan: as its first stage, inside, or as its last,
beside stages of another type. Whatever holds for the stage in that plan holds in any other.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.hardware.stack import Stack
from astra.memory.stage import loads_of
from astra.search.mixed.cells import PER_STAGE, Cell, Kind, by_stage, plans_table
from astra.strategy.plans import Floats, Ints, Plans, code
from astra.strategy.recompute import Recompute
from astra.strategy.space import Space
from astra.strategy.view import View, view_of
from astra.timing.layer import LayerBook
from astra.timing.stage import StageTime, stage_base, stage_times

FIRST, INSIDE, LAST = range(3)  # places in the pipeline
NONE, UNIFORM, BLOCK = (code("recompute", word) for word in ("none", "full:uniform", "full:block"))
COLUMNS = (
    "forward_s",
    "backward_s",
    "again_s",
    "opening_s",
    "after_s",
    "wait_s",
    "room_bytes",
    "logits_bytes",
    "kept_bytes",
    "working_bytes",
)
SLIP = 1e-9  # of a layer, against rounding


@dataclass(frozen=True, slots=True)
class Chosen:
    """Stages at one place and depth with the least recompute that fits. (kind, layers)"""

    forward_s: Floats  # inf where nothing fits
    backward_s: Floats
    mode: Ints
    layers: Ints  # of the recompute setting


@dataclass(frozen=True, slots=True)
class Tables:
    """Candidate stages of one cell. (place, kind, layers), layers from 0; option axis in front.

    Options: no recompute, all layers one by one, all layers as one group. Where the whole plan
    has one setting it is the only option.
    """

    cell: Cell
    kinds: list[Kind]
    forward_s: Floats
    backward_s: Floats  # (option, place, kind, layers)
    again_s: Floats  # what recomputing every layer takes
    opening_s: Floats  # of the first stage: the gather that its first forward waits for
    after_s: Floats  # behind the last backward, at least; without
    wait_s: Floats  # for the slowest GPU, for every doubling of the GPUs
    room_bytes: Floats  # left for activations
    logits_bytes: Floats
    kept_bytes: Floats  # (option, place, kind, layers)
    working_bytes: Floats  # (option, place, kind, layers)
    link_s: Floats  # (kind, pool of the next stage)
    known: dict[tuple[int, int], Chosen] = field(default_factory=dict)

    @property
    def fixed(self) -> bool:
        return len(self.backward_s) == 1

    def at(self, place: int, flying: int) -> Chosen:
        """The fastest setting that fits with so many micro-batches in flight."""
        key = (place, flying)
        if key not in self.known:
            self.known[key] = self._choose(place, flying)
        return self.known[key]

    def _choose(self, place: int, flying: int) -> Chosen:
        kept, working = self.kept_bytes[:, place] * flying, self.working_bytes[:, place]
        peak = np.maximum(working, self.logits_bytes[place])
        room, forward = self.room_bytes[place], self.forward_s[place]
        backward = self.backward_s[0, place].copy()
        fits = kept[0] + peak[0] <= room
        mode, layers = np.full(fits.shape, NONE), np.zeros(fits.shape, np.int64)
        if self.fixed:
            setting = self.cell.recompute
            mode += code("recompute", setting.mode)
            layers += setting.layers
        else:
            self._recompute(fits, mode, layers, backward, (kept, peak, room), place)
        return Chosen(np.where(fits, forward, np.inf), backward, mode, layers)

    def _recompute(
        self,
        fits: NDArray[np.bool_],
        mode: Ints,
        layers: Ints,
        backward: Floats,
        bytes_: tuple[Floats, Floats, Floats],
        place: int,
    ) -> None:
        """Fills in whole layers where no recompute does not fit: as few as do, then in groups."""
        kept, peak, room = bytes_
        size = np.broadcast_to(np.maximum(np.arange(fits.shape[1]), 1), fits.shape)
        full_s, again_s = self.backward_s[1, place], self.again_s[place]
        with np.errstate(divide="ignore", invalid="ignore"):
            missing = kept[0] + peak[1] - room
            fewest = np.ceil(missing * size / (kept[0] - kept[1]) - SLIP)
        some = ~fits & np.isfinite(fewest) & (fewest < size)
        count = np.where(some, np.maximum(fewest, 1), 0).astype(np.int64)
        some &= count < size
        partly = np.maximum(backward, full_s - (1 - count / size) * again_s)
        _put(some, (mode, BLOCK), (layers, count), (backward, partly))
        fits |= some
        all_ = ~fits & (kept[1] + peak[1] <= room)
        _put(all_, (mode, UNIFORM), (layers, 1), (backward, full_s))
        fits |= all_
        left = ~fits & np.isfinite(self.forward_s[place]) & (size > 1)
        for group in range(2, int(size[left].max(initial=1)) + 1):
            share = 1 / np.maximum(size - 1, 1)
            held = kept[2] + (-(-size // group) - 1) * (kept[1] - kept[2]) * share
            top = self.working_bytes[:, place]
            work = top[1] + (group - 1) * (top[2] - top[1]) * share
            high = np.maximum(work, self.logits_bytes[place])
            now = left & ~fits & (group <= size) & (held + high <= room)
            _put(now, (mode, UNIFORM), (layers, group), (backward, full_s))
            fits |= now


def _put(where: NDArray[np.bool_], *pairs: tuple[NDArray[Any], Any]) -> None:
    for column, value in pairs:
        np.copyto(column, value, where=where, casting="unsafe")


Item = tuple[Cell, list[Kind], Ints]  # most layers of a stage of every kind


def stage_tables(
    space: Space,
    stack: Stack,
    margin: float,
    book: LayerBook,
    cells: list[Item],
    fine: bool = False,
) -> list[Tables]:
    """Tables of some cells at once. Cells that differ in recompute alone are priced together.

    `fine`: with what every stage does behind its last backward, not the first one only.
    """
    own = [by_stage(cell, space) for cell, _, _ in cells]
    fixed = list(
        dict.fromkeys(
            cell.recompute for (cell, _, _), free in zip(cells, own, strict=True) if not free
        )
    )
    groups: dict[Cell, Item] = {}
    for cell, kinds, most in cells:
        key = replace(cell, recompute=PER_STAGE)
        known = groups[key][2] if key in groups else most
        groups[key] = (key, kinds, np.maximum(known, most))
    priced = _priced(space, stack, margin, book, list(groups.values()), fixed, fine)
    found = dict(zip(groups, priced, strict=True))
    tables = []
    for (cell, _, _), free in zip(cells, own, strict=True):
        options = slice(0, 3) if free else slice(3 + fixed.index(cell.recompute), None)
        options = options if free else slice(options.start, options.start + 1)
        whole = found[replace(cell, recompute=PER_STAGE)]
        tables.append(
            replace(
                whole,
                cell=cell,
                backward_s=whole.backward_s[options],
                kept_bytes=whole.kept_bytes[options],
                working_bytes=whole.working_bytes[options],
                known={},
            )
        )
    return tables


@dataclass(frozen=True, slots=True)
class _Rows:
    """Candidate stages under each other: every cell, kind, number of layers and option."""

    cell: Ints
    kind: Ints  # of its cell
    layers: Ints
    option: Ints
    pool: Ints
    tp: Ints
    count: Ints  # stages of the kind in the small plan


def _straight(cell: Cell, fixed: list[Recompute]) -> bool:
    """Whether all but the traffic between copies grows by the same with every layer."""
    return cell.sharding != "parameters" and all(
        setting.mode in ("none", "selective") for setting in fixed
    )


def _rows(items: list[Item], most_of: list[int], options: int) -> _Rows:
    """`most_of`: of every cell, layers up to which each number is a row."""
    keys = [
        (row, place, kind.pool, kind.tp, kind.stages[0], min(int(most), most_of[row]))
        for row, (_, kinds, mosts) in enumerate(items)
        for place, (kind, most) in enumerate(zip(kinds, mosts.tolist(), strict=True))
        if most > 0
    ]
    table = np.array(keys, np.int64).reshape(-1, 6).T
    sizes = table[5]
    wide = np.repeat(table, sizes, axis=1)
    layers = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    wide, layers = np.repeat(wide, options, axis=1), np.repeat(layers, options)
    option = np.tile(np.arange(options), len(layers) // options)
    return _Rows(wide[0], wide[1], layers, option, wide[2], wide[3], wide[4])


def _small_plans(
    space: Space, cells: list[Cell], rows: _Rows, place: int, fixed: list[Recompute]
) -> Plans:
    """Each candidate in a plan where it lies at this place."""
    pools = len(space.question.task.cluster.pools)
    other = (rows.pool + 1) % pools
    one, none = np.ones_like(rows.pool), np.zeros_like(rows.pool)
    order = {FIRST: (1, 0, 2), INSIDE: (0, 1, 0), LAST: (0, 1, 2)}[place]  # 1: it, 2: no stage

    def slots(own: Ints, filler: Ints, empty: Ints) -> Ints:
        return np.stack([(filler, own, empty)[which] for which in order])

    modes, numbers, bits = _settings(rows, fixed)
    table = {
        "gpu": slots(rows.pool, other, none),
        "stages": slots(rows.count, one, none),
        "layers": slots(rows.layers, one, none),
        "tp": slots(rows.tp, one, one),
        "recompute": slots(modes, none, none),
        "recompute_layers": slots(numbers, none, none),
        "recompute_modules": slots(bits, none, none),
    }
    return plans_table(space.question, cells, rows.cell, table, np.ones(len(rows.cell), np.bool_))


def _settings(rows: _Rows, fixed: list[Recompute]) -> tuple[Ints, Ints, Ints]:
    """Columns of the options: none, all layers one by one, all as one group, the fixed ones."""
    words = [NONE, UNIFORM, UNIFORM, *(code("recompute", each.mode) for each in fixed)]
    counts = np.array([0, 1, 0, *(each.layers for each in fixed)])[rows.option]
    counts = np.where(rows.option == 2, rows.layers, np.minimum(counts, rows.layers))
    bits = np.array([0, 0, 0, *(each.module_bits for each in fixed)])
    return np.array(words)[rows.option], counts, bits[rows.option]


def _priced(
    space: Space,
    stack: Stack,
    margin: float,
    book: LayerBook,
    items: list[Item],
    fixed: list[Recompute],
    fine: bool,
) -> list[Tables]:
    cells, options = [cell for cell, _, _ in items], 3 + len(fixed)
    tables = [_empty(kinds, int(mosts.max(initial=0)), options) for _, kinds, mosts in items]
    layers = space.question.task.model.layers
    for place in (FIRST, INSIDE, LAST):
        straight = place != FIRST and not fine
        short = [straight and _straight(cell, fixed) for cell in cells]
        rows = _rows(items, [2 if each else layers for each in short], options)
        view = view_of(_small_plans(space, cells, rows, place, fixed), space.question.task)
        times = stage_times(view, stack, stage_base(view, stack, book))
        columns = _columns(view, times, stack, margin, place)
        for row, (_, _, mosts) in enumerate(items):
            here = np.flatnonzero(rows.cell == row)
            at = (rows.option[here], place, rows.kind[here], rows.layers[here])
            for name, column in columns.items():
                tables[row][name][at] = column[here]
                if short[row]:
                    _go_on(tables[row][name][:, place], mosts)
        if straight:
            for table in tables:
                table["after_s"][:, place] = 0.0
    links = _links(space, stack, book, items)
    return [
        _tables(cell, kinds, tables[row], links[row]) for row, (cell, kinds, _) in enumerate(items)
    ]


def _go_on(table: Floats, mosts: Ints) -> None:
    """From one and two layers to more, along a straight line. (option, kind, layers)"""
    for kind in np.flatnonzero(mosts > 2):
        more = np.arange(1, mosts[kind])
        first, second = table[:, kind, 1, np.newaxis], table[:, kind, 2, np.newaxis]
        table[:, kind, 2 : mosts[kind] + 1] = first + more * (second - first)


def _columns(
    view: View, times: StageTime, stack: Stack, margin: float, place: int
) -> dict[str, Floats]:
    """What is asked of the candidate of every row. (row,)"""
    stages, count = view.stages, len(view.plans)
    flags = {FIRST: stages.embedding[0], LAST: stages.head[0]}
    run = flags[place].argmax(axis=0) if place in flags else np.ones(count, np.int64)

    def pick(column: Floats) -> Floats:
        return np.broadcast_to(column, (1, *stages.count.shape[1:]))[0, run, np.arange(count)]

    loads = loads_of(view, stack)
    hosted = view.plans.offload_optimizer_fraction
    states = loads.part("weights") + loads.part("gradients") + loads.part("buffers")
    states = states + loads.part("optimizer") * (1 - hosted)
    usable = np.array([pool.gpu.usable_bytes for pool in view.task.cluster.pools])
    free = usable[stages.of(view.plans.gpu)] * (1 - margin) - loads.part("runtime")
    waited = times.other_s() - np.where(stages.count > 0, stack.step_s, 0.0)
    return {
        "forward_s": pick(times.whole_forward_s),
        "backward_s": pick(times.whole_backward_s),
        "again_s": pick(times.recompute_s),
        "opening_s": pick(times.first_extra_s()),
        "after_s": pick(times.after_s() - times.tied_s() - waited),
        "wait_s": pick(waited / np.log2(view.plans.gpus)),
        "room_bytes": pick(free / (1 + stack.slack_fraction) - states),
        "logits_bytes": pick(loads.part("logits")),
        "kept_bytes": pick(loads.kept_bytes),
        "working_bytes": pick(loads.working_bytes),
    }


def _empty(kinds: list[Kind], most: int, options: int) -> dict[str, Floats]:
    """Tables without a stage: such a one takes for ever."""
    shape = (options, 3, len(kinds), most + 1)
    return {name: np.full(shape, np.inf if name == "forward_s" else 0.0) for name in COLUMNS}


def _tables(cell: Cell, kinds: list[Kind], tables: dict[str, Floats], link_s: Floats) -> Tables:
    there = np.isfinite(tables["forward_s"][0])
    return Tables(
        cell=cell,
        kinds=kinds,
        forward_s=tables["forward_s"][0],
        backward_s=tables["backward_s"],
        again_s=tables["again_s"][1],
        opening_s=tables["opening_s"][0],
        after_s=tables["after_s"].min(axis=0),
        wait_s=tables["wait_s"][0],
        room_bytes=np.where(there, tables["room_bytes"][0], -np.inf),
        logits_bytes=tables["logits_bytes"][0],
        kept_bytes=tables["kept_bytes"],
        working_bytes=tables["working_bytes"],
        link_s=link_s,
    )


def _links(space: Space, stack: Stack, book: LayerBook, items: list[Item]) -> list[Floats]:
    """Seconds from a stage of each kind to the next one on each type. (kind, pool) per cell"""
    pools = len(space.question.task.cluster.pools)
    keys = [
        (row, kind.pool, kind.tp, kind.most, other)
        for row, (_, kinds, _) in enumerate(items)
        for kind in kinds
        for other in range(pools)
    ]
    cell, pool, tp, most, other = np.array(keys, np.int64).reshape(-1, 5).T
    lies = other == pool  # inside the segment: its filler lies on any other type
    filler = np.where(lies, (pool + 1) % pools, other)
    zeros, ones = np.zeros_like(pool), np.ones_like(pool)
    table = {
        "gpu": np.stack([pool, pool, filler]),
        "stages": np.stack([np.maximum(most - 1, 1), (most > 1).astype(np.int64), ones]),
        "layers": np.stack([ones, (most > 1).astype(np.int64), ones]),
        "tp": np.stack([tp, np.where(most > 1, tp, 1), ones]),
        **{
            name: np.stack([zeros] * 3)
            for name in ("recompute", "recompute_layers", "recompute_modules")
        },
    }
    cells = [each for each, _, _ in items]
    plans = plans_table(space.question, cells, cell, table, np.ones(len(cell), np.bool_))
    view = view_of(plans, space.question.task)
    link = stage_times(view, stack, stage_base(view, stack, book)).part("link_s")[0]
    before_last = view.stages.head[0].argmax(axis=0) - 1
    run = np.where(lies, 0, before_last)
    seconds = link[run, np.arange(len(cell))]
    return [seconds[cell == row].reshape(-1, pools) for row in range(len(items))]
