"""Seconds between the stages of a pipeline, by the product's own functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.search.mixed.cells import Cell, Kind
from astra.search.mixed.columns import DEGREES, Columns, kind_columns, plans_table
from astra.search.mixed.small import MANY, Pricer
from astra.strategy.plans import Floats, Ints
from astra.strategy.view import view_of
from astra.timing.stage import stage_base, stage_times


class Links:
    """From a stage of one kind to the next one of another, for the kinds of all cells.

    Between two types, seconds go by the larger of two GPUs' parts: micro-batch over tp.
    """

    def __init__(
        self, pricer: Pricer, cells: Sequence[Cell], kinds: Sequence[Kind], cell: Ints
    ) -> None:
        self.pricer, self.cells = pricer, cells
        self.cut, self.cell = kind_columns(kinds), cell
        self.pools = len(pricer.space.question.task.cluster.pools)
        part = self.cut["segment_micro_batch"] / self.cut["tp"]
        self.parts, self.part = np.unique(part, return_inverse=True)
        cps = np.array([each.cp for each in cells])
        self.cps, self.cp = np.unique(cps[cell], return_inverse=True)
        self.inside_s = self._inside_s(kinds)
        self.across_s = self._across_s()

    def table(self, rows: NDArray[np.integer[Any]]) -> Floats:
        """Between these kinds, which are of one cell. (kind, next kind); 0 where none is."""
        pool, part, cp = self.cut["gpu"][rows], self.part[rows], self.cp[rows[:1]]
        larger = np.maximum(part[:, np.newaxis], part)
        found: Floats = self.across_s[cp[0], pool[:, np.newaxis], pool, larger]
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
            plans = plans_table(space.question, self.cells, which[some], part, flags)
            view = view_of(plans, space.question.task)
            times = stage_times(view, stack, stage_base(view, stack, self.pricer.book))
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
        """Between two types: (cp, type, next type, larger part)"""
        shape = len(self.cps), self.pools, self.pools, len(self.parts)
        found = np.zeros(shape)
        key = self.cp * len(self.parts) + self.part
        keys, first = np.unique(key, return_index=True)  # some kind of every cp and part
        one, other = np.nonzero(~np.eye(self.pools, dtype=np.bool_))
        if not len(one):
            return found
        kind = np.repeat(first, len(one))
        slots = {name: np.stack([self.cut[name][kind]] * 2) for name in DEGREES}
        slots["gpu"] = np.stack([np.tile(one, len(first)), np.tile(other, len(first))])
        slots["stages"] = slots["layers"] = np.ones_like(slots["gpu"])
        at = np.repeat(keys, len(one))
        seconds = self._seconds(self.cell[kind], slots)
        found[at // len(self.parts), slots["gpu"][0], slots["gpu"][1], at % len(self.parts)] = (
            seconds
        )
        return found
