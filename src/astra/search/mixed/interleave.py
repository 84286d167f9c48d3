"""Interleaved pipelines over several GPU types: every one whose bound is below the best step.

Under a limit that rises to the best step known, all pipelines with a bound below it are listed,
priced as plans and simulated where a closer bound does not rule them out. Once the best step is
no longer than the limit, nothing else can be shorter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from astra.memory.stage import memory_of
from astra.search.bulk import filled_fraction, tight_step_s
from astra.search.mixed.chunked import Lister, Lines, Pairs, TooManyPipelinesError
from astra.search.mixed.chunks import Chunker, Cuts
from astra.search.mixed.columns import DEGREES, Chunks, kind_columns, plans_table
from astra.search.mixed.shapes import (
    Orders,
    Shapes,
    TooManyShapesError,
    holding,
    orders_of,
    shapes_of,
)
from astra.search.step import step_s
from astra.strategy.plans import Floats, Ints, Plans, code
from astra.strategy.view import view_of
from astra.timing.stage import stage_base, stage_times

if TYPE_CHECKING:
    from astra.search.mixed.cells import Cell
    from astra.search.mixed.solve import MixedFinder

LOWER = (0.16, 0.08, 0.04, 0.02, 0.01, 0.005, 0.0)  # limits, as shares below the best step
RISE = 1.06  # of the limit where no step is known
BATCH = 1024  # pipelines that are priced together
MOST = 200_000  # pipelines listed at once


@dataclass(frozen=True, slots=True)
class Listed:
    """Whole pipelines of one table of cuts."""

    cuts: Cuts
    orders: Orders
    pairs: Pairs
    lines: Lines


class Interleaver:
    """Takes over where a search without interleaving ended."""

    def __init__(self, finder: "MixedFinder") -> None:
        self.finder, self.space = finder, finder.space
        self.layers = finder.task.model.layers
        self.chunker = Chunker(finder.stocks, finder.capacity, finder.seconds)
        self.cells: dict[Cell, list[Cell]] = {}  # by stock
        for cell, _ in finder.legal or ():
            self.cells.setdefault(finder.stocks.stock(cell).cell, []).append(cell)
        wanted = self.space.chosen.get("vpp", range(2, self.layers // 2 + 1))
        self.vpps = np.array([v for v in wanted if 2 <= v <= self.layers // 2], np.int64)
        self.shapes: dict[Cell, Shapes] = {}
        self.tables: dict[Cell, Cuts] = {}
        self.most = MOST * (100 if finder.exact else 1)

    def run(self) -> None:
        """All that is below the best step known, or what was left open is told."""
        finder, low = self.finder, 0.0
        if not len(self.vpps) or not self.cells:
            return
        for limit in self._limits():
            limit_s = min(limit, finder.limit_s)
            try:
                self._all(low, limit_s)
            except (TooManyPipelinesError, TooManyShapesError):
                finder.tally.open_s = min(finder.tally.open_s, max(low, self.least_s))
                return
            low = limit_s
            if finder.limit_s <= limit_s:
                return

    def _limits(self) -> Iterator[float]:
        best = self.finder.limit_s
        self.least_s = self._least_s()
        if np.isfinite(best):
            yield from (best * (1 - share) for share in LOWER)
            return
        limit = self.least_s * RISE
        while np.isfinite(limit):
            yield limit
            limit *= RISE

    def _least_s(self) -> float:
        """No plan is shorter than all GPUs at their best."""
        return float(self.finder.speeds.min(initial=np.inf)) * 0.5

    def _all(self, low_s: float, limit_s: float) -> None:
        """Every pipeline whose bound lies between the two."""
        found = []
        for cell in self.cells:
            found += self._of(cell, low_s, min(limit_s, self.finder.limit_s))
        self._try(found)

    def _of(self, stock: "Cell", low_s: float, limit_s: float) -> list[Listed]:
        finder = self.finder
        kinds = finder.stocks.of[stock].kinds
        open_ = self._vpps(stock, limit_s)
        if not len(open_):
            return []
        if stock not in self.tables:
            self.tables[stock] = self.chunker.cuts(self.cells[stock], self.vpps)
            gpus = kinds[0].tp * kinds[0].dp * stock.cp, self.finder.task.cluster.max_gpus
            longest = self.layers // int(self.vpps.min())
            self.shapes[stock] = shapes_of(
                kinds, stock.micro_batches, longest, gpus, finder.question.use_all
            )
        cuts, shapes = self.tables[stock], self.shapes[stock]
        stage_gpus = kinds[0].tp * kinds[0].dp * stock.cp
        rows = np.flatnonzero(np.isin(cuts.vpp, open_))
        work = cuts.micro_batches * cuts.stage_s[rows]
        waits = np.log2(2 * stage_gpus) * cuts.vpp[rows, np.newaxis, np.newaxis] * cuts.wait_s[rows]
        fits = work + waits <= limit_s - finder.stack.step_s
        holds = np.where(fits, np.arange(fits.shape[2]), 0).max(axis=2).astype(np.float64)
        vpp = cuts.vpp[rows]
        row, shape = holding(shapes, holds, (self.layers - 2 * (vpp - 1)) / vpp)
        good = shapes.stages[shape] * vpp[row] <= self.layers
        row, shape = rows[row[good]], shape[good]
        if not len(row):
            return []
        some, at = np.unique(shape, return_inverse=True)
        orders = orders_of(shapes, some)
        starts = np.searchsorted(orders.shape, some)
        number = np.diff([*starts.tolist(), len(orders.shape)])[at]
        pair_row = np.repeat(row, number)
        first = np.repeat(starts[at] - np.cumsum(number) + number, number)
        order = first + np.arange(len(pair_row))
        lister = Lister(cuts, shapes, orders, self.layers, finder.stack.step_s)
        pairs = lister.pairs(pair_row, order, stage_gpus, limit_s)
        lines = lister.every(pairs, limit_s, self.most)
        finder.tally.labels += len(pairs.row)
        lines = lines.take(lines.bound_s >= low_s)
        finder.tally.listed += len(lines)
        return [Listed(cuts, orders, pairs, lines)] if len(lines) else []

    def _vpps(self, stock: "Cell", limit_s: float) -> Ints:
        """Numbers of chunks with which the model may be held under the limit, by time alone."""
        finder = self.finder
        kinds = finder.stocks.of[stock].kinds
        from astra.search.mixed.cells import cut_of

        own = finder.seconds[cut_of(stock)].whole_s
        lightest = own.min(axis=0)
        pool = np.array([kind.pool for kind in kinds])
        most = np.array([kind.most for kind in kinds])
        v = self.vpps
        hold = np.floor(limit_s / (stock.micro_batches * lightest[:, np.newaxis] * v) * (1 + 1e-9))
        left = np.minimum(self.layers // v, stock.micro_batches)
        each = np.zeros((finder.task.cluster.pools.__len__(), 2, len(v)))
        for row in range(len(kinds)):
            better = hold[row] > each[pool[row], 0]
            each[pool[row], 0] = np.where(better, hold[row], each[pool[row], 0])
            each[pool[row], 1] = np.maximum(each[pool[row], 1], most[row])
        order = np.argsort(-each[:, 0], axis=0, kind="stable")
        total = np.zeros(len(v))
        for rank in range(len(each)):
            held = np.take_along_axis(each, order[rank][np.newaxis, np.newaxis], axis=0)[0]
            taken = np.minimum(left, held[1])
            total += taken * held[0]
            left = left - taken
        return v[(total * v + 2 * (v - 1) >= self.layers) & (np.minimum(self.layers // v, stock.micro_batches) >= 2)]

    def _try(self, found: list[Listed]) -> None:
        """By bound, until none beats the best."""
        if not found:
            return
        bound = np.concatenate([each.lines.bound_s for each in found])
        table = np.repeat(np.arange(len(found)), [len(each.lines) for each in found])
        line = np.concatenate([np.arange(len(each.lines)) for each in found])
        order = np.argsort(bound, kind="stable")
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            some = some[bound[some] < self.finder.limit_s]
            if not len(some):
                return
            self._price([(found[t], line[some[table[some] == t]]) for t in np.unique(table[some])])

    def _price(self, some: list[tuple[Listed, Ints]]) -> None:
        finder = self.finder
        cells, plans = plans_of(self.space, some)
        keep = np.arange(len(plans))
        for rule in finder.rules:
            held = rule.holds(plans, finder.task)
            if not held.all():
                known = finder.tally.removed_by_rule
                known[rule.name] = known.get(rule.name, 0) + int((~held).sum())
                plans, keep = plans.take(np.flatnonzero(held)), keep[held]
        if not len(plans):
            return
        view = view_of(plans, finder.task, every_stage=True)
        times = stage_times(view, finder.stack, stage_base(view, finder.stack, finder.book))
        bound = tight_step_s(view, times)
        rows = np.flatnonzero(bound < finder.limit_s)
        if not len(rows):
            return
        plans, keep = plans.take(rows), keep[rows]
        view = view_of(plans, finder.task, every_stage=True)
        filled = filled_fraction(view, memory_of(view, finder.stack), finder.stack)
        fits = filled <= 1 - finder.margin
        finder.tally.out_of_memory += int((~fits).sum())
        rows = np.flatnonzero(fits)
        if not len(rows):
            return
        plans, keep = plans.take(rows), keep[rows]
        view = view_of(plans, finder.task, every_stage=True)
        times = stage_times(view, finder.stack, stage_base(view, finder.stack, finder.book))
        steps = step_s(plans, view.stages, times)
        finder.tally.simulated += len(plans)
        for row in np.argsort(steps, kind="stable").tolist():
            finder.keep(cells[keep[row]], float(steps[row]), plans, row)


def plans_of(space, some: list[tuple[Listed, Ints]]) -> tuple[list["Cell"], Plans]:
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
