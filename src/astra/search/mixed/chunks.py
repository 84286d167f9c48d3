"""Seconds and bytes of the chunks of interleaved stages, at least.

A stage of v chunks holds n layers in each. What a chunk takes is known of its layers; where these
are of several kinds, the lightest in a row of so many are taken, and of a stage no more layers of
a kind than there are.
"""

from dataclasses import dataclass, replace

import numpy as np

from astra.hardware.stack import Stack
from astra.search.mixed.capacity import Capacity
from astra.search.mixed.cells import Cell, Kind
from astra.search.mixed.loads import FIRST, INSIDE, LAST, Loads
from astra.search.mixed.roomy import Bytes, Costs
from astra.search.mixed.speed import LayerSeconds
from astra.search.mixed.stock import Stock, Stocks, straight
from astra.strategy.plans import Flags, Floats, Ints

SLIP = 1e-9  # relative, against rounding
EVERY = 1 << 40  # more chunks in flight than there are
EACH, GROUP = 1, 2  # settings of recompute: layer by layer, all layers as one group


@dataclass(frozen=True, slots=True)
class Held:
    """What stages hold for the backward pass, at least."""

    layers: Ints  # of single micro-batches
    other: Ints  # of them, that may be of another kind than most
    chunks: Ints


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of stages at one place of the pipeline. (row, kind) and further axes"""

    flying: Ints  # (behind the first layers or any, row, kind, size) most chunks that fit
    free_bytes: Floats  # (kind, layers of a stage) beside its states
    peak_bytes: Floats  # of the layer or the loss at work
    kept_bytes: Floats  # (likewise, row, kind, size) of one chunk in flight
    ends_bytes: Floats  # of the ends, for one micro-batch of a stage in flight

    def holds(self, at: tuple[Ints, Ints], cut: tuple[Ints, Ints], held: Held) -> Flags:
        """Whether stages with chunks of unlike size fit. `cut`: layers and chunks of each."""
        layers, vpp = cut
        size = np.maximum(layers // vpp, 1)
        each, least = (self.kept_bytes[start, *at, size] / size for start in (0, -1))
        kept = each * (held.layers - held.other) + least * held.other
        needed = kept + self.ends_bytes[at] * held.chunks / vpp
        free = self.free_bytes[at[1], layers] - self.peak_bytes[at]
        found: Flags = needed * (1 - SLIP) <= free
        return found


@dataclass(frozen=True, slots=True)
class Cuts:
    """Cells that differ in recompute alone, each with several numbers of chunks. (row,)

    Tables are (start, row, kind, layers of a chunk). Starts are the first layers of the model
    that are of another kind than most, each for the chunk that begins there, then any behind
    them, then any at all; where there are no such layers, any.
    """

    cells: list[Cell]
    kinds: list[Kind]
    hides: bool  # the experts' traffic
    alike: bool  # all layers behind those of another kind at the start are
    vpp: Ints
    micro_batches: int
    chunk_s: Floats  # both ways, with what is done again
    down_s: Floats  # one way
    wait_s: Floats  # of a chunk in a step, for the slowest GPU: for every doubling of the GPUs
    head_s: Floats  # (row, kind) of the last chunk more
    head_wait_s: Floats  # (row, kind) likewise
    link_s: Floats  # (kind, kind of the next stage)
    inside: "Room"
    last: "Room"
    opening_s: (
        Floats  # (kind, layers) of a first stage: the gather that its first forwards wait for
    )
    after_s: Floats  # (kind, layers) of a first stage: behind its last backward, without waiting

    @property
    def lead(self) -> int:
        """First layers of the model that are of another kind than most."""
        return max(len(self.chunk_s) - 2, 0)

    def flying(self, last: bool, start: Ints | int, at: tuple[Ints, Ints]) -> Ints:
        """Most chunks in flight that fit, of rows and kinds. (pair, size)"""
        table = (self.last if last else self.inside).flying
        found: Ints = table[(start == self.any) * (len(table) - 1), *at]
        return found

    @property
    def any(self) -> int:
        """The start that stands for any."""
        return len(self.chunk_s) - 1

    def most_layers(self, rows: Ints, limit_s: float) -> Floats:
        """That a stage has time for, whatever its chunks. (row, kind)"""
        size = np.arange(1, self.chunk_s.shape[-1])
        pace = (self.chunk_s[self.any, rows, :, 1:] / size).min(axis=2)
        with np.errstate(over="ignore", invalid="ignore"):
            most = np.floor(limit_s / (self.micro_batches * pace) * (1 + SLIP))
        return np.minimum(np.nan_to_num(most, nan=0.0), 1e6)

    def row_cell(self, row: int) -> Cell:
        """The cell of a row, with its number of chunks."""
        each = len(self.vpp) // len(self.cells)
        cell = self.cells[row // each]
        return replace(cell, vpp=int(self.vpp[row]), overlap_ep=self.hides)


@dataclass(frozen=True, slots=True)
class _ChunkLines:
    """Seconds of a layer more of every kind, (kind, layer kind), and of the head, (kind,)."""

    whole_s: Floats
    down_s: Floats
    wait_s: Floats
    head_s: Floats
    head_wait_s: Floats


@dataclass(frozen=True, slots=True)
class _Again:
    """What the cells recompute. (cell,)"""

    setting: Ints  # as known of all layers; none where some of a chunk's are done again
    part: Floats  # (cell, 1, size) share of a chunk's layers that are done again beyond that
    groups: Ints  # whether so that a group of layers keeps one input


class Chunker:
    """Makes such tables for the cuts of one search."""

    def __init__(
        self, stocks: Stocks, capacity: Capacity, seconds: dict[Cell, LayerSeconds], stack: Stack
    ) -> None:
        self.stocks, self.capacity, self.seconds = stocks, capacity, seconds
        self.jitter, self.step_s = stack.jitter_fraction, stack.step_s
        self.loads: Loads = stocks.loads
        self.layers = self.loads.layers
        self.size = np.arange(self.layers // 2 + 1)
        self.counts = self.loads.counts[self.loads.at[self.layers, self.layers]]
        main = int(self.counts.argmax())
        of_layer = [
            self.loads.counts[self.loads.at[end, 1]].argmax() for end in range(1, self.layers + 1)
        ]
        self.lead = of_layer.index(main)
        self.alike = all(kind == main for kind in of_layer[self.lead :])
        self.windows = self._windows()

    def _windows(self) -> tuple[Ints, Ints]:
        """Loads of a chunk by where it begins, then by how many layers it has, all in a row; and
        where those of each start and size begin.
        """
        starts = [range(start, start + 1) for start in range(self.lead)]
        starts += [range(self.lead, self.layers)] + ([range(self.layers)] if self.lead else [])
        loads: list[int] = []
        edges = []
        for some in starts:
            for size in self.size.tolist():
                fit = [start for start in some if start + size <= self.layers] or [some[0]]
                ends = np.minimum(np.array(fit) + size, self.layers)
                edges.append(len(loads))
                loads += np.unique(self.loads.at[ends, np.minimum(size, ends)]).tolist()
        return np.array(loads), np.array(edges)

    def cuts(self, cells: list[Cell], cut: Cell, vpps: Ints) -> Cuts:
        """Rows of every cell with every number of chunks. `cut`: the one whose seconds count."""
        stock = self.stocks.stock(cells[0])
        shape = (len(cells), len(vpps), len(stock.kinds), len(self.size))
        lines, again = self._lines(stock, cut), self._again(cells)
        more = self._again_s(stock, again)
        chunk = self._least(lines.whole_s + more[0])
        chunk = chunk + again.part * self._least(more[1])[:, np.newaxis]
        rows = len(cells) * len(vpps)

        def table(column: Floats) -> Floats:  # (start, cell or none, kind, size)
            full = (len(column), *shape)
            wide = np.broadcast_to(column[:, :, np.newaxis], full)
            return wide.reshape(len(column), rows, *shape[2:])

        def flat(column: Floats) -> Floats:
            return np.broadcast_to(column, (rows, len(stock.kinds)))

        return Cuts(
            cells=cells,
            kinds=stock.kinds,
            hides=cut.overlap_ep,
            alike=self.alike,
            vpp=np.tile(vpps, len(cells)),
            micro_batches=cut.micro_batches,
            chunk_s=table(chunk * (1 - SLIP)),
            down_s=table(self._least(lines.down_s)[:, np.newaxis]),
            wait_s=table(self._least(lines.wait_s)[:, np.newaxis]),
            head_s=flat(lines.head_s),
            head_wait_s=flat(lines.head_wait_s),
            link_s=self.stocks.links.table(stock.place + np.arange(len(stock.kinds))),
            inside=self._room(stock, again, vpps, INSIDE),
            last=self._room(stock, again, vpps, LAST),
            opening_s=np.zeros((len(stock.kinds), self.layers + 1)),
            after_s=np.full((len(stock.kinds), self.layers + 1), self.step_s),
        )

    def costs(self, cells: list[Cell], cut: Cell) -> Costs:
        """Of one layer more of the commonest kind, or of the lightest where kinds take turns."""
        stock = self.stocks.stock(cells[0])
        lines, again = self._lines(stock, cut), self._again(cells)
        layer = lines.whole_s + self._again_s(stock, again)[0]
        return Costs(
            layer_s=self._one(layer) * (1 - SLIP),
            wait_s=self._one(lines.wait_s),
            head_s=lines.head_s,
            head_wait_s=lines.head_wait_s,
            down_s=float(lines.down_s.min()),
            inside=self._bytes(stock, again, INSIDE),
            last=self._bytes(stock, again, LAST),
        )

    def _one(self, column: Floats) -> Floats:
        """Of a layer. (..., layer kind) to (...)"""
        one: Floats = column[..., self.counts.argmax()] if self.alike else column.min(axis=-1)
        return one

    def _bytes(self, stock: Stock, again: _Again, place: int) -> Bytes:
        if not self.capacity.known:
            none = np.zeros((len(again.setting), len(stock.kinds)))
            return Bytes(none, none[0], none, none)
        rows, bytes_ = stock.place + np.arange(len(stock.kinds)), self.capacity.again[place]
        still = self.capacity.still[place]
        kept = bytes_["kept_bytes"][:, stock.key]
        each, fewer = self._one(kept[again.setting][..., 1:]), self._one(kept[EACH, :, 1:])
        each = np.where(again.part.max(axis=-1) > 0, np.minimum(each, fewer), each)
        work = bytes_["working_bytes"][:, stock.key][again.setting][..., 0]
        return Bytes(
            free=still["room_bytes"][rows, 0] - np.maximum(work, still["logits_bytes"][rows, 0]),
            states=self._one(-still["room_bytes"][rows, 1:]),
            kept=np.where(again.groups[:, np.newaxis] > 0, 0.0, each),
            ends=np.maximum(kept[again.setting][..., 0], 0.0),
        )

    def with_traffic(self, cuts: Cuts) -> Cuts:
        """The same with what the copies of a first stage send once a step, where that is known:
        whatever is recomputed, as if all layers were.
        """
        if not self.loads.alike or cuts.hides:
            return cuts
        cell, kinds = cuts.cells[0], np.arange(len(cuts.kinds))
        self.stocks.prepare([(cell, kinds, np.full(len(kinds), self.layers - 1))])
        traffic = self.stocks.stock(cell).traffic
        opening, after = (
            np.pad(traffic[name][FIRST][:, : self.layers], ((0, 0), (0, 1)), mode="edge")
            for name in ("opening_s", "after_s")
        )
        return replace(cuts, opening_s=opening, after_s=np.maximum(after, self.step_s))

    def most_layers(self, cells: list[Cell]) -> Ints:
        """That fit beside their states alone, with any share of the optimizer offloaded; all but
        those of the commonest kind left out. (kind,)
        """
        main, found = int(self.counts.argmax()), np.zeros(1, np.int64)
        for offload in {cell.offload for cell in cells}:
            stock = self.stocks.stock(replace(cells[0], offload=offload))
            rows = stock.place + np.arange(len(stock.kinds))
            if not self.capacity.known:
                return np.full(len(rows), self.layers)
            room = self.capacity.still[INSIDE]["room_bytes"][rows]
            with np.errstate(divide="ignore"):
                most = np.floor(np.maximum(room[:, 0], 0.0) / -room[:, 1 + main] * (1 + SLIP))
            found = np.maximum(found, np.where(room[:, 1 + main] < 0, most, self.layers))
        return np.minimum(found, self.layers).astype(np.int64)

    def layers_s(self, cut: Cell) -> Floats:
        """A layer of every kind, all micro-batches of a step, with what a plan of two stages makes
        it wait for the slowest GPU. (kind, layer kind)
        """
        stock = self.stocks.stock(replace(cut, overlap_ep=False))
        lines, kind = self._lines(stock, cut), stock.kinds[0]
        doublings = np.log2(2 * kind.tp * kind.dp * cut.cp)
        return cut.micro_batches * lines.whole_s + doublings * lines.wait_s

    def _lines(self, stock: Stock, cut: Cell) -> _ChunkLines:
        """Seconds of a layer more, nothing recomputed."""
        own, known = self.seconds[cut], self.capacity.known
        rows = stock.place + np.arange(len(stock.kinds))
        if cut.overlap_ep or not known:
            whole = own.whole_s.T
            waits = self.jitter * cut.micro_batches * whole
            if cut.overlap_ep and known and cut.sharding == "parameters":
                whole = whole + self._gathered_s(cut, rows)
            return _ChunkLines(whole, own.forward_s.T, waits, own.head_s, np.zeros(len(rows)))
        inside, last = (
            {name: self.capacity.still[place][name][rows] for name in ("wait_s", *WAYS)}
            for place in (INSIDE, LAST)
        )
        both = inside["forward_s"] + inside["backward_s"]
        ends = (last["forward_s"] + last["backward_s"] - both)[:, 0]
        return _ChunkLines(
            whole_s=both[:, 1:],
            down_s=inside["forward_s"][:, 1:],
            wait_s=inside["wait_s"][:, 1:],
            head_s=ends,
            head_wait_s=last["wait_s"][:, 0] - inside["wait_s"][:, 0],
        )

    def _gathered_s(self, cut: Cell, rows: Ints) -> Floats:
        """Parameters gathered for a layer, as far as they show at least. (kind, layer kind)

        Known of the same cut that does not hide its experts' traffic; one that does may wait for
        the CPU instead, which counts as compute and hides more.
        """
        plain, own = self.seconds[replace(cut, overlap_ep=False)], self.seconds[cut]
        still = self.capacity.still[INSIDE]
        shown = (still["forward_s"] + still["backward_s"])[rows, 1:] - plain.whole_s.T
        longer = np.maximum(own.compute_s - plain.compute_s, 0.0).T
        found: Floats = np.maximum(shown - longer, 0.0)
        return found

    def _again(self, cells: list[Cell]) -> _Again:
        """Where not every layer is recomputed alike, as if none were, and the part that is."""
        known = [straight(cell.recompute) for cell in cells]
        pairs = list(zip(cells, known, strict=True))
        settings = self.stocks.settings
        setting = [settings.index(cell.recompute) if own else 0 for cell, own in pairs]
        uniform = [cell.recompute.mode == "full:uniform" and not own for cell, own in pairs]
        number = [0 if own else cell.recompute.layers for cell, own in pairs]
        each = np.minimum(np.array(number)[:, np.newaxis] / np.maximum(self.size, 1), 1.0)
        part = np.where(np.array(uniform)[:, np.newaxis], 1.0, each)
        return _Again(np.array(setting), part[:, np.newaxis], np.array(uniform, np.int64))

    def _again_s(self, stock: Stock, again: _Again) -> tuple[Floats, Floats]:
        """Seconds that a layer takes more, and those of a layer done again beyond that.

        (cell, kind, layer kind)
        """
        if not self.capacity.known:
            return np.zeros((len(again.setting), 1, 1)), np.zeros((1, self.counts.size))
        seconds = self.capacity.again[INSIDE]["again_s"][:, stock.key, 1:]
        return seconds[again.setting], seconds[EACH]

    def _held(self, vpps: Ints, shape: tuple[int, ...]) -> Ints:
        """Layers of a stage."""
        held = np.minimum(vpps[:, np.newaxis, np.newaxis] * self.size, self.layers)
        return np.broadcast_to(held, shape)

    def _least(self, lines: Floats) -> Floats:
        """Of layers in a row, the lightest. (start, ..., size)"""
        if self.loads.alike:
            found: Floats = (lines * self.size)[np.newaxis]
            return found
        loads, edges = self.windows
        each = lines @ self.loads.counts[loads].T
        least = np.minimum.reduceat(each, edges, axis=-1)
        least = least.reshape(*lines.shape[:-1], -1, len(self.size))
        return np.ascontiguousarray(np.moveaxis(least, -2, 0))

    def _lightest(self, lines: Floats) -> Floats:
        """Of any layers of the model, so many of them. (..., layers)"""
        number = np.arange(self.layers + 1)
        if self.loads.alike:
            return lines * number
        order = np.argsort(lines, axis=-1, kind="stable")
        counts = self.counts[order]
        before = np.cumsum(counts, axis=-1) - counts
        taken = np.clip(number - before[..., np.newaxis], 0, counts[..., np.newaxis])
        each = np.take_along_axis(lines, order, axis=-1)
        found: Floats = (taken * each[..., np.newaxis]).sum(axis=-2)
        return found

    def _room(self, stock: Stock, again: _Again, vpps: Ints, place: int) -> Room:
        shape = (len(again.setting), len(vpps), len(stock.kinds), len(self.size))
        rows, keys = stock.place + np.arange(len(stock.kinds)), stock.key
        if not self.capacity.known:
            return _endless(shape, self.layers, 2 if self.lead else 1)
        still, bytes_ = self.capacity.still[place], self.capacity.again[place]
        states = self._lightest(-still["room_bytes"][rows, 1:])
        free = still["room_bytes"][rows, :1] - states
        kept = bytes_["kept_bytes"][:, keys]
        whole = self._least(kept[again.setting][..., 1:])[-2:]  # (start, cell, kind, size)
        fewer = self._least(kept[EACH, :, 1:])[-2:, np.newaxis]
        whole = whole + again.part * np.minimum(fewer - whole, 0.0)
        whole = np.where(again.groups[:, np.newaxis, np.newaxis] > 0, 0.0, whole)
        ends = np.maximum(kept[again.setting][..., 0], 0.0)
        work = bytes_["working_bytes"][:, keys][again.setting][..., 0]
        peak = np.maximum(work, still["logits_bytes"][rows, 0])
        v = vpps[:, np.newaxis, np.newaxis]
        each = whole[:, :, np.newaxis] + ends[:, np.newaxis, :, np.newaxis] / v
        index = self._held(vpps, shape[1:])
        room = np.broadcast_to(free, (*shape[1:3], free.shape[-1]))
        room = np.take_along_axis(room, index, axis=2) - peak[:, np.newaxis, :, np.newaxis]
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.floor(room / each * (1 + SLIP) + SLIP)
        most = np.where(np.isfinite(most), np.clip(most, -1, EVERY), EVERY)
        most = np.where(room < -SLIP * np.abs(peak[:, np.newaxis, :, np.newaxis]), -1, most)
        one = whole
        if not self.loads.alike:  # any row of layers, in chunks of any size
            one = (one[..., 1:] / self.size[1:]).min(axis=-1, keepdims=True) * self.size
        flat = (len(again.setting) * len(vpps), len(stock.kinds))

        def wide(column: Floats) -> Floats:
            full = np.broadcast_to(column[:, np.newaxis], (*shape[:3], *column.shape[2:]))
            return full.reshape(*flat, *column.shape[2:])

        return Room(
            flying=most.reshape(len(most), *flat, -1).astype(np.int64),
            free_bytes=free,
            peak_bytes=wide(peak),
            kept_bytes=np.stack([wide(each) for each in one]),
            ends_bytes=wide(ends),
        )


def _endless(shape: tuple[int, ...], layers: int, starts: int) -> Room:
    """Where nothing is known of memory."""
    rows, kinds = shape[0] * shape[1], shape[2]
    none = np.zeros((rows, kinds))
    every = np.full((starts, rows, *shape[2:]), EVERY)
    return Room(every, np.zeros((kinds, layers + 1)), none, np.zeros(every.shape), none)


WAYS = ("forward_s", "backward_s")
