"""All plans on one GPU type, proven: bound every layout, simulate what can still win.

Degrees with an option are bounded first, then their layouts, then the variants of these, the most
promising first; each only takes longer than what it is made of. What is left out was counted.
"""

import numpy as np

from astra.columns import REL_EPS
from astra.cost.evaluate import least_memory_fraction, plans_memory_fraction
from astra.search.evaluator import Evaluator, Limits, evaluator_of
from astra.search.objective import Fastest, LeastExpected
from astra.search.query import Query
from astra.strategy.enumerate import Layouts, enumerate_layouts
from astra.strategy.plans import Flags, Floats, Ints, Plans, concatenate
from astra.strategy.space import Space
from astra.strategy.stage_view import StageView, stage_view, without_layers
from astra.strategy.variants import offloading_more, plan_count, variant_counts, variants_of
from astra.timing.layer import Work, cached_layer_rows, work_of
from astra.timing.plan_bounds import fill_bound_s, step_bound_s, work_bound_s
from astra.timing.stage import stage_times, stage_work

FIRST_LAYOUTS = 1 << 10  # of the first table: enough to learn what to beat
LAYOUTS_PER_BLOCK = 1 << 12  # worth bounding together
HEURISTIC_LAYOUTS = 32  # that are tried at once, for a time to beat
FIRST_GROUP = 256  # layouts whose variants are looked at together at first
MAX_GROUP = 1024  # and in the end
MIN_SIMULATED = 4  # plans that are simulated together: a call costs as much as three more
MAX_SIMULATED = 16  # and where none of the last was better

Tables = list[tuple[Plans, Floats]]  # plans and their bounds


def _layer_work(evaluator: Evaluator) -> Work:
    """What every layer in the cache takes."""
    rows = np.arange(len(evaluator.cache.rows), dtype=np.int32)
    if not len(rows):
        return Work(*np.zeros((3, 0)))
    return work_of(evaluator.cache, evaluator.task.model, rows)


class OneType:
    """The plans of a space on one GPU type."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.overfull: Tables = []  # layouts of which no variant can fit, least memory fractions

    def search(self, evaluator: Evaluator) -> None:
        """Looks at all plans that can be of use: nothing is left open."""
        self.evaluator, self.layouts = evaluator, Layouts(self.space)
        self.layer = self._option_layers()
        self.work = _layer_work(evaluator)
        self._finish(self._useful_layouts())
        if not evaluator.objective.incumbents:
            self._look_closer()

    def _option_layers(self) -> Ints:
        """(option,) Rows of the cache: options by the million share some thousand layers."""
        evaluator, layouts = self.evaluator, self.layouts

        def view(plans: Plans) -> StageView:
            evaluator.limits.check()
            return without_layers(plans, evaluator.task)

        views = map(view, layouts.option_tables())
        rows = cached_layer_rows(views, evaluator.stack, evaluator.cache)
        return np.concatenate([np.zeros(0, np.int32), *(each[0, 0] for each in rows)])

    def _useful_layouts(self) -> Tables:
        """The layouts that can be of use, with their bounds; fast degrees first."""
        evaluator, objective, layouts = self.evaluator, self.evaluator.objective, self.layouts
        least_s = layouts.least_over_options(lambda some: self.work.total_s[self.layer[some]])
        bound_s = work_bound_s(layouts.micro_batches, layouts.stages, least_s)
        evaluator.least_s = float(bound_s.min(initial=np.inf))
        order = np.argsort(bound_s, kind="stable")
        useful = bound_s[order] < objective.limits_of_counts_s(layouts.gpus[order])
        self._leave(plan_count(layouts, order[~useful]))
        order = order[useful]
        ahead: Tables = []  # layouts that can be of use, not yet bounded by stages
        waiting: Tables = []  # layouts that can be of use
        for options, table in layouts.tables(order, FIRST_LAYOUTS):
            first = int(np.searchsorted(layouts.starts, options[0], side="right")) - 1
            if bound_s[first] >= objective.limit_s:  # all that follow are too slow
                self._leave(plan_count(layouts, order[np.flatnonzero(order == first)[0] :]))
                break
            counts = variant_counts(table, self.space)
            evaluator.funnel.candidates += int(counts.sum())
            evaluator.limits.looked_at(int(counts.sum()))
            allowed, bounds = evaluator.allowed(table, counts), self._layout_bound_s(table, options)
            rows = np.flatnonzero(allowed & (bounds < objective.limits_s(table)))
            evaluator.funnel.bounded += int(counts[allowed].sum() - counts[rows].sum())
            ahead.append((table.take(rows), bounds[rows]))
            if np.isinf(objective.limit_s) or sum(len(t) for t, _ in ahead) > LAYOUTS_PER_BLOCK:
                waiting.append(self._open(ahead))
                ahead = []
        return [*waiting, self._open(ahead)] if ahead else waiting

    def _leave(self, unseen: int) -> None:
        """So many plans are too slow, whatever their layout; rules left aside."""
        self.evaluator.funnel.candidates += unseen
        self.evaluator.funnel.bounded += unseen

    def _holds(self, plans: Plans) -> Flags:
        """Which plans the rules allow, not counted."""
        rules, task = self.evaluator.rules, self.evaluator.task
        return np.logical_and.reduce([rule.holds(plans, task) for rule in rules])

    def _layout_bound_s(self, layouts: Plans, options: Ints) -> Floats:
        """The busiest stage does no less than the mean; or what filling a pipeline takes."""
        rows, work = self.layer[options], self.work
        busy = work_bound_s(layouts.micro_batches[0], layouts.pp[0], work.total_s[rows])
        fill = fill_bound_s(layouts, work.layer_s[rows], work.head_s[rows], self.evaluator.stack)
        return np.maximum(busy, fill * (1 - REL_EPS))

    def _open(self, ahead: Tables) -> tuple[Plans, Floats]:
        """Bound layouts by their stages, try the best few, and keep those that can be of use."""
        objective = self.evaluator.objective
        layouts, bounds = self._with_room(self._together(ahead)[0])
        useful = np.flatnonzero(bounds < objective.limits_s(layouts))
        best = useful[np.argsort(bounds[useful], kind="stable")][: HEURISTIC_LAYOUTS**2]
        keys = objective.keys(layouts.take(best))
        first = dict(zip(reversed(keys), best[::-1].tolist(), strict=True))  # of each key
        rows = sorted(first.values(), key=lambda row: bounds[row])[:HEURISTIC_LAYOUTS]
        self._heuristic(layouts.take(np.array(rows, np.int64)))
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
        evaluator, objective = self.evaluator, self.evaluator.objective
        plans = variants_of(layouts, self.space, least_offload=True)
        plans = plans.take(np.flatnonzero(self._holds(plans)))
        found = evaluator.evaluate(plans)
        if not found.fits.any():
            plans = offloading_more(plans, found.least_offload, self.space)
            plans = plans.take(np.flatnonzero(self._holds(plans)))
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
        order = np.argsort(bounds, kind="stable")
        start, size = 0, FIRST_GROUP
        while start < len(order):
            rows = order[start : start + size]
            some, _ = self._still_useful(layouts.take(rows), bounds[rows])
            if len(some):
                self._look_at_variants(some)
            start, size = start + size, min(2 * size, MAX_GROUP)

    def _look_at_variants(self, layouts: Plans) -> None:
        """All variants of these layouts. A larger part of the optimizer on the host never takes
        less: the least is looked at, the least that fits, and the most where rules refuse that.
        """
        plans = variants_of(layouts, self.space, least_offload=True)
        unseen = int(variant_counts(layouts, self.space).sum()) - len(plans)
        plans, least = self._look_at(plans)
        if self.evaluator.objective.incumbents:  # else nobody asks what comes closest
            plans, least = plans.take(np.flatnonzero(least <= 1)), least[least <= 1]
        plans, _ = self._look_at(fitting := offloading_more(plans, least, self.space))
        self._look_at(most := offloading_more(plans, np.full(len(plans), np.inf), self.space))
        self.evaluator.funnel.bounded += unseen - len(fitting) - len(most)

    def _look_at(self, plans: Plans) -> tuple[Plans, Floats]:
        """Rules, memory, bound, and simulation by bound: those that a rule refuses, or that are
        below the limit and do not fit, and the part of the optimizer to offload so that they do.
        """
        evaluator, objective = self.evaluator, self.evaluator.objective
        allowed = evaluator.allowed(plans, rules=evaluator.variant_rules)
        refused, plans = plans.take(np.flatnonzero(~allowed)), plans.take(np.flatnonzero(allowed))
        if not len(plans):
            return refused, np.zeros(len(refused))
        found, funnel = evaluator.evaluate(plans), evaluator.funnel
        funnel.priced += len(plans)
        funnel.out_of_memory += int((~found.fits).sum())
        evaluator.remember_closest(plans, found.memory_fraction, found.fits)
        useful = np.flatnonzero(found.fits & (found.bound_s < objective.limits_s(plans)))
        rows = evaluator.in_ram(plans, useful)
        funnel.out_of_memory += len(useful) - len(rows)
        self._simulate_useful(plans.take(rows), found.bound_s[rows])
        left = np.flatnonzero(~found.fits & (found.bound_s < objective.limits_s(plans)))
        least = np.append(np.zeros(len(refused)), found.least_offload[left])
        return concatenate([refused, plans.take(left)]), least

    def _simulate_useful(self, plans: Plans, bounds: Floats) -> None:
        """The most promising first: they may spare the others, by the limit or as of one key."""
        evaluator, objective = self.evaluator, self.evaluator.objective
        rows, keys = np.argsort(bounds, kind="stable"), objective.keys(plans)
        size = MIN_SIMULATED
        weight = objective.weights(plans)
        while True:
            best = {key: step for step, key, _ in objective.incumbents}
            known = np.array([best.get(key, np.inf) for key in keys]) / weight
            limits = np.minimum(objective.limits_s(plans), known) * (1 - REL_EPS)
            rows, before_s = rows[bounds[rows] < limits[rows]], objective.limit_s
            if not len(rows):
                return
            evaluator.simulate(plans.take(rows[:size]))
            rows = rows[size:]
            is_better = objective.limit_s < before_s
            size = MIN_SIMULATED if is_better else min(2 * size, MAX_SIMULATED)

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
                fraction = plans_memory_fraction(plans, evaluator.task, evaluator.stack)
                evaluator.remember_closest(plans, fraction, fraction <= 1 - evaluator.margin)


def any_fits(space: Space, evaluator: Evaluator) -> bool:
    """Whether a plan of the space fits, whatever it takes: memory alone is asked."""
    for layouts in enumerate_layouts(space):
        layouts = layouts.take(evaluator.allowed(layouts, variant_counts(layouts, space)))
        for at in range(0, len(layouts), MAX_GROUP):
            plans = variants_of(layouts.take(slice(at, at + MAX_GROUP)), space)
            plans = plans.take(evaluator.allowed(plans))
            fits = (
                plans_memory_fraction(plans, evaluator.task, evaluator.stack)
                <= 1 - evaluator.margin
            )
            if len(evaluator.in_ram(plans, np.flatnonzero(fits))):
                return True
    return False


def objective_of(query: Query) -> Fastest:
    """What is wanted of plans on one GPU type."""
    if query.risk == "none":
        return Fastest(query.top, query.fold, query.faster_than_s)
    return LeastExpected(query.top, query.fold, gpus=query.cluster.pools[0].count)


def search_best(query: Query, limits: Limits | None = None) -> Evaluator:
    """The best plans of a query on one GPU type, as the evaluator has kept them."""
    evaluator = evaluator_of(query, objective_of(query), limits)
    evaluator.run(OneType(query.space).search)
    return evaluator
