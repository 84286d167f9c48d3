"""Pipelines that a search found, as a table of plans."""

from dataclasses import dataclass

import numpy as np

from astra.search.mixed.cells import Cell
from astra.search.mixed.chunked import Lines, Pairs
from astra.search.mixed.chunks import Cuts
from astra.search.mixed.columns import DEGREES, Chunks, kind_columns, plans_table
from astra.search.mixed.labels import Round
from astra.search.mixed.loads import FIRST, INSIDE, LAST
from astra.search.mixed.shapes import Orders
from astra.search.mixed.tables import Tables
from astra.strategy.plans import Ints, Plans, code
from astra.strategy.space import Space

Made = list[Round]


def whole_plans(space: Space, tables: Tables, made: Made, depth: Ints, row: Ints) -> Plans:
    """Pipelines as a table of plans: `row` of the ends of round `depth`. A slot per stage."""
    most = int(depth.max()) + 2
    names = ("gpu", "stages", "layers", "recompute", "recompute_layers")
    slots = {name: np.zeros((most, len(row)), np.int64) for name in names}
    slots |= {name: np.ones((most, len(row)), np.int64) for name in DEGREES}
    slots["recompute_modules"] = np.full_like(slots["gpu"], tables.cell.recompute.module_bits)
    kind, size, load, parent = (np.zeros(len(row), np.int64) for _ in range(4))
    above = np.zeros(len(row), np.int64)  # layers of the stages above
    for at in range(most - 2, -2, -1):  # the round whose labels a stage is put on; -1: the last
        starts, goes_on = depth == at, depth > at
        if starts.any():
            labels, ends = made[at].labels, made[at].ends
            parent[starts], kind[starts] = ends.parent[row[starts]], ends.kind[row[starts]]
            size[starts] = labels.left[parent[starts]]
        if goes_on.any():
            labels = made[at + 1].labels
            here = parent[goes_on]
            kind[goes_on], size[goes_on] = labels.kind[here], labels.layers[here]
            parent[goes_on] = labels.parent[here]
        here = np.flatnonzero(depth >= at)
        load[here] = tables.loads.at[above[here] + size[here], size[here]]
        _place(slots, tables, here, depth[here] - at, kind[here], size[here], load[here], at)
        above[here] += size[here]
    slots["recompute_modules"] *= slots["stages"]
    tensor = slots["tp"].max(axis=0) > 1
    which = np.zeros(len(row), np.int64)
    return plans_table(space.question, [tables.cell], which, slots, tensor)


def _place(
    slots: dict[str, Ints],
    tables: Tables,
    here: Ints,
    slot: Ints,
    kind: Ints,
    size: Ints,
    load: Ints,
    at: int,
) -> None:
    """Writes one stage of each of these plans: the one that is `at + 2` from the end."""
    flying = min(tables.cell.micro_batches, at + 2)
    for name, column in kind_columns(tables.kinds).items():
        slots[name][slot, here] = column[kind]
    slots["stages"][slot, here], slots["layers"][slot, here] = 1, size
    inside = tables.at(LAST if at < 0 else INSIDE, flying)
    first = tables.at(FIRST, flying)
    for name, lower, upper in (
        ("recompute", inside.mode, first.mode),
        ("recompute_layers", inside.layers, first.layers),
    ):
        slots[name][slot, here] = np.where(slot == 0, upper[kind, load], lower[kind, load])


@dataclass(frozen=True, slots=True)
class Listed:
    """Whole interleaved pipelines of one table of cuts."""

    cuts: Cuts
    orders: Orders
    pairs: Pairs
    lines: Lines


def chunked_plans(space: Space, some: list[tuple[Listed, Ints]]) -> tuple[list["Cell"], Plans]:
    """Listed pipelines as a table of plans, and the cell of each."""
    widest = max(int(each.pairs.stages[each.lines.pair[rows]].max()) for each, rows in some)
    count = sum(len(rows) for _, rows in some)
    names = ("gpu", "stages", "layers", "recompute", "recompute_layers", "recompute_modules")
    slots = {name: np.zeros((widest, count), np.int64) for name in names}
    slots |= {name: np.ones((widest, count), np.int64) for name in DEGREES}
    group, listed = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    lists: dict[tuple[int, ...], int] = {}
    cells: list[Cell] = []
    start = 0
    for each, rows in some:
        at = slice(start, start + len(rows))
        lines = each.lines.take(rows)
        pair, start = lines.pair, start + len(rows)
        row, stages = each.pairs.row[pair], each.pairs.stages[pair]
        kinds = each.orders.kinds[each.pairs.order[pair]][:, :widest].T
        own = [each.cuts.row_cell(int(r)) for r in row]
        cells += own
        group[at] = each.pairs.group[pair]
        sizes = lines.sizes[:, :widest].T
        used = np.arange(len(kinds))[:, np.newaxis] < stages
        vpp = each.cuts.vpp[row]
        layers = np.where(used, sizes * vpp, 0)
        layers[0] -= lines.lighter
        layers[stages - 1, np.arange(len(rows))] -= lines.spare
        depth = len(kinds)
        for name, column in kind_columns(each.cuts.kinds).items():
            base = 0 if name == "gpu" else 1
            slots[name][:depth, at] = np.where(used, column[np.maximum(kinds, 0)], base)
        slots["stages"][:depth, at], slots["layers"][:depth, at] = used, layers
        for name, value in (
            ("recompute", [code("recompute", c.recompute.mode) for c in own]),
            ("recompute_layers", [c.recompute.layers for c in own]),
            ("recompute_modules", [c.recompute.module_bits for c in own]),
        ):
            slots[name][:depth, at] = np.where(used, np.array(value), 0)
        for place in np.flatnonzero(lines.lighter + lines.spare).tolist():
            p, v = int(stages[place]), int(vpp[place])
            chunks = np.tile(lines.sizes[place, :p], v)
            chunks[0] -= lines.lighter[place]
            chunks[-1] -= lines.spare[place]
            key = tuple(chunks.tolist())
            listed[at.start + place] = lists.setdefault(key, len(lists))
    distinct = list(dict.fromkeys(cells))
    where = {cell: row for row, cell in enumerate(distinct)}
    which = np.array([where[cell] for cell in cells])
    tensor = slots["tp"].max(axis=0) > 1
    chunked = Chunks(group, listed, tuple(lists))
    return cells, plans_table(space.question, distinct, which, slots, tensor, chunked)
