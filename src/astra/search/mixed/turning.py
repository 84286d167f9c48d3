"""Which cuts can be interleaved below a limit, by the seconds of their layers alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from astra.search.mixed.cells import Kind
from astra.strategy.plans import Flags, Floats, Ints

STEPS = 24  # limits that the least step of a cut is looked for between
SLIP = 1e-9  # relative, against rounding


@dataclass(frozen=True, slots=True)
class Cut:
    """What is known of a cut before its stages are priced. (kind,)"""

    micro_batches: int
    kinds: list[Kind]
    layer_s: Floats  # (kind, layer kind) what a layer takes in a step, at least
    most: Ints  # layers of the commonest kind that a stage has room for


class Turning:
    """Cuts, each with the stages it can have of every type. (cut,)

    A stage of v chunks of n layers works K v n t, so under a limit its chunks hold so many whole
    layers; the fastest types first, and no more stages than there are micro-batches or chunks of
    one layer. The first and the last stage may hold a few more: a chunk there may be lighter; and
    so may as many stages as there are layers of other kinds. Also, all layers weighed by what
    they take on average, stages have time for so many.
    """

    def __init__(
        self,
        cuts: Sequence[Cut],
        counts: Ints,
        vpps: Ints,
    ) -> None:
        """`counts`: layers of each kind."""
        self.layers, self.vpps = int(counts.sum()), vpps
        main = int(counts.argmax())
        self.main, self.others = int(counts[main]), int(counts.sum() - counts[main])
        pools = 1 + max(kind.pool for cut in cuts for kind in cut.kinds)
        main_s, mean_s = (np.full((pools, len(cuts)), np.inf) for _ in range(2))
        stages = np.zeros((pools, len(cuts)), np.int64)
        room = np.zeros((pools, len(cuts)), np.int64)
        self.count = np.array([cut.micro_batches for cut in cuts])
        for row, cut in enumerate(cuts):
            means = cut.layer_s.mean(axis=0)
            weight = means * self.layers / float((means * counts).sum())
            each = cut.layer_s[:, main].tolist(), (cut.layer_s / weight).min(axis=1).tolist()
            for kind, own, mean, most in zip(cut.kinds, *each, cut.most.tolist(), strict=True):
                pool = kind.pool
                main_s[pool, row] = min(main_s[pool, row], own)
                mean_s[pool, row] = min(mean_s[pool, row], mean)
                stages[pool, row] = max(stages[pool, row], kind.most)
                room[pool, row] = max(room[pool, row], most)
        every = np.full_like(room, self.layers)
        # The fastest type first.
        self.paces = [_sorted(main_s, stages, room), _sorted(mean_s, stages, every)]

    def open(self, limit_s: float | Floats, cuts: Ints | slice = slice(None)) -> Flags:
        """Which numbers of chunks may make a plan below the limit. (cut, vpp)"""
        vpps = self.vpps
        limit = np.broadcast_to(limit_s, self.count.shape)[cuts][:, np.newaxis]
        stages = np.minimum(self.layers // vpps, self.count[cuts][:, np.newaxis])
        found = stages >= 2
        left, held = stages, np.zeros(stages.shape)
        first, last, most_more = (np.zeros(stages.shape) for _ in range(3))
        for most, taken in self._held(self.paces[0], limit, cuts, left):
            size = np.floor(most + SLIP) // vpps
            held = held + taken * size * vpps
            more = ends_hold(size, np.floor(most + SLIP), vpps)
            first, last = np.maximum(first, more[0]), np.maximum(last, more[1])
            most_more = np.maximum(most_more, np.floor(most + SLIP) - size * vpps)
        more = first + last + min(self.others, 1 << 20) * most_more
        found &= held + more >= self.main
        if self.others:
            held = np.zeros(stages.shape)
            for most, taken in self._held(self.paces[1], limit, cuts, left):
                held += most * taken
            found &= held * (1 + SLIP) >= self.layers
        return found

    def _held(
        self, paces: tuple[Floats, Ints, Ints], limit: Floats, cuts: Ints | slice, left: Ints
    ) -> Iterator[tuple[Floats, Ints]]:
        """Layers that a stage of each type has time for, and how many stages there are."""
        for pace, stages, room in zip(*(column[:, cuts] for column in paces), strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                most = np.nan_to_num(limit / pace[:, np.newaxis], nan=0.0)
            taken = np.minimum(left, stages[:, np.newaxis])
            left = left - taken
            yield np.minimum(most, room[:, np.newaxis]), taken

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
        pace, stages, _ = self.paces[1]
        with np.errstate(divide="ignore"):
            speed = (stages / pace).sum(axis=0)
        return float((self.layers / np.maximum(speed, 1e-300)).min(initial=np.inf))


def _sorted(pace_s: Floats, stages: Ints, room: Ints) -> tuple[Floats, Ints, Ints]:
    order = np.argsort(pace_s, axis=0, kind="stable")
    pace = np.take_along_axis(pace_s, order, axis=0)
    count, most = (np.take_along_axis(column, order, axis=0) for column in (stages, room))
    return pace, count, most


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
