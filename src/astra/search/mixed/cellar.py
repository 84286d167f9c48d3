"""One cell with its tables: puts stages on labels, and bounds what comes of them."""

from dataclasses import dataclass

import numpy as np

from astra.columns import REL_EPS
from astra.hardware.cluster import Cluster
from astra.search.mixed.above import Above
from astra.search.mixed.labels import Ends, Labels, Round, Rows, join, labels_of, nothing
from astra.search.mixed.tables import FIRST, INSIDE, LAST, Tables
from astra.strategy.plans import Flags, Floats, Ints

NEVER_S = 1e200  # for what does not fit; times nothing it is nothing
MANY = 1 << 20  # candidate stages that are looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class CellarLimits:
    """What holds for all pipelines of a search."""

    cluster: Cluster
    layers: int
    tied: bool  # both ends need one tp, and one dp divides the other
    use_all: bool


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Labels and the kinds of a stage that may be put on each. (pair,)"""

    row: Rows
    kind: Ints
    count: Ints  # stages of the kind with the new one
    mask: Ints  # with the new one


class Cellar:
    """Extends labels of one cell."""

    def __init__(self, tables: Tables, limits: CellarLimits, limit_s: float) -> None:
        self.tables, self.limits, self.cell = tables, limits, tables.cell
        self.limit_s = limit_s * (1 - REL_EPS)
        kinds = tables.kinds
        self.pools = len(limits.cluster.pools)
        self.pool = np.array([kind.pool for kind in kinds])
        self.bit = 1 << self.pool
        self.most = np.array([kind.most for kind in kinds])
        self.stage_gpus = np.array([kind.tp * kind.dp for kind in kinds]) * self.cell.cp
        self.closes = np.zeros((len(kinds), int(self.most.max()) + 1), np.bool_)
        for row, kind in enumerate(kinds):
            self.closes[row, list(kind.stages)] = True
        self.any_count = np.array([k.stages == tuple(range(1, k.most + 1)) for k in kinds])
        self.classes = np.unique(tables.link_s, axis=1, return_inverse=True)[1].reshape(-1)
        self.cap = limits.cluster.max_gpus
        self.every = (1 << self.pools) - 1
        self.agree, self.tail = self._ends_agree()
        self.weight, self.left_weight = tables.weights
        there = np.isfinite(tables.forward_s[FIRST])
        rest = (tables.opening_s + tables.after_s)[FIRST]
        self.rest_s = float(rest[there].min(initial=np.inf))
        self.straggler_s = float(tables.wait_s[FIRST][there].max(initial=0.0))
        self.doublings = float(np.log2(self._fewest_gpus()))
        self.stay_s = tables.wait_s * self.doublings + tables.after_s  # behind the last backward
        inside = np.minimum(tables.forward_s[INSIDE, :, 1:], tables.forward_s[FIRST, :, 1:])
        weight = self.weight[1 : inside.shape[1] + 1]
        self.down_s = float((inside / weight).min(initial=np.inf))  # of a mean layer, at least
        self.known: dict[int, Above] = {}

    def _ends_agree(self) -> tuple[Flags, Ints]:
        """Which kind may be first where which lies last, (kind, cut), and the cut of every kind."""
        cuts = [(kind.tp, kind.dp) for kind in self.tables.kinds]
        if not self.limits.tied:
            return np.ones((len(cuts), 1), np.bool_), np.zeros(len(cuts), np.int64)
        distinct = sorted(set(cuts))
        agree = [
            [tp == own and (dp % other == 0 or other % dp == 0) for tp, dp in distinct]
            for own, other in cuts
        ]
        return np.array(agree), np.array([distinct.index(cut) for cut in cuts])

    def _fewest_gpus(self) -> float:
        """GPUs of any plan below the limit: the most layers a GPU, as many as hold all."""
        left, total = float(self.left_weight[-1]), 0.0
        if not np.isfinite(self.limit_s):
            return 1.0
        stage_s = self.tables.forward_s[INSIDE] + self.tables.backward_s[0, INSIDE]
        ahead_s = self.tables.forward_s[FIRST] + self.tables.backward_s[0, FIRST]
        stage_s = np.minimum(stage_s, ahead_s)[:, 1:]
        weight = self.weight[1 : stage_s.shape[1] + 1]
        pace = (stage_s / weight).min(axis=1, initial=np.inf)  # whatever fits
        dense = self.limit_s / (self.cell.micro_batches * pace * self.stage_gpus)  # layers a GPU
        best = [
            (float(dense[self.pool == row].max(initial=0.0)), pool.count)
            for row, pool in enumerate(self.limits.cluster.pools)
        ]
        for layers, most in sorted(best, reverse=True):
            taken = min(most, left / layers) if layers > 0 else 0.0
            total, left = total + taken, left - taken * layers
        return max(total, 1.0)

    def above(self, depth: int) -> Above:
        """For labels of so many stages."""
        flying = min(self.cell.micro_batches, depth + 1)
        if flying not in self.known:
            limit = self.limit_s - self.rest_s
            self.known[flying] = Above(self.tables, flying, limit, self.pools)
        return self.known[flying]

    def last(self) -> Labels:
        """Pipelines of one stage, the last."""
        chosen = self.tables.at(LAST, 1)
        stage_s = chosen.forward_s + chosen.backward_s
        loads = self.tables.loads
        size = np.arange(1, loads.layers)
        held = loads.at[loads.layers, 1:-1]
        size, held = size[held < stage_s.shape[1]], held[held < stage_s.shape[1]]
        kind, at = np.nonzero(np.isfinite(stage_s[:, held]))
        seconds, layers = stage_s[kind, held[at]], size[at]
        value = self.cell.micro_batches * seconds
        ends = value + self.stay_s[LAST, kind, held[at]]
        ones = np.ones_like(kind)
        left = loads.layers - layers
        above = self._above_s(1, kind, self.bit[kind], self.most[kind] - 1, seconds, left)
        bound = np.maximum(value + above + self.rest_s, ends + self.left_weight[left] * self.down_s)
        cut = self.bit[kind], ones, left, layers, self.stage_gpus[kind], self.tail[kind]
        made = labels_of((-ones, kind, *cut), (value, seconds, ends, above, bound))
        good = bound < self.limit_s
        if self.cap is not None:
            good &= made.gpus <= self.cap
        return made.take(np.flatnonzero(good))

    def _above_s(
        self, depth: int, kind: Ints, mask: Ints, steps: Ints, through_s: Floats, left: Ints
    ) -> Floats:
        """Least seconds of the layers left, row by row, where stages so far take so long."""
        above = self.above(depth)
        most = depth + above.depths(mask, steps)
        level = above.levels(through_s, most, self.cell.micro_batches)
        key = ((kind * (self.every + 1) + mask) * self.closes.shape[1] + steps) * 32 + level
        _, first, back = np.unique(key, return_index=True, return_inverse=True)
        table = above.least_s(kind[first], mask[first], steps[first], level[first])
        found: Floats = table[back.reshape(-1), left]
        return found

    def pairs(self, labels: Labels, open_: Flags, closed: Flags) -> _Pairs:
        """Every label with every kind of stage that may be put on it."""
        same = np.flatnonzero(open_)
        rows = np.flatnonzero(closed)
        free = (labels.mask[rows][:, np.newaxis] & self.bit) == 0
        at, other = np.nonzero(free)
        row = np.concatenate([same, rows[at]])
        kind = np.concatenate([labels.kind[same].astype(np.int64), other])
        count = np.concatenate([labels.count[same].astype(np.int64) + 1, np.ones_like(other)])
        return _Pairs(row, kind, count, labels.mask[row] | self.bit[kind])

    def extended(self, round_: Round, depth: int) -> Labels:
        """All labels with one more stage inside the pipeline."""
        labels = round_.labels
        pairs = self.pairs(labels, round_.open, round_.closed)
        if not len(pairs.row):
            return nothing()
        lowest, highest, shelf, table = self._sizes(labels, pairs, depth)
        number = np.maximum(highest - lowest + 1, 0)
        edges = np.cumsum(number)
        parts, start = [], 0
        while start < len(number):
            done = edges[start - 1] if start else 0
            stop = max(int(np.searchsorted(edges, done + MANY, side="right")), start + 1)
            some = slice(start, stop)
            pair = np.repeat(np.arange(start, stop), number[some])
            before = np.repeat(edges[some] - number[some] - done, number[some])
            size = np.arange(len(pair)) - before + lowest[pair]
            parts.append(self._grown(labels, pairs, pair, size, depth, shelf, table))
            start = stop
        return join(parts)

    def _sizes(self, labels: Labels, pairs: _Pairs, depth: int) -> tuple[Ints, Ints, Ints, Floats]:
        """Least and most layers of the new stage, and what the layers above it take. (pair,)

        The new stage is one of those that the bound on the layers above its label speaks of.
        """
        row, kind = pairs.row, pairs.kind
        link = 2 * self.tables.link_s[kind, labels.kind[row]]
        through = labels.below_s[row] + link + labels.above_s[row]
        here, above = self.above(depth), self.above(depth + 1)
        steps = self.most[kind] - pairs.count
        most = depth + 1 + above.depths(pairs.mask, steps)
        level = above.levels(through, most, self.cell.micro_batches)
        key = ((kind * (self.every + 1) + pairs.mask) * self.closes.shape[1] + steps) * 32 + level
        _, first, back = np.unique(key, return_index=True, return_inverse=True)
        shelf = back.reshape(-1)
        table = above.least_s(kind[first], pairs.mask[first], steps[first], level[first])
        held = np.isfinite(table).sum(axis=1) - 1  # most layers that the others can hold
        highest = here.sizes[kind, level]
        left = labels.left[row]
        return np.maximum(left - held[shelf], 1), np.minimum(highest, left - 1), shelf, table

    def _grown(
        self,
        labels: Labels,
        pairs: _Pairs,
        pair: Rows,
        size: Ints,
        depth: int,
        shelf: Ints,
        table: Floats,
    ) -> Labels:
        """One stage more, where it can still beat the limit.

        idle   = [below + 2c - q f]+ + [below + 2c - q b]+    (the larger if K <= depth + 1)
        value' = max(value + t + 2c, K t + idle)
        ends'  = max(ends + f + c, K t + idle + stay)
        """
        row, kind = pairs.row[pair], pairs.kind[pair]
        loads = self.tables.loads
        left = labels.left[row] - size
        load = size if loads.alike else loads.at[labels.left[row], size]
        chosen = self.tables.at(INSIDE, min(self.cell.micro_batches, depth + 1))
        forward, backward = chosen.forward_s[kind, load], chosen.backward_s[kind, load]
        stay = self.stay_s[INSIDE, kind, load]
        link = 2 * self.tables.link_s[pairs.kind, labels.kind[pairs.row]]
        value, below, ends = self._view_s(labels, row, link[pair], (forward, backward, stay), depth)
        above = table[shelf[pair], left]
        bound = np.maximum(value + above + self.rest_s, ends + self.left_weight[left] * self.down_s)
        good = bound < self.limit_s
        gpus = labels.gpus[row] + self.stage_gpus[kind]
        if self.cap is not None:
            good &= gpus <= self.cap
        at = np.flatnonzero(good)
        row, pair = row[at], pair[at]
        whole = (row, kind[at], pairs.mask[pair], pairs.count[pair], left[at], size[at], gpus[at])
        real = (each[at] for each in (value, below, ends, above, bound))
        return labels_of((*whole, labels.tail[row]), tuple(real))

    def _view_s(
        self, labels: Labels, row: Rows, link: Floats, times: tuple[Floats, ...], depth: int
    ) -> tuple[Floats, Floats, Floats]:
        """Value, round trip and ends of these labels with one more stage: see `_grown`."""
        forward, backward, stay = times
        count = self.cell.micro_batches
        queued = min(count, depth + 1) - 1
        below = labels.below_s[row] + link
        forward = np.minimum(forward, NEVER_S)
        stage = forward + backward
        fill = np.maximum(below - queued * forward, 0)
        drain = np.maximum(below - queued * backward, 0)
        idle = fill + drain if depth + 1 < count else np.maximum(fill, drain)
        own = count * stage + idle
        value = np.maximum(labels.value_s[row] + link + stage, own)
        ends = np.maximum(labels.ends_s[row] + link / 2 + forward, own + stay)
        return value, below + stage, ends

    def ended(self, labels: Labels, open_: Flags, closed: Flags, depth: int) -> Ends:
        """All labels with the first stage on top, which takes all layers that are left."""
        tables, loads = self.tables, self.tables.loads
        pairs = self.pairs(labels, open_, closed)
        left = labels.left[pairs.row]
        load = loads.at[left, left]
        chosen = tables.at(FIRST, min(self.cell.micro_batches, depth + 1))
        good = load < chosen.forward_s.shape[1]
        good &= self.closes[pairs.kind, pairs.count]
        good &= self.agree[pairs.kind, labels.tail[pairs.row]]
        if self.limits.use_all:
            good &= pairs.mask == self.every
        at = np.flatnonzero(good)
        at = at[np.isfinite(chosen.forward_s[pairs.kind[at], load[at]])]
        row, kind, load = pairs.row[at], pairs.kind[at], load[at]
        times = chosen.forward_s[kind, load], chosen.backward_s[kind, load]
        link = 2 * tables.link_s[kind, labels.kind[row]]
        stay = self.stay_s[FIRST, kind, load]
        value, through, ends = self._view_s(labels, row, link, (*times, stay), depth)
        up = through - labels.below_s[row]
        opening = tables.opening_s[FIRST, kind, load]
        gpus = labels.gpus[row] + self.stage_gpus[kind]
        rest = opening + tables.after_s[FIRST, kind, load]
        rest += tables.wait_s[FIRST, kind, load] * np.log2(gpus)
        bound = np.maximum(value + rest, ends + opening)
        low = bound < self.limit_s
        if self.cap is not None:
            low &= gpus <= self.cap
        rows = np.flatnonzero(low)
        whole = row[rows].astype(np.int32), kind[rows].astype(np.int32)
        return Ends(*whole, up[rows], bound[rows])
