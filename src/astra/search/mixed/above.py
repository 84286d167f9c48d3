"""What the stages that a pipeline still lacks take at least."""

import numpy as np

from astra.search.mixed.tables import FIRST, INSIDE, Tables
from astra.strategy.plans import Floats, Ints

LEVELS = 24  # steps in which the seconds of a stage are limited


class Above:
    """Bounds on the stages above a label, for stages that hold so many micro-batches at least.

    The view from a stage with t seconds, f of them forward, of a pipeline that takes S for one
    micro-batch is  S + (K - 1) t - q f.  So a stage above takes no more than

        t <= (T - S) / (K - 1 - q max(f / t)).

    With stages that short the fastest types hold what they can; inf where not all is held.
    """

    def __init__(self, tables: Tables, flying: int, limit_s: float, pools: int) -> None:
        count = tables.cell.micro_batches
        self.limit_s, self.pools = limit_s, pools
        self.pool = np.array([kind.pool for kind in tables.kinds])
        self.most = np.array([kind.most for kind in tables.kinds])
        inside, first = tables.at(INSIDE, flying), tables.at(FIRST, flying)
        width = inside.forward_s.shape[1]
        self.weight, self.left_weight = tables.weights
        weight = self.weight[:width]
        stage_s = inside.forward_s + inside.backward_s
        ahead_s = first.forward_s + first.backward_s
        there = np.isfinite(stage_s[:, 1:])
        part = inside.forward_s[:, 1:][there] / stage_s[:, 1:][there]
        self.share = float(part.max(initial=0.0))
        stage_s = np.minimum(stage_s, ahead_s)
        stage_s[:, 0] = np.inf
        good = count * stage_s < limit_s
        with np.errstate(invalid="ignore", divide="ignore"):
            each = np.where(good, stage_s / weight, np.inf)
        self.pace = each.min(axis=1, initial=np.inf)
        self.base_s = limit_s / count
        kind, load = np.nonzero(good)
        level = np.ceil(stage_s[kind, load] * (LEVELS / self.base_s) * (1 - 1e-12))
        at = (kind, np.clip(level, 0, LEVELS).astype(np.int64))
        holds, sizes = (np.zeros((len(self.pool), LEVELS + 1)) for _ in range(2))
        np.maximum.at(holds, at, weight[load])
        np.maximum.at(sizes, at, tables.loads.sizes[load])
        self.holds = np.maximum.accumulate(holds, axis=1)
        self.sizes = np.maximum.accumulate(sizes, axis=1).astype(np.int64)  # layers of a stage
        whole = self.holds * self.most[:, np.newaxis]
        self.fast = np.full(pools, np.inf)
        self.room = np.zeros((pools, LEVELS + 1))
        self.stages = np.zeros(pools)
        for pool in range(pools):
            here = self.pool == pool
            if here.any():
                self.fast[pool] = self.pace[here].min()
                self.room[pool] = whole[here].max(axis=0)
                self.stages[pool] = self.most[here].max()

    def levels(self, through_s: Floats, depth: Ints, count: int) -> Ints:
        """How long a stage may take, in steps, where all stages take so long. (row,)

        `depth`: the most stages that the pipelines may have.
        """
        if not np.isfinite(self.limit_s):
            return np.full(len(through_s), LEVELS)
        queued = np.minimum(count, depth) - 1
        slack = np.maximum(count - 1 - queued * self.share, 1e-9)
        most = np.maximum(self.limit_s - through_s, 0.0) / slack
        level = np.ceil(most * (LEVELS / self.base_s))
        return np.clip(level, 0, LEVELS).astype(np.int64)

    def depths(self, mask: Ints, steps: Ints) -> Ints:
        """Stages that may still come. (row,)"""
        found = steps.astype(np.float64)
        for pool in range(self.pools):
            found = found + np.where(mask >> pool & 1, 0.0, self.stages[pool])
        return found.astype(np.int64)

    def least_s(self, kind: Ints, mask: Ints, steps: Ints, level: Ints) -> Floats:
        """Seconds of the layers above: (row, layers left)."""
        paces = np.full((self.pools + 1, len(kind)), np.inf)
        rooms = np.zeros((self.pools + 1, len(kind)))
        paces[0], rooms[0] = self.pace[kind], steps * self.holds[kind, level]
        for pool in range(self.pools):
            free = (mask >> pool & 1) == 0
            paces[pool + 1] = np.where(free, self.fast[pool], np.inf)
            rooms[pool + 1] = np.where(free, self.room[pool, level], 0.0)
        order = np.argsort(paces, axis=0, kind="stable")
        paces = np.take_along_axis(paces, order, axis=0)
        rooms = np.take_along_axis(rooms, order, axis=0)
        rooms[~np.isfinite(paces)] = 0.0
        paces[~np.isfinite(paces)] = 0.0
        left = np.broadcast_to(self.left_weight, (len(kind), len(self.left_weight))).copy()
        total = np.zeros(left.shape)
        for pace, room in zip(paces, rooms, strict=True):
            taken = np.minimum(left, room[:, np.newaxis])
            total += taken * pace[:, np.newaxis]
            left -= taken
        total[left > 1e-9] = np.inf
        return total
