"""Interleaved pipelines that a search listed, as a table of plans."""

from dataclasses import dataclass

import numpy as np

from astra.search.mixed.cells import Cell
from astra.search.mixed.chunked import Lines, Pairs
from astra.search.mixed.chunks import Cuts
from astra.search.mixed.columns import Chunks, kind_columns, plans_table
from astra.search.mixed.shapes import Orders
from astra.strategy.plans import Ints, Plans, code
from astra.strategy.space import Space


@dataclass(frozen=True, slots=True)
class Listed:
    """Whole interleaved pipelines of one table of cuts."""

    cuts: Cuts
    orders: Orders
    pairs: Pairs
    lines: Lines


def chunked_plans(space: Space, some: list[tuple[Listed, Ints]]) -> tuple[list[Cell], Plans]:
    """Listed pipelines as a table of plans, a slot per stage, and the cell of each."""
    widest = max(int(each.pairs.stages[each.lines.pair[rows]].max()) for each, rows in some)
    lists: dict[tuple[int, ...], int] = {}
    cells: list[Cell] = []
    slots: list[dict[str, Ints]] = []
    groups, listed = [], []
    for each, rows in some:
        own = _Stages(each, rows, widest)
        cells += own.cells
        slots.append(own.slots())
        groups.append(each.pairs.group[each.lines.pair[rows]])
        listed.append(own.listed(lists))
    distinct = {cell: row for row, cell in enumerate(dict.fromkeys(cells))}
    which = np.array([distinct[cell] for cell in cells])
    table = {name: np.concatenate([each[name] for each in slots], axis=1) for name in slots[0]}
    tensor = table["tp"].max(axis=0) > 1
    chunks = Chunks(np.concatenate(groups), np.concatenate(listed), tuple(lists))
    return cells, plans_table(space.workload, list(distinct), which, table, tensor, chunks)


class _Stages:
    """The stages of some of the listed pipelines. (stage, plan)"""

    def __init__(self, found: Listed, rows: Ints, widest: int) -> None:
        self.lines, self.kind_of = found.lines.take(rows), kind_columns(found.cuts.kinds)
        pair = self.lines.pair
        row = found.pairs.row[pair]
        known = {each: found.cuts.row_cell(each) for each in set(row.tolist())}
        self.cells = [known[each] for each in row.tolist()]
        self.stages, self.vpp = found.pairs.stages[pair], found.cuts.vpp[row]
        self.kinds = _deep(found.orders.kinds[found.pairs.order[pair]], widest)
        self.sizes = _deep(self.lines.sizes, widest)
        self.used = np.arange(widest)[:, np.newaxis] < self.stages

    def slots(self) -> dict[str, Ints]:
        used, last = self.used, (self.stages - 1, np.arange(len(self.stages)))
        found = {}
        for name, column in self.kind_of.items():
            unused = 0 if name == "gpu" else 1
            found[name] = np.where(used, column[np.where(used, self.kinds, 0)], unused)
        layers = np.where(used, self.sizes * self.vpp, 0)
        layers[0] -= self.lines.lighter
        layers[last] -= self.lines.spare
        again = [cell.recompute for cell in self.cells]
        columns = {
            "recompute": [code("recompute", each.mode) for each in again],
            "recompute_layers": [each.layers for each in again],
            "recompute_modules": [each.module_bits for each in again],
        }
        found |= {name: np.where(used, np.array(each), 0) for name, each in columns.items()}
        return found | {"stages": used.astype(np.int64), "layers": layers}

    def listed(self, lists: dict[tuple[int, ...], int]) -> Ints:
        """Which list of chunks is each plan's; -1: all chunks of a stage are alike."""
        found = np.full(len(self.stages), -1, np.int64)
        for row in np.flatnonzero(self.lines.lighter + self.lines.spare).tolist():
            chunks = np.tile(self.sizes[: self.stages[row], row], self.vpp[row])
            chunks[0] -= self.lines.lighter[row]
            chunks[-1] -= self.lines.spare[row]
            found[row] = lists.setdefault(tuple(chunks.tolist()), len(lists))
        return found


def _deep(column: Ints, stages: int) -> Ints:
    """(plan, stage) to (stage, plan), of so many stages."""
    wide = column[:, :stages]
    return np.pad(wide, ((0, 0), (0, stages - wide.shape[1]))).T
