"""Where the plans of one problem are decided on: rules, memory, RAM, simulator; counted and kept."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from astra.cost.evaluate import simulate_fitting
from astra.cost.host import host_bytes_per_node, is_offloading, pool_usable_ram_bytes
from astra.hardware.stack import Stack
from astra.search.result import Funnel
from astra.strategy.plans import Floats, Plans, Task
from astra.strategy.rules.rule import Rule
from astra.timing.layer import LayerCache


class Stopped(Exception):
    """The work or the time that a search may take is spent, or the user stops it."""


@dataclass(slots=True)
class Limits:
    """What a whole command may spend; shared by all evaluators."""

    work: float = 3e9  # rows bounded, weighed by what a row costs
    until_s: float | None = None  # on time.monotonic()
    is_cancelled: Callable[[], bool] = lambda: False
    spent: float = 0.0

    def charge(self, rows: float) -> None:
        """Counts work; raises Stopped at a limit."""
        self.spent += rows
        late = self.until_s is not None and time.monotonic() > self.until_s
        if self.spent > self.work or late or self.is_cancelled():
            raise Stopped


@dataclass(slots=True)
class Incumbent:
    """A plan that was kept, and its step."""

    step_s: float
    plans: Plans  # a table of one


@dataclass(slots=True)
class Evaluator:
    """Decides on tables of plans of one task; keeps the best of each key (`key_of`)."""

    task: Task
    rules: Sequence[Rule]  # of the runtime, of the user, of the nodes' RAM
    stack: Stack
    margin: float
    limits: Limits
    limit_s: float = np.inf  # a step that is of no use any more; falls as plans are kept
    cache: LayerCache = field(default_factory=LayerCache)
    funnel: Funnel = field(default_factory=Funnel)
    kept: list[Incumbent] = field(default_factory=list)  # best first, at most `top`
    top: int = 10

    def charge(self, rows: float) -> None:
        self.limits.charge(rows)

    def steps_s(self, plans: Plans) -> Floats:
        """The simulated step of every plan, infinite where rules, memory or RAM say no. (plan,)

        Keeps the best, so that `limit_s` falls.
        """
        found = np.full(len(plans), np.inf)
        rows = np.arange(len(plans))
        self.funnel.candidates += len(plans)
        for rule in self.rules:
            held = rule.holds(plans.take(rows), self.task)
            if not held.all():
                self.funnel.remove(rule.name, int((~held).sum()))
                rows = rows[held]
            if not len(rows):
                return found
        self.charge(len(rows) * 100)
        some = plans.take(rows)
        steps, fits = simulate_fitting(some, self.task, self.stack, self.margin, self.cache)
        self.funnel.priced += len(rows)
        self.funnel.simulated += len(rows)
        self.funnel.out_of_memory += int((~fits).sum())
        found[rows] = steps
        for row in np.argsort(steps, kind="stable")[: self.top]:
            if np.isfinite(steps[row]):
                self.kept.append(Incumbent(float(steps[row]), some.take([int(row)])))
        self.kept = sorted(self.kept, key=lambda each: each.step_s)[: self.top]
        if self.kept:
            self.limit_s = min(self.limit_s, self.kept[0].step_s)
        return found
