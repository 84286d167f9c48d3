"""The plans of a space that no other beats in both hours and dollars, exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from astra.cost.bounds import forced_recompute_bound_s
from astra.hardware.stack import Stack
from astra.hardware.topology import allowed_counts
from astra.model.parameters import parameters
from astra.money.conditions import Conditions
from astra.money.dollars import Bill, Rent, bill, rented_losses, step_within
from astra.money.frontier import frontier
from astra.search.find import MOST_GROUP, Best, Finder, Found, Key
from astra.search.result import Progress
from astra.strategy.enumerate import Layouts, recompute_module_sets
from astra.strategy.plans import DTYPE_BYTES, Flags, Floats, Ints, Plans, dtype_bytes
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space

USUAL: dict[str, tuple[Any, ...]] = {
    "cp": (1,),
    "sharding": ("optimizer", "gradients"),
    "micro_batch": (1, 2),
    "offload_optimizer_fraction": (0.0,),
    "overlap_ep": (False,),
}
OF_A_COUNT = 4  # layouts of a GPU count that are tried at once, for a limit
STATES = ("master_dtype", "first_moment_dtype", "second_moment_dtype")


@dataclass(frozen=True, slots=True)
class Point:
    """A plan under one rent."""

    wall_h: float
    usd: float
    step_s: float
    rent: int  # which of the finder's
    plan: Plans


def checkpoint_bytes_of(plans: Plans, space: Space) -> Floats:
    """Bytes to resume from: weights in two bytes, master weights and moments as they are kept."""
    workload = space.workload
    held = parameters(workload.task.model)
    count = held.total + (held.mtp_total if workload.mtp_layers else 0)
    states = np.sum([dtype_bytes(plans, name) for name in STATES], axis=0)
    return count * (2.0 + states)


def checkpoint_sizes(space: Space) -> Floats:
    """All that occur in a space, smallest first. [bytes]"""
    workload = space.workload
    held = parameters(workload.task.model)
    count = held.total + (held.mtp_total if workload.mtp_layers else 0)
    kept = [
        [DTYPE_BYTES[dtype] for dtype in space.settings.get(name, ("fp32",))] for name in STATES
    ]
    return np.array(sorted({count * (2.0 + sum(sizes)) for sizes in product(*kept)}))


def _corner(space: Space) -> Space:
    """The space narrowed to what most good plans have in common."""
    usual: dict[str, tuple[Any, ...]] = {}
    for name, values in USUAL.items():
        some = tuple(value for value in space.values(name) or () if value in values)
        if some and name not in space.settings:
            usual[name] = some
    return Space(space.workload, {**space.settings, **usual})


class FrontierFinder(Finder):
    """A search that keeps the best plan of every GPU count that can lie on the frontier.

    Hours and dollars of a plan grow with its step, and depend besides on its GPUs and on the
    bytes of its checkpoint alone (its kind). So for every kind there is one step below which a
    plan is of use, whatever has been found so far, here or elsewhere: the limit. Of plans of one
    kind only the fastest can be on the frontier, under any rent.
    """

    group = MOST_GROUP  # limits move less than the one of a search for time

    def __init__(
        self,
        space: Space,
        rules: Sequence[Rule],
        stack: Stack,
        margin: float,
        rents: Sequence[Rent],
        steps: float,
        kept: Conditions,
        latest_h: float = np.inf,
        room_bytes: float = np.inf,
    ) -> None:
        super().__init__(space, rules, stack, 1 << 30, margin, fold=True)
        self.rents, self.steps, self.kept = rents, steps, kept
        self.room_bytes = room_bytes
        pool = space.workload.task.cluster.pools[0]
        self.counts = np.array(allowed_counts(pool), np.int64)
        self.sizes = checkpoint_sizes(space)
        self.known_h, self.known_usd = np.zeros(0), np.zeros(0)  # found elsewhere
        self.latest_h = latest_h  # what takes longer is of no use
        self.points: list[Point] = []
        self.beaten: set[tuple[float, float]] = set()  # hours and dollars of plans simulated
        self.least_s = np.zeros(0)  # (cut,) their bounds
        self.hopeless = False  # no cut can reach what is known from elsewhere
        self._limit()

    def outdo(self, hours: Floats, usd: Floats) -> None:
        """Points that are known already: what they dominate is of no use."""
        self.known_h, self.known_usd = hours, usd
        self._limit()

    @property
    def limit_s(self) -> float:
        """The loosest of the limits: infinite while nothing is known."""
        return float(self.table.max())

    def run(self, progress: Progress | None = None) -> Best:
        """First a corner of the space that usually holds good plans, for limits to prune with."""
        layouts = Layouts(self.space)
        least = self._least_s(layouts)
        corner = _corner(self.space)
        if corner.settings != self.space.settings and (least < self._limits_of(layouts)).any():
            first = FrontierFinder(
                corner,
                self.rules,
                self.stack,
                self.margin,
                self.rents,
                self.steps,
                self.kept,
                self.latest_h,
                self.room_bytes,
            )
            first.book = self.book
            first.outdo(self.known_h, self.known_usd)
            Finder.run(first)
            self.funnel.simulated += first.funnel.simulated
            self.beaten |= first.beaten
            if first.found:
                self._keep(first.found)
        return self._search(layouts, least, progress)

    def limits_s(self, plans: Plans) -> Floats | float:
        if not len(plans):
            return np.zeros(0)
        sizes = checkpoint_bytes_of(plans, self.space)
        size, count = np.searchsorted(self.sizes, sizes), np.searchsorted(self.counts, plans.gpus)
        found: Floats = self.table[size, count]
        return found

    def urgency(self, plans: Plans, bounds: Floats) -> Floats:
        """How far from the limit, where there is one."""
        limits = np.broadcast_to(self.limits_s(plans), len(plans))
        far = bounds * plans.gpus / max(float(np.max(bounds * plans.gpus, initial=1.0)), 1e-30)
        return np.where(np.isfinite(limits), bounds / np.maximum(limits, 1e-30), far)

    def _least_s(self, layouts: Layouts) -> Floats:
        """A bound of every cut that knows of memory, too."""
        modules = tuple(
            sorted({m for some in recompute_module_sets(self.space.workload) for m in some})
        )
        self.least_s = np.zeros(int(layouts.counts.sum()))
        self.layer = np.zeros(len(self.least_s), np.int32)
        for (_, cuts), plans in zip(layouts.blocks(), layouts.option_tables(), strict=True):
            self.least_s[cuts], self.layer[cuts] = forced_recompute_bound_s(
                plans, self.task, self.stack, self.margin, modules, self.book
            )
        self._look_up()
        return layouts.least_over_options(lambda cuts: self.least_s[cuts])

    def _of_cuts_s(self, layouts: Plans, cuts: Ints) -> Floats:  # noqa: ARG002
        return self.least_s[cuts]

    def _wanted(self, layouts: Layouts) -> Flags | None:
        """The cuts whose bound is below the limit of their GPU count."""
        limits = self._limits_of(layouts)
        found = np.zeros(len(self.least_s), np.bool_)
        for degrees, cuts in layouts.blocks():
            found[cuts] = self.least_s[cuts] < np.repeat(limits[degrees], layouts.counts[degrees])
        return found

    def _limits_of(self, layouts: Layouts) -> Floats:
        """(degrees,) The loosest limit of their GPU count."""
        found: Floats = self.table.max(axis=0)[np.searchsorted(self.counts, layouts.gpus)]
        return found

    def _order(self, layouts: Layouts, least_s: Floats) -> Ints:
        """The best cut of every GPU count first, then the second of each; no useless ones."""
        useful = np.flatnonzero(least_s < self._limits_of(layouts))
        self.hopeless = not len(useful)
        if self.hopeless:
            return useful
        gpus, least_s = layouts.gpus[useful], least_s[useful]
        order = np.lexsort((least_s, gpus))
        counts = gpus[order]
        starts = np.flatnonzero(np.concatenate([[True], counts[1:] != counts[:-1]]))
        first = np.repeat(least_s[order][starts], np.diff([*starts, len(order)]))
        with np.errstate(invalid="ignore"):
            excess = np.where(np.isfinite(first), least_s[order] / first, np.inf)
        return useful[order[np.argsort(excess, kind="stable")]]

    def _scouted(self, layouts: Plans, order: Ints) -> Ints:
        """While nothing is known: the first few of some GPU counts, each about twice another."""
        if self.points or len(self.known_h):
            return order[:0]
        gpus = layouts.gpus[order]
        counts, rows = np.unique(gpus), []
        while len(counts):
            rows.append(order[gpus == counts[-1]][:OF_A_COUNT])
            counts = counts[counts <= counts[-1] // 2]
        return np.concatenate(rows) if rows else order[:0]

    def _keys(self, plans: Plans) -> list[Key]:
        sizes = checkpoint_bytes_of(plans, self.space)
        return list(zip(plans.gpus.tolist(), sizes.astype(np.int64).tolist(), strict=True))

    def _promising(self, plans: Plans, first: dict[Key, int], bounds: Floats) -> list[int]:
        """Rows that would be on the frontier if all were as fast as their bounds."""
        rows = np.array(sorted(first.values()), np.int64)
        some = plans.take(rows)
        sizes = checkpoint_bytes_of(some, self.space)
        bills = [self._bill(bounds[rows], some.gpus, sizes, rent) for rent in self.rents]
        hours, usd = self._all_points()
        hours = np.concatenate([*(each.wall_h for each in bills), hours])
        usd = np.concatenate([*(each.usd for each in bills), usd])
        best = frontier(hours, usd)
        return sorted({int(rows[row % len(rows)]) for row in best if row < len(bills) * len(rows)})

    def _keep(self, found: list[Found]) -> None:
        """Those on the frontier, here and among what is known from elsewhere."""
        plans = [plan for *_, plan in found]
        steps = np.array([step for step, *_ in found])
        gpus = np.concatenate([plan.gpus for plan in plans])
        sizes = np.concatenate([checkpoint_bytes_of(plan, self.space) for plan in plans])
        bills = [self._bill(steps, gpus, sizes, rent) for rent in self.rents]
        hours = np.concatenate([self.known_h, *(each.wall_h for each in bills)])
        usd = np.concatenate([self.known_usd, *(each.usd for each in bills)])
        best = set(frontier(hours, usd))
        lost = [row for row in range(len(self.known_h), len(hours)) if row not in best]
        self.beaten |= {(float(hours[row]), float(usd[row])) for row in lost}
        own = [row - len(self.known_h) for row in sorted(best, key=lambda row: hours[row])]
        places = [divmod(row, len(found)) for row in own if row >= 0]
        self.points = [
            Point(
                wall_h=float(bills[rent].wall_h[row]),
                usd=float(bills[rent].usd[row]),
                step_s=float(steps[row]),
                rent=rent,
                plan=plans[row],
            )
            for rent, row in places
        ]
        kept = sorted({row for _, row in places})
        self.found = [found[row] for row in kept]
        self._limit()

    def _all_points(self) -> tuple[Floats, Floats]:
        """Hours and dollars of all that is known."""
        hours = [*self.known_h, *(point.wall_h for point in self.points)]
        usd = [*self.known_usd, *(point.usd for point in self.points)]
        return np.array(hours), np.array(usd)

    def _bill(self, steps_s: Floats, gpus: Ints, sizes: Floats, rent: Rent) -> Bill:
        lost, price = rented_losses(gpus, sizes, rent, self.kept), rent.usd_per_hour(gpus)
        return bill(steps_s, self.steps, lost, price, sizes, self.kept)

    def _limit(self) -> None:
        """The step of every kind from which on it is dominated under every rent."""
        hours, usd = self._all_points()
        shape = (len(self.sizes), len(self.counts))
        size = np.repeat(self.sizes, len(self.counts))
        gpus = np.tile(self.counts, len(self.sizes))
        limits = np.zeros(len(size))
        hours = np.append(hours, self.latest_h)
        usd = np.append(usd, -np.inf)  # whatever it costs
        for rent in self.rents:
            lost, price = rented_losses(gpus, size, rent, self.kept), rent.usd_per_hour(gpus)
            own = step_within(hours, usd, self.steps, lost, price, size, self.kept)
            limits = np.maximum(limits, own.min(axis=0))
        self.table = limits.reshape(shape)
