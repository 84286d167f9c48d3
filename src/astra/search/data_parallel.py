"""Data parallelism over GPU types whose replica groups have cuts of their own: runtime `any`.

For a time T every cut of a type does so many micro-batches. The least T at which one cut of each
type, or none, together do the batch is a bound. The cuts that do most a little above it are
combined, the batch is split among them, and what comes of it is simulated as a whole plan.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from astra.columns import REL_EPS
from astra.search.evaluator import Evaluator
from astra.search.group_cuts import CutSource, GroupCuts
from astra.strategy.plans import Floats, Ints
from astra.strategy.replica_groups import combined_plans
from astra.strategy.space import Space, Workload

TOKENS_PER_CP_RANK = 4096  # fewer are tried only where cp is asked for
LIMITS = (1.06, 1.12, 1.2, 1.3, 1.45, 1.7, 2.2, 3.0, 8.0, np.inf)  # times the first bound
RISES = (0.0, 0.01, 0.04, 0.16, 0.64)  # above the bound, where plans are looked for
BOUND_TOLERANCE = 1e-4  # relative
MAX_KEYS = 16  # shared choices that are looked at below each rise
CUTS_PER_TYPE = 4  # that are combined, and twice as many on other numbers of GPUs
MAX_PRODUCT = 4096  # combinations of these
MAX_COMBINATIONS = 48  # simulated of one shared choice; fewer where there are many choices
TIMES = 4  # for which the batch is split: the least, and when some group has time for more

Group = tuple[int, int, int]  # a cut, replicas and their micro-batches


class ReplicaGroups:
    """Plans whose replica groups lie on one GPU type each, with tp, stages, layers, experts, whole
    recomputed layers, replicas and micro-batches of their own; the rest is one for all.
    """

    def __init__(self, space: Space) -> None:
        longest = space.workload.seq_len // TOKENS_PER_CP_RANK
        cps = [cp for cp in space.values("cp") or () if cp <= longest] or [1]
        self.space = Space(space.workload, {"cp": tuple(cps)} | space.settings)

    def search(self, evaluator: Evaluator) -> float:
        """Simulates what may be best, on all types and on each alone; returns a bound on the step.

        The bound is of groups with room for all the micro-batches that they have time for. [s]
        """
        source = CutSource(self.space, evaluator)
        every = range(len(evaluator.task.cluster.pools))
        alone = [] if self.space.workload.use_all else [[pool] for pool in every]
        bound_s, best_s = np.inf, np.inf
        for pools in [every, *alone] if len(every) > 1 else [every]:
            found = self._search_on(pools, source, evaluator, best_s)
            bound_s, best_s = min(bound_s, found[0]), found[1]
        return bound_s

    def _search_on(
        self, pools: Sequence[int], source: CutSource, evaluator: Evaluator, best_s: float
    ) -> tuple[float, float]:
        """Of plans on these types a bound; the best of all so far. [s]

        Looks at cuts that end below a limit, which rises until a plan is found below it.
        """
        least_s, before_s, bound_s = source.least_s(pools), 0.0, 0.0
        for rise in LIMITS:
            limit_s = min(rise * least_s, evaluator.limit_s, best_s)
            if not before_s < limit_s < np.inf:
                break
            cuts = source.below(limit_s, pools)
            some = Combinations(self.space.workload, evaluator, cuts) if cuts else None
            if bound_s == before_s:  # none do the batch below the limit before
                bound_s = some.least_s(before_s, limit_s) if some else limit_s
            best_s = some.look(bound_s, limit_s, best_s) if some else best_s
            before_s = limit_s
        return min(bound_s, best_s) if before_s else np.inf, best_s


class Combinations:
    """Cuts below one limit, one of each type or none, as plans."""

    def __init__(self, workload: Workload, evaluator: Evaluator, cuts: GroupCuts) -> None:
        self.evaluator, self.cuts = evaluator, cuts
        self.batch, self.use_all = workload.global_batch, workload.use_all
        self.cluster = evaluator.task.cluster
        self.tried: set[tuple[Group, ...]] = set()

    def least_s(self, low_s: float, high_s: float) -> float:
        """The least time in which groups can do the batch: later than the one, before the other."""
        cuts = self.cuts
        while high_s - low_s > BOUND_TOLERANCE * high_s:
            middle_s = (low_s + high_s) / 2
            enough = cuts.most_samples(middle_s, self.cluster.max_gpus)[1] >= self.batch
            if enough.any():
                cuts, high_s = cuts.take(enough), middle_s
            else:
                low_s = middle_s
        return low_s

    def look(self, bound_s: float, limit_s: float, best_s: float) -> float:
        """Simulates plans of the cuts that do most a little above the bound; the best step. [s]"""
        done_s = 0.0
        for rise in RISES:
            goal_s = min(bound_s * (1 + rise + 2 * BOUND_TOLERANCE), limit_s, best_s)
            if goal_s <= done_s:
                break
            done_s = goal_s
            samples, total = self.cuts.most_samples(goal_s, self.cluster.max_gpus)
            most = np.zeros(int(self.cuts.key.max()) + 1)
            np.maximum.at(most, self.cuts.key, total)
            keys = np.flatnonzero(most >= self.batch)
            number = MAX_COMBINATIONS if len(keys) < MAX_KEYS else MAX_COMBINATIONS // 8
            for key in keys[np.argsort(-most[keys], kind="stable")][:MAX_KEYS].tolist():
                chosen = self._combined(key, samples)[:number]
                plans = [plan for rows in chosen for plan in self._plans(rows)]
                best_s = min(best_s, self._best_s(plans))
        return best_s

    def _combined(self, key: int, samples: Ints) -> list[tuple[int, ...]]:
        """Cuts of one shared choice that do the batch, one of each type or none, the most first."""
        here = np.flatnonzero((self.cuts.key == key) & (samples > 0))
        pools, gpus = self.cuts.pool[here], self.cuts.plans.gpus
        options = [self._first(here[pools == pool], samples) for pool in np.unique(pools)]
        found: list[tuple[int, int, tuple[int, ...]]] = []
        for chosen in product(*([*rows, None] for rows in options)):
            rows = tuple(row for row in chosen if row is not None)
            total, used = int(samples[list(rows)].sum()), int(gpus[list(rows)].sum())
            is_allowed = len(rows) == len(self.cluster.pools) or not self.use_all
            if total >= self.batch and is_allowed and used <= (self.cluster.max_gpus or used):
                found.append((-total, used, rows))
        return [rows for _, _, rows in sorted(found)]

    def _first(self, rows: Ints, samples: Ints) -> list[int]:
        """The cuts of a type that do most, and the best on other numbers of GPUs."""
        gpus = self.cuts.plans.gpus[rows]
        order = np.lexsort((gpus, -samples[rows]))
        _, first = np.unique(gpus[order], return_index=True)
        places = sorted({*range(min(CUTS_PER_TYPE, len(order))), *first.tolist()})
        most = int(MAX_PRODUCT ** (1 / len(self.cluster.pools))) - 1
        return [int(row) for row in rows[order[places[: min(3 * CUTS_PER_TYPE, most)]]]]

    def _plans(self, rows: tuple[int, ...]) -> Iterator[tuple[Group, ...]]:
        """The batch split among these cuts so that they end soon: all do what they have time for,
        and what is too much is taken off one of them, each in turn.
        """
        cuts, steps_s = self.cuts.take(list(rows)), [self._steps_s(row) for row in rows]
        replicas, unit = cuts.plans.replicas[0], cuts.bound.unit
        needed = self.batch // int(cuts.plans.micro_batch[0])
        ends_s = np.unique(np.concatenate(steps_s)) * (1 + REL_EPS)
        counts = np.stack([np.searchsorted(own, ends_s) for own in steps_s]) * unit[:, np.newaxis]
        excess = replicas @ counts - needed
        first = int(np.searchsorted(excess, 0))
        for end in range(first, min(first + TIMES, len(ends_s))):
            for chosen in np.flatnonzero(excess[end] % unit == 0):
                less = np.where(np.arange(len(rows)) == chosen, excess[end], 0)
                groups = np.stack([rows, replicas, counts[:, end], unit, less], axis=1).tolist()
                plan = tuple((row, *part) for row, *own in groups for part in taken_off(*own))
                if min(count for _, _, count in plan) > 0:
                    yield plan

    def _steps_s(self, row: int) -> Floats:
        """Least step of a cut by the number of its micro-batches, in units. [s]"""
        unit = int(self.cuts.bound.unit[row])
        counts = np.arange(unit, self.cuts.cap[row] + 1, unit)
        bound = self.cuts.bound.take(np.full(len(counts), row))
        return np.maximum.accumulate(bound.step_s(counts))

    def _best_s(self, plans: Sequence[tuple[Group, ...]]) -> float:
        """The best step of those that were not tried before. [s]"""
        new = [plan for plan in dict.fromkeys(plans) if plan not in self.tried]
        if not new:
            return np.inf
        self.tried.update(new)
        most = max(map(len, new))
        padded = [(*plan, *[(plan[0][0], 0, 0)] * (most - len(plan))) for plan in new]
        rows, replicas, counts = np.array(padded, np.int64).T  # each (pipeline, plan)
        table = combined_plans(self.cuts.plans, rows, replicas, counts)
        return float(self.evaluator.steps_s(table).min())


def taken_off(replicas: int, micro_batches: int, unit: int, excess: int) -> list[tuple[int, int]]:
    """Replicas and what each of them does, so many micro-batches less in all.

    They are taken off in whole units: there are replicas of two kinds at most.
    """
    units, fewer = divmod(excess // unit, replicas)
    count = micro_batches - units * unit
    return [part for part in ((replicas - fewer, count), (fewer, count - unit)) if part[0]]
