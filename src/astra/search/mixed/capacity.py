"""Which kinds of a cell can be part of a plan below a limit: those whose stages can hold the model.

With stages that may take no longer than the limit allows, and with as many micro-batches in
flight as their place from the end asks for, each kind holds so many layers at each place. Runs of
types in any order, each as long as its type allows, must hold all layers of the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from astra.search.mixed.cells import Cell
from astra.search.mixed.loads import INSIDE, LAST
from astra.search.mixed.small import STILL
from astra.search.mixed.stock import Basis, Stocks, straight
from astra.strategy.plans import Flags, Floats, Ints
from astra.timing.stage import shown_s

NEVER = -1e9
FEW = 16  # kinds of a cut for which a closer look does not pay
HALVINGS = 3  # of the span in which the least step of a cell is looked for
SLIP = 1e-6  # of a layer, against rounding
MANY = 1 << 20  # cells times kinds times places that are looked at together
WORK = "working_bytes"
NONE, EACH, GROUP = range(3)  # no recompute, layer by layer, all as one group


@dataclass(frozen=True, slots=True)
class _Lines:
    """Seconds and bytes of stages at one place: of nothing, and of every layer more. (kind, 1)"""

    base: dict[str, Floats]
    slope: dict[str, Floats]
    whole_s: Floats  # (kind, nothing and layers of every kind)
    forward_s: Floats


@dataclass(frozen=True, slots=True)
class _Cut:
    """The kinds of cuts that have as many of the same types and lengths."""

    micro_batches: int
    pool: Ints
    stages: Ints  # most of each kind


@dataclass(frozen=True, slots=True)
class _Some:
    """Cells whose cuts have kinds alike. (cell,)"""

    cut: _Cut
    first: Ints  # the first kind of each among those of all cuts
    free: Flags  # recomputes whole layers, as many as it must: no setting holds more
    setting: Ints  # of recompute; of free ones none

    def take(self, rows: Ints | Flags) -> "_Some":
        return _Some(self.cut, self.first[rows], self.free[rows], self.setting[rows])


class Capacity:
    """Of the cells of one search."""

    def __init__(self, stocks: Stocks) -> None:
        self.stocks, loads = stocks, stocks.loads
        self.counts = loads.counts[loads.at[loads.layers, loads.layers]]
        # What is counted: all layers, or those of a kind where they are most of the model.
        main = int(self.counts.argmax())
        self.one = main if 4 * self.counts[main] >= 3 * loads.layers else None
        self.target = int(self.counts[main]) if self.one is not None else loads.layers
        ways = {place: _coefficients(stocks.bases[place], loads.counts) for place in (INSIDE, LAST)}
        self.known = all(way is not None for way in ways.values())
        self.ways = {place: way for place, way in ways.items() if way is not None}
        self.again: dict[int, dict[str, Floats]] = {}  # (setting, key, nothing and layers)
        self.still: dict[int, dict[str, Floats]] = {}  # (kind of any cut, nothing and layers)
        for place, way in self.ways.items():
            columns = stocks.again[place]
            lines = {name: column @ way for name, column in columns.items() if name != WORK}
            lines[WORK] = columns[WORK].min(axis=2)[..., np.newaxis]
            self.again[place] = lines
            self.still[place] = {name: stocks.still[place][name] @ way for name in STILL}
        self._gathers()
        self.cuts = self._alike()

    def usable(self, cell: Cell, rows: Ints, limit_s: float) -> Ints:
        """Those of these kinds that a plan below the limit may use; none: there is no such plan."""
        if not len(rows) or not self.known:
            return rows
        some, limits = self._some([cell]), np.array([limit_s])
        cut = some.cut
        while True:
            most = self._most(some, rows, limits)[0]
            stages = np.minimum(cut.stages[rows], most.shape[1])
            good = reaching(cut.pool[rows], stages, most, self.target)
            if good.all() or not good.any():
                return rows[good]
            rows = rows[good]

    def bounds_s(self, cells: Sequence[Cell], low_s: Floats, high_s: float) -> Floats:
        """No plan of a cell is faster; inf where none is below the high limit. (cell,)

        `low_s`: what is known of them.
        """
        found = low_s.copy()
        for rows in self._batches(cells):
            found[rows] = self._halved([cells[row] for row in rows], low_s[rows], high_s)
        return found

    def open(self, cells: Sequence[Cell], limit_s: float) -> Flags:
        """Whether a plan of each cell may be below the limit. (cell,)"""
        found = np.ones(len(cells), np.bool_)
        for rows in self._batches(cells):
            some = self._some([cells[row] for row in rows])
            kinds: Ints = np.arange(len(some.cut.pool))
            found[rows] = self._holds(some, kinds, np.full(len(rows), limit_s))
        return found

    def _batches(self, cells: Sequence[Cell]) -> Iterator[list[int]]:
        """Rows of cells whose cuts have kinds alike, not too many together."""
        alike: dict[int, list[int]] = {}
        cuts: dict[int, _Cut] = {}
        for row, cell in enumerate(cells if self.known else ()):
            cut = self.cuts[self.stocks.stock(cell).cell]
            cuts[id(cut)] = cut
            alike.setdefault(id(cut), []).append(row)
        for name, rows in alike.items():
            size = max(MANY // (len(cuts[name].pool) * self.stocks.loads.layers), 1)
            for start in range(0, len(rows), size):
                yield rows[start : start + size]

    def _halved(self, cells: list[Cell], low: Floats, high_s: float) -> Floats:
        every = self._some(cells)
        low, high = low.copy(), np.full(len(cells), high_s)
        rows, turns = np.arange(len(every.cut.pool)), 1
        if len(rows) > FEW:
            rows, turns = self._roomy(every, rows, high), HALVINGS
            if not len(rows):
                return np.full(len(cells), np.inf)
        open_ = self._holds(every, rows, high)
        low[~open_] = np.inf
        some = np.flatnonzero(open_)
        if not np.isfinite(high_s):  # some time at which each is open
            high, left = 2 * low, some
            while len(left):
                now = self._holds(every.take(left), rows, high[left])
                left = left[~now]
                low[left] = high[left]
                high[left] *= 2
        for _ in range(turns if len(some) else 0):
            middle = np.sqrt(low[some] * high[some])
            now = self._holds(every.take(some), rows, middle)
            high[some[now]] = middle[now]
            low[some[~now]] = middle[~now]
        return low

    def _roomy(self, some: _Some, rows: Ints, limit_s: Floats) -> Ints:
        """Kinds that may be part of a plan below the limit, each type as if it lay last, without
        the head.
        """
        cut, most = some.cut, self._most(some, rows, limit_s).max(axis=0)
        most[:, 0] = most[:, :2].max(axis=1)
        stages = np.minimum(cut.stages[rows], most.shape[1])
        held = np.cumsum(most, axis=1)[np.arange(len(rows)), stages - 1]
        pool = cut.pool[rows]
        best = {each: float(held[pool == each].max()) for each in np.unique(pool).tolist()}
        others = np.array([sum(best.values()) - best[each] for each in pool.tolist()])
        return rows[held + others >= self.target]

    def _holds(self, some: _Some, rows: Ints, limit_s: Floats) -> Flags:
        """Whether a plan of each cell may be below its limit. (cell,)"""
        cut, most = some.cut, self._most(some, rows, limit_s)
        stages = np.minimum(cut.stages[rows], most.shape[2])
        alike, back = np.unique([cut.pool[rows], stages], axis=1, return_inverse=True)
        # Kinds of a type with as many stages count as one that is each at its best place.
        total = np.zeros((len(most), alike.shape[1], most.shape[2] + 1))
        for row in range(alike.shape[1]):
            each = most[:, back.reshape(-1) == row].max(axis=1)
            np.cumsum(each, axis=1, out=total[:, row, 1:])
        pools = [np.flatnonzero(alike[0] == each) for each in np.unique(alike[0])]
        lower = _lower(total, alike[1], pools)
        found: Flags = lower.max(axis=(0, 2)) >= self.target
        return found

    def _alike(self) -> dict[Cell, _Cut]:
        """Of every cut its kinds, one object for all cuts whose kinds are alike."""
        known: dict[tuple[object, ...], _Cut] = {}
        found = {}
        for cell, stock in self.stocks.of.items():
            pool = tuple(kind.pool for kind in stock.kinds)
            stages = tuple(kind.most for kind in stock.kinds)
            key = cell.micro_batches, pool, stages
            if key not in known:
                known[key] = _Cut(cell.micro_batches, np.array(pool), np.array(stages))
            found[cell] = known[key]
        return found

    def _some(self, cells: Sequence[Cell]) -> _Some:
        stocks = [self.stocks.stock(cell) for cell in cells]
        free = [self.stocks.free(cell) or not straight(cell.recompute) for cell in cells]
        setting = [
            NONE if own else self.stocks.settings.index(cell.recompute)
            for own, cell in zip(free, cells, strict=True)
        ]
        first = np.array([stock.place for stock in stocks])
        return _Some(self.cuts[stocks[0].cell], first, np.array(free), np.array(setting))

    def _sent(self) -> tuple[dict[str, Floats], Ints]:
        """Traffic of a layer between copies where parameters are sharded, as part of a few loads,
        (kind, load), and which kinds these are.
        """
        loads, cuts = self.stocks.loads, self.stocks.cuts
        sharded = np.array([cut.sharding == "parameters" for cut in cuts])[self.stocks.cut]
        here = np.flatnonzero(sharded)
        if (self.one is None and not loads.alike) or not len(here) or not self.known:
            return {}, here
        counts = loads.counts[:, self.one or 0]
        pure = np.flatnonzero((counts == loads.sizes) & (loads.starts[INSIDE] >= 0))
        size = loads.sizes[pure]
        some = pure[np.unique(np.searchsorted(size, size[-1] / np.array([1, 2, 4, 8])))]
        found = self.stocks.sent(here, INSIDE, some)
        for name in ("gather_s", "reduce_s"):
            found[name] = found[name] / loads.sizes[some]
        return found, here

    def _gathers(self) -> None:
        """Sharded parameters: adds what shows at least of a layer's gather and reduction.

        The more there is to send, the less a layer takes, so a large stage tells the least.
        """
        sent, here = self._sent()
        if not sent:
            return
        row, cuts = self.one or 0, self.stocks.cuts
        gather, reduce = sent["gather_s"].min(axis=1), sent["reduce_s"].min(axis=1)
        slow = sent["slowdown"].max(axis=1)
        dp = np.array([kind.dp for kind in self.stocks.kinds])[here]
        copies = dp * np.array([cut.cp for cut in cuts])[self.stocks.cut[here]] > 1
        full = self.again[INSIDE]["again_s"][EACH, self.stocks.key[here], 1 + row]
        ahead = self.still[INSIDE]["ahead_s"][here, 1 + row]
        back = self.still[INSIDE]["back_s"][here, 1 + row] + full
        for lines in self.still.values():
            lines["forward_s"][here, 1 + row] += shown_s(gather, ahead, copies, slow)
            lines["backward_s"][here, 1 + row] += shown_s(gather + reduce, back, copies, slow)

    def _lines(self, place: int, kinds: Ints, setting: Ints) -> _Lines:
        """Of kinds, (cell, kind), with one setting for each cell."""
        columns = {name: line[kinds] for name, line in self.still[place].items()}
        at, keys = setting[:, np.newaxis], self.stocks.key[kinds]
        columns |= {name: line[at, keys] for name, line in self.again[place].items()}
        columns["stage_s"] = columns["forward_s"] + columns["backward_s"] + columns["again_s"]
        base = {name: line[..., :1] for name, line in columns.items()}
        slope = {}
        for name, line in columns.items():
            if self.one is not None and name != WORK:
                slope[name] = line[..., 1 + self.one, np.newaxis]
            elif name != WORK:
                least = np.max if name == "room_bytes" else np.min
                slope[name] = least(line[..., 1:], axis=-1, keepdims=True)
        return _Lines(base, slope, columns["stage_s"], columns["forward_s"])

    def _most(self, some: _Some, rows: Ints, limit_s: Floats) -> Floats:
        """Most layers of a stage of each kind, by place from the end. (cell, kind, place)"""
        pool, stages = some.cut.pool[rows], some.cut.stages[rows]
        total = sum(int(stages[pool == each].max()) for each in np.unique(pool))
        places = min(total, self.stocks.loads.layers)
        count = some.cut.micro_batches
        flying = np.minimum(count, np.arange(1, places + 1))
        kinds = some.first[:, np.newaxis] + rows
        parts = {place: self._lines(place, kinds, some.setting) for place in (INSIDE, LAST)}
        cap = self._longest_s(parts[INSIDE], parts[LAST], flying, count, limit_s)
        found = np.zeros((*kinds.shape, places))
        free = np.flatnonzero(some.free)
        for place, at in ((LAST, slice(0, 1)), (INSIDE, slice(1, None))):
            now = flying[at]
            found[..., at] = _held(parts[place], now, cap[..., at])
            if len(free):
                none, each, group = (
                    self._lines(place, kinds[free], np.full(len(free), way))
                    for way in (NONE, EACH, GROUP)
                )
                most = cap[free][..., at]
                other = np.maximum(_partly(none, each, now, most), _held(group, now, most))
                found[free, :, at] = np.maximum(found[free, :, at], other)
        whole = np.floor(np.clip(found, 0, self.target) + SLIP)
        # No stage inside holds all but one; the first one may.
        return np.where(whole >= self.target - 2, float(self.target), whole)

    def _longest_s(
        self, inside: _Lines, last: _Lines, flying: Ints, count: int, limit_s: Floats
    ) -> Floats:
        """How long a stage may take. (cell, kind, place)

        With t seconds, f of them forward, and q micro-batches queued it is done no sooner than
        S + (K - 1) t - q f, with S the seconds of all stages; and it works K t.
        """
        whole, down = inside.whole_s, inside.forward_s
        head = np.maximum((last.whole_s - whole)[..., 0].min(axis=1), 0.0)
        through = whole[..., 1:].min(axis=1) @ self.counts + head  # (cell,)
        with np.errstate(divide="ignore", invalid="ignore"):
            one = (down[..., :1] + down[..., 1:]) / (whole[..., :1] + whole[..., 1:])
            share = np.maximum(one, down[..., 1:] / whole[..., 1:]).max(axis=-1)
        share = np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 1.0)
        slack = count - 1 - (flying - 1) * share[..., np.newaxis]
        left = np.maximum(limit_s - through, 0.0)[:, np.newaxis, np.newaxis]
        with np.errstate(divide="ignore", invalid="ignore"):
            cap = np.where(slack > 0, left / slack, np.inf)
        return np.minimum(cap, (limit_s / count)[:, np.newaxis, np.newaxis])


def _coefficients(basis: Basis, counts: Ints) -> Floats | None:
    """From the values of a basis to those of nothing and of a layer of every kind more."""
    table = np.concatenate([np.ones((len(basis.loads), 1)), counts[basis.loads]], axis=1)
    if np.linalg.matrix_rank(table) < table.shape[1]:
        return None
    found: Floats = np.linalg.pinv(table).T
    return found


def _held(lines: _Lines, flying: Ints, cap: Floats) -> Floats:
    """Layers that a stage has time and room for. (kind, place)"""
    base, slope = lines.base, lines.slope
    peak = np.maximum(base["working_bytes"], base["logits_bytes"])
    free = base["room_bytes"] - peak - flying * base["kept_bytes"]
    each = flying * slope["kept_bytes"] - slope["room_bytes"]
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(each > 0, free / each, np.where(free >= 0, np.inf, 0.0))
        time = np.where(slope["stage_s"] > 0, (cap - base["stage_s"]) / slope["stage_s"], np.inf)
    return np.maximum(np.minimum(room, time), 0.0)


def _partly(none: _Lines, full: _Lines, flying: Ints, cap: Floats) -> Floats:
    """The same with as many layers recomputed as it takes: m = d + e n of n layers."""
    base, slope = none.base, none.slope
    peak = np.maximum(full.base["working_bytes"], base["logits_bytes"])
    saved = flying * (slope["kept_bytes"] - full.slope["kept_bytes"])
    again = full.slope["stage_s"] - slope["stage_s"]
    with np.errstate(divide="ignore", invalid="ignore"):
        d = (flying * base["kept_bytes"] + peak - base["room_bytes"]) / saved
        e = (flying * slope["kept_bytes"] - slope["room_bytes"]) / saved
        time = (cap - base["stage_s"] - again * d) / (slope["stage_s"] + again * e)
        room = np.where(e > 1, -d / (e - 1), np.where(d <= (1 - e) * time, time, 0.0))
        plain = (cap - base["stage_s"]) / slope["stage_s"]  # where nothing must be recomputed
        found = np.minimum(np.minimum(time, room), plain)
    return np.where((saved > 0) & np.isfinite(found), np.maximum(found, 0.0), 0.0)


def reaching(pool: Ints, stages: Ints, most: Floats, target: int) -> Flags:
    """Kinds that some row of runs which holds so many layers has. (kind,)

    `most`: layers of a stage by place from the end, (kind, place).
    """
    pools = [np.flatnonzero(pool == each) for each in np.unique(pool)]
    total = np.zeros((1, len(pool), most.shape[1] + 1))
    np.cumsum(most, axis=1, out=total[0, :, 1:])
    lower = _lower(total, stages, pools)
    found = np.zeros(len(pool), np.bool_)
    if lower.max() < target:
        return found
    upper = _upper(total, stages, pools)
    for row, kinds in enumerate(pools):
        some = np.array([mask for mask in range(1 << len(pools)) if not mask >> row & 1])
        ends = _through(lower[some], total[:, kinds], stages[kinds])
        whole = ends + upper[some | 1 << row][..., np.newaxis, :]
        found[kinds] = whole.max(axis=(0, 1, 3)) >= target
    return found


def _through(below: Floats, total: Floats, stages: Ints) -> Floats:
    """Most layers held below a place by what lies further below and a run of one kind up to it.

    (..., cell, kind, place)
    """
    found = np.full((*below.shape[:-1], *total.shape[1:]), NEVER)
    for longest in np.unique(stages).tolist():
        rows = np.flatnonzero(stages == longest)
        best, reach = below[..., np.newaxis, :] - total[:, rows], 1  # the most of so many places
        while 2 * reach <= longest:
            best = _later(best, reach)
            reach *= 2
        best = _later(best, longest - reach)
        found[..., rows, 1:] = best[..., :-1]
    return found + total


def _later(best: Floats, by: int) -> Floats:
    """The larger of each value and the one so many places before."""
    if by <= 0:
        return best
    found = best.copy()
    np.maximum(best[..., by:], best[..., :-by], out=found[..., by:])
    return found


def _masks(pools: int) -> list[list[int]]:
    """Sets of types, by how many they are."""
    found: list[list[int]] = [[] for _ in range(pools + 1)]
    for mask in range(1 << pools):
        found[mask.bit_count()].append(mask)
    return found


def _lower(total: Floats, stages: Ints, pools: list[Ints]) -> Floats:
    """By types in use, the most layers that stages up to a place hold. (types, cell, place)"""
    found = np.full((1 << len(pools), len(total), total.shape[2]), NEVER)
    found[0, :, 0] = 0.0
    for masks in _masks(len(pools)):
        for row, kinds in enumerate(pools):
            some = np.array([mask for mask in masks if not mask >> row & 1], np.int64)
            if len(some):
                ends = _through(found[some], total[:, kinds], stages[kinds]).max(axis=-2)
                wide = some | 1 << row
                found[wide] = np.maximum(found[wide], ends)
    return found


def _upper(total: Floats, stages: Ints, pools: list[Ints]) -> Floats:
    """By types in use below a place, the most layers that stages from there on hold."""
    found = np.zeros((1 << len(pools), len(total), total.shape[2]))
    for masks in reversed(_masks(len(pools))):
        for row, kinds in enumerate(pools):
            some = np.array([mask for mask in masks if not mask >> row & 1], np.int64)
            if len(some):
                above = found[some | 1 << row][..., ::-1]
                ends = _through(above, -total[:, kinds, ::-1], stages[kinds]).max(axis=-2)
                found[some] = np.maximum(found[some], ends[..., ::-1])
    return found
