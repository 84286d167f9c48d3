"""The best plans of a space, exactly: bound every layout, simulate what can still win."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astra.cost.evaluate import evaluate, least_memory_fraction, memory_fraction, simulate
from astra.cost.host import host_bytes_per_node, is_offloading, pool_usable_ram_bytes
from astra.hardware.stack import Stack
from astra.memory.stage import memory_of
from astra.search.result import Funnel, Progress
from astra.strategy.enumerate import Layouts, enumerate_layouts
from astra.strategy.plans import Flags, Floats, Ints, Plans, concatenate
from astra.strategy.rules.registry import rules_for
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space
from astra.strategy.stage_view import StageView, stage_view, without_layers
from astra.strategy.variants import (
    Variants,
    depends_on_variant,
    variant_counts,
    variants_in,
    variants_of,
)
from astra.timing.layer import LayerCache, Work, cached_layer_rows, work_of
from astra.timing.plan_bounds import (
    fill_bound_s,
    step_bound_s,
    tight_bound_s,
    variant_added_s,
    work_bound_s,
)
from astra.timing.stage import stage_times, stage_work

SCOUTED = 32  # layouts of a table that are tried at once, for a time to beat
FIRST = 1 << 10  # layouts of the first table: enough to learn what to beat
ENOUGH = 1 << 12  # layouts worth bounding together
GROUP = 256  # layouts whose variants are looked at together at first
MOST_GROUP = 1024  # and in the end
BATCH = 512  # plans that are bounded tightly together
SAME = 1e-12  # relative; steps that differ by rounding alone

Key = tuple[int, ...]
Found = tuple[float, int, Key, Plans]  # step, order of finding, kind, one plan


@dataclass(frozen=True, slots=True)
class Best:
    """The best plans found, and what came closest to fitting."""

    plans: Plans | None  # best first
    step_s: Floats
    funnel: Funnel
    closest: Plans | None  # the plan that overflows its GPUs least, where none fits
    closest_filled: float
    least_host: tuple[float, Plans | None] = (np.inf, None)  # that fits but for a node's RAM


def families_of(plans: Plans) -> list[Key]:
    """What makes two plans different in kind: degrees, micro-batch, sharding, traffic."""
    columns = (plans.tp[0, 0], plans.pp[0], plans.dp[0, 0], plans.cp, plans.ep, plans.etp)
    more = (plans.micro_batch, plans.sharding)
    return list(zip(*(column.tolist() for column in (*columns, *more)), strict=True))


def identity_of(plans: Plans, row: int) -> Key:
    """All columns of one plan: equal for no two plans of a space."""
    used = plans.used[..., row]  # tables differ in how many slots they leave unused
    values = [column[..., row] for column in plans.columns().values()]
    return tuple(hash((v[used] if v.ndim == 2 else v).tobytes()) for v in values)


def _slices(layouts: Plans, size: int = ENOUGH) -> list[Plans]:
    """Few enough at a time that stages and chunks of all of them stay small."""
    return [layouts.take(slice(at, at + size)) for at in range(0, len(layouts), size)]


class Finder:
    """One search: the K best so far, and the time that a plan must beat."""

    group = GROUP
    ceiling_s = np.inf  # a step that others are known to reach

    def __init__(
        self,
        space: Space,
        rules: Sequence[Rule],
        stack: Stack,
        top: int,
        margin: float,
        fold: bool = False,
    ) -> None:
        self.space, self.rules, self.stack = space, rules, stack
        self.fold = fold  # of plans that differ only in chunks, splits, recompute: the best one
        self.task = space.workload.task
        built_in = rules_for(self.task.runtime)
        # Rules that may hold for a layout and not for each of its variants.
        self.about_variants = [r for r in rules if r not in built_in or depends_on_variant(r)]
        self.top, self.margin = top, margin
        self.funnel = Funnel()
        self.book = LayerCache()
        self.layer = np.zeros(0, np.int32)  # of every cut, its row in the book
        self.work = Work(*np.zeros((3, 0)))  # and what its rows say
        self.found: list[Found] = []
        self.overfull: list[tuple[Plans, Floats]] = []  # layouts of which no variant can fit
        self.closest: tuple[float, Plans | None] = (np.inf, None)
        # Of a node's RAM, for what plans offload; infinite where nobody knows it.
        self.room_bytes = pool_usable_ram_bytes(self.task.cluster.pools)
        self.least_host: tuple[float, Plans | None] = (np.inf, None)  # that is too much for it

    @property
    def limit_s(self) -> float:
        """The K-th best step, or what was known before: what takes longer is of no use."""
        worst = self.found[self.top - 1][0] if len(self.found) >= self.top else np.inf
        return min(worst, self.ceiling_s)

    def limits_s(self, plans: Plans) -> Floats | float:  # noqa: ARG002
        """What the step of each of these plans must beat."""
        return self.limit_s

    def urgency(self, plans: Plans, bounds: Floats) -> Floats:  # noqa: ARG002
        """Plans of small numbers are looked at first."""
        return bounds

    def run(self, progress: Progress | None = None) -> Best:
        """Bound all cuts, then their layouts, the most promising cuts first; then the rest."""
        layouts = Layouts(self.space)
        return self._search(layouts, self._least_s(layouts), progress)

    def _search(self, layouts: Layouts, least: Floats, progress: Progress | None) -> Best:
        order = self._order(layouts, least)
        ahead: list[tuple[Plans, Floats]] = []  # layouts of cuts that can win, not yet bounded
        waiting: list[tuple[Plans, Floats]] = []  # layouts that can win
        for cuts, table in layouts.tables(order, FIRST, self._wanted(layouts)):
            first = int(np.searchsorted(layouts.starts, cuts[0], side="right")) - 1
            if self._hopeless(float(least[first])):
                self._leave(layouts, order, first)
                break
            counts = variant_counts(table, self.space)
            self.funnel.candidates += int(counts.sum())
            allowed, bounds = self._judge(table, counts), self._sharper_s(table, cuts)
            useful = np.flatnonzero(allowed & (bounds < self.limits_s(table)))
            self.funnel.bounded += int(counts[allowed].sum() - counts[useful].sum())
            ahead.append((table.take(useful), bounds[useful]))
            if np.isinf(self.limit_s) or sum(len(plans) for plans, _ in ahead) > ENOUGH:
                waiting.append(self._open(ahead))
                ahead = []
            if progress:
                progress(self.funnel.candidates)
        if ahead:
            waiting.append(self._open(ahead))
        self._finish(waiting)
        if not self.found:
            self._look_closer()
        return self._best()

    def _sharper_s(self, layouts: Plans, cuts: Ints) -> Floats:
        """Bounds of layouts: those of their cuts, or the time that filling a pipeline takes."""
        rows = self.layer[cuts]
        layer, head = self.work.layer_s[rows], self.work.head_s[rows]
        filled = fill_bound_s(layouts, layer, head, self.stack) * (1 - SAME)
        return np.maximum(self._of_cuts_s(layouts, cuts), filled)

    def _of_cuts_s(self, layouts: Plans, cuts: Ints) -> Floats:
        """The bound of the cut of each of these layouts."""
        work = self.work.total_s[self.layer[cuts]]
        return work_bound_s(layouts.micro_batches[0], layouts.pp[0], work)

    def _wanted(self, layouts: Layouts) -> Flags | None:  # noqa: ARG002
        """(cut,) The cuts to look at; None: all of them, if only to count them."""
        return None

    def _hopeless(self, least_s: float) -> bool:  # noqa: ARG002
        """Whether degrees from this bound on are not worth laying out, not even to count them."""
        return False

    def _leave(self, layouts: Layouts, order: Ints, first: int) -> None:
        """Degrees from this one on are left out: too slow, whatever their layout."""

    def _order(self, layouts: Layouts, least_s: Floats) -> Ints:  # noqa: ARG002
        """Degrees, the most promising first."""
        return np.argsort(least_s, kind="stable")

    def _least_s(self, layouts: Layouts) -> Floats:
        """(degrees,) How much work the least of their cuts is at least.

        Cuts by the million share some thousand layers: what is kept of each is its layer.
        """
        views = (without_layers(plans, self.task) for plans in layouts.option_tables())
        self.layer = np.zeros(int(layouts.counts.sum()), np.int32)
        found = cached_layer_rows(views, self.stack, self.book)
        for (_, cuts), rows in zip(layouts.blocks(), found, strict=True):
            self.layer[cuts] = rows[0, 0]
        self._look_up()
        work = layouts.least_over_options(lambda cuts: self.work.total_s[self.layer[cuts]])
        return work_bound_s(layouts.micro_batches, layouts.stages, work)

    def _look_up(self) -> None:
        """What the book says of all its rows, once every cut has one."""
        rows = np.arange(len(self.book.rows), dtype=np.int32)
        if len(rows):
            self.work = work_of(self.book, self.task.model, rows)

    def any_fits(self) -> bool:
        """Whether a plan of the space fits, whatever it takes: memory alone is asked."""
        for layouts in enumerate_layouts(self.space):
            layouts = layouts.take(self._judge(layouts, variant_counts(layouts, self.space)))
            for some in _slices(layouts, MOST_GROUP):
                plans = variants_of(some, self.space)
                plans = plans.take(self._judge(plans, np.ones(len(plans), np.int64)))
                view = stage_view(plans, self.task)
                filled = memory_fraction(view, memory_of(view, self.stack), self.stack)
                if len(self._hosted(plans, np.flatnonzero(filled <= 1 - self.margin))):
                    return True
        return False

    def _judge(self, layouts: Plans, counts: Ints, rules: Sequence[Rule] | None = None) -> Flags:
        """Which layouts may stay; a layout counts with all its variants."""
        allowed = np.ones(len(layouts), np.bool_)
        for rule in self.rules if rules is None else rules:
            held = rule.holds(layouts, self.task)
            lost = int(counts[allowed & ~held].sum())
            if lost:
                self.funnel.remove(rule.name, lost)
                allowed &= held
        return allowed

    def _open(self, ahead: list[tuple[Plans, Floats]]) -> tuple[Plans, Floats]:
        """Bound layouts, try the best few, and keep those that can still win."""
        layouts, bounds = self._roomy(self._together(ahead)[0])
        order = np.argsort(self.urgency(layouts, bounds), kind="stable")
        useful = bounds < self.limits_s(layouts)
        self._scout(layouts.take(self._scouted(layouts, order[useful[order]])))
        return self._still(layouts, bounds)

    def _bounds(self, view: StageView) -> Floats:
        shared = stage_work(view, self.stack, self.book)
        return step_bound_s(view, stage_times(view, self.stack, shared))

    def _together(self, tables: list[tuple[Plans, Floats]]) -> tuple[Plans, Floats]:
        """Those of several tables that can still win."""
        kept = [self._still(plans, bounds) for plans, bounds in tables]
        kept = [(plans, bounds) for plans, bounds in kept if len(plans)] or kept[:1]
        return concatenate([plans for plans, _ in kept]), np.concatenate([b for _, b in kept])

    def _roomy(self, layouts: Plans) -> tuple[Plans, Floats]:
        """The layouts of which a variant may fit, and their bounds."""
        offloaded = max(self.space.values("offload_optimizer_fraction") or (0.0,))
        kept, bounds = [], [np.zeros(0)]
        for some in _slices(layouts):
            view = stage_view(some, self.task)
            least = least_memory_fraction(view, self.stack, offloaded)
            roomy = np.flatnonzero(least <= 1 - self.margin)
            if len(roomy) < len(some):
                full = np.flatnonzero(least > 1 - self.margin)
                self._overfull(some.take(full), least[full])
                view = view.take(roomy)
            kept.append(view.plans)
            bounds.append(self._bounds(view))
        return concatenate(kept) if kept else layouts, np.concatenate(bounds)

    def _overfull(self, layouts: Plans, least: Floats) -> None:
        lost = int(variant_counts(layouts, self.space).sum())
        self.funnel.out_of_memory += lost
        self.funnel.priced += lost
        if not self.found:  # once something fits, nobody asks what comes closest to it
            self.overfull.append((layouts, least))

    def _scouted(self, layouts: Plans, order: Ints) -> Ints:
        """The first few layouts, each of another kind."""
        ahead = order[: SCOUTED * SCOUTED]
        keys = self._keys(layouts.take(ahead))
        first = {key: int(row) for key, row in zip(reversed(keys), ahead[::-1], strict=True)}
        return np.array(sorted(first.values(), key=list(ahead).index)[:SCOUTED], np.int64)

    def _scout(self, layouts: Plans) -> None:
        """Simulate the best variant of each of these layouts, only to know a time to beat."""
        if not len(layouts):
            return
        plans = variants_of(layouts, self.space)
        allowed = np.logical_and.reduce([rule.holds(plans, self.task) for rule in self.rules])
        plans = plans.take(np.flatnonzero(allowed))
        if len(plans):
            bulk = evaluate(plans, self.task, self.stack, self.margin, self.book)
            rows = np.flatnonzero(bulk.fits & (bulk.bound_s < self.limits_s(plans)))
            rows = self._hosted(plans, rows)
            rows = rows[np.argsort(bulk.bound_s[rows], kind="stable")]
            keys = self._keys(plans.take(rows))
            first = dict(zip(reversed(keys), rows[::-1], strict=True))
            some = np.array(sorted(first.values()), np.int64)
            self._simulate_useful(plans.take(some), bulk.bound_s[some])

    def _finish(self, waiting: list[tuple[Plans, Floats]]) -> None:
        """What is left, the most promising first, until no bound beats the K-th best."""
        if not waiting:
            return
        layouts, bounds = self._together(waiting)
        order = np.argsort(self.urgency(layouts, bounds), kind="stable")
        start, size = 0, self.group
        while start < len(order):
            rows = order[start : start + size]
            some, least = self._still(layouts.take(rows), bounds[rows])
            if len(some):
                self._variants(some, least)
            start, size = start + size, min(2 * size, MOST_GROUP)

    def _still(self, plans: Plans, bounds: Floats) -> tuple[Plans, Floats]:
        """The layouts that can beat the K-th best as it is now."""
        useful = bounds < self.limits_s(plans)
        if useful.all():
            return plans, bounds
        self.funnel.bounded += int(variant_counts(plans, self.space)[~useful].sum())
        rows = np.flatnonzero(useful)
        return plans.take(rows), bounds[rows]

    def _variants(self, layouts: Plans, bounds: Floats) -> None:
        """All variants of these layouts: rules, memory, bound, and simulation by bound."""
        plans = variants_of(layouts, self.space, self._fast(layouts, bounds))
        if len(plans):
            ones = np.ones(len(plans), np.int64)
            plans = plans.take(self._judge(plans, ones, self.about_variants))
        if not len(plans):
            return
        bulk = evaluate(plans, self.task, self.stack, self.margin, self.book)
        self.funnel.priced += len(plans)
        self.funnel.out_of_memory += int((~bulk.fits).sum())
        self._remember_closest(plans, bulk.memory_fraction, bulk.fits)
        useful = np.flatnonzero(bulk.fits & (bulk.bound_s < self.limits_s(plans)))
        rows = self._hosted(plans, useful)
        self.funnel.out_of_memory += len(useful) - len(rows)
        rows = rows[np.argsort(self.urgency(plans, bulk.bound_s)[rows], kind="stable")]
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            some = some[bulk.bound_s[some] < self.limits_s(plans.take(some))]
            if len(some):
                self._simulate_useful(plans.take(some), bulk.bound_s[some])

    def _hosted(self, plans: Plans, rows: Ints) -> Ints:
        """Of these rows those whose offload the RAM of a node holds."""
        if not np.isfinite(self.room_bytes) or not is_offloading(plans)[rows].any():
            return rows
        need = host_bytes_per_node(plans.take(rows), self.task, self.stack)
        over = np.where(need > self.room_bytes, need, np.inf)
        least = int(over.argmin())
        if over[least] < self.least_host[0]:
            self.least_host = (float(over[least]), plans.take(rows[[least]]))
        kept: Ints = rows[need <= self.room_bytes]
        return kept

    def _fast(self, layouts: Plans, bounds: Floats) -> Variants:
        """Those that may beat the K-th best, by what they add to the bounds of their layouts."""
        found = variants_in(layouts, self.space)
        limits = np.broadcast_to(self.limits_s(layouts), len(layouts))
        if np.isinf(limits).all():
            return found
        added = variant_added_s(layouts, found, self.task, self.stack, self.book)
        least = (bounds[found.rows] + added) * (1 - SAME)
        useful = np.flatnonzero(least < limits[found.rows])
        self.funnel.bounded += len(found) - len(useful)
        return found.take(useful)

    def _simulate_useful(self, plans: Plans, bounds: Floats) -> None:
        """Of each kind of plan the most promising first: it may spare the others."""
        bounds = np.maximum(bounds, tight_bound_s(plans, self.task, self.stack, self.book))
        keys = self._keys(plans)
        rows = [int(row) for row in np.argsort(bounds, kind="stable")]
        while rows := self._unmatched(plans, keys, rows, bounds):
            chosen = self._next(plans, keys, rows, bounds)
            if not chosen:  # below their limits by less than hours and dollars are rounded
                return
            self._simulate(plans.take(chosen))
            rows = [row for row in rows if row not in chosen]

    def _next(self, plans: Plans, keys: list[Key], rows: list[int], bounds: Floats) -> list[int]:
        """Which of these rows, the most promising first, to simulate now."""
        first = {keys[row]: row for row in reversed(rows)}
        return self._promising(plans, first, bounds)

    def _promising(
        self,
        plans: Plans,  # noqa: ARG002
        first: dict[Key, int],
        bounds: Floats,
    ) -> list[int]:
        """Rows that would be among the K best if all were as fast as their bounds."""
        known = {key: step for step, _, key, _ in self.found}
        for key, row in first.items():
            known[key] = min(float(bounds[row]), known.get(key, np.inf))
        limit = sorted(known.values())[: self.top][-1]
        return sorted(row for row in first.values() if bounds[row] <= limit)

    def _keys(self, plans: Plans) -> list[Key]:
        """What counts as one plan: its kind where near-identical ones are folded."""
        if self.fold:
            return families_of(plans)
        return [identity_of(plans, row) for row in range(len(plans))]

    def _unmatched(
        self, plans: Plans, keys: list[Key], rows: list[int], bounds: Floats
    ) -> list[int]:
        """Without the plans that cannot beat the K-th best, nor one of their kind, as known."""
        best = {key: step for step, _, key, _ in self.found}
        limits = np.broadcast_to(self.limits_s(plans), len(plans))
        known = [min(float(limits[row]), best.get(keys[row], np.inf)) for row in rows]
        return [
            row for row, step in zip(rows, known, strict=True) if bounds[row] < step * (1 - SAME)
        ]

    def _simulate(self, plans: Plans) -> None:
        steps = simulate(plans, self.task, self.stack, self.book)
        count = self.funnel.simulated
        self.funnel.simulated += len(plans)
        keys = self._keys(plans)
        new = [
            (float(step), count + row, keys[row], plans.take([row]))
            for row, step in enumerate(steps)
        ]
        ranked = sorted(self.found + new, key=lambda entry: entry[:2])
        first = {entry[2]: entry for entry in reversed(ranked)}
        self._keep(sorted(first.values(), key=lambda entry: entry[:2]))

    def _keep(self, found: list[Found]) -> None:
        """The best plans of those found, fastest first and of one kind each."""
        self.found = found[: self.top]

    def _look_closer(self) -> None:
        """Nothing fits: of the layouts that were left out, some variant may come closest."""
        if not self.overfull:
            return
        layouts = concatenate([plans for plans, _ in self.overfull])
        least = np.concatenate([part for _, part in self.overfull])
        order = np.argsort(least, kind="stable")
        for start in range(0, len(order), GROUP):
            rows = order[start : start + GROUP]
            rows = rows[least[rows] < self.closest[0]]
            if not len(rows):
                return
            plans = variants_of(layouts.take(rows), self.space)
            allowed = np.logical_and.reduce([rule.holds(plans, self.task) for rule in self.rules])
            plans = plans.take(np.flatnonzero(allowed))
            if len(plans):
                view = stage_view(plans, self.task)
                filled = memory_fraction(view, memory_of(view, self.stack), self.stack)
                self._remember_closest(plans, filled, filled <= 1 - self.margin)

    def _remember_closest(self, plans: Plans, filled: Floats, fits: Flags) -> None:
        if not fits.any() and float(filled.min()) < self.closest[0]:
            row = int(filled.argmin())
            self.closest = (float(filled[row]), plans.take([row]))

    def _best(self) -> Best:
        plans = concatenate([plan for *_, plan in self.found]) if self.found else None
        steps = np.array([step for step, *_ in self.found])
        host = (np.inf, None) if self.found else self.least_host
        return Best(plans, steps, self.funnel, self.closest[1], self.closest[0], host)
