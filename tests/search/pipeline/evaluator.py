"""An evaluator that keeps the fastest plans: what a search of pipelines asks of one."""

import numpy as np

from astra.cost.evaluate import simulate_fitting
from astra.hardware.stack import Stack
from astra.strategy.plan import Plan
from astra.strategy.plans import Floats, Plans, Task, plan_at
from astra.strategy.rules.registry import check, rules_for
from astra.timing.layer import LayerCache


class KeepingEvaluator:
    """Rules, memory, simulator; counts what it is charged."""

    def __init__(
        self, task: Task, stack: Stack, margin: float, limit_s: float = np.inf, top: int = 10
    ) -> None:
        self.task, self.stack, self.margin = task, stack, margin
        self.limit_s, self.top, self.charged = limit_s, top, 0.0
        self.rules, self.cache = rules_for(task.runtime), LayerCache()
        self.kept: list[tuple[float, Plans]] = []  # fastest first

    @property
    def best_s(self) -> float:
        return self.kept[0][0] if self.kept else np.inf

    def charge(self, rows: float) -> None:
        self.charged += rows

    def steps_s(self, plans: Plans) -> Floats:
        """Infinite where rules or memory say no."""
        found = np.full(len(plans), np.inf)
        rows = np.flatnonzero(check(plans, self.task, self.rules).allowed)
        if len(rows):
            some = plans.take(rows)
            found[rows], _ = simulate_fitting(some, self.task, self.stack, self.margin, self.cache)
        new = [(float(found[row]), plans.take([row])) for row in np.argsort(found)[: self.top]]
        kept = [*self.kept, *(pair for pair in new if np.isfinite(pair[0]))]
        self.kept = sorted(kept, key=lambda pair: pair[0])[: self.top]
        self.limit_s = min(self.limit_s, self.best_s)
        return found

    def plans(self) -> list[Plan]:
        return [plan_at(plans, 0, self.task) for _, plans in self.kept]
