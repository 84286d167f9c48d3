"""Pipelines of one cell, built from the last stage to the first as a table of labels.

A label is the lower end of a pipeline: which types it used (mask), the kind and number of its
topmost stages, the layers that are left, and what bounds the step: `value_s`, the highest view
from any of its stages, and `below_s`, the round trip through it. When a stage is added, all that
it needs is known: how many micro-batches it holds, and how long the way below it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from astra.hardware.cluster import Cluster
from astra.search.mixed.tables import FIRST, INSIDE, LAST, Tables
from astra.strategy.plans import Floats, Ints

SAME = 1e-12  # relative; steps that differ by rounding alone
NEIGHBOURS = 6  # labels that each is compared with beyond its own key
NEVER = np.iinfo(np.int64).max

Rows = NDArray[np.intp]
Live = list[Ints]  # by round: (mask, kind, layers left) least number of stages of the kind


class TooManyError(Exception):
    """More labels than asked for; `bound_s` is the least bound that was left open."""

    def __init__(self, bound_s: float) -> None:
        super().__init__(bound_s)
        self.bound_s = bound_s


@dataclass(frozen=True, slots=True)
class Labels:
    """Lower ends of pipelines, of one number of stages. (label,)"""

    parent: Ints  # label of the round before; -1 in the first
    kind: Ints
    mask: Ints  # bits of the pools in use
    count: Ints  # stages of this kind so far
    left: Ints  # layers for the stages above
    layers: Ints  # of the topmost stage
    gpus: Ints
    tail: Ints  # tp of the last stage
    value_s: Floats
    below_s: Floats
    ends_s: Floats  # when a stage has waited for the slowest GPU, the way down to it only
    bound_s: Floats  # least step of any pipeline that ends so

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Rows) -> "Labels":
        return Labels(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Ends:
    """Whole pipelines: a label of the last round and the first stage on top. (pipeline,)"""

    parent: Ints
    kind: Ints
    bound_s: Floats


def join(parts: list[Labels]) -> Labels:
    return Labels(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Labels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds for all pipelines of a search."""

    cluster: Cluster
    layers: int
    tied: bool  # both ends need one tp
    use_all: bool


class Cellar:
    """One cell with its tables: extends labels, and bounds what is left."""

    def __init__(self, tables: Tables, limits: Limits, limit_s: float) -> None:
        self.tables, self.limits = tables, limits
        self.limit_s = limit_s * (1 - SAME)
        kinds = tables.kinds
        self.pool = np.array([kind.pool for kind in kinds])
        self.bit = 1 << self.pool
        self.tp = np.array([kind.tp for kind in kinds])
        self.most = np.array([kind.most for kind in kinds])
        self.stage_gpus = self.tp * tables.cell.cp * tables.cell.dp
        self.closes = np.zeros((len(kinds), int(self.most.max()) + 1), np.bool_)
        for row, kind in enumerate(kinds):
            self.closes[row, list(kind.stages)] = True
        self.any_count = np.array([k.stages == tuple(range(1, k.most + 1)) for k in kinds])
        self.cap = limits.cluster.max_gpus
        self.counts_gpus = self.cap is not None or bool(tables.wait_s.any())
        self.every = (1 << len(limits.cluster.pools)) - 1
        there = np.isfinite(tables.forward_s[FIRST])
        rest = (tables.opening_s + tables.after_s)[FIRST]
        self.rest_s = float(rest[there].min(initial=np.inf))
        self.least_s = self._least_s()
        self.doublings = float(np.log2(self._fewest_gpus()))
        self.stay_s = tables.wait_s * self.doublings + tables.after_s  # behind the last backward
        inside = tables.forward_s[INSIDE, :, 1:]
        size = np.arange(1, inside.shape[1] + 1)
        self.down_s = float((inside / size).min(initial=np.inf))  # of a layer, at least

    def _seconds(self, place: int, flying: int) -> tuple[Floats, Floats]:
        chosen = self.tables.at(place, flying)
        return chosen.forward_s, chosen.backward_s

    def _least_s(self) -> Floats:
        """Least seconds of the layers above: (kind, mask, stages left of the kind, layers).

        The fastest types first, each up to what its stages can hold within the limit; inf where
        they cannot hold all.
        """
        count = self.tables.cell.micro_batches
        forward, backward = self._seconds(INSIDE, min(count, 2))
        stage_s = forward + backward
        size = np.maximum(np.arange(stage_s.shape[1]), 1)
        good = count * stage_s + self.rest_s < self.limit_s
        good[:, 0] = False
        pace = np.where(good, stage_s / size, np.inf).min(axis=1)
        holds = np.where(good, size, 0).max(axis=1)
        pools = len(self.limits.cluster.pools)
        fast = [pace[self.pool == row].min(initial=np.inf) for row in range(pools)]
        room = [(holds * self.most)[self.pool == row].max(initial=0) for row in range(pools)]
        steps = np.arange(int(self.most.max()) + 1)[:, np.newaxis]
        layers = np.arange(self.limits.layers + 1)[np.newaxis]
        found = np.full((len(self.pool), self.every + 1, len(steps), layers.shape[1]), np.inf)
        for kind in range(len(self.pool)):
            for mask in range(self.every + 1):
                if not mask & self.bit[kind]:
                    continue
                turns = [(pace[kind], steps * holds[kind])]
                turns += [(fast[p], room[p]) for p in range(pools) if not mask >> p & 1]
                left, total = layers + 0 * steps, np.zeros((len(steps), layers.shape[1]))
                for seconds, most in sorted(turns, key=lambda turn: float(turn[0])):
                    taken = np.minimum(left, most)
                    if np.isfinite(seconds):
                        total, left = total + taken * seconds, left - taken
                found[kind, mask] = np.where(left > 0, np.inf, total)
        return found

    def _fewest_gpus(self) -> float:
        """GPUs of any plan below the limit: the most layers a GPU, as many as hold all."""
        count, left, total = self.tables.cell.micro_batches, float(self.limits.layers), 0.0
        if not np.isfinite(self.limit_s):
            return 1.0
        stage_s = self.tables.forward_s[INSIDE] + self.tables.backward_s[0, INSIDE]
        size = np.arange(1, stage_s.shape[1])
        pace = (stage_s[:, 1:] / size).min(axis=1, initial=np.inf)  # whatever fits
        dense = self.limit_s / (count * pace * self.stage_gpus)  # layers a GPU
        best = [
            (float(dense[self.pool == row].max(initial=0.0)), pool.count)
            for row, pool in enumerate(self.limits.cluster.pools)
        ]
        for layers, most in sorted(best, reverse=True):
            taken = min(most, left / layers) if layers > 0 else 0.0
            total, left = total + taken, left - taken * layers
        return max(total, 1.0)

    def last(self) -> Labels:
        """Pipelines of one stage, the last."""
        forward, backward = self._seconds(LAST, 1)
        stage_s = forward + backward
        kind, layers = np.nonzero(np.isfinite(stage_s))
        inside = (layers >= 1) & (layers < self.limits.layers)
        kind, layers = kind[inside], layers[inside]
        seconds = stage_s[kind, layers]
        ones = np.ones_like(kind)
        value = self.tables.cell.micro_batches * seconds
        ends = value + self.stay_s[LAST, kind, layers]
        return self._kept(
            Labels(-ones, kind, self.bit[kind], ones, self.limits.layers - layers, layers,
                   self.stage_gpus[kind], self.tp[kind], value, seconds, ends, ends.copy())
        )  # fmt: skip

    def _kept(self, labels: Labels) -> Labels:
        """Those that can still beat the limit, with their bounds."""
        stages = self.most[labels.kind] - labels.count
        above = self.least_s[labels.kind, labels.mask, stages, labels.left]
        bound = labels.value_s + above + self.rest_s
        bound = np.maximum(bound, labels.ends_s + labels.left * self.down_s)
        good = bound < self.limit_s
        if self.cap is not None:
            good &= labels.gpus <= self.cap
        np.copyto(labels.bound_s, bound)
        return labels.take(np.flatnonzero(good))

    def _may_follow(self, labels: Labels, kind: int) -> Rows:
        """The labels that a stage of this kind may be put on."""
        same = (labels.kind == kind) & (labels.count < self.most[kind])
        other = (labels.mask & self.bit[kind] == 0) & self.closes[labels.kind, labels.count]
        return np.flatnonzero(same | other)

    def _view_s(
        self, labels: Labels, rows: Rows, kind: int, times: tuple[Floats, ...], depth: int
    ) -> tuple[Floats, Floats, Floats]:
        """Value, round trip and ends of these labels with one more stage.

            idle   = [below + 2c - q f]+ + [below + 2c - q b]+    (the larger if K <= depth + 1)
            value' = max(value + t + 2c, K t + idle)
            ends'  = max(ends + f + c, K t + idle + stay)

        Times are forward, backward and stay; (label,), or (1, layers) for all labels.
        """
        forward, backward, stay = times
        count = self.tables.cell.micro_batches
        queued = min(count, depth + 1) - 1
        link = 2 * self.tables.link_s[kind, self.pool[labels.kind[rows]]]
        value, below = labels.value_s[rows] + link, labels.below_s[rows] + link
        ends = labels.ends_s[rows] + link / 2
        if forward.ndim == 2:
            value, below, ends = (each[:, np.newaxis] for each in (value, below, ends))
        stage = forward + backward
        fill, drain = below - queued * forward, below - queued * backward
        np.maximum(fill, 0, out=fill)
        np.maximum(drain, 0, out=drain)
        idle = fill + drain if depth + 1 < count else np.maximum(fill, drain)
        own = count * stage + idle
        ends = np.maximum(ends + forward, own + stay)
        return np.maximum(value + stage, own), below + stage, ends

    def extended(self, labels: Labels, depth: int) -> Labels:
        """All labels with one more stage inside the pipeline."""
        count = self.tables.cell.micro_batches
        forward, backward = self._seconds(INSIDE, min(count, depth + 1))
        parts = [labels.take(np.zeros(0, np.intp))]
        for kind in range(len(self.pool)):
            rows = self._may_follow(labels, kind)
            within = count * (forward[kind] + backward[kind]) + self.rest_s < self.limit_s
            within[0] = False
            sizes = np.flatnonzero(within)
            if not len(rows) or not len(sizes):
                continue
            columns = forward[kind], backward[kind], self.stay_s[INSIDE, kind]
            times = tuple(column[np.newaxis, sizes] for column in columns)
            value, below, ends = self._view_s(labels, rows, kind, times, depth)
            same = labels.kind[rows] == kind
            number = np.where(same, labels.count[rows] + 1, 1)
            mask = labels.mask[rows] | self.bit[kind]
            left = labels.left[rows][:, np.newaxis] - sizes
            stages = (self.most[kind] - number)[:, np.newaxis]
            above = self.least_s[kind][mask[:, np.newaxis], stages, np.maximum(left, 0)]
            bound = np.maximum(value + above + self.rest_s, ends + left * self.down_s)
            good = (bound < self.limit_s) & (left >= 1)
            gpus = labels.gpus[rows] + self.stage_gpus[kind]
            if self.cap is not None:
                good &= (gpus <= self.cap)[:, np.newaxis]
            at, size = np.nonzero(good)
            parts.append(
                Labels(rows[at], np.full(len(at), kind), mask[at], number[at], left[at, size],
                       sizes[size], gpus[at], labels.tail[rows[at]], value[at, size],
                       below[at, size], ends[at, size], bound[at, size])
            )  # fmt: skip
        return join(parts)

    def ended(self, labels: Labels, depth: int) -> Ends:
        """All labels with the first stage on top, which takes all layers that are left."""
        tables = self.tables
        chosen = self._seconds(FIRST, min(tables.cell.micro_batches, depth + 1))
        found: list[tuple[Rows, Ints, Floats]] = []
        for kind in range(len(self.tp)):
            rows = self._may_follow(labels, kind)
            rows = rows[labels.left[rows] < chosen[0].shape[1]]
            same = labels.kind[rows] == kind
            good = self.closes[kind, np.where(same, labels.count[rows] + 1, 1)]
            good &= np.isfinite(chosen[0][kind, labels.left[rows]])
            if self.limits.tied:
                good &= labels.tail[rows] == self.tp[kind]
            if self.limits.use_all:
                good &= labels.mask[rows] | self.bit[kind] == self.every
            if self.cap is not None:
                good &= labels.gpus[rows] + self.stage_gpus[kind] <= self.cap
            rows = rows[good]
            size = labels.left[rows]
            times = chosen[0][kind, size], chosen[1][kind, size], self.stay_s[FIRST, kind, size]
            value, _, ends = self._view_s(labels, rows, kind, times, depth)
            rest = tables.opening_s[FIRST, kind, size] + tables.after_s[FIRST, kind, size]
            gpus = labels.gpus[rows] + self.stage_gpus[kind]
            rest += tables.wait_s[FIRST, kind, size] * np.log2(gpus)
            bound = np.maximum(value + rest, ends + tables.opening_s[FIRST, kind, size])
            low = np.flatnonzero(bound < self.limit_s)
            found.append((rows[low], np.full(len(low), kind), bound[low]))
        if not found:
            none = np.zeros(0, np.int64)
            return Ends(none, none, np.zeros(0))
        return Ends(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def undominated(self, labels: Labels) -> Labels:
        """Without the labels that another of the same kind and layers left is as good as in all."""
        key = ((labels.kind * (self.limits.layers + 1) + labels.left) << 20) + labels.tail * (
            self.limits.tied
        )
        fine = (key * (self.every + 1) + labels.mask) * (self.closes.shape[1]) + labels.count
        if self.counts_gpus:
            fine = fine * (int(labels.gpus.max(initial=0)) + 1) + labels.gpus
        labels, key = self._front(labels, key, fine)
        order = np.lexsort((labels.below_s, labels.value_s, key))
        labels, key = labels.take(order), key[order]
        kept = np.ones(len(labels), np.bool_)
        strict = ~self.any_count[labels.kind]
        for step in range(1, min(NEIGHBOURS, len(labels) - 1) + 1):
            a, b = slice(None, -step), slice(step, None)  # a comes first: its value is no larger
            worse = (key[a] == key[b]) & (labels.below_s[a] <= labels.below_s[b])
            worse &= labels.ends_s[a] <= labels.ends_s[b]
            worse &= (labels.mask[a] & ~labels.mask[b]) == 0
            worse &= labels.count[a] <= labels.count[b]
            worse &= ~strict[b] | (labels.count[a] == labels.count[b])
            if self.limits.use_all:
                worse &= labels.mask[a] == labels.mask[b]
            if self.counts_gpus:
                worse &= labels.gpus[a] <= labels.gpus[b]
            kept[b] &= ~worse
        return labels.take(np.flatnonzero(kept))

    def _front(self, labels: Labels, key: Ints, fine: Ints) -> tuple[Labels, Ints]:
        """Of labels alike in all counts, those that are better in value, round trip or ends."""
        order = np.lexsort((labels.below_s, labels.value_s, fine))
        rank = np.unique(labels.below_s[order], return_inverse=True)[1].reshape(-1)
        new = np.ones(len(order), np.bool_)
        new[1:] = np.diff(fine[order]) != 0
        group = np.cumsum(new)
        lowered = rank - group * (len(order) + 1)  # each group lies below the ones before
        before = np.minimum.accumulate(lowered)
        kept = new.copy()
        kept[1:] |= lowered[1:] < before[:-1]
        best = np.maximum.accumulate(np.where(kept, np.arange(len(order)), 0))
        ends = labels.ends_s[order]
        kept |= ends < ends[best]  # who has the least round trip so far must end first too
        rows = order[kept]
        return labels.take(rows), key[rows]


def beam(labels: Labels, width: int) -> Labels:
    """The most promising labels, shared out evenly among the layers left."""
    order = np.lexsort((labels.bound_s, labels.left))
    left = labels.left[order]
    starts = np.searchsorted(left, left)
    place = np.arange(len(order)) - starts
    return labels.take(order[np.argsort(place, kind="stable")[:width]])


def rounds(
    cellar: Cellar,
    *,
    width: int | None = None,
    live: Live | None = None,
    every: list[Labels] | None = None,
    most: int,
) -> Iterator[tuple[Labels, Ends]]:
    """Round after round, the labels and the pipelines that end on them.

    `width`: a beam; `live`: every label of these states, none dropped as dominated.
    """
    labels, depth = cellar.last(), 1
    while len(labels):
        if every is not None:
            every.append(labels)  # those that will be dropped as dominated too
        if live is not None:
            labels = labels.take(_alive(labels, live[depth - 1])) if depth <= len(live) else (
                labels.take(np.zeros(0, np.intp))
            )  # fmt: skip
        elif len(labels) > 1:
            labels = cellar.undominated(labels)
        if width is not None and len(labels) > width:
            labels = beam(labels, width)
        if len(labels) > most:
            raise TooManyError(float(labels.bound_s.min()))
        yield labels, cellar.ended(labels, depth)
        labels = cellar.extended(labels, depth)
        depth += 1


def _alive(labels: Labels, least: Ints) -> Rows:
    return np.flatnonzero(labels.count >= least[labels.mask, labels.kind, labels.left])


def live_states(
    cellar: Cellar, made: list[tuple[Labels, Ends]], every: list[Labels], limit_s: float
) -> Live:
    """By round, the states from which some pipeline ends below the limit.

    A label that was dropped as dominated ends as its dominator does, which has no more stages of
    the kind and no more types in use: so these states count for it too.
    """
    found: Live = []
    above = np.zeros(0, np.int64)
    for (labels, ends), whole in zip(reversed(made), reversed(every[: len(made)]), strict=True):
        alive = np.zeros(len(labels), np.bool_)
        alive[ends.parent[ends.bound_s < limit_s]] = True
        alive[above] = True
        rows = np.flatnonzero(alive)
        shape = (cellar.every + 1, len(cellar.pool), cellar.limits.layers + 1)
        least = np.full(shape, NEVER)
        np.minimum.at(
            least, (labels.mask[rows], labels.kind[rows], labels.left[rows]), labels.count[rows]
        )
        for pool in range(len(cellar.limits.cluster.pools)):
            for mask in range(cellar.every + 1):
                if not mask >> pool & 1:
                    wide = mask | 1 << pool
                    least[wide] = np.minimum(least[wide], least[mask])
        found.append(least)
        above = whole.parent[_alive(whole, least)]
    return found[::-1]
