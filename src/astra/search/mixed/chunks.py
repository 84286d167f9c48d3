"""Seconds and bytes of the chunks of interleaved stages, at least.

A stage of v chunks holds n layers in each. What a chunk takes is known of its layers; where these
are of several kinds, the lightest in a row of so many are taken, and of a stage no more layers of
a kind than there are.
"""

from dataclasses import dataclass, replace

import numpy as np

from astra.search.mixed.capacity import Capacity
from astra.search.mixed.cells import Cell, Kind
from astra.search.mixed.loads import INSIDE, LAST, Loads
from astra.search.mixed.speed import LayerSeconds
from astra.search.mixed.stock import OWN, Stock, Stocks, straight
from astra.strategy.plans import Floats, Ints

SLIP = 1e-9  # relative, against rounding
EVERY = 1 << 40  # more chunks in flight than there are


@dataclass(frozen=True, slots=True)
class Cuts:
    """Cells that differ in recompute alone, each with every number of chunks. (row,)

    Tables are (row, kind, layers of a chunk), inf where a stage cannot hold so many.
    """

    cells: list[Cell]
    kinds: list[Kind]
    vpp: Ints
    micro_batches: int
    chunk_s: Floats  # both ways, with what is done again
    down_s: Floats  # one way
    stage_s: Floats  # all chunks of a stage
    wait_s: Floats  # of a chunk in a step, for the slowest GPU: for every doubling of the GPUs
    head_s: Floats  # (row, kind) of the last chunk more
    head_wait_s: Floats  # (row, kind) likewise
    link_s: Floats  # (kind, kind of the next stage)
    flying: Ints  # most chunks in flight that fit, inside the pipeline
    last_flying: Ints  # and on its last stage

    def row_cell(self, row: int) -> Cell:
        """The cell of a row, with its number of chunks."""
        each = len(self.vpp) // len(self.cells)
        return replace(self.cells[row // each], vpp=int(self.vpp[row]))


@dataclass(frozen=True, slots=True)
class _Lines:
    """Of a layer of every kind, (cell, kind, layer kind), and of none, (cell, kind)."""

    whole_s: Floats
    again_s: Floats  # whole layers: where some of a chunk's are
    down_s: Floats
    wait_s: Floats
    head_s: Floats
    head_wait_s: Floats


class Chunker:
    """Makes such tables of the cells of one stock."""

    def __init__(
        self, stocks: Stocks, capacity: Capacity, seconds: dict[Cell, LayerSeconds]
    ) -> None:
        self.stocks, self.capacity, self.seconds = stocks, capacity, seconds
        self.loads = stocks.loads
        self.layers = self.loads.layers

    def cuts(self, cells: list[Cell], vpps: Ints) -> Cuts:
        """Rows of every cell with every number of chunks."""
        stock = self.stocks.stock(cells[0])
        widest = self.layers // 2
        size = np.arange(widest + 1)
        count, kinds = len(cells), len(stock.kinds)
        shape = (count, len(vpps), kinds, widest + 1)
        lines = self._lines(stock, cells)
        part = self._part(cells, size)  # of a chunk's layers that are done again
        plain, again = (self._least(each) for each in (lines.whole_s, lines.again_s))
        chunk = (plain + part * again)[:, np.newaxis]
        v = vpps[:, np.newaxis, np.newaxis]
        stage = np.broadcast_to(v * chunk, shape).copy()
        most = np.minimum(v * size, self.layers)
        if not self.loads.alike:
            whole = self._lightest(lines.whole_s)[:, np.newaxis]
            whole = np.broadcast_to(whole, (count, len(vpps), kinds, self.layers + 1))
            index = np.broadcast_to(most, shape)
            np.maximum(stage, np.take_along_axis(whole, index, axis=3), out=stage)
        stage[np.broadcast_to(v * size > self.layers, shape)] = np.inf
        flying = [self._flying(stock, cells, vpps, part, place) for place in (INSIDE, LAST)]
        rows = count * len(vpps)

        def flat(column: Floats) -> Floats:
            wide = np.broadcast_to(column, shape[: column.ndim])
            return wide.reshape(rows, *wide.shape[2:])

        heads = (lines.head_s[:, np.newaxis], lines.head_wait_s[:, np.newaxis])
        return Cuts(
            cells=cells,
            kinds=stock.kinds,
            vpp=np.tile(vpps, count),
            micro_batches=stock.cell.micro_batches,
            chunk_s=flat(chunk),
            down_s=flat(self._least(lines.down_s)[:, np.newaxis]),
            stage_s=flat(stage * (1 - SLIP)),
            wait_s=flat(self._least(lines.wait_s)[:, np.newaxis]),
            head_s=flat(heads[0]),
            head_wait_s=flat(heads[1]),
            link_s=self.stocks.links.table(stock.place + np.arange(kinds)),
            flying=flat(flying[0]),
            last_flying=flat(flying[1]),
        )

    def _lines(self, stock: Stock, cells: list[Cell]) -> _Lines:
        """Seconds of a layer more."""
        rows = stock.place + np.arange(len(stock.kinds))
        shape = (len(cells), len(rows), self.loads.counts.shape[1])
        if not self.capacity.known:
            own = self.seconds[_bare(stock.cell)]
            none = np.zeros(shape[:2])
            whole, down = (np.broadcast_to(c.T, shape) for c in (own.whole_s, own.forward_s))
            return _Lines(whole, np.zeros(shape), down, np.zeros(shape), none + own.head_s, none)
        inside, last = (self.capacity.still[place] for place in (INSIDE, LAST))
        plain = (inside["forward_s"] + inside["backward_s"])[rows]
        ends = (last["forward_s"] + last["backward_s"])[rows, 0] - plain[:, 0]
        keys, again = stock.key, self.capacity.again[INSIDE]["again_s"]
        known = [self._setting(cell) for cell in cells]
        whole = np.stack([plain[:, 1:] + again[each, keys, 1:] for each in known])
        blocks = [again[1, keys, 1:] * (not straight(cell.recompute)) for cell in cells]
        waits = inside["wait_s"][rows]
        return _Lines(
            whole_s=whole,
            again_s=np.stack(blocks),
            down_s=np.broadcast_to(inside["forward_s"][rows, 1:], shape),
            wait_s=np.broadcast_to(waits[:, 1:], shape),
            head_s=np.broadcast_to(ends, shape[:2]),
            head_wait_s=np.broadcast_to(last["wait_s"][rows, 0] - waits[:, 0], shape[:2]),
        )

    def _setting(self, cell: Cell) -> int:
        """What is known of a setting; of one that does some layers again, as if it did none."""
        return self.stocks.settings.index(cell.recompute) if straight(cell.recompute) else 0

    def _part(self, cells: list[Cell], size: Ints) -> Floats:
        """Of the layers of a chunk, the share that `again_s` counts. (cell, 1, size)"""
        found = np.zeros((len(cells), 1, len(size)))
        for row, cell in enumerate(cells):
            setting = cell.recompute
            if setting.mode == "full:uniform" and not straight(setting):
                found[row] = 1.0
            elif setting.mode == "full:block":
                found[row] = np.minimum(setting.layers / np.maximum(size, 1), 1.0)
        return found

    def _least(self, lines: Floats) -> Floats:
        """Of layers in a row, the lightest. (..., size)"""
        size = np.arange(self.layers // 2 + 1)
        if self.loads.alike:
            return lines * size
        loads = self.loads.upto(int(size[-1]))
        each = lines @ self.loads.counts[:loads].T
        starts = np.searchsorted(self.loads.sizes[:loads], size)
        return np.minimum.reduceat(each, starts, axis=-1)

    def _lightest(self, lines: Floats) -> Floats:
        """Of any layers of the model, so many of them. (..., layers)"""
        counts = self.loads.counts[self.loads.at[self.layers, self.layers]]
        order = np.argsort(lines, axis=-1, kind="stable")
        sorted_ = np.take_along_axis(lines, order, axis=-1)
        ends = np.cumsum(counts[order], axis=-1)
        number = np.arange(self.layers + 1)
        before = np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
        taken = np.clip(number - before[..., np.newaxis], 0, counts[order][..., np.newaxis])
        found: Floats = (taken * sorted_[..., np.newaxis]).sum(axis=-2)
        return found

    def _flying(
        self, stock: Stock, cells: list[Cell], vpps: Ints, part: Floats, place: int
    ) -> Ints:
        """Most chunks in flight that a stage has room for. (cell, vpp, kind, size)"""
        size = np.arange(self.layers // 2 + 1)
        shape = (len(cells), len(vpps), len(stock.kinds), len(size))
        if not self.capacity.known:
            return np.full(shape, EVERY)
        rows, keys = stock.place + np.arange(len(stock.kinds)), stock.key
        still, again = self.capacity.still[place], self.capacity.again[place]
        v = vpps[:, np.newaxis, np.newaxis]
        held = np.minimum(v * size, self.layers)
        states = self._lightest(-still["room_bytes"][rows, 1:])[np.newaxis, np.newaxis]
        states = np.broadcast_to(states, (*shape[:3], self.layers + 1))
        room = still["room_bytes"][rows, 0][:, np.newaxis]
        room = room - np.take_along_axis(states, np.broadcast_to(held, shape), axis=3)
        kept, work = [], []
        for row, cell in enumerate(cells):
            setting, whole = self._setting(cell), again["kept_bytes"]
            more, none = self._least(whole[setting, keys, 1:]), whole[setting, keys, :1]
            if not straight(cell.recompute):
                full = 2 if cell.recompute.mode == "full:uniform" else 1
                less = self._least(whole[full, keys, 1:])
                more = more + part[row] * np.minimum(less - more, 0.0)
                if full == 2:  # a group of layers keeps one input, whichever they are
                    more = np.zeros_like(more)
            kept.append(more[np.newaxis] + np.maximum(none, 0.0) / v)
            work.append(np.broadcast_to(again["working_bytes"][setting, keys], (len(rows), 1)))
        peak = np.maximum(np.stack(work)[:, np.newaxis], still["logits_bytes"][rows, :1])
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.floor((room - peak) / np.stack(kept) * (1 + SLIP) + SLIP)
        most = np.where(room < peak * (1 - SLIP), -1, np.where(np.isfinite(most), most, EVERY))
        return np.clip(most, -1, EVERY).astype(np.int64)


def _bare(cell: Cell) -> Cell:
    from astra.search.mixed.cells import cut_of

    return cut_of(cell)


__all__ = ["EVERY", "OWN", "Chunker", "Cuts", "Loads"]
