"""Which types lie in which stages of a pipeline: how many stages of each, and in what order."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from astra.search.mixed.cells import Kind
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plans import Flags, Floats, Ints

MANY = 1 << 20  # numbers of stages of all types that are looked at together


class TooManyShapesError(Exception):
    """More ways to take stages of the types than can be listed."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Numbers of stages of every kind, each type in one of its kinds. (shape,)"""

    counts: Ints  # (shape, kind)
    stages: Ints  # of all kinds
    group: Ints  # micro-batches in turn

    def take(self, rows: Flags | Ints) -> "Shapes":
        return Shapes(self.counts[rows], self.stages[rows], self.group[rows])


@dataclass(frozen=True, slots=True)
class Orders:
    """Shapes with their types in an order. (order,)"""

    shape: Ints
    kinds: Ints  # (order, stage); -1: none


def shapes_of(
    kinds: list[Kind], micro_batches: int, longest: int, gpus: tuple[int, int | None], whole: bool
) -> Shapes:
    """All that have two stages at least and no more than that.

    `gpus`: of a stage, and the cap on all of them. `whole`: every type takes part.
    """
    pools = sorted({kind.pool for kind in kinds})
    found = np.zeros((1, len(kinds)), np.int64)
    most = min(longest, micro_batches)
    if gpus[1] is not None:
        most = min(most, gpus[1] // gpus[0])
    for pool in pools:
        options = [] if whole else [np.zeros(len(kinds), np.int64)]
        for row, kind in enumerate(kinds):
            if kind.pool == pool:
                for count in kind.stages:
                    one = np.zeros(len(kinds), np.int64)
                    one[row] = count
                    options.append(one)
        if len(found) * len(options) > MANY:
            raise TooManyShapesError
        found = (found[:, np.newaxis] + np.array(options)).reshape(-1, len(kinds))
        found = found[found.sum(axis=1) <= most]
    stages = found.sum(axis=1)
    groups = [
        least_microbatch_group(n, micro_batches) or 0 if n > 1 else 0 for n in range(most + 1)
    ]
    group = np.array(groups, np.int64)[stages]
    good = group > 0
    return Shapes(found[good], stages[good], group[good])


def holding(shapes: Shapes, holds: Floats, least: Floats, early: int) -> tuple[Ints, Ints]:
    """Rows and shapes that can hold the model.

    `holds`: layers of a chunk of each kind, (row, kind); `least`: those of all stages, (row,).
    `early`: the first stages, which may hold more.
    """
    total = holds @ shapes.counts.T
    bare = (holds < 1).astype(np.float64) @ shapes.counts.T > early  # a stage has a layer
    row, shape = np.nonzero((total >= least[:, np.newaxis]) & ~bare)
    return row, shape


def orders_of(shapes: Shapes, some: Ints) -> Orders:
    """Every order of the types of these shapes."""
    longest = int(shapes.stages[some].max(initial=0))
    rows, found = [], []
    for shape in some.tolist():
        counts = shapes.counts[shape]
        used = np.flatnonzero(counts).tolist()
        for order in permutations(used):
            line = np.full(longest, -1)
            line[: shapes.stages[shape]] = np.repeat(order, counts[list(order)])
            rows.append(shape)
            found.append(line)
    kinds = np.array(found, np.int64).reshape(-1, longest)
    return Orders(np.array(rows, np.int64), kinds)


def ordered(shapes: Shapes, row: Ints, shape: Ints) -> tuple[Orders, Ints, Ints]:
    """Rows and shapes with every order of their types: the orders, and rows and orders."""
    some, at = np.unique(shape, return_inverse=True)
    orders = orders_of(shapes, some)
    starts = np.searchsorted(orders.shape, some)
    number = np.diff(np.append(starts, len(orders.shape)))[at]
    first = np.repeat(starts[at] - np.cumsum(number) + number, number)
    return orders, np.repeat(row, number), first + np.arange(len(first))
