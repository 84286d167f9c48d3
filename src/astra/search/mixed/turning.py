"""Which cuts can be interleaved below a limit, by the seconds of their layers alone."""

from collections.abc import Sequence

import numpy as np

from astra.search.mixed.cells import Cell, Kind
from astra.strategy.plans import Flags, Floats, Ints

STEPS = 24  # limits that the least step of a cut is looked for between
SLIP = 1e-9  # relative, against rounding


class Turning:
    """Cuts, each with the stages it can have of every type. (cut,)

    A stage of v chunks of n layers works K v n t, so under a limit its chunks hold so many whole
    layers; the fastest types first, and no more stages than there are micro-batches or chunks of
    one layer. The first and the last stage may hold a few more: a chunk there may be lighter.
    """

    def __init__(
        self,
        cuts: Sequence[tuple[Cell, list[Kind], Floats]],
        layers: int,
        vpps: Ints,
    ) -> None:
        """`cuts`: each with its kinds, and what a layer takes in a step on each, at least."""
        self.layers, self.vpps = layers, vpps
        pools = 1 + max(kind.pool for _, kinds, _ in cuts for kind in kinds)
        self.pace_s = np.full((pools, len(cuts)), np.inf)  # of all micro-batches of a layer
        self.stages = np.zeros((pools, len(cuts)), np.int64)
        self.count = np.array([cell.micro_batches for cell, _, _ in cuts])
        for row, (_, kinds, layer_s) in enumerate(cuts):
            for kind, own in zip(kinds, layer_s.tolist(), strict=True):
                self.pace_s[kind.pool, row] = min(self.pace_s[kind.pool, row], own)
                self.stages[kind.pool, row] = max(self.stages[kind.pool, row], kind.most)
        order = np.argsort(self.pace_s, axis=0, kind="stable")
        self.pace_s = np.take_along_axis(self.pace_s, order, axis=0)
        self.stages = np.take_along_axis(self.stages, order, axis=0)

    def open(self, limit_s: float | Floats, cuts: Ints | slice = slice(None)) -> Flags:
        """Which numbers of chunks may make a plan below the limit. (cut, vpp)"""
        vpps = self.vpps
        limit = np.broadcast_to(limit_s, self.count.shape)[cuts][:, np.newaxis]
        left = np.minimum(self.layers // vpps, self.count[cuts][:, np.newaxis])
        found, held = left >= 2, np.zeros(left.shape)
        first, last = np.zeros(left.shape), np.zeros(left.shape)
        for pace, stages in zip(self.pace_s[:, cuts], self.stages[:, cuts], strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                most = np.floor(limit * (1 + SLIP) / pace[:, np.newaxis])
            most = np.minimum(np.nan_to_num(most, nan=0.0), self.layers)
            size = most // vpps
            taken = np.minimum(left, stages[:, np.newaxis])
            held, left = held + taken * size, left - taken
            more = ends_hold(size, most, vpps)
            first, last = np.maximum(first, more[0]), np.maximum(last, more[1])
        found &= held * vpps + first + last >= self.layers
        return found

    def least_s(self, low_s: float, high_s: float) -> Floats:
        """No plan of a cut is shorter; inf: none is below the high limit. (cut,)"""
        found = np.full(len(self.count), np.inf)
        before = low_s
        for limit in np.geomspace(low_s, high_s, STEPS):
            rows = np.flatnonzero(np.isinf(found))
            can = self.open(float(limit), rows).any(axis=1)
            found[rows[can]] = before
            before = float(limit)
        return found

    def work_s(self) -> float:
        """No plan is shorter than all stages of a cut at their best."""
        with np.errstate(divide="ignore"):
            speed = (self.stages / self.pace_s).sum(axis=0)
        return float((self.layers / np.maximum(speed, 1e-300)).min(initial=np.inf))


def ends_hold(
    size: Ints | Floats, most: Ints | Floats, vpps: Ints
) -> tuple[Ints | Floats, Ints | Floats]:
    """Layers that the first and the last stage may hold beyond v chunks of this size.

    `most`: what they have time for. The first chunk of a pipeline may lack one layer, the last
    any number but its last layer, so with one layer more a chunk

        first  v (n + 1) - 1,   last  (v - 1) (n + 1) + 1  to  v (n + 1) - 1.
    """
    whole = vpps * (size + 1) - 1
    first = np.where(most >= whole, vpps - 1, 0)
    least = (vpps - 1) * (size + 1) + 1
    last = np.where(most >= least, np.minimum(most, whole) - vpps * size, 0)
    return first, last
