"""Where the plans of one problem are decided on: rules, memory, RAM, bound, simulator; counted.

Evaluators differ in task and rules only: a table of plans does not say which runtime, cluster or
stack it is for. They share the limits of the whole command.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from astra.cost.evaluate import Evaluation, evaluate, plans_memory_fraction, simulate
from astra.cost.host import host_bytes_per_node, is_offloading, pool_usable_ram_bytes
from astra.hardware.stack import Stack
from astra.search.objective import Fastest, Objective
from astra.search.query import Query
from astra.search.result import Funnel, Progress
from astra.strategy.plan import Plan
from astra.strategy.plans import Flags, Floats, Ints, Plans, Task, plan_at
from astra.strategy.rules.registry import rules_for
from astra.strategy.rules.rule import Rule
from astra.strategy.variants import depends_on_variant
from astra.timing.layer import LayerCache

PLANS_PER_LOOK = 2048  # plans of a table between two looks for the stop

StoppedBy = Literal["cancelled", "time_limit"]


class Stopped(Exception):  # noqa: N818 - no error: the best so far is the answer
    """The time that a search may take is spent, or the user stops it: the best so far is told."""


@dataclass(slots=True)
class Limits:
    """What a whole command may spend; shared by all its evaluators."""

    until_s: float = np.inf  # on the monotonic clock
    is_cancelled: Callable[[], bool] = lambda: False
    watch: Callable[[Progress], None] | None = None
    candidates: int = 0
    best_s: float = np.inf  # of all plans so far, where one is wanted
    least_s: float = 0.0  # no plan is faster
    stopped: StoppedBy | None = None  # what ended the search, if anything did

    def check(self) -> None:
        """Raises Stopped at a limit, or when the user says so; from then on always."""
        if self.stopped is None:
            if self.is_cancelled():
                self.stopped = "cancelled"
            elif time.monotonic() > self.until_s:
                self.stopped = "time_limit"
        if self.stopped is not None:
            raise Stopped

    def looked_at(self, candidates: int) -> None:
        self.candidates += candidates
        if self.watch:
            is_known = np.isfinite(self.best_s)
            gap = self.best_s / self.least_s - 1 if is_known and self.least_s > 0 else None
            self.watch(Progress(self.candidates, self.best_s if is_known else None, gap))
        self.check()


@dataclass(slots=True)
class Evaluator:
    """Decides on tables of plans of one task."""

    task: Task
    rules: Sequence[Rule]  # of the runtime, and the user's own
    stack: Stack
    margin: float  # of the usable memory, kept free
    objective: Objective
    limits: Limits = field(default_factory=Limits)
    funnel: Funnel = field(default_factory=Funnel)
    cache: LayerCache = field(default_factory=LayerCache)
    usable_ram_bytes: float = -1.0  # of a node, for what plans offload; infinite: not known
    closest: tuple[float, Plans | None] = (np.inf, None)  # memory fraction of what fits least badly
    least_host: tuple[float, Plans | None] = (np.inf, None)  # bytes; fits but for a node's RAM
    least_s: float = 0.0  # no plan of the problem is faster
    is_alone: bool = False  # no other problem has plans that are wanted too

    def __post_init__(self) -> None:
        if self.usable_ram_bytes < 0:
            self.usable_ram_bytes = pool_usable_ram_bytes(self.task.cluster.pools)

    @property
    def variant_rules(self) -> list[Rule]:
        """Those that may hold for a layout and not for each of its variants."""
        built_in = rules_for(self.task.runtime)
        return [rule for rule in self.rules if rule not in built_in or depends_on_variant(rule)]

    @property
    def limit_s(self) -> float:
        """No step from this one on is of use, whatever its plan."""
        return self.objective.limit_s

    def charge(self, candidates: int) -> None:
        """Between pieces of work: so many were estimated; the most promising of them are looked at
        as plans, and counted again then. Raises Stopped at a limit.
        """
        self.funnel.candidates += candidates
        self.funnel.estimated += candidates
        self.limits.looked_at(candidates)

    def allowed(
        self, plans: Plans, counts: Ints | None = None, rules: Sequence[Rule] | None = None
    ) -> Flags:
        """Which plans the rules allow; one stands for as many as `counts` says. Counted."""
        allowed = np.ones(len(plans), np.bool_)
        for rule in self.rules if rules is None else rules:
            held = rule.holds(plans, self.task)
            removed = allowed & ~held
            lost = int(removed.sum() if counts is None else counts[removed].sum())
            if lost:
                self.funnel.remove(rule.name, lost)
                allowed &= held
        return allowed

    def evaluate(self, plans: Plans) -> Evaluation:
        """Memory and least step of every plan."""
        self.limits.check()
        return evaluate(plans, self.task, self.stack, self.margin, self.cache)

    def in_ram(self, plans: Plans, rows: Ints) -> Ints:
        """Of these rows those whose offload the RAM of a node holds."""
        if not np.isfinite(self.usable_ram_bytes) or not is_offloading(plans)[rows].any():
            return rows
        need = host_bytes_per_node(plans.take(rows), self.task, self.stack)
        over = np.where(need > self.usable_ram_bytes, need, np.inf)
        least = int(over.argmin())
        if over[least] < self.least_host[0]:
            self.least_host = (float(over[least]), plans.take(rows[[least]]))
        kept: Ints = rows[need <= self.usable_ram_bytes]
        return kept

    def remember_closest(self, plans: Plans, fraction: Floats, fits: Flags) -> None:
        """The plan that overflows its GPUs least, while none fits."""
        if not fits.any() and float(fraction.min(initial=np.inf)) < self.closest[0]:
            row = int(fraction.argmin())
            self.closest = (float(fraction[row]), plans.take([row]))

    def simulate(self, plans: Plans) -> Floats:
        """The step of plans that are allowed and fit; the objective keeps what it wants. [s]"""
        self.limits.check()
        steps = simulate(plans, self.task, self.stack, self.cache)
        self.funnel.simulated += len(plans)
        self.objective.add(plans, steps)
        if isinstance(self.objective, Fastest) and np.isinf(self.objective.ceiling_s):
            self.limits.best_s = min(self.limits.best_s, float(steps.min()))
            self.limits.least_s = self.least_s if self.is_alone else 0.0
        return steps

    def promising(self, plans: Plans, most: int, below_s: float = np.inf) -> Ints:
        """Rows of plans that rules, memory and RAM allow, with bounds below a step, so many of the
        least, best first. They are counted where their steps are asked for.
        """
        allowed = np.logical_and.reduce([rule.holds(plans, self.task) for rule in self.rules])
        rows = np.flatnonzero(allowed)
        if not len(rows):
            return rows
        blocks = [rows[at : at + PLANS_PER_LOOK] for at in range(0, len(rows), PLANS_PER_LOOK)]
        found = [self.evaluate(plans.take(block)) for block in blocks]
        bound_s = np.concatenate([np.where(own.fits, own.bound_s, np.inf) for own in found])
        useful = int((bound_s < below_s).sum())
        return self.in_ram(plans, rows[np.argsort(bound_s, kind="stable")[: min(most, useful)]])

    def steps_s(self, plans: Plans) -> Floats:
        """The step of every plan, infinite where rules, memory or RAM say no. (plan,) [s]"""
        found = np.full(len(plans), np.inf)
        self.funnel.candidates += len(plans)
        self.limits.looked_at(len(plans))
        rows = np.flatnonzero(self.allowed(plans))
        if not len(rows):
            return found
        fraction = plans_memory_fraction(plans.take(rows), self.task, self.stack, every_stage=True)
        fits = fraction <= 1 - self.margin
        self.funnel.priced += len(rows)
        self.funnel.out_of_memory += int((~fits).sum())
        self.remember_closest(plans.take(rows), fraction, fits)
        fitting = self.in_ram(plans, rows[fits])
        self.funnel.out_of_memory += int(fits.sum()) - len(fitting)
        if len(fitting):
            found[fitting] = self.simulate(plans.take(fitting))
        return found

    def plans(self) -> list[Plan]:
        """The incumbents, fastest first."""
        return [plan_at(plan, 0, self.task) for *_, plan in self.objective.incumbents]

    def run(self, search: Callable[["Evaluator"], None]) -> None:
        """A problem's search, to its end or until it is stopped: what was kept is there then."""
        with suppress(Stopped):
            search(self)

    @property
    def best_s(self) -> float:
        """The step of the best; infinite where none fits."""
        for value, _, plan in self.objective.incumbents[:1]:
            return value / float(self.objective.weights(plan)[0])
        return np.inf


def evaluator_of(query: Query, objective: Objective, limits: Limits | None = None) -> Evaluator:
    """For plans of the first runtime of a query."""
    return Evaluator(
        task=query.task,
        rules=query.rules,
        stack=query.stack,
        margin=query.margin,
        objective=objective,
        limits=limits or Limits(),
    )
