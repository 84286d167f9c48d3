"""Data parallelism over GPU types whose replica groups have cuts of their own: runtime `any`.

For a time T every cut of a type does so many micro-batches. The least T at which one cut of each
type, or none, together do the batch is a bound. The cuts that do most a little above it are
combined, the batch is split among them, and what comes of it is simulated as a whole plan.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import gcd
from typing import Any

import numpy as np

from astra.columns import REL_EPS
from astra.search.evaluator import PlanEvaluator
from astra.search.group_cuts import (
    CutSource,
    GroupCuts,
    most_by_key,
    samples_under_cap,
)
from astra.search.split_batch import GroupShare, Split, split_batch
from astra.strategy.plans import (
    COLUMNS,
    PLAN_AXES,
    UNUSED,
    Floats,
    Ints,
    Plans,
    code,
    concatenate,
)
from astra.strategy.replica_groups import replicas_of_segment
from astra.strategy.space import Space, Workload

TOKENS_PER_CP_RANK = 4096  # fewer are tried only where cp is asked for
LIMITS = (1.06, 1.12, 1.2, 1.3, 1.45, 1.7, 2.2, 3.0, 8.0)  # times the first bound
RISES = (0.0, 0.01, 0.04, 0.16, 0.64)  # above the bound, where plans are looked for
BOUND_TOLERANCE = 1e-4  # relative
MAX_LAYOUTS = 60_000  # below a limit; beyond it a plan that was found will do
MAX_KEYS = 16  # shared choices that are looked at below each rise
CUTS_PER_TYPE = 4  # that are combined, and twice as many on other numbers of GPUs
MAX_PRODUCT = 4096  # combinations of these
MAX_COMBINATIONS = 48  # simulated of one shared choice; fewer where there are many choices
TIMES = 4  # for which the batch is split: the least, and when some group has time for more

Pick = tuple[int, int]  # a type and its cut
Picks = tuple[Pick, ...]


class ReplicaGroups:
    """Plans whose replica groups lie on one GPU type each, with tp, stages, layers, experts, whole
    recomputed layers, replicas and micro-batches of their own; the rest is one for all.
    """

    def __init__(self, space: Space) -> None:
        longest = space.workload.seq_len // TOKENS_PER_CP_RANK
        cps = [cp for cp in space.values("cp") or () if cp <= longest] or [1]
        self.space = Space(space.workload, {"cp": tuple(cps)} | space.settings)

    def search(self, evaluator: PlanEvaluator) -> float:
        """Simulates what may be best. No plan with replicas that differ has a shorter step than is
        returned. [s]

        Looks at cuts that end below a limit, which rises until a plan is found below it.
        """
        source = CutSource(self.space, evaluator)
        least_s, before_s, bound_s, best_s = source.least_s(), 0.0, 0.0, np.inf
        for rise in (*LIMITS, np.inf):
            limit_s = min(rise * least_s, evaluator.limit_s, best_s)
            is_found = np.isfinite(best_s)
            if not before_s < limit_s < np.inf or (is_found and source.looked > MAX_LAYOUTS):
                break
            cuts = source.below(limit_s)
            some = Combinations(self.space.workload, evaluator, cuts, source.doublings)
            if bound_s == before_s:  # none do the batch below the limit before
                bound_s = max(bound_s, some.least_s(limit_s))
            if bound_s < limit_s:
                best_s = some.look(bound_s, limit_s, best_s)
            before_s = limit_s
        return min(bound_s, best_s) if before_s else np.inf


class Combinations:
    """Cuts below one limit, one of each type or none, as plans."""

    def __init__(
        self, workload: Workload, evaluator: PlanEvaluator, cuts: list[GroupCuts], doublings: float
    ) -> None:
        self.evaluator, self.cuts, self.doublings = evaluator, cuts, doublings
        self.batch, self.use_all = workload.global_batch, workload.use_all
        self.cluster = evaluator.task.cluster
        self.keys = max((int(each.key.max(initial=0)) + 1 for each in cuts), default=1)
        self.tried: set[tuple[Picks, tuple[Split, ...]]] = set()
        self.known: dict[tuple[Pick, bool], tuple[GroupShare, Floats]] = {}

    def least_s(self, limit_s: float) -> float:
        """The least time in which groups can do the batch; the limit where there is none. [s]"""
        cuts, low, high = self.cuts, 0.0, limit_s
        enough = self._total(cuts, limit_s) >= self.batch
        if not enough.any():
            return limit_s
        while high - low > BOUND_TOLERANCE * high:
            cuts = [each.take(enough[each.key]) for each in cuts]
            middle = (low + high) / 2
            flags = self._total(cuts, middle) >= self.batch
            low, high = (low, middle) if flags.any() else (middle, high)
            enough = flags if flags.any() else enough
        return low

    def _total(self, cuts: Sequence[GroupCuts], limit_s: float) -> Floats:
        """Most samples of groups within the limit, of one type or of all. (key,)"""
        alone, together, rates = np.zeros((3, len(cuts), self.keys))
        for row, each in enumerate(cuts):
            own = each.samples(limit_s, self.doublings, True)
            together[row] = most_by_key(each.key, own, self.keys)
            rates[row] = most_by_key(each.key, own / each.plans.gpus, self.keys)
            own = each.samples(limit_s, self.doublings, False)
            alone[row] = most_by_key(each.key, own, self.keys)
        total: Floats = together.sum(axis=0)
        if self.cluster.max_gpus is not None:
            counts = [self.cluster.pools[each.pool].count for each in cuts]
            cap = np.full(self.keys, self.cluster.max_gpus)
            total = np.minimum(total, samples_under_cap(rates, counts, cap))
        one_type_will_do = not self.use_all or len(self.cluster.pools) == 1
        return np.maximum(total, alone.max(axis=0, initial=0.0)) if one_type_will_do else total

    def look(self, bound_s: float, limit_s: float, best_s: float) -> float:
        """Simulates plans of the cuts that do most a little above the bound; the best step. [s]"""
        if not self.cuts:
            return best_s
        done_s, table = 0.0, concatenate([each.plans for each in self.cuts])
        for rise in RISES:
            goal_s = min(bound_s * (1 + rise + 2 * BOUND_TOLERANCE), limit_s, best_s)
            if goal_s <= done_s:
                break
            done_s, total = goal_s, self._total(self.cuts, goal_s)
            keys = np.flatnonzero(total >= self.batch)
            most = MAX_COMBINATIONS if len(keys) < MAX_KEYS else MAX_COMBINATIONS // 8
            alone, together = (
                [each.samples(goal_s, self.doublings, several) for each in self.cuts]
                for several in (False, True)
            )
            for key in keys[np.argsort(-total[keys], kind="stable")][:MAX_KEYS].tolist():
                found = self._splits(self._combined(key, together, alone)[:most])
                if found:
                    steps_s = self.evaluator.steps_s(self._plans(table, found))
                    best_s = min(best_s, float(steps_s.min()))
        return best_s

    def _combined(self, key: int, together: list[Ints], alone: list[Ints]) -> list[Picks]:
        """Cuts of one shared choice that do the batch, one of each type or none, the most first."""
        options: list[list[Pick | None]] = [
            [*((kind, row) for row in self._first(kind, key, own)), None]
            for kind, own in enumerate(alone)
        ]
        found: list[tuple[int, int, Picks]] = []
        for chosen in product(*options):
            picks = tuple(pick for pick in chosen if pick is not None)
            does = together if len(picks) > 1 else alone
            total = sum(int(does[kind][row]) for kind, row in picks)
            gpus = sum(int(self.cuts[kind].plans.gpus[row]) for kind, row in picks)
            is_allowed = len(picks) == len(self.cluster.pools) or not self.use_all
            if total >= self.batch and is_allowed and gpus <= (self.cluster.max_gpus or gpus):
                found.append((-total, gpus, picks))
        return [picks for _, _, picks in sorted(found)]

    def _first(self, kind: int, key: int, samples: Ints) -> list[int]:
        """The cuts of a type that do most, and the best on other numbers of GPUs."""
        each = self.cuts[kind]
        here = np.flatnonzero((each.key == key) & (samples > 0))
        gpus = each.plans.gpus[here]
        order = np.lexsort((gpus, -samples[here]))
        _, first = np.unique(gpus[order], return_index=True)
        places = sorted({*range(min(CUTS_PER_TYPE, len(order))), *first.tolist()})
        most = min(3 * CUTS_PER_TYPE, int(MAX_PRODUCT ** (1 / len(self.cuts))) - 1)
        return [int(row) for row in here[order[places[:most]]]]

    def _splits(self, some: Sequence[Picks]) -> list[tuple[Picks, tuple[Split, ...]]]:
        """The batch split among these cuts so that they end soon, as was not tried before."""
        found: list[tuple[Picks, tuple[Split, ...]]] = []
        for picks in some:
            kind, row = picks[0]
            needed = self.batch // int(self.cuts[kind].plans.micro_batch[row])
            known = [self._known(pick, len(picks) > 1) for pick in picks]
            times = np.unique(np.concatenate([steps for _, steps in known])) * (1 + REL_EPS)
            counts = [np.searchsorted(steps, times) * share.unit for share, steps in known]
            does = sum(
                count * share.replicas for count, (share, _) in zip(counts, known, strict=True)
            )
            first = int(np.searchsorted(does, needed))
            for at in range(first, min(first + TIMES, len(times))):
                shares = [
                    share._replace(micro_batches=int(count[at]))
                    for count, (share, _) in zip(counts, known, strict=True)
                ]
                found += [(picks, splits) for splits in split_batch(shares, needed)]
        found = [each for each in dict.fromkeys(found) if each not in self.tried]
        self.tried.update(found)
        return found

    def _known(self, pick: Pick, several: bool) -> tuple[GroupShare, Floats]:
        """A group with all the micro-batches it may have, and its least step by their number."""
        if (pick, several) not in self.known:
            kind, row = pick
            cuts, plans = self.cuts[kind], self.cuts[kind].plans
            unit, cap = int(cuts.bound.unit[row]), int(cuts.cap[row])
            numbers = np.arange(unit, cap + 1, unit)
            bound = cuts.bound.take(np.full(len(numbers), row))
            steps_s = np.maximum.accumulate(bound.step_s(numbers, self.doublings, several))
            ranks = int(plans.tp[0, 0, row] * plans.cp[row])
            experts = int(plans.segment_ep[0, 0, row] * plans.segment_etp[0, 0, row])
            block = experts // gcd(ranks, experts)
            share = GroupShare(int(plans.replicas[0, row]), cap, unit, block)
            self.known[pick, several] = share, steps_s
        return self.known[pick, several]

    def _plans(self, table: Plans, found: Sequence[tuple[Picks, tuple[Split, ...]]]) -> Plans:
        """Cuts with their shares of the batch as one table of plans."""
        starts = np.cumsum([0, *map(len, self.cuts)])
        groups = [
            [
                (int(starts[kind]) + row, replicas, count)
                for (kind, row), split in zip(picks, splits, strict=True)
                for replicas, count in split
            ]
            for picks, splits in found
        ]
        most = max(map(len, groups))
        padded = [each + [(each[0][0], 0, 0)] * (most - len(each)) for each in groups]
        rows, replicas, counts = np.array(padded, np.int64).T  # (3, pipeline, plan)
        return combined_plans(table, rows, replicas, counts)


def combined_plans(table: Plans, rows: Ints, replicas: Ints, micro_batches: Ints) -> Plans:
    """Rows of a table of one pipeline each, combined to plans of several. (pipeline, plan)

    A pipeline with no replicas is not there. What a plan has once is its first pipeline's.
    """
    there = replicas > 0
    columns: dict[str, Any] = table.take(rows[0]).columns()
    for name in COLUMNS:
        if PLAN_AXES.get(name, 1) == 3:
            each = np.moveaxis(getattr(table, name)[0][:, rows], 0, 1)
            columns[name] = np.where(there[:, np.newaxis], each, UNUSED.get(name, 1))
            columns[name] = columns[name].astype(each.dtype)
    used = columns["stages"] > 0
    columns["dp"] = np.where(used, replicas[:, np.newaxis], 1)
    columns |= {"replicas": replicas, "micro_batches": micro_batches}
    copies = replicas.sum(axis=0) * columns["cp"]
    sharded = columns["sharding"] != code("sharding", "none")
    columns["sequence_parallel"] = (table.sequence_parallel[rows] & there).any(axis=0)
    columns["overlap_grad_reduce"] = copies > 1
    columns["overlap_param_gather"] = sharded & (copies > 1)
    several = there.sum(axis=0) > 1
    columns["microbatch_group"] = np.where(several, 0, table.pp[0][rows[0]])
    plans = Plans(**columns, chunk_layers=table.chunk_layers)
    group = replicas_of_segment(plans)[0, 0] * plans.cp
    return replace(plans, shard_group=np.where(sharded, group, 1))
