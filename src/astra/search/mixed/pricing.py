"""Candidate stages priced by the product's own functions.

A candidate is priced as part of a small plan: as its first stage, inside, or as its last, beside
stages of another type. Whatever holds for the stage in that plan holds in any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from astra.hardware.stack import Stack
from astra.memory.stage import loads_of as memory_loads
from astra.search.mixed.cells import PER_STAGE, Cell, Kind, by_stage
from astra.search.mixed.columns import DEGREES, Columns, kind_columns, plans_table
from astra.search.mixed.links import link_seconds
from astra.search.mixed.loads import FIRST, INSIDE, LAST, Loads
from astra.search.mixed.tables import NONE, OF_KINDS, UNIFORM, Tables
from astra.strategy.plans import Floats, Ints, Plans, code
from astra.strategy.recompute import Recompute
from astra.strategy.space import Space
from astra.strategy.view import View, view_of
from astra.timing.layer import LayerBook
from astra.timing.stage import StageTime, stage_base, stage_times

Item = tuple[Cell, list[Kind], Ints]  # most layers of a stage of every kind
PLACES = (FIRST, INSIDE, LAST)


@dataclass(frozen=True, slots=True)
class Pricer:
    """What all tables of one search have in common."""

    space: Space
    stack: Stack
    margin: float
    book: LayerBook
    loads: Loads
    weights: tuple[Floats, Floats]  # of loads, and of the layers left, in mean layers


def stage_tables(
    pricer: Pricer, cells: list[Item], fine: bool = False, places: Sequence[int] = PLACES
) -> list[Tables]:
    """Tables of some cells at once. Cells that differ in recompute alone are priced together.

    `fine`: with what every stage does behind its last backward, not the first one only.
    `places`: no others are asked for, and no links.
    """
    own = [by_stage(cell, pricer.space) for cell, _, _ in cells]
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
    priced = _priced(pricer, list(groups.values()), fixed, fine, places)
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
    """Candidate stages under each other: every cell, kind, load and option."""

    cell: Ints
    kind: Ints  # of its cell
    load: Ints
    option: Ints
    cut: Columns  # of the kind
    count: Ints  # stages of the kind in the small plan


@dataclass(frozen=True, slots=True)
class _Basis:
    """Loads whose stages tell those of all others, along straight lines."""

    loads: Ints
    shares: Floats  # (load, basis) each load as a sum of these
    working: Ints  # (load,) of the basis, the one with the same kinds of layers


def _basis(loads: Loads, place: int, most: int) -> _Basis:
    """For stages of so many layers at most: one load for every set of layer kinds, and as many
    more as span all of them.
    """
    some = np.flatnonzero(loads.starts[place, : loads.upto(most)] >= 0).tolist()
    table = np.concatenate([np.ones((len(loads.counts), 1)), loads.counts], axis=1)
    kept = [tuple(row) for row in (loads.counts > 0).tolist()]
    sets = {kept[load]: load for load in reversed(some)}  # the lightest of each
    picked, full = sorted(sets.values()), np.linalg.matrix_rank(table[some]) if some else 0
    for load in some:
        rank = np.linalg.matrix_rank(table[picked])
        if rank == full:
            break
        if np.linalg.matrix_rank(table[[*picked, load]]) > rank:
            picked.append(load)
    shares = table @ np.linalg.pinv(table[picked]) if picked else np.zeros((len(table), 0))
    rows = {load: row for row, load in enumerate(picked)}
    like = [rows.get(sets.get(held, -1), 0) for held in kept]
    return _Basis(np.array(picked, np.int64), shares, np.array(like, np.int64))


def _straight(cell: Cell, fixed: list[Recompute]) -> bool:
    """Whether all but the traffic between copies grows by the same with every layer of a kind."""
    return cell.sharding != "parameters" and all(
        setting.mode in ("none", "selective") for setting in fixed
    )


def _rows(items: list[Item], asked: list[list[Ints]], options: int) -> _Rows:
    """`asked`: the loads of every cell and kind."""
    sizes = [[len(loads) for loads in of_cell] for of_cell in asked]
    cell = np.repeat(np.arange(len(items)), [sum(each) for each in sizes])
    kind = np.concatenate([np.repeat(np.arange(len(each)), each) for each in sizes])
    load = np.concatenate([loads for of_cell in asked for loads in of_cell])
    ends = np.cumsum([0, *(len(kinds) for _, kinds, _ in items)])
    flat = [kind for _, kinds, _ in items for kind in kinds]
    at = np.repeat(ends[cell] + kind, options)
    cut = {name: column[at] for name, column in kind_columns(flat).items()}
    count = np.array([kind.stages[0] for kind in flat])[at]
    option = np.tile(np.arange(options), len(load))
    cell, kind, load = (np.repeat(column, options) for column in (cell, kind, load))
    return _Rows(cell, kind, load, option, cut, count)


def _small_plans(
    pricer: Pricer, cells: list[Cell], rows: _Rows, place: int, fixed: list[Recompute]
) -> Plans:
    """Each candidate in a plan where it lies at this place, holding the layers it would there.

    Further stages of its kind hold nothing: they are there for the GPUs they take.
    """
    question, loads = pricer.space.question, pricer.loads
    layers = loads.layers
    size, before = loads.sizes[rows.load], loads.starts[place, rows.load]
    other = (rows.cut["gpu"] + 1) % len(question.task.cluster.pools)
    more, one, none = rows.count - 1, np.ones_like(size), np.zeros_like(size)
    modes, numbers, bits = _settings(rows, size, fixed)
    own = (rows.cut["gpu"], one, size, modes, numbers, bits)
    same = (rows.cut["gpu"], more, none, none, none, none)
    above = (other, one, before, none, none, none)
    below = (other, one, layers - before - size, none, none, none)
    order = {FIRST: (own, same, below), INSIDE: (above, own, same, below), LAST: (above, same, own)}
    names = ("gpu", "stages", "layers", "recompute", "recompute_layers", "recompute_modules")
    columns = zip(*order[place], strict=True)
    slots = {name: np.stack(column) for name, column in zip(names, columns, strict=True)}
    used, its = slots["stages"] > 0, slots["gpu"] == rows.cut["gpu"]
    for name in DEGREES:  # the stages beside it are cut as simply as can be
        alike = its if name in ("tp", "segment_ep", "segment_etp") else used
        slots[name] = np.where(used & alike, rows.cut[name], 1)
    return plans_table(question, cells, rows.cell, slots, np.ones(len(size), np.bool_))


def _settings(rows: _Rows, size: Ints, fixed: list[Recompute]) -> tuple[Ints, Ints, Ints]:
    """Columns of the options: none, all layers one by one, all as one group, the fixed ones."""
    words = [NONE, UNIFORM, UNIFORM, *(code("recompute", each.mode) for each in fixed)]
    counts = np.array([0, 1, 0, *(each.layers for each in fixed)])[rows.option]
    counts = np.where(rows.option == 2, size, np.minimum(counts, size))
    bits = np.array([0, 0, 0, *(each.module_bits for each in fixed)])
    return np.array(words)[rows.option], counts, bits[rows.option]


def _priced(
    pricer: Pricer, items: list[Item], fixed: list[Recompute], fine: bool, places: Sequence[int]
) -> list[Tables]:
    loads, options = pricer.loads, 3 + len(fixed)
    highest = [int(mosts.max(initial=0)) for _, _, mosts in items]
    tables = [
        _empty(kinds, loads.upto(high), options)
        for (_, kinds, _), high in zip(items, highest, strict=True)
    ]
    cells = [cell for cell, _, _ in items]
    for place in places:
        straight = place != FIRST and not fine
        short = [straight and _straight(cell, fixed) for cell in cells]
        bases = {high: _basis(loads, place, high) for high in set(highest) if any(short)}
        asked = [
            [
                bases[high].loads[: len(bases[high].loads) * (most > 0)]
                if lines
                else np.flatnonzero(loads.starts[place, : loads.upto(most)] >= 0)
                for most in mosts.tolist()
            ]
            for (_, _, mosts), high, lines in zip(items, highest, short, strict=True)
        ]
        rows = _rows(items, asked, options)
        if not len(rows.cell):
            continue
        columns = _columns_at(pricer, cells, rows, place, fixed)
        for row, (_, _, mosts) in enumerate(items):
            here = np.flatnonzero(rows.cell == row)
            at = (rows.option[here], place, rows.kind[here], rows.load[here])
            for name, column in columns.items():
                tables[row][name][at] = column[here]
            if short[row]:
                _go_on(tables[row], place, bases[highest[row]], loads)
            beyond = loads.sizes[: loads.upto(highest[row])] > mosts[:, np.newaxis]
            tables[row]["forward_s"][:, place, beyond] = np.inf
        if straight:
            for table in tables:
                table["after_s"][:, place] = 0.0
    links = [np.zeros((len(kinds), len(kinds))) for _, kinds, _ in items]
    if places == PLACES:
        links = link_seconds(pricer.space, pricer.stack, pricer.book, items)
    return [
        _tables(pricer, cell, kinds, tables[row], links[row])
        for row, (cell, kinds, _) in enumerate(items)
    ]


def _go_on(table: dict[str, Floats], place: int, basis: _Basis, loads: Loads) -> None:
    """From the loads of a basis to all. (option, place, kind, load)"""
    if not len(basis.loads):
        return
    width = table["forward_s"].shape[3]
    there = loads.starts[place, :width] >= 0
    size = loads.sizes[:width]
    like = basis.loads[basis.working[:width]]
    work = table["working_bytes"][:, place][..., like]
    work[2] = work[0] + size * (work[1] - work[0])
    for column in table.values():
        known = column[:, place][..., basis.loads]
        known = np.where(np.isfinite(known), known, 1e300)  # of kinds that no stage may be of
        column[:, place] = known @ basis.shares[:width].T
    table["working_bytes"][:, place] = work
    table["forward_s"][:, place][..., ~there] = np.inf


def _columns_at(
    pricer: Pricer, cells: list[Cell], rows: _Rows, place: int, fixed: list[Recompute]
) -> dict[str, Floats]:
    plans = _small_plans(pricer, cells, rows, place, fixed)
    view = view_of(plans, pricer.space.question.task)
    times = stage_times(view, pricer.stack, stage_base(view, pricer.stack, pricer.book))
    return _columns(view, times, pricer.stack, pricer.margin, place)


def _columns(
    view: View, times: StageTime, stack: Stack, margin: float, place: int
) -> dict[str, Floats]:
    """What is asked of the candidate of every row. (row,)"""
    stages, count = view.stages, len(view.plans)
    flags = {FIRST: stages.embedding[0], LAST: stages.head[0]}
    run = flags[place].argmax(axis=0) if place in flags else np.ones(count, np.int64)

    def pick(column: Floats) -> Floats:
        return np.broadcast_to(column, (1, *stages.count.shape[1:]))[0, run, np.arange(count)]

    loads = memory_loads(view, stack)
    hosted = view.plans.offload_optimizer_fraction
    states = loads.part("weights") + loads.part("gradients") + loads.part("buffers")
    states = states + loads.part("optimizer") * (1 - hosted)
    if hosted.any():
        states = states + np.where(hosted > 0, loads.part("offload"), 0.0)
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


def _empty(kinds: list[Kind], width: int, options: int) -> dict[str, Floats]:
    """Tables without a stage: such a one takes for ever."""
    shape = (options, 3, len(kinds), width)
    return {name: np.full(shape, np.inf if name == "forward_s" else 0.0) for name in OF_KINDS}


def _tables(
    pricer: Pricer, cell: Cell, kinds: list[Kind], tables: dict[str, Floats], link_s: Floats
) -> Tables:
    there = np.isfinite(tables["forward_s"][0])
    return Tables(
        cell=cell,
        kinds=kinds,
        loads=pricer.loads,
        weights=pricer.weights,
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
