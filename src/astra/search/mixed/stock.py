"""Stages of every kind of a search, kept as straight lines over what a stage holds.

But for the traffic between copies, seconds and bytes of a stage grow by the same with every layer
of a kind. So a few loads tell of all, however many there are, and what is recomputed, which no
degree of data parallelism changes, is priced once for all cells. Tables are made of this for the
kinds and sizes that a search still asks about.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astra.hardware.topology import even_share
from astra.search.mixed.cells import PER_STAGE, Cell, Kind, by_stage
from astra.search.mixed.links import Links
from astra.search.mixed.loads import FIRST, INSIDE, LAST, Loads
from astra.search.mixed.small import AGAIN, STILL, TRAFFIC, Asked, Pricer, priced
from astra.search.mixed.tables import Tables
from astra.strategy.plans import Floats, Ints, code
from astra.strategy.recompute import Recompute
from astra.timing.stage import exposed_data_parallel_s

PLACES = (FIRST, INSIDE, LAST)
OWN = (PER_STAGE, Recompute("full:uniform", 1, ()), Recompute("full:uniform", 0, ()))  # 0: all


@dataclass(frozen=True, slots=True)
class Basis:
    """Loads whose stages tell those of all others, along straight lines."""

    loads: Ints
    shares: Floats  # (load, basis) each load as a sum of these
    working: Ints  # (load,) of the basis, the one with the same kinds of layers


def basis_of(loads: Loads, place: int) -> Basis:
    """One load for every set of layer kinds, and as many more as span all of them."""
    some = np.flatnonzero(loads.starts[place] >= 0).tolist()
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
    return Basis(np.array(picked, np.int64), shares, np.array(like, np.int64))


def straight(setting: Recompute) -> bool:
    """Whether what it does again grows by the same with every layer of a kind."""
    return setting.mode in ("none", "selective") or setting == OWN[1]


@dataclass(slots=True)
class Stock:
    """Stages of the kinds of one cut."""

    cell: Cell  # recompute left open
    kinds: list[Kind]
    place: int  # of its first kind among all
    still: list[dict[str, Floats]]  # by place: (kind, basis)
    key: Ints  # (kind,) of what recompute depends on
    traffic: dict[str, Floats] = field(default_factory=dict)  # (place, kind, load)
    known: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (place, kind) layers


class Stocks:
    """Of all cuts of a search."""

    def __init__(
        self,
        pricer: Pricer,
        cells: Sequence[tuple[Cell, list[Kind]]],
        modes: Sequence[Recompute],
    ) -> None:
        """`modes`: what any of the cells may recompute."""
        self.pricer, self.loads = pricer, pricer.loads
        kinds_of = {cell.doing(PER_STAGE): kinds for cell, kinds in cells}
        self.cuts = list(kinds_of)
        self.kinds = [kind for kinds in kinds_of.values() for kind in kinds]
        sizes = [len(kinds) for kinds in kinds_of.values()]
        self.cut = np.repeat(np.arange(len(sizes)), sizes)
        self.bases = [basis_of(self.loads, place) for place in PLACES]
        others = [each for each in dict.fromkeys(modes) if each not in OWN and straight(each)]
        self.settings = [*OWN, *others]
        self.still = still = [self._still(place) for place in PLACES]  # (kind of any cut, basis)
        key, first = self._keys()
        self.key = key
        self.again = [self._again(place, first) for place in PLACES]
        self.links = Links(pricer, self.cuts, self.kinds, self.cut)
        self.of: dict[Cell, Stock] = {}
        ends = np.cumsum(sizes)
        for cell, end, size in zip(self.cuts, ends.tolist(), sizes, strict=True):
            here = slice(end - size, end)
            parts = [{name: column[here] for name, column in each.items()} for each in still]
            self.of[cell] = Stock(cell, self.kinds[here], end - size, parts, key[here])

    def stock(self, cell: Cell) -> Stock:
        return self.of[cell if cell.recompute == PER_STAGE else cell.doing(PER_STAGE)]

    def free(self, cell: Cell) -> bool:
        """Whether stages choose for themselves how much they recompute."""
        return by_stage(cell, self.pricer.space)

    def _keys(self) -> tuple[Ints, Ints]:
        """What recompute depends on: the key of every kind, and the first kind of every key."""
        pools = self.pricer.space.workload.task.cluster.pools
        used = [
            kind.stages[0] * kind.tp * kind.dp * self.cuts[cut].cp
            for kind, cut in zip(self.kinds, self.cut.tolist(), strict=True)
        ]
        counts = np.array(sorted(set(used)), np.int64)
        shares = [
            dict(zip(counts.tolist(), zip(*both, strict=True), strict=True))
            for both in (
                (
                    even_share(counts, pool.gpu.link.domain_gpus).tolist(),
                    even_share(counts, pool.gpu.node.gpus).tolist(),
                )
                for pool in pools
            )
        ]
        known: dict[tuple[Any, ...], int] = {}
        key, first = [], []
        for row, (kind, cut) in enumerate(zip(self.kinds, self.cut.tolist(), strict=True)):
            cell = self.cuts[cut]
            whole = cell.cp, cell.cp_comm_type, cell.overlap_tp, cell.overlap_ep
            own = kind.pool, kind.tp, kind.micro_batch, kind.ep, kind.etp
            name = (*whole, *own, shares[kind.pool][used[row]])
            if name not in known:
                known[name] = len(known)
                first.append(row)
            key.append(known[name])
        return np.array(key, np.int64), np.array(first, np.int64)

    def _priced(
        self, place: int, kind: Ints, load: Ints, setting: Ints, names: Sequence[str]
    ) -> dict[str, Floats]:
        """Columns of these stages; `setting` is one of the straight ones. (row,)"""
        modes = np.array([code("recompute", each.mode) for each in self.settings])
        bits = np.array([each.module_bits for each in self.settings])
        number = np.array([each.layers for each in self.settings])[setting]
        number = np.where(setting == 2, self.loads.sizes[load], number)
        asked = Asked(self.cut[kind], kind, load, modes[setting], number, bits[setting])
        return priced(self.pricer, self.cuts, self.kinds, asked, place, names)

    def _still(self, place: int) -> dict[str, Floats]:
        """(kind, basis)"""
        basis, kinds = self.bases[place].loads, len(self.kinds)
        kind, load = np.repeat(np.arange(kinds), len(basis)), np.tile(basis, kinds)
        found = self._priced(place, kind, load, np.zeros_like(kind), STILL)
        return {name: column.reshape(kinds, len(basis)) for name, column in found.items()}

    def _again(self, place: int, first: Ints) -> dict[str, Floats]:
        """(setting, key, basis)"""
        basis = self.bases[place].loads
        shape = len(first), len(basis), len(self.settings)
        at = np.indices(shape).reshape(3, -1)
        found = self._priced(place, first[at[0]], basis[at[1]], at[2], AGAIN)
        return {
            name: np.ascontiguousarray(column.reshape(shape).transpose(2, 0, 1))
            for name, column in found.items()
        }

    def prepare(self, wanted: Sequence[tuple[Cell, Ints, Ints]], fine: bool = False) -> None:
        """Prices the traffic of these kinds of cells, for stages of so many layers at most."""
        for place in PLACES:
            kinds, loads, into = [], [], []
            for cell, rows, most in wanted:
                stock = self.stock(cell)
                if place == FIRST or fine or cell.sharding == "parameters":
                    at, load = self._unknown(stock, place, rows, most)
                    kinds.append(stock.place + at)
                    loads.append(load)
                    into.append((stock, at, load))
            if not sum(map(len, kinds)):
                continue
            kind, load = np.concatenate(kinds), np.concatenate(loads)
            found = self._priced(place, kind, load, np.ones_like(kind), TRAFFIC)
            start = 0
            for stock, at, load in into:
                for name, column in found.items():
                    stock.traffic[name][place, at, load] = column[start : start + len(at)]
                start += len(at)

    def sent(self, kinds: Ints, place: int, loads: Ints) -> dict[str, Floats]:
        """Traffic between copies of some of all kinds, with these loads. (kind, load)"""
        kind, load = np.repeat(kinds, len(loads)), np.tile(loads, len(kinds))
        found = self._priced(place, kind, load, np.ones_like(kind), TRAFFIC[2:])
        return {name: column.reshape(len(kinds), -1) for name, column in found.items()}

    def _unknown(self, stock: Stock, place: int, rows: Ints, most: Ints) -> tuple[Ints, Ints]:
        """Kinds and loads whose traffic is not priced yet."""
        if not stock.traffic:
            shape = len(PLACES), len(stock.kinds), len(self.loads.sizes)
            stock.traffic = {name: np.zeros(shape) for name in TRAFFIC}
            stock.known = np.zeros(shape[:2], np.int64)
        new = most > stock.known[place, rows]
        rows, most = rows[new], most[new]
        there = np.flatnonzero(self.loads.starts[place] >= 0)
        size = self.loads.sizes[there]
        wanted = (size <= most[:, np.newaxis]) & (size > stock.known[place, rows][:, np.newaxis])
        at, load = np.nonzero(wanted)
        stock.known[place, rows] = most
        return rows[at], there[load]

    def tables(
        self, cell: Cell, rows: Ints, most: Ints, *, fine: bool = False, bare: bool = False
    ) -> Tables:
        """Of these kinds of the cell, for stages of so many layers at most.

        `fine`: with what every stage does behind its last backward, not the first one only.
        `bare`: without any traffic between copies.
        """
        if not bare:
            self.prepare([(cell, rows, most)], fine)
        stock = self.stock(cell)
        width = self.loads.upto(int(most.max(initial=0)))
        made: dict[str, Any] = self._lines(stock, cell, rows, width)
        for place in PLACES:
            there = self.loads.starts[place, :width] >= 0
            good = there & (self.loads.sizes[:width] <= most[:, np.newaxis])
            made["forward_s"][place][~good] = np.inf
        none = np.zeros((len(PLACES), len(rows), width))
        part = {} if bare else {n: column[:, rows, :width] for n, column in stock.traffic.items()}
        if cell.sharding == "parameters" and not bare:
            self._gather(cell, [stock.kinds[row] for row in rows.tolist()], made, part)
        for name in ("opening_s", "after_s"):
            if not fine and part:
                part[name][1:] = 0.0
        made["room_bytes"] = np.where(np.isfinite(made["forward_s"]), made["room_bytes"], -np.inf)
        made["backward_s"] = made["backward_s"] + made["again_s"]
        options = made.pop("again_s")
        del made["ahead_s"], made["back_s"]
        return Tables(
            cell=cell,
            kinds=[stock.kinds[row] for row in rows.tolist()],
            loads=self.loads,
            weights=self.pricer.weights,
            again_s=options[min(1, len(options) - 1)],
            opening_s=part.get("opening_s", none),
            after_s=part.get("after_s", none),
            link_s=self.links.table(stock.place + rows),
            **made,
        )

    def _lines(self, stock: Stock, cell: Cell, rows: Ints, width: int) -> dict[str, Floats]:
        """Columns along the lines. (place, kind, load); (setting, place, kind, load)"""
        one = not self.free(cell) and straight(cell.recompute)
        chosen = [self.settings.index(cell.recompute)] if one else [0, 1, 2]
        shape = len(PLACES), len(rows), width
        made = {name: np.zeros(shape) for name in STILL}
        made |= {name: np.zeros((len(chosen), *shape)) for name in AGAIN}
        size, key = self.loads.sizes[:width], stock.key[rows]
        for place, basis in zip(PLACES, self.bases, strict=True):
            if not len(basis.loads):
                continue
            shares = basis.shares[:width].T
            for name in STILL:
                made[name][place] = stock.still[place][name][rows] @ shares
            again = {name: column[chosen][:, key] for name, column in self.again[place].items()}
            for name in ("again_s", "kept_bytes"):
                made[name][:, place] = again[name] @ shares
            work = again["working_bytes"][..., basis.working[:width]]
            if not one:
                work[2] = work[0] + size * (work[1] - work[0])
            made["working_bytes"][:, place] = work
        if not one and not self.free(cell):
            made |= _whole_layers(cell.recompute, made, size)
        return made

    def _gather(
        self, cell: Cell, kinds: list[Kind], made: dict[str, Floats], part: dict[str, Floats]
    ) -> None:
        """Sharded parameters are gathered for every micro-batch, and their gradients scattered."""
        copies = np.array([kind.dp * cell.cp > 1 for kind in kinds])[:, np.newaxis]
        gather, slow = part["gather_s"], part["slowdown"]
        back = made["back_s"] + made["again_s"]
        made["forward_s"] += exposed_data_parallel_s(gather, made["ahead_s"], copies, slow)
        more = exposed_data_parallel_s(gather + part["reduce_s"], back, copies, slow)
        made["backward_s"] = made["backward_s"] + more


def _whole_layers(setting: Recompute, made: dict[str, Floats], size: Ints) -> dict[str, Floats]:
    """Columns of a setting that recomputes whole layers of every stage, so many or in groups of so
    many, from those of none, all and all as one group. (1, place, kind, load)
    """
    number = np.clip(setting.layers, 1, np.maximum(size, 1))
    again, kept, work = (made[name] for name in AGAIN)
    if setting.mode == "full:block":
        part = number / np.maximum(size, 1)
        columns = part * again[1], (1 - part) * kept[0] + part * kept[1], work[1]
    else:
        groups = -(-size // number)
        each = (kept[1] - kept[2]) / np.maximum(size - 1, 1)  # of one more group
        columns = again[1], kept[2] + (groups - 1) * each, work[0] + number * (work[1] - work[0])
    return {name: column[np.newaxis] for name, column in zip(AGAIN, columns, strict=True)}
