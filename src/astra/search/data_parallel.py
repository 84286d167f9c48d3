"""Data parallelism over GPU types whose replica groups have cuts of their own: runtime `any`.

Within a time T every cut of a type does so many samples. T rises until one cut of each type, or
none, together do the batch. The cuts that do most are combined, the batch is split among them, and
what comes of it is simulated as a whole plan; T rises on until it meets the best of these.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from astra.columns import REL_EPS
from astra.search.evaluator import Evaluator
from astra.search.group_cuts import CutSource, GroupCuts, most_samples_together
from astra.strategy.plans import Floats, Ints
from astra.strategy.replica_groups import combined_plans
from astra.strategy.segment_options import context_degrees
from astra.strategy.space import Space, Workload

LIMITS = (1.1, 1.3, 1.7, 3.0, 8.0, np.inf)  # times the first bound, below which cuts are listed
TIMES = 5  # between two limits, at which they are combined
MAX_KEYS = 16  # shared choices that are looked at, each time
CUTS_PER_COUNT = 3  # of one type on one number of GPUs that are combined
CUTS_PER_TYPE = 24  # on all numbers
MAX_PARTIAL = 256  # combinations of the cuts of some types, to which those of the next are added
MAX_COMBINATIONS = 16  # simulated of one shared choice
ENDS = 4  # for which the batch is split: the least, and when some group has time for more

Group = tuple[int, int, int]  # a cut, replicas and their micro-batches


class ReplicaGroups:
    """Plans whose replica groups lie on one GPU type each, with tp, stages, layers, experts, whole
    recomputed layers, replicas and micro-batches of their own; the rest is one for all.
    """

    def __init__(self, space: Space) -> None:
        self.space = Space(space.workload, {**space.settings, "cp": context_degrees(space)})

    def search(self, evaluator: Evaluator) -> None:
        """Hands what may be best to the evaluator; others may be faster."""
        source = CutSource(self.space, evaluator)
        before_s = source.least_s
        for rise in LIMITS:
            limit_s = min(rise * source.least_s, evaluator.limit_s, evaluator.best_s)
            if not before_s < limit_s < np.inf:
                break
            cuts = source.below(limit_s)
            if cuts:
                Combinations(self.space.workload, evaluator, cuts).search(before_s, limit_s)
            before_s = limit_s


class Combinations:
    """Cuts below one limit, one of each type or none, as plans."""

    def __init__(self, workload: Workload, evaluator: Evaluator, cuts: GroupCuts) -> None:
        self.evaluator, self.cuts = evaluator, cuts
        self.batch, self.use_all = workload.global_batch, workload.use_all
        self.cluster, self.gpus = evaluator.task.cluster, cuts.plans.gpus
        self.tried: set[tuple[Group, ...]] = set()

    def search(self, low_s: float, high_s: float) -> None:
        """Simulates plans of the cuts that do most in more and more time, up to the best step."""
        for time_s in np.geomspace(low_s, high_s, TIMES + 1)[1:].tolist():
            time_s = min(time_s, self.evaluator.best_s)
            samples = self.cuts.samples(self.cuts.bound.most(time_s, self.cuts.most))
            key, max_gpus = self.cuts.key, self.cluster.max_gpus
            total = most_samples_together(self.cuts.pool, key, self.gpus, samples, max_gpus)
            most = np.zeros(int(key.max()) + 1)
            np.maximum.at(most, key, total)
            keys = np.flatnonzero(most >= self.batch)
            best = keys[np.argsort(-most[keys], kind="stable")][:MAX_KEYS].tolist()
            combined = [rows for key in best for rows in self._combined(key, samples)]
            self._simulate([plan for rows in combined for plan in self._split(rows)])
            if time_s >= self.evaluator.best_s:
                break

    def _combined(self, key: int, samples: Ints) -> list[tuple[int, ...]]:
        """Cuts of one shared choice that do the batch, one of each type or none, the most first."""
        here = np.flatnonzero((self.cuts.key == key) & (samples > 0))
        found: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]  # -samples, GPUs, cuts
        for pool in range(len(self.cluster.pools)):
            best = self._best(here[self.cuts.pool[here] == pool], samples)
            more = [
                (less - int(samples[row]), used + int(self.gpus[row]), (*rows, row))
                for less, used, rows in found
                for row in best
                if used + self.gpus[row] <= (self.cluster.max_gpus or np.inf)
            ]
            found = sorted(more if self.use_all else found + more)[:MAX_PARTIAL]
        enough = [rows for less, _, rows in found if -less >= self.batch]
        return enough[:MAX_COMBINATIONS]

    def _best(self, rows: Ints, samples: Ints) -> list[int]:
        """Of these cuts of a type those that do most, a few on each number of GPUs."""
        found, count = list[int](), Counter[int]()
        for row in rows[np.argsort(-samples[rows], kind="stable")].tolist():
            count[self.gpus[row]] += 1
            if count[self.gpus[row]] <= CUTS_PER_COUNT:
                found.append(row)
        return found[:CUTS_PER_TYPE]

    def _split(self, rows: tuple[int, ...]) -> Iterator[tuple[Group, ...]]:
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
        for end in range(first, min(first + ENDS, len(ends_s))):
            for chosen in np.flatnonzero(excess[end] % unit == 0).tolist():
                plan: list[Group] = []
                for place, row in enumerate(rows):
                    less = int(excess[end]) if place == chosen else 0
                    each = int(replicas[place]), int(counts[place, end]), int(unit[place])
                    plan += [(row, *share) for share in replica_shares(*each, less)]
                if min(count for _, _, count in plan) > 0:
                    yield tuple(plan)

    def _steps_s(self, row: int) -> Floats:
        """Least step of a cut by the number of its micro-batches, in units. [s]"""
        unit = int(self.cuts.bound.unit[row])
        counts = np.arange(unit, self.cuts.most[row] + 1, unit)
        bound = self.cuts.bound.take(np.full(len(counts), row))
        return np.maximum.accumulate(bound.step_s(counts))

    def _simulate(self, plans: Sequence[tuple[Group, ...]]) -> None:
        """Those that were not tried before."""
        new = [plan for plan in dict.fromkeys(plans) if plan not in self.tried]
        if not new:
            return
        self.tried.update(new)
        most = max(map(len, new))
        padded = [(*plan, *[(plan[0][0], 0, 0)] * (most - len(plan))) for plan in new]
        rows, replicas, counts = np.array(padded, np.int64).T  # each (pipeline, plan)
        self.evaluator.steps_s(combined_plans(self.cuts.plans, rows, replicas, counts))


def replica_shares(replicas: int, each: int, unit: int, less: int) -> list[tuple[int, int]]:
    """Replicas that do so many micro-batches each, with so many less in all: how many do how many.

    They are taken off in whole units: there are replicas of two kinds at most.
    """
    units, fewer = divmod(less // unit, replicas)
    count = each - units * unit
    return [share for share in ((replicas - fewer, count), (fewer, count - unit)) if share[0]]
