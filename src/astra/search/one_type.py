"""All plans on one GPU type, proven: bound every layout, simulate what can still win.

Degrees with an option are bounded first, then their layouts, then the variants of these, the most
promising first; each only takes longer than what it is made of. What is left out was counted.
"""

from collections.abc import Sequence

import numpy as np

from astra.columns import REL_EPS
from astra.cost.bounds import forced_recompute_bound_s
from astra.cost.evaluate import least_memory_fraction, memory_fraction
from astra.memory.stage import memory_of
from astra.search.evaluator import Evaluator, Limits, evaluator_of
from astra.search.objective import Fastest, Key
from astra.search.query import Query
from astra.strategy.enumerate import Layouts, enumerate_layouts, recompute_module_sets
from astra.strategy.plans import Flags, Floats, Ints, Plans, concatenate
from astra.strategy.space import Space
from astra.strategy.stage_view import StageView, stage_view, without_layers
from astra.strategy.variants import (
    Variants,
    plan_count,
    variant_counts,
    variants_in,
    variants_of,
)
from astra.timing.layer import Work, cached_layer_rows, work_of
from astra.timing.plan_bounds import (
    fill_bound_s,
    step_bound_s,
    tight_bound_s,
    variant_added_s,
    work_bound_s,
)
from astra.timing.stage import stage_times, stage_work

FIRST_LAYOUTS = 1 << 10  # of the first table: enough to learn what to beat
LAYOUTS_PER_BLOCK = 1 << 12  # worth bounding together
FIRST_GROUP = 256  # layouts whose variants are looked at together at first
MAX_GROUP = 1024  # and in the end
PLANS_PER_BLOCK = 512  # that are bounded tightly together
MAX_SIMULATED = 16  # plans that are simulated together where none of the last was better

Tables = list[tuple[Plans, Floats]]  # plans and their bounds


class WorkBounds:
    """What is known of degrees with an option before layers are split: the busiest stage does no
    less than the mean.

    Options by the million share some thousand layers: what is kept of each is its layer.
    """

    def __init__(self, layouts: Layouts, evaluator: Evaluator) -> None:
        self.all = layouts
        self.layer: Ints = np.zeros(int(layouts.counts.sum()), np.int32)  # (option,) in the cache
        views = (self._view(plans, evaluator) for plans in layouts.option_tables())
        found = cached_layer_rows(views, evaluator.stack, evaluator.cache)
        for (_, options), rows in zip(layouts.blocks(), found, strict=True):
            self.layer[options] = rows[0, 0]
        self.total_s = layer_work(evaluator).total_s

    def _view(self, plans: Plans, evaluator: Evaluator) -> StageView:
        evaluator.limits.check()
        return without_layers(plans, evaluator.task)

    def degrees_s(self) -> Floats:
        """The least bound over the options of each. (degrees,)"""
        least = self.all.least_over_options(lambda options: self.total_s[self.layer[options]])
        return work_bound_s(self.all.micro_batches, self.all.stages, least)

    def layouts_s(self, layouts: Plans, options: Ints) -> Floats:
        """Of layouts and the option of each. (layout,)"""
        total_s = self.total_s[self.layer[options]]
        return work_bound_s(layouts.micro_batches[0], layouts.pp[0], total_s)

    def below(self, limits_s: Floats) -> Flags | None:  # noqa: ARG002
        """(option,) Those below the limit of their degrees; None: all are looked at."""
        return None


class MemoryBounds(WorkBounds):
    """The same with the recompute that memory forces: for a frontier, whose limits are tight."""

    def __init__(self, layouts: Layouts, evaluator: Evaluator) -> None:
        self.all = layouts
        sets = recompute_module_sets(layouts.space.workload)
        modules = tuple(sorted({module for some in sets for module in some}))
        self.bound_s = np.zeros(int(layouts.counts.sum()))
        self.layer = np.zeros(len(self.bound_s), np.int32)
        for (_, options), plans in zip(layouts.blocks(), layouts.option_tables(), strict=True):
            evaluator.limits.check()
            self.bound_s[options], self.layer[options] = forced_recompute_bound_s(
                plans, evaluator.task, evaluator.stack, evaluator.margin, modules, evaluator.cache
            )

    def degrees_s(self) -> Floats:
        return self.all.least_over_options(lambda options: self.bound_s[options])

    def layouts_s(self, layouts: Plans, options: Ints) -> Floats:  # noqa: ARG002
        return self.bound_s[options]

    def below(self, limits_s: Floats) -> Flags | None:
        found = np.zeros(len(self.bound_s), np.bool_)
        for degrees, options in self.all.blocks():
            limits = np.repeat(limits_s[degrees], self.all.counts[degrees])
            found[options] = self.bound_s[options] < limits
        return found


def layer_work(evaluator: Evaluator) -> Work:
    """What every layer in the cache takes."""
    rows = np.arange(len(evaluator.cache.rows), dtype=np.int32)
    if not len(rows):
        return Work(*np.zeros((3, 0)))
    return work_of(evaluator.cache, evaluator.task.model, rows)


class OneType:
    """The plans of a space on one GPU type."""

    def __init__(
        self,
        space: Space,
        seeds: Sequence[Plans] = (),
        bounds: type[WorkBounds] = WorkBounds,
    ) -> None:
        """`seeds`: plans, each a table of one, whose degrees are looked at first."""
        self.space, self.seeds, self.bounds = space, seeds, bounds
        self.overfull: Tables = []  # layouts of which no variant can fit, least memory fractions
        self.has_limit = False  # the seeds gave one

    def search(self, evaluator: Evaluator) -> float:
        """Looks at all plans that can be of use; nothing is left open: infinity."""
        self.evaluator, objective = evaluator, evaluator.objective
        layouts = Layouts(self.space)
        options = self.bounds(layouts, evaluator)
        self.work, self.options = layer_work(evaluator), options
        for plan in self.seeds:
            self._look_at_degrees(layouts, plan)
        self.has_limit = bool(self.seeds and objective.incumbents)
        bound_s = options.degrees_s()
        evaluator.least_s = float(bound_s.min(initial=np.inf))
        order = objective.order_degrees(layouts.gpus, bound_s)
        self._finish(self._layouts(layouts, order, bound_s))
        if not objective.incumbents:
            self._look_closer()
        return np.inf

    def _layouts(self, layouts: Layouts, order: Ints, bound_s: Floats) -> Tables:
        """The layouts that can be of use, with their bounds, degrees in this order."""
        evaluator, objective = self.evaluator, self.evaluator.objective
        rest_s = np.minimum.accumulate(bound_s[order][::-1])[::-1]  # least of this and all behind
        place = np.empty(len(layouts), np.int64)
        place[order] = np.arange(len(order))
        below = self.options.below(objective.limits_of_counts_s(layouts.gpus))
        ahead: Tables = []  # layouts that can be of use, not yet bounded by stages
        waiting: Tables = []  # layouts that can be of use
        for options, table in layouts.tables(order, FIRST_LAYOUTS, below):
            first = place[int(np.searchsorted(layouts.starts, options[0], side="right")) - 1]
            if rest_s[first] >= objective.limit_s:  # too slow, whatever their layout
                unseen = plan_count(layouts, order[first:])  # rules left aside
                evaluator.funnel.candidates += unseen
                evaluator.funnel.bounded += unseen
                break
            counts = variant_counts(table, self.space)
            evaluator.funnel.candidates += int(counts.sum())
            evaluator.limits.looked_at(int(counts.sum()))
            allowed, bounds = evaluator.allowed(table, counts), self._layout_bound_s(table, options)
            useful = np.flatnonzero(allowed & (bounds < objective.limits_s(table)))
            evaluator.funnel.bounded += int(counts[allowed].sum() - counts[useful].sum())
            ahead.append((table.take(useful), bounds[useful]))
            if np.isinf(objective.limit_s) or sum(len(t) for t, _ in ahead) > LAYOUTS_PER_BLOCK:
                waiting.append(self._open(ahead))
                ahead = []
        return [*waiting, self._open(ahead)] if ahead else waiting

    def _look_at_degrees(self, layouts: Layouts, plan: Plans) -> None:
        """A limit first: of layouts with the degrees of this plan, whatever their chunks."""
        for _, table in layouts.tables(layouts.degrees_of(plan)):
            same = (table.ep == plan.ep[0]) & (table.etp == plan.etp[0])
            same &= (table.sharding == plan.sharding[0]) & (table.overlap_ep == plan.overlap_ep[0])
            if same.any():
                some = table.take(np.flatnonzero(same))
                self._heuristic(some.take(np.flatnonzero(self._holds(some))))

    def _holds(self, plans: Plans) -> Flags:
        """Which plans the rules allow, not counted."""
        rules, task = self.evaluator.rules, self.evaluator.task
        return np.logical_and.reduce([rule.holds(plans, task) for rule in rules])

    def _layout_bound_s(self, layouts: Plans, options: Ints) -> Floats:
        """Those of their options, or the time that filling a pipeline takes."""
        rows = self.options.layer[options]
        layer, head = self.work.layer_s[rows], self.work.head_s[rows]
        fill = fill_bound_s(layouts, layer, head, self.evaluator.stack) * (1 - REL_EPS)
        return np.maximum(self.options.layouts_s(layouts, options), fill)

    def _open(self, ahead: Tables) -> tuple[Plans, Floats]:
        """Bound layouts by their stages, try the best few, and keep those that can be of use."""
        objective = self.evaluator.objective
        layouts, bounds = self._with_room(self._together(ahead)[0])
        if not self.has_limit:
            order = np.argsort(objective.priority(layouts, bounds), kind="stable")
            useful = bounds < objective.limits_s(layouts)
            self._heuristic(layouts.take(objective.heuristic(layouts, order[useful[order]])))
        return self._still_useful(layouts, bounds)

    def _together(self, tables: Tables) -> tuple[Plans, Floats]:
        """Those of several tables that can still be of use."""
        kept = [self._still_useful(plans, bounds) for plans, bounds in tables]
        kept = [(plans, bounds) for plans, bounds in kept if len(plans)] or kept[:1]
        return concatenate([plans for plans, _ in kept]), np.concatenate([b for _, b in kept])

    def _still_useful(self, plans: Plans, bounds: Floats) -> tuple[Plans, Floats]:
        """The layouts that are below the limits as they are now."""
        useful = bounds < self.evaluator.objective.limits_s(plans)
        if useful.all():
            return plans, bounds
        self.evaluator.funnel.bounded += int(variant_counts(plans, self.space)[~useful].sum())
        rows = np.flatnonzero(useful)
        return plans.take(rows), bounds[rows]

    def _with_room(self, layouts: Plans) -> tuple[Plans, Floats]:
        """The layouts of which a variant may fit, and their bounds."""
        evaluator, room = self.evaluator, 1 - self.evaluator.margin
        offloaded = max(self.space.values("offload_optimizer_fraction") or (0.0,))
        kept, bounds = [], [np.zeros(0)]
        for at in range(0, len(layouts), LAYOUTS_PER_BLOCK):
            evaluator.limits.check()
            some = layouts.take(slice(at, at + LAYOUTS_PER_BLOCK))
            view = stage_view(some, evaluator.task)
            least = least_memory_fraction(view, evaluator.stack, offloaded)
            full = np.flatnonzero(least > room)
            if len(full):
                self._leave_overfull(some.take(full), least[full])
                view = view.take(np.flatnonzero(least <= room))
            kept.append(view.plans)
            work = stage_work(view, evaluator.stack, evaluator.cache)
            bounds.append(step_bound_s(view, stage_times(view, evaluator.stack, work)))
        return concatenate(kept) if kept else layouts, np.concatenate(bounds)

    def _leave_overfull(self, layouts: Plans, least: Floats) -> None:
        lost = int(variant_counts(layouts, self.space).sum())
        self.evaluator.funnel.out_of_memory += lost
        self.evaluator.funnel.priced += lost
        if not self.evaluator.objective.incumbents:  # else nobody asks what comes closest
            self.overfull.append((layouts, least))

    def _heuristic(self, layouts: Plans) -> None:
        """Simulate the best variant of each of these layouts, only to know a limit."""
        if not len(layouts):
            return
        evaluator, objective = self.evaluator, self.evaluator.objective
        plans = variants_of(layouts, self.space)
        plans = plans.take(np.flatnonzero(self._holds(plans)))
        if len(plans):
            found = evaluator.evaluate(plans)
            rows = np.flatnonzero(found.fits & (found.bound_s < objective.limits_s(plans)))
            rows = evaluator.in_ram(plans, rows)
            rows = rows[np.argsort(found.bound_s[rows], kind="stable")]
            keys = objective.keys(plans.take(rows))
            first = dict(zip(reversed(keys), rows[::-1], strict=True))
            some = np.array(sorted(first.values()), np.int64)
            self._simulate_useful(plans.take(some), found.bound_s[some])

    def _finish(self, waiting: Tables) -> None:
        """What is left, the most promising first, until no bound is below its limit."""
        if not waiting:
            return
        layouts, bounds = self._together(waiting)
        order = np.argsort(self.evaluator.objective.priority(layouts, bounds), kind="stable")
        start, size = 0, MAX_GROUP if self.has_limit else FIRST_GROUP
        while start < len(order):
            rows = order[start : start + size]
            some, least = self._still_useful(layouts.take(rows), bounds[rows])
            if len(some):
                self._look_at_variants(some, least)
            start, size = start + size, min(2 * size, MAX_GROUP)

    def _look_at_variants(self, layouts: Plans, bounds: Floats) -> None:
        """All variants of these layouts: rules, memory, bound, and simulation by bound."""
        evaluator, objective = self.evaluator, self.evaluator.objective
        plans = variants_of(layouts, self.space, self._fast_variants(layouts, bounds))
        if len(plans):
            plans = plans.take(evaluator.allowed(plans, rules=evaluator.variant_rules))
        if not len(plans):
            return
        found, funnel = evaluator.evaluate(plans), evaluator.funnel
        funnel.priced += len(plans)
        funnel.out_of_memory += int((~found.fits).sum())
        evaluator.remember_closest(plans, found.memory_fraction, found.fits)
        useful = np.flatnonzero(found.fits & (found.bound_s < objective.limits_s(plans)))
        rows = evaluator.in_ram(plans, useful)
        funnel.out_of_memory += len(useful) - len(rows)
        rows = rows[np.argsort(objective.priority(plans, found.bound_s)[rows], kind="stable")]
        for start in range(0, len(rows), PLANS_PER_BLOCK):
            some = rows[start : start + PLANS_PER_BLOCK]
            some = some[found.bound_s[some] < objective.limits_s(plans.take(some))]
            if len(some):
                self._simulate_useful(plans.take(some), found.bound_s[some])

    def _fast_variants(self, layouts: Plans, bounds: Floats) -> Variants:
        """Those below the limits, by what they add to the bounds of their layouts."""
        evaluator = self.evaluator
        found = variants_in(layouts, self.space)
        limits = evaluator.objective.limits_s(layouts)
        if np.isinf(limits).all():
            return found
        added = variant_added_s(layouts, found, evaluator.task, evaluator.stack, evaluator.cache)
        least = (bounds[found.rows] + added) * (1 - REL_EPS)
        useful = np.flatnonzero(least < limits[found.rows])
        evaluator.funnel.bounded += len(found) - len(useful)
        return found.take(useful)

    def _simulate_useful(self, plans: Plans, bounds: Floats) -> None:
        """Of each key the most promising first: it may spare the others."""
        evaluator, objective = self.evaluator, self.evaluator.objective
        tight = tight_bound_s(plans, evaluator.task, evaluator.stack, evaluator.cache)
        bounds = np.maximum(bounds, tight)
        keys = objective.keys(plans)
        rows = [int(row) for row in np.argsort(bounds, kind="stable")]
        size = 1
        while rows := self._below_limits(plans, keys, rows, bounds):
            first = {keys[row]: row for row in reversed(rows)}
            chosen = objective.promising(plans, first, bounds)
            if not chosen:  # below their limits by less than hours and dollars are rounded
                return
            chosen = sorted({*chosen, *rows[:size]})  # side by side they cost less
            before_s = objective.limit_s
            evaluator.simulate(plans.take(chosen))
            size = 1 if objective.limit_s < before_s else min(2 * size, MAX_SIMULATED)
            rows = [row for row in rows if row not in chosen]

    def _below_limits(
        self, plans: Plans, keys: list[Key], rows: list[int], bounds: Floats
    ) -> list[int]:
        """Without the plans that cannot beat their limit, nor the best known of their key."""
        objective = self.evaluator.objective
        best = {key: step for step, key, _ in objective.incumbents}
        limits = objective.limits_s(plans) * (1 - REL_EPS)
        known = {key: best.get(key, np.inf) * (1 - REL_EPS) for key in keys}
        return [row for row in rows if bounds[row] < min(limits[row], known[keys[row]])]

    def _look_closer(self) -> None:
        """Nothing fits: of the layouts that were left out, some variant may come closest."""
        if not self.overfull:
            return
        evaluator = self.evaluator
        layouts = concatenate([plans for plans, _ in self.overfull])
        least = np.concatenate([part for _, part in self.overfull])
        order = np.argsort(least, kind="stable")
        for start in range(0, len(order), FIRST_GROUP):
            rows = order[start : start + FIRST_GROUP]
            rows = rows[least[rows] < evaluator.closest[0]]
            if not len(rows):
                return
            plans = variants_of(layouts.take(rows), self.space)
            plans = plans.take(np.flatnonzero(self._holds(plans)))
            if len(plans):
                fraction = _memory_fraction(plans, evaluator)
                evaluator.remember_closest(plans, fraction, fraction <= 1 - evaluator.margin)


def _memory_fraction(plans: Plans, evaluator: Evaluator) -> Floats:
    view = stage_view(plans, evaluator.task)
    return memory_fraction(view, memory_of(view, evaluator.stack), evaluator.stack)


def any_fits(space: Space, evaluator: Evaluator) -> bool:
    """Whether a plan of the space fits, whatever it takes: memory alone is asked."""
    for layouts in enumerate_layouts(space):
        layouts = layouts.take(evaluator.allowed(layouts, variant_counts(layouts, space)))
        for at in range(0, len(layouts), MAX_GROUP):
            plans = variants_of(layouts.take(slice(at, at + MAX_GROUP)), space)
            plans = plans.take(evaluator.allowed(plans))
            fits = _memory_fraction(plans, evaluator) <= 1 - evaluator.margin
            if len(evaluator.in_ram(plans, np.flatnonzero(fits))):
                return True
    return False


def search_fastest(
    query: Query,
    limits: Limits | None = None,
    seeds: Sequence[Plans] = (),
    is_alone: bool = False,
) -> Evaluator:
    """The fastest plans of a query on one GPU type, as the evaluator has kept them.

    `is_alone`: no other plans are wanted.
    """
    evaluator = evaluator_of(query, Fastest(query.top, query.fold), limits)
    evaluator.is_alone = is_alone
    evaluator.run(OneType(query.space, seeds).search)
    return evaluator
