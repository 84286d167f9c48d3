"""Which kinds of a cell can be part of a plan below a limit: those whose stages can hold the model.

With stages that may take no longer than the limit allows, and with as many micro-batches in
flight as their place from the end asks for, each kind holds so many layers at each place. Runs of
types in any order, each as long as its type allows, must hold all layers of the model.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astra.search.mixed.cells import Cell
from astra.search.mixed.loads import INSIDE, LAST
from astra.search.mixed.runs import NEVER, lower, reaching
from astra.search.mixed.small import AGAIN, STILL
from astra.search.mixed.stock import Basis, Stocks, straight
from astra.strategy.plans import Flags, Floats, Ints
from astra.timing.stage import exposed_data_parallel_s

FEW = 16  # kinds of a cut for which a closer look does not pay
HALVINGS = 3  # of the span in which the least step of a cell is looked for
SLIP = 1e-6  # of a layer, against rounding
MANY = 1 << 18  # cells times kinds times places that are looked at together
WORK = "working_bytes"
NONE, EACH, GROUP = range(3)  # no recompute, layer by layer, all as one group


@dataclass(frozen=True, slots=True)
class _Lines:
    """Seconds and bytes of stages at one place: of nothing, and of every layer more.

    (cell, kind, 1), or (cell, kind, nothing and layers of every kind)
    """

    whole_s: Floats
    forward_s: Floats
    stage_s: tuple[Floats, Floats]  # of nothing, of a layer more
    room_bytes: tuple[Floats, Floats]
    kept_bytes: tuple[Floats, Floats]
    logits_bytes: Floats
    working_bytes: Floats


@dataclass(frozen=True, slots=True)
class _Cut:
    """The kinds of cuts that differ in what no kind tells."""

    micro_batches: int
    pool: Ints
    stages: Ints  # most of each kind


@dataclass(frozen=True, slots=True)
class _Some:
    """Cells of such cuts. (cell,)"""

    cut: _Cut
    kinds: Ints  # (cell, kind) among those of all cuts; -1: this one does not have it
    free: Flags  # recomputes whole layers, as many as it must: no setting holds more
    setting: Ints  # of recompute; of free ones none

    def take(self, rows: Ints) -> "_Some":
        return _Some(self.cut, self.kinds[rows], self.free[rows], self.setting[rows])


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
        self.lines = {place: self._together(place) for place in self.ways}
        self.cuts = self._alike()

    def usable(self, cells: Sequence[Cell], kinds: Sequence[Ints], limit_s: float) -> list[Ints]:
        """Those of these kinds of each cell that a plan below the limit may use; none: there is no
        such plan.
        """
        found = list(kinds)
        for rows in self._batches(cells):
            some = self._some([cells[row] for row in rows])
            own = some.kinds - np.array([[self.stocks.stock(cells[row]).place] for row in rows])
            may = some.kinds >= 0
            for at, row in enumerate(rows):
                given = np.zeros(may.shape[1], np.bool_)
                given[kinds[row]] = True
                may[at] &= given[np.maximum(own[at], 0)]
            self._narrow(some, may, limit_s)
            for at, row in enumerate(rows):
                found[row] = np.sort(own[at][may[at]])
        return found

    def _narrow(self, some: _Some, may: Flags, limit_s: float) -> None:
        """Takes out of (cell, kind) what no plan below the limit can use."""
        left = np.flatnonzero(may.any(axis=1))
        while len(left):
            rows = np.flatnonzero(may[left].any(axis=0))
            now = may[np.ix_(left, rows)]
            most = self._most(some.take(left), rows, np.full(len(left), limit_s), now)
            stages = np.minimum(some.cut.stages[rows], most.shape[2])
            good = now & reaching(some.cut.pool[rows], stages, most, self.target)
            may[np.ix_(left, rows)] = good
            left = left[(good != now).any(axis=1) & good.any(axis=1)]

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
        return self._open(cells, limit_s, self._some)

    def open_somehow(self, families: Sequence[Cell], limit_s: float) -> Flags:
        """Whether one may be, whatever is recomputed: as much saved as by any setting, and no more
        time taken than by any. (family,)
        """
        return self._open(families, limit_s, self._least)

    def _open(
        self, cells: Sequence[Cell], limit_s: float, known: Callable[[Sequence[Cell]], _Some]
    ) -> Flags:
        found = np.ones(len(cells), np.bool_)
        for rows in self._batches(cells):
            some = known([cells[row] for row in rows])
            kinds: Ints = np.arange(len(some.cut.pool))
            found[rows] = self._holds(some, kinds, np.full(len(rows), limit_s))
        return found

    def _batches(self, cells: Sequence[Cell]) -> Iterator[list[int]]:
        """Rows of cells whose cuts have kinds alike, not too many together."""
        alike: dict[int, list[int]] = {}
        cuts: dict[int, _Cut] = {}
        for row, cell in enumerate(cells if self.known else ()):
            cut, _ = self.cuts[self.stocks.stock(cell).cell]
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
        best = {each: max(held[pool == each].max(), 0.0) for each in set(pool.tolist())}
        others = np.array([sum(best.values()) - best[each] for each in pool.tolist()])
        return rows[held + others >= self.target]

    def _holds(self, some: _Some, rows: Ints, limit_s: Floats) -> Flags:
        """Whether a plan of each cell may be below its limit. (cell,)"""
        cut, most = some.cut, self._most(some, rows, limit_s)
        stages = np.minimum(cut.stages[rows], most.shape[2])
        # Kinds of a type with as many stages count as one that is each at its best place.
        alike: dict[tuple[int, int], list[int]] = {}
        for row, key in enumerate(zip(cut.pool[rows].tolist(), stages.tolist(), strict=True)):
            alike.setdefault(key, []).append(row)
        total = np.zeros((len(most), len(alike), most.shape[2] + 1))
        pools: dict[int, list[int]] = {}
        for row, ((pool, _), here) in enumerate(alike.items()):
            np.cumsum(most[:, here].max(axis=1), axis=1, out=total[:, row, 1:])
            pools.setdefault(pool, []).append(row)
        longest = np.array([each for _, each in alike])
        below = lower(total, longest, [np.array(each) for each in pools.values()])
        found: Flags = below.max(axis=(0, 2)) >= self.target
        return found

    def _alike(self) -> dict[Cell, tuple[_Cut, Ints]]:
        """Of every cut the kinds that it shares with others, and which of all kinds they are."""
        groups: dict[Cell, list[Cell]] = {}
        for cell in self.stocks.of:
            plain = replace(cell, overlap_tp=False, sharding="", offload=0.0, cp_comm_type="")
            groups.setdefault(plain, []).append(cell)
        found = {}
        for cells in groups.values():
            stocks = [self.stocks.of[cell] for cell in cells]
            every = list(dict.fromkeys(kind for stock in stocks for kind in stock.kinds))
            pool = np.array([kind.pool for kind in every])
            cut = _Cut(cells[0].micro_batches, pool, np.array([kind.most for kind in every]))
            for cell, stock in zip(cells, stocks, strict=True):
                places = {kind: stock.place + row for row, kind in enumerate(stock.kinds)}
                found[cell] = cut, np.array([places.get(kind, -1) for kind in every])
        return found

    def _least(self, cells: Sequence[Cell]) -> _Some:
        """With the best of all settings, and whole layers recomputed as it takes."""
        kinds = np.stack([self.cuts[cell][1] for cell in cells])
        ones = np.ones(len(cells), np.int64)
        least = len(self.stocks.settings)
        return _Some(self.cuts[cells[0]][0], kinds, ones > 0, ones * least)

    def _some(self, cells: Sequence[Cell]) -> _Some:
        cuts = [self.cuts[self.stocks.stock(cell).cell] for cell in cells]
        free = [self.stocks.free(cell) or not straight(cell.recompute) for cell in cells]
        setting = [
            NONE if own else self.stocks.settings.index(cell.recompute)
            for own, cell in zip(free, cells, strict=True)
        ]
        kinds = np.stack([kinds for _, kinds in cuts])
        return _Some(cuts[0][0], kinds, np.array(free), np.array(setting))

    def _sent(self) -> tuple[dict[str, Floats], Ints]:
        """Traffic of a layer between copies where parameters are sharded, as part of a few loads,
        (kind, load), and which kinds these are.
        """
        loads, cuts = self.stocks.loads, self.stocks.cuts
        sharded = np.array([cut.sharding == "parameters" for cut in cuts])[self.stocks.cut]
        here = np.flatnonzero(sharded)
        if not len(here) or not self.known or not (self.one is not None or self._weigh_alike()):
            return {}, here
        counts = loads.sizes if self.one is None else loads.counts[:, self.one]
        pure = np.flatnonzero((counts == loads.sizes) & (loads.starts[INSIDE] >= 0))
        size = loads.sizes[pure]
        places = np.searchsorted(size, size[-1] / np.array([8, 4, 2, 1]))
        some = pure[list(dict.fromkeys(places.tolist()))]
        found = self.stocks.sent(here, INSIDE, some)
        for name in ("gather_s", "reduce_s"):
            found[name] = found[name] / loads.sizes[some]
        return found, here

    def _weigh_alike(self) -> bool:
        """Whether layers of all kinds have the same states: what is sent of them is the same."""
        room = self.still[INSIDE]["room_bytes"][:, 1:]
        return bool(np.allclose(room, room[:, :1], rtol=1e-9, atol=0.0))

    def _gathers(self) -> None:
        """Sharded parameters: adds what shows at least of a layer's gather and reduction.

        The more there is to send, the less a layer takes, so a large stage tells the least.
        """
        sent, here = self._sent()
        if not sent:
            return
        cuts = self.stocks.cuts
        rows = slice(1, None) if self.one is None else slice(1 + self.one, 2 + self.one)
        gather, reduce = sent["gather_s"].min(axis=1), sent["reduce_s"].min(axis=1)
        slow = sent["slowdown"].max(axis=1)
        dp = np.array([kind.dp for kind in self.stocks.kinds])[here]
        copies = dp * np.array([cut.cp for cut in cuts])[self.stocks.cut[here]] > 1
        # Behind the longest layer most is hidden; more than behind each of its own kind.
        full = self.again[INSIDE]["again_s"][EACH, self.stocks.key[here], rows]
        ahead = self.still[INSIDE]["ahead_s"][here, rows].max(axis=1)
        back = (self.still[INSIDE]["back_s"][here, rows] + full).max(axis=1)
        down = exposed_data_parallel_s(gather, ahead, copies, slow)[:, np.newaxis]
        up = exposed_data_parallel_s(gather + reduce, back, copies, slow)[:, np.newaxis]
        for lines in self.still.values():
            lines["forward_s"][here, rows] += down
            lines["backward_s"][here, rows] += up

    def _together(self, place: int) -> tuple[Floats, Floats]:
        """(kind of any cut, column, nothing and layers), and (setting, key, column, ...)"""
        still, again = self.still[place], self.again[place]
        both = still["forward_s"] + still["backward_s"]
        kept = (still["forward_s"], both, still["room_bytes"], still["logits_bytes"])
        more = [np.broadcast_to(again[name], again["again_s"].shape) for name in AGAIN]
        table = np.stack(more, axis=-2)
        # One setting more, behind all others: the best of each.
        table = np.concatenate([table, table.min(axis=0, keepdims=True)])
        return np.stack(kept, axis=-2), table

    def _lines(self, place: int, still: Floats, keys: Ints, setting: Ints) -> _Lines:
        """Of kinds, (cell, kind), with one setting for each cell."""
        forward, both, room, logits = (still[..., row, :] for row in range(4))
        more = self.lines[place][1][setting[:, np.newaxis], keys]
        again, kept, working = (more[..., row, :] for row in range(3))
        whole = both + again
        return _Lines(
            whole_s=whole,
            forward_s=forward,
            stage_s=self._line(whole),
            room_bytes=self._line(room, np.max),
            kept_bytes=self._line(kept),
            logits_bytes=logits[..., :1],
            working_bytes=working[..., :1],
        )

    def _line(
        self, columns: Floats, least: Callable[..., Floats] = np.min
    ) -> tuple[Floats, Floats]:
        """Of nothing, and of a layer more: of the kind that is counted, or of any kind."""
        if self.one is not None:
            return columns[..., :1], columns[..., 1 + self.one, np.newaxis]
        return columns[..., :1], least(columns[..., 1:], axis=-1, keepdims=True)

    def _most(self, some: _Some, rows: Ints, limit_s: Floats, may: Flags | None = None) -> Floats:
        """Most layers of a stage of each kind, by place from the end. (cell, kind, place)

        `may`: the kinds that each cell has, (cell, kind); the others hold less than nothing.
        """
        pool, stages = some.cut.pool[rows], some.cut.stages[rows]
        total = sum(int(stages[pool == each].max()) for each in set(pool.tolist()))
        places = min(total, self.stocks.loads.layers)
        count = some.cut.micro_batches
        flying = np.minimum(count, np.arange(1, places + 1))
        kinds = some.kinds[:, rows]
        may = kinds >= 0 if may is None else may
        keys = self.stocks.key[kinds]
        still = {place: self.lines[place][0][kinds] for place in (INSIDE, LAST)}
        parts = {
            place: self._lines(place, still[place], keys, some.setting) for place in (INSIDE, LAST)
        }
        cap = self._longest_s(parts[INSIDE], parts[LAST], flying, count, limit_s, may)
        found = np.zeros((*kinds.shape, places))
        free = np.flatnonzero(some.free)
        for place, at in ((LAST, slice(0, 1)), (INSIDE, slice(1, None))):
            now = flying[at]
            found[..., at] = _held(parts[place], now, cap[..., at])
            if len(free):
                none, each, group = (
                    self._lines(place, still[place][free], keys[free], np.full(len(free), way))
                    for way in (NONE, EACH, GROUP)
                )
                most = cap[free][..., at]
                other = np.maximum(_partly(none, each, now, most), _held(group, now, most))
                found[free, :, at] = np.maximum(found[free, :, at], other)
        whole = np.floor(np.clip(found, 0, self.target) + SLIP)
        # No stage inside holds all but one; the first one may.
        whole = np.where(whole >= self.target - 2, float(self.target), whole)
        return np.where(may[..., np.newaxis], whole, NEVER)

    def _longest_s(
        self,
        inside: _Lines,
        last: _Lines,
        flying: Ints,
        count: int,
        limit_s: Floats,
        may: Flags,
    ) -> Floats:
        """How long a stage may take. (cell, kind, place)

        With t seconds, f of them forward, and q micro-batches queued it is done no sooner than
        S + (K - 1) t - q f, with S the seconds of all stages; and it works K t.
        """
        whole, down = inside.whole_s, inside.forward_s
        there = may[..., np.newaxis]
        least = np.min(last.whole_s - whole, axis=1, where=there, initial=np.inf)[..., 0]
        each = np.min(whole, axis=1, where=there, initial=np.inf)[..., 1:]
        through = each @ self.counts + np.maximum(least, 0.0)  # (cell,)
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
    """Layers that a stage has time and room for. (cell, kind, place)"""
    (work, slope), peak = lines.stage_s, np.maximum(lines.working_bytes, lines.logits_bytes)
    free = lines.room_bytes[0] - peak - flying * lines.kept_bytes[0]
    each = flying * lines.kept_bytes[1] - lines.room_bytes[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(each > 0, free / each, np.where(free >= 0, np.inf, 0.0))
        time = np.where(slope > 0, (cap - work) / slope, np.inf)
    return np.maximum(np.minimum(room, time), 0.0)


def _partly(none: _Lines, full: _Lines, flying: Ints, cap: Floats) -> Floats:
    """The same with as many layers recomputed as it takes: m = d + e n of n layers."""
    (work, slope), (empty, kept), (room, taken) = none.stage_s, none.kept_bytes, none.room_bytes
    peak = np.maximum(full.working_bytes, none.logits_bytes)
    saved = flying * (kept - full.kept_bytes[1])
    again = full.stage_s[1] - slope
    with np.errstate(divide="ignore", invalid="ignore"):
        d = (flying * empty + peak - room) / saved
        e = (flying * kept - taken) / saved
        time = (cap - work - again * d) / (slope + again * e)
        most = np.where(e > 1, -d / (e - 1), np.where(d <= (1 - e) * time, time, 0.0))
        plain = (cap - work) / slope  # where nothing must be recomputed
        found = np.minimum(np.minimum(time, most), plain)
    return np.where((saved > 0) & np.isfinite(found), np.maximum(found, 0.0), 0.0)
