"""Round after round of labels; and through which states any pipeline below a limit goes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from astra.search.mixed.cellar import Cellar
from astra.search.mixed.fronts import Fronts
from astra.search.mixed.labels import Ends, Labels, Round, Rows, Small
from astra.strategy.plans import Flags, Ints

NEVER = np.iinfo(np.int32).max


class TooManyError(Exception):
    """More labels than asked for; `bound_s` is the least bound that was left open."""

    def __init__(self, bound_s: float) -> None:
        super().__init__(bound_s)
        self.bound_s = bound_s


@dataclass(frozen=True, slots=True)
class Trace:
    """All labels of a round, those that were dropped as dominated too. (label,)"""

    parent: Small
    kind: Small
    mask: Small
    count: Small
    left: Small


@dataclass(frozen=True, slots=True)
class Live:
    """States of one round from which some pipeline ends below the limit."""

    open: Ints  # (mask, kind, layers left) least number of stages of the kind
    closed: Flags  # (mask, class, layers left)


def rounds(
    cellar: Cellar,
    *,
    width: int | None = None,
    live: list[Live] | None = None,
    traces: list[Trace] | None = None,
    most: int,
) -> Iterator[Round]:
    """Round after round, the labels and the pipelines that end on them.

    `width`: a beam; `live`: every label of these states, none dropped as dominated.
    """
    labels, depth = cellar.last(), 1
    while len(labels):
        if traces is not None:
            columns = (labels.parent, labels.kind, labels.mask, labels.count, labels.left)
            traces.append(Trace(*columns))
        if live is None:
            labels, open_, closed = _undominated(cellar, labels)
        elif depth <= len(live):
            labels, open_, closed = _alive(cellar, labels, live[depth - 1])
        else:
            return
        if width is not None and len(labels) > width:
            rows = _beam(labels, width)
            labels, open_, closed = labels.take(rows), open_[rows], closed[rows]
        if len(labels) > most:
            raise TooManyError(float(labels.bound_s.min()))
        ends = cellar.ended(labels, open_, closed, depth)
        made = Round(labels, open_, closed, ends)
        yield made
        labels = cellar.extended(made, depth)
        depth += 1


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


def _alive(cellar: Cellar, labels: Labels, live: Live) -> tuple[Labels, Flags, Flags]:
    open_, closed = _ways(cellar, labels)
    open_ &= labels.count >= live.open[labels.mask, labels.kind, labels.left]
    closed &= live.closed[labels.mask, cellar.classes[labels.kind], labels.left]
    return _useful(labels, open_, closed)


def _beam(labels: Labels, width: int) -> Rows:
    """The most promising labels, shared out evenly among the layers left."""
    order = np.lexsort((labels.bound_s, labels.left))
    left = labels.left[order]
    starts = np.searchsorted(left, left)
    place = np.arange(len(order)) - starts
    return np.sort(order[np.argsort(place, kind="stable")[:width]])


def live_states(
    cellar: Cellar, made: list[Round], traces: list[Trace], limit_s: float
) -> list[Live]:
    """By round, the states from which some pipeline ends below the limit.

    A label that was dropped as dominated ends as its dominator does, which has no more stages of
    the kind and no more types in use: so these states count for it too.
    """
    found: list[Live] = []
    same, other = np.zeros(0, np.int64), np.zeros(0, np.int64)  # parents, by how they went on
    for at in range(len(made) - 1, -1, -1):
        labels = made[at].labels
        one, two = _by_way(labels, _below(made[at].ends, limit_s))
        live = _states(cellar, labels, np.union1d(one, same), np.union1d(two, other))
        found.append(live)
        trace = traces[at]
        alive = trace.count >= live.open[trace.mask, trace.kind, trace.left]
        alive |= live.closed[trace.mask, cellar.classes[trace.kind], trace.left]
        if at:
            rows = np.flatnonzero(alive)
            below, parent, kind = made[at - 1].labels, trace.parent[rows], trace.kind[rows]
            stays = below.kind[parent] == kind
            same, other = parent[stays], parent[~stays]
    return found[::-1]


def _below(ends: Ends, limit_s: float) -> Ends:
    return ends.take(np.flatnonzero(ends.bound_s < limit_s))


def _by_way(labels: Labels, ends: Ends) -> tuple[Small, Small]:
    stays = labels.kind[ends.parent] == ends.kind
    return ends.parent[stays], ends.parent[~stays]


def _states(cellar: Cellar, labels: Labels, same: Ints, other: Ints) -> Live:
    layers = cellar.limits.layers + 1
    least = np.full((cellar.every + 1, len(cellar.pool), layers), NEVER)
    at = (labels.mask[same], labels.kind[same], labels.left[same])
    np.minimum.at(least, at, labels.count[same])
    closed = np.zeros((cellar.every + 1, int(cellar.classes.max()) + 1, layers), np.bool_)
    closed[labels.mask[other], cellar.classes[labels.kind[other]], labels.left[other]] = True
    for pool in range(cellar.pools):
        for mask in range(cellar.every + 1):
            if not mask >> pool & 1:
                wide = mask | 1 << pool
                least[wide] = np.minimum(least[wide], least[mask])
                closed[wide] |= closed[mask]
    return Live(least, closed)
