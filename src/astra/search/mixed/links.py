"""Seconds between the stages of a pipeline, by the product's own functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.search.mixed.cells import Cell, Kind
from astra.search.mixed.columns import DEGREES, Columns, kind_columns, plans_table
from astra.search.mixed.small import MANY, Pricer
from astra.strategy.plans import Floats, Ints
from astra.strategy.stage_view import stage_view
from astra.timing.stage import stage_times, stage_work


class Links:
    """From a stage of one kind to the next one of another, for the kinds of all cells.

    Between two types, seconds go by the larger of two GPUs' parts (micro-batch over tp) and by how
    many GPUs of a node send.
    """

    def __init__(
        self, pricer: Pricer, cells: Sequence[Cell], kinds: Sequence[Kind], cell: Ints
    ) -> None:
        self.pricer, self.cells = pricer, cells
        self.cut, self.cell = kind_columns(kinds), cell
        self.pools = len(pricer.space.workload.task.cluster.pools)
        part = self.cut["segment_micro_batch"] / self.cut["tp"]
        self.parts, self.part = np.unique(part, return_inverse=True)
        cps = np.array([each.cp for each in cells])
        self.cps, self.cp = np.unique(cps[cell], return_inverse=True)
        nodes = [pool.gpu.node.gpus for pool in pricer.space.workload.task.cluster.pools]
        senders = self.cut["tp"] * self.cut["dp"] * cps[cell]
        self.senders, self.sender = np.unique(np.minimum(senders, max(nodes)), return_inverse=True)
        self.inside_s = self._inside_s(kinds)
        self.across_s = self._across_s()

    def table(self, rows: NDArray[np.integer[Any]]) -> Floats:
        """Between these kinds, which are of one cell. (kind, next kind); 0 where none is."""
        pool, part, cp = self.cut["gpu"][rows], self.part[rows], self.cp[rows[:1]]
        larger, sender = np.maximum(part[:, np.newaxis], part), self.sender[rows][:, np.newaxis]
        found: Floats = self.across_s[cp[0], pool[:, np.newaxis], pool, larger, sender]
        np.fill_diagonal(found, self.inside_s[rows])
        return found

    def _seconds(self, which: Ints, slots: Columns) -> Floats:
        """The link of the first stage of every plan."""
        zeros = np.zeros_like(slots["stages"])
        for name in ("recompute", "recompute_layers", "recompute_modules"):
            slots[name] = zeros
        found, (space, stack) = np.zeros(len(which)), (self.pricer.space, self.pricer.stack)
        for start in range(0, len(which), MANY):
            some = slice(start, start + MANY)
            part = {name: column[:, some] for name, column in slots.items()}
            flags = np.ones(len(which[some]), np.bool_)
            plans = plans_table(space.workload, self.cells, which[some], part, flags)
            view = stage_view(plans, space.workload.task)
            times = stage_times(view, stack, stage_work(view, stack, self.pricer.book))
            found[some] = times.part("link_s")[0, 0]
        return found

    def _inside_s(self, kinds: Sequence[Kind]) -> Floats:
        """Between two stages of every kind. (kind,)"""
        cut, pools = self.cut, self.pools
        most, one = np.array([kind.most for kind in kinds]), np.ones(len(kinds), np.int64)
        slots = {name: np.stack([cut[name]] * 2) for name in DEGREES}
        slots["gpu"] = np.stack([cut["gpu"], (cut["gpu"] + 1) % pools])
        slots["stages"] = np.stack([np.maximum(most, 2), one])
        slots["layers"] = np.stack([one, one])
        return self._seconds(self.cell, slots)

    def _across_s(self) -> Floats:
        """Between two types: (cp, type, next type, larger part, senders)"""
        shape = len(self.cps), self.pools, self.pools, len(self.parts), len(self.senders)
        found = np.zeros(shape)
        for cp in range(len(self.cps)):
            here = np.flatnonzero(self.cp == cp)
            parts, first = np.unique(self.part[here], return_index=True)  # some kind of each part
            order = here[np.argsort(self.part[here], kind="stable")]
            senders, least = np.unique(self.sender[order], return_index=True)
            pools = np.nonzero(~np.eye(self.pools, dtype=np.bool_))
            at = np.indices((len(pools[0]), len(parts), len(senders))).reshape(3, -1)
            if not at.size:
                continue
            own, other = order[least][at[2]], here[first][at[1]]  # the smallest part that sends so
            slots = {
                name: np.stack([self.cut[name][own], self.cut[name][other]]) for name in DEGREES
            }
            slots["gpu"] = np.stack([pools[0][at[0]], pools[1][at[0]]])
            slots["stages"] = slots["layers"] = np.ones_like(slots["gpu"])
            seconds = self._seconds(self.cell[own], slots)
            found[cp, slots["gpu"][0], slots["gpu"][1], parts[at[1]], senders[at[2]]] = seconds
        return found
