"""Round after round of labels; and through which states any pipeline below a limit goes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from astra.columns import REL_EPS
from astra.search.mixed.cellar import Cellar
from astra.search.mixed.fronts import Fronts
from astra.search.mixed.labels import Ends, Labels, Round, Rows, Small
from astra.search.mixed.paths import extended, lowest, tightened, tightened_ends
from astra.strategy.plans import Flags, Floats, Ints

FEW = 256  # labels for which the simulator does not pay
GROWN = 1.5  # times the labels it last left, from which the simulator pays again
MANY_NEW = 8  # times as many labels as may stay, before it is known which do
NEVER = np.iinfo(np.int32).max


class TooManyError(Exception):
    """More labels than asked for."""


@dataclass(frozen=True, slots=True)
class Trace:
    """All labels of a round, those that were dropped as dominated too. (label,)"""

    parent: Small
    kind: Small
    mask: Small
    count: Small
    left: Small
    below_s: Floats


@dataclass(frozen=True, slots=True)
class Live:
    """States of one round from which some pipeline ends below the limit, and how far it is."""

    count: Ints  # (mask, kind, layers left) least number of stages of the kind
    open_s: Floats  # likewise, least seconds of the stages above; inf: no pipeline ends so
    closed_s: Floats  # (mask, class, layers left)

    def above_s(self, cellar: Cellar, trace: Trace | Labels) -> tuple[Floats, Floats]:
        """Least seconds of the stages above, by how a label goes on. (label,)"""
        mask, kind, left = trace.mask, trace.kind, trace.left
        on = np.where(
            trace.count >= self.count[mask, kind, left], self.open_s[mask, kind, left], np.inf
        )
        return on, self.closed_s[mask, cellar.classes[kind], left]


def rounds(
    cellar: Cellar,
    *,
    width: int | None = None,
    traces: list[Trace] | None = None,
    most: int,
) -> Iterator[Round]:
    """Round after round, the labels that no other is as good as, and the pipelines that end on
    them. `width`: a beam.
    """
    labels, depth = cellar.last(), 1
    while len(labels):
        if traces is not None:
            columns = (labels.parent, labels.kind, labels.mask, labels.count, labels.left)
            traces.append(Trace(*columns, labels.below_s))
        labels, open_, closed = _undominated(cellar, labels)
        if width is not None and len(labels) > width:
            rows = _beam(labels, width)
            labels, open_, closed = labels.take(rows), open_[rows], closed[rows]
        if len(labels) > most:
            raise TooManyError
        ends = cellar.ended(labels, open_, closed, depth)
        made = Round(labels, open_, closed, ends)
        yield made
        labels = cellar.extended(made, depth)
        depth += 1


def listing(cellar: Cellar, live: list[Live], most: int) -> Iterator[Round]:
    """The same with every label of these states that can beat the limit, by the simulator."""
    labels, left = cellar.last(), 0
    paths, below = lowest(cellar, labels), labels
    for depth, states in enumerate(live, 1):
        if depth > 1:
            paths = extended(cellar, paths, below, labels)
        rows, open_, closed = _alive(cellar, labels, states)
        labels, paths = labels.take(rows), paths.take(rows)
        if len(labels) >= max(FEW, GROWN * left):
            labels, paths = tightened(cellar, labels, paths)
            rows, open_, closed = _alive(cellar, labels, states)
            labels, paths = labels.take(rows), paths.take(rows)
            left = len(labels)
        if len(labels) > most:
            raise TooManyError
        ends = cellar.ended(labels, open_, closed, depth)
        if len(ends.parent):
            ends = tightened_ends(cellar, labels, paths, ends)
        made = Round(labels, open_, closed, ends)
        yield made
        below, labels = labels, cellar.extended(made, depth)
        if len(labels) > MANY_NEW * most:
            raise TooManyError
        if not len(labels):
            return


def _ways(cellar: Cellar, labels: Labels) -> tuple[Flags, Flags]:
    """Which labels may go on with their own kind, and which with another type."""
    open_ = labels.count < cellar.most[labels.kind]
    closed = cellar.closes[labels.kind, labels.count] & (labels.mask != cellar.every)
    return open_, closed


def _undominated(cellar: Cellar, labels: Labels) -> tuple[Labels, Flags, Flags]:
    fronts = Fronts(cellar)
    labels = labels.take(np.sort(fronts.open(labels)))
    open_, closable = _ways(cellar, labels)
    rows = np.flatnonzero(closable)
    closed = np.zeros(len(labels), np.bool_)
    closed[rows[fronts.closed(labels.take(rows))]] = True
    return _useful(labels, open_, closed)


def _useful(labels: Labels, open_: Flags, closed: Flags) -> tuple[Labels, Flags, Flags]:
    used = np.flatnonzero(open_ | closed)
    if len(used) == len(labels):
        return labels, open_, closed
    return labels.take(used), open_[used], closed[used]


def _alive(cellar: Cellar, labels: Labels, live: Live) -> tuple[Rows, Flags, Flags]:
    """The rows of labels in live states, and how each may go on."""
    open_, closed = _ways(cellar, labels)
    on, other = live.above_s(cellar, labels)
    room = cellar.limit_s - cellar.rest_s - labels.value_s
    open_ &= on < room
    closed &= other < room
    rows = np.flatnonzero(open_ | closed)
    return rows, open_[rows], closed[rows]


def _beam(labels: Labels, width: int) -> Rows:
    """The most promising labels, shared out evenly among the layers left and the types used."""
    group = labels.left.astype(np.int64) * (int(labels.mask.max()) + 1) + labels.mask
    order = np.lexsort((labels.bound_s, group))
    group = group[order]
    place = np.arange(len(order)) - np.searchsorted(group, group)
    best = np.lexsort((labels.bound_s[order], place))
    return np.sort(order[best[:width]])


def live_states(
    cellar: Cellar, made: list[Round], traces: list[Trace], limit_s: float
) -> list[Live]:
    """By round, the states from which some pipeline ends below the limit.

    A label that was dropped as dominated ends as its dominator does, which has no more stages of
    the kind and no more types in use: so these states count for it too.
    """
    found: list[Live] = []
    size = len(made[-1].labels) if made else 0
    same, other = np.full(size, np.inf), np.full(size, np.inf)  # seconds above, by the way taken
    for at in range(len(made) - 1, -1, -1):
        labels, ends = made[at].labels, _below(made[at].ends, limit_s)
        stays = labels.kind[ends.parent] == ends.kind
        np.minimum.at(same, ends.parent[stays], ends.up_s[stays])
        np.minimum.at(other, ends.parent[~stays], ends.up_s[~stays])
        live = _states(cellar, labels, same, other)
        found.append(live)
        if at:
            trace, below = traces[at], made[at - 1].labels
            above = np.minimum(*live.above_s(cellar, trace)) * (1 - REL_EPS)
            rows = np.flatnonzero(np.isfinite(above))
            parent = trace.parent[rows]
            above = above[rows] + trace.below_s[rows] - below.below_s[parent]
            stays = below.kind[parent] == trace.kind[rows]
            same, other = np.full(len(below), np.inf), np.full(len(below), np.inf)
            np.minimum.at(same, parent[stays], above[stays])
            np.minimum.at(other, parent[~stays], above[~stays])
    return found[::-1]


def _below(ends: Ends, limit_s: float) -> Ends:
    return ends.take(np.flatnonzero(ends.bound_s < limit_s))


def _states(cellar: Cellar, labels: Labels, same: Floats, other: Floats) -> Live:
    layers = cellar.limits.layers + 1
    count = np.full((cellar.every + 1, len(cellar.pool), layers), NEVER)
    open_s = np.full(count.shape, np.inf)
    rows = np.flatnonzero(np.isfinite(same))
    at = (labels.mask[rows], labels.kind[rows], labels.left[rows])
    np.minimum.at(count, at, labels.count[rows])
    np.minimum.at(open_s, at, same[rows])
    closed_s = np.full((cellar.every + 1, int(cellar.classes.max()) + 1, layers), np.inf)
    rows = np.flatnonzero(np.isfinite(other))
    kind = cellar.classes[labels.kind[rows]]
    np.minimum.at(closed_s, (labels.mask[rows], kind, labels.left[rows]), other[rows])
    for pool in range(cellar.pools):
        for mask in range(cellar.every + 1):
            if not mask >> pool & 1:
                wide = mask | 1 << pool
                for table in (count, open_s, closed_s):
                    table[wide] = np.minimum(table[wide], table[mask])
    return Live(count, open_s, closed_s)
