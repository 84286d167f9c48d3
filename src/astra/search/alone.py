"""The best plan on one of several GPU types: what the others found is where to look first."""

from collections.abc import Sequence

import numpy as np

from astra.search.find import MOST_GROUP, Best, Finder, Key
from astra.search.result import Progress
from astra.strategy.enumerate import Layouts
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.variants import plan_count

MOST = 16  # plans that are simulated together


class AloneFinder(Finder):
    """A search for one plan that looks at plans like some others first, and lays out no degrees
    that are too slow: they are counted by what they would be, rules left aside.
    """

    size, before_s = 1, np.inf  # plans that were simulated last, and the time to beat then

    def seeded(self, plans: Sequence[Plans], progress: Progress | None = None) -> Best:
        """`plans`: tables of one, the best on other types."""
        layouts = Layouts(self.space)
        least = self._least_s(layouts)
        for plan in plans:
            self._like(layouts, plan)
        if self.found:  # what is left need not be looked at a little at a time
            self.group = MOST_GROUP
        return self._search(layouts, least, progress)

    def _like(self, layouts: Layouts, plan: Plans) -> None:
        """A time to beat: of layouts cut as this plan is, whatever their chunks."""
        degrees = layouts.degrees_of(plan)
        for _, table in layouts.tables(degrees):
            same = (table.ep == plan.ep[0]) & (table.etp == plan.etp[0])
            same &= (table.sharding == plan.sharding[0]) & (table.overlap_ep == plan.overlap_ep[0])
            if same.any():
                some = table.take(np.flatnonzero(same))
                held = [rule.holds(some, self.task) for rule in self.rules]
                self._scout(some.take(np.flatnonzero(np.logical_and.reduce(held))))

    def _scouted(self, layouts: Plans, order: Ints) -> Ints:
        """None where plans like the others gave a time to beat."""
        return order[:0] if self.group == MOST_GROUP else super()._scouted(layouts, order)

    def _next(self, plans: Plans, keys: list[Key], rows: list[int], bounds: Floats) -> list[int]:  # noqa: ARG002
        """One, and twice as many whenever none was any better: side by side they cost less."""
        self.size = 1 if self.limit_s < self.before_s else min(2 * self.size, MOST)
        self.before_s = self.limit_s
        return sorted(rows[: self.size])

    def _hopeless(self, least_s: float) -> bool:
        return least_s >= self.limit_s

    def _leave(self, layouts: Layouts, order: Ints, first: int) -> None:
        rest = order[int(np.flatnonzero(order == first)[0]) :]
        count = plan_count(layouts, rest)
        self.funnel.candidates += count
        self.funnel.bounded += count
