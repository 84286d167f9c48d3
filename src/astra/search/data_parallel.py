"""Data parallelism over GPU types whose replica groups have cuts of their own: runtime `any`.

For a time T every cut of a type does so many micro-batches. The least T at which one cut of each
type, or none, together do the batch is a bound. The cuts that do most a little above it are
combined, the batch is split among them, and what comes of it is simulated as a whole plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd
from typing import Any

import numpy as np

from astra.search.evaluator import Evaluator
from astra.search.group_cuts import CutSource, GroupCuts, most_by_key, samples_under_cap
from astra.search.split_batch import GroupShare, Split, split_batch
from astra.strategy.plans import (
    COLUMNS,
    PLAN_AXES,
    UNUSED,
    Flags,
    Floats,
    Ints,
    Plans,
    code,
    concatenate,
)
from astra.strategy.replica_groups import replicas_of_segment
from astra.strategy.space import Space

TOKENS_PER_CP_RANK = 4096  # fewer are tried only where cp is asked for
LIMITS = (1.06, 1.12, 1.2, 1.3, 1.45, 1.7, 2.2, 3.0, 8.0)  # times the first bound
RISES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)  # above the bound
BOUND_TOLERANCE = 1e-4  # relative
MAX_LAYOUTS = 60_000  # beyond which cuts that end later are not looked at again
KEYS_PER_RISE = 16  # shared choices that are looked at
CUTS_PER_TYPE = 4  # that are combined, and twice as many with other numbers of GPUs
COMBINATIONS = 96  # of one shared choice; a sixteenth where there are many choices
LATER_TIMES = 3  # at which some group has time for more, beyond the least
NEIGHBOURS = 24  # cuts that are tried in place of one of the best plan's
ROUNDS = 6  # in which that is done

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

    def search(self, evaluator: Evaluator) -> float:
        """Simulates what may be best. No plan with replicas that differ has a shorter step than is
        returned. [s]
        """
        source = CutSource(self.space, evaluator)
        least, limit, bound = source.least_s(), 0.0, np.inf
        best = Best()
        for rise in (*LIMITS, np.inf):
            limit = min(rise * least, evaluator.limit_s)
            if not np.isfinite(limit):
                break
            found = Combining(self.space, evaluator, source.below(limit), source.doublings, best)
            bound = found.least_s(limit)
            if bound < limit:
                found.look(bound, limit)
            if np.isfinite(best.step_s) or limit == evaluator.limit_s:
                break
        later = min(best.step_s, evaluator.limit_s)  # cuts that end later may be better
        if np.isfinite(best.step_s) and limit < later and source.looked <= MAX_LAYOUTS:
            best.picks = ()
            cuts = source.below(later)
            Combining(self.space, evaluator, cuts, source.doublings, best).look(bound, later)
        return min(bound, best.step_s)


@dataclass(slots=True)
class Best:
    """The best plan that was simulated."""

    step_s: float = np.inf
    picks: Picks = ()  # of the cuts that are being combined; none: of others
    key: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Combining:
    """Cuts below one limit, combined."""

    space: Space
    evaluator: Evaluator
    cuts: list[GroupCuts]
    doublings: float
    best: Best
    tried: set[Any] = field(default_factory=set)
    known: dict[tuple[Pick, bool], tuple[GroupShare, Floats]] = field(default_factory=dict)
    table: Plans | None = None

    @property
    def batch(self) -> int:
        return self.space.workload.global_batch

    def least_s(self, limit_s: float) -> float:
        """The least time in which groups can do the batch; the limit where there is none. [s]"""
        cuts, low, high = self.cuts, 0.0, limit_s
        enough = self._enough(cuts, limit_s)
        if not enough.any():
            return limit_s
        while high - low > BOUND_TOLERANCE * high:
            cuts = [each.take(enough[each.key]) for each in cuts]
            middle = (low + high) / 2
            flags = self._enough(cuts, middle)
            low, high = (low, middle) if flags.any() else (middle, high)
            enough = flags if flags.any() else enough
        return low

    def _samples(self, cuts: Sequence[GroupCuts], limit_s: float, several: bool) -> list[Ints]:
        return [each.samples(limit_s, self.doublings, several) for each in cuts]

    def _enough(self, cuts: list[GroupCuts], limit_s: float) -> Flags:
        """Which shared choices may have a plan below the limit. (key,)"""
        keys, cluster = self._keys(), self.evaluator.task.cluster
        found = np.zeros(keys, np.bool_)
        if not self.space.workload.use_all or len(cluster.pools) == 1:
            for each, own in zip(cuts, self._samples(cuts, limit_s, False), strict=True):
                found |= most_by_key(each.key, own, keys) >= self.batch
        if len(cuts) > 1:
            samples = self._samples(cuts, limit_s, True)
            total = self._together(cuts, samples)
            if cluster.max_gpus is not None:
                rates = [
                    most_by_key(each.key, own / each.plans.gpus, keys)
                    for each, own in zip(cuts, samples, strict=True)
                ]
                counts = [cluster.pools[each.pool].count for each in cuts]
                cap = np.full(keys, cluster.max_gpus)
                total = np.minimum(total, samples_under_cap(np.stack(rates), counts, cap))
            found |= total >= self.batch
        return found

    def _keys(self) -> int:
        return max((int(each.key.max(initial=0)) + 1 for each in self.cuts), default=1)

    def _together(self, cuts: Sequence[GroupCuts], samples: Sequence[Ints]) -> Floats:
        """What the best cuts of all types do. (key,)"""
        keys = self._keys()
        pairs = zip(cuts, samples, strict=True)
        return sum((most_by_key(each.key, own, keys) for each, own in pairs), np.zeros(keys))

    def look(self, bound_s: float, limit_s: float) -> None:
        """Simulates plans of the cuts that do most within a time a little above the bound."""
        if not self.cuts:
            return
        self.table = concatenate([each.plans for each in self.cuts])
        done = 0.0
        for rise in RISES:
            goal = min(bound_s * (1 + rise + 2 * BOUND_TOLERANCE), limit_s, self.best.step_s)
            if goal <= done:
                return
            done = goal
            several = self._samples(self.cuts, goal, True)
            alone = self._samples(self.cuts, goal, False)
            keys = np.flatnonzero(self._enough(self.cuts, goal))
            order = np.argsort(-self._together(self.cuts, several)[keys], kind="stable")
            for key in keys[order][:KEYS_PER_RISE].tolist():
                picks = self._combined(key, several, alone)
                few = len(keys) < KEYS_PER_RISE
                self._try(key, picks if few else picks[: COMBINATIONS // KEYS_PER_RISE], bound_s)
            self._improve(bound_s)

    def _combined(self, key: int, several: list[Ints], alone: list[Ints]) -> list[Picks]:
        """Cuts of one shared choice that do the batch together, one of each type or none: those
        that do most, and those on the fewest GPUs.
        """
        options: list[list[Pick | None]] = [
            [*((kind, row) for row in self._first(kind, key, own)), None]
            for kind, own in enumerate(alone)
        ]
        found: list[tuple[int, int, Picks]] = []
        for chosen in product(*options):
            picks = tuple(pick for pick in chosen if pick is not None)
            does = several if len(picks) > 1 else alone
            total = sum(int(does[kind][row]) for kind, row in picks)
            if total >= self.batch and self._allowed(picks):
                found.append((self._gpus(picks), -total, picks))
        fewest = sorted(found)[: COMBINATIONS // 2]
        most = sorted(found, key=lambda each: each[1])[: COMBINATIONS // 2]
        return list(dict.fromkeys(picks for _, _, picks in (*most, *fewest)))

    def _gpus(self, picks: Picks) -> int:
        return sum(int(self.cuts[kind].plans.gpus[row]) for kind, row in picks)

    def _allowed(self, picks: Picks) -> bool:
        cluster = self.evaluator.task.cluster
        if self.space.workload.use_all and len(picks) < len(cluster.pools):
            return False
        return cluster.max_gpus is None or self._gpus(picks) <= cluster.max_gpus

    def _first(self, kind: int, key: int, samples: Ints) -> list[int]:
        """The cuts of a type that do most, and the best on other numbers of GPUs."""
        each = self.cuts[kind]
        here = np.flatnonzero((each.key == key) & (samples > 0))
        gpus = each.plans.gpus[here]
        order = np.lexsort((gpus, -samples[here]))
        _, first = np.unique(gpus[order], return_index=True)
        others = np.sort(first)[np.sort(first) >= CUTS_PER_TYPE][: 2 * CUTS_PER_TYPE]
        rows = here[order[[*range(min(CUTS_PER_TYPE, len(order))), *others]]]
        return [int(row) for row in rows]

    def _improve(self, bound_s: float) -> None:
        """Other cuts in place of each of the best plan's, while that helps."""
        for _ in range(ROUNDS):
            before, key = self.best.step_s, self.best.key
            if not self.best.picks:
                return
            some: list[Picks] = []
            samples = self._samples(self.cuts, before, False)
            for kind, (each, own) in enumerate(zip(self.cuts, samples, strict=True)):
                here = np.flatnonzero((each.key == key) & (own > 0))
                order = here[np.argsort(-own[here], kind="stable")][:NEIGHBOURS]
                rest = tuple(pick for pick in self.best.picks if pick[0] != kind)
                some += [tuple(sorted((*rest, (kind, row)))) for row in order.tolist()]
            self._try(key, [picks for picks in some if self._allowed(picks)], bound_s)
            if self.best.step_s >= before:
                return

    def _try(self, key: int, some: Sequence[Picks], bound_s: float) -> None:
        """Simulates plans of these cuts, the batch split so that they end soon."""
        found: list[tuple[Picks, tuple[Split, ...]]] = []
        for picks in some:
            size = int(self.cuts[picks[0][0]].plans.micro_batch[picks[0][1]])
            needed, several = self.batch // size, len(picks) > 1
            for limit in self._limits_s(picks, needed):
                shares = [self._share(pick, limit, several) for pick in picks]
                for splits in split_batch(shares, needed):
                    if (picks, splits) not in self.tried:
                        self.tried.add((picks, splits))
                        found.append((picks, splits))
        if not found:
            return
        steps = self.evaluator.steps_s(self._plans(found))
        row = int(steps.argmin())
        if steps[row] < self.best.step_s:
            self.best.step_s, self.best.picks, self.best.key = float(steps[row]), found[row][0], key

    def _limits_s(self, picks: Picks, needed: int) -> list[float]:
        """The least time in which these cuts do the batch, and the next few at which one of them
        has time for more; none where they cannot do it.
        """
        several = len(picks) > 1
        known = [self._known(pick, several) for pick in picks]
        times = np.unique(np.concatenate([steps for _, steps in known])) * (1 + 1e-9)
        does = sum(
            np.searchsorted(steps, times) * share.unit * share.replicas for share, steps in known
        )
        first = int(np.searchsorted(does, needed))
        return [float(time) for time in times[first : first + 1 + LATER_TIMES]]

    def _share(self, pick: Pick, limit_s: float, several: bool) -> GroupShare:
        whole, steps = self._known(pick, several)
        count = int(np.searchsorted(steps, limit_s)) * whole.unit
        return whole._replace(micro_batches=count)

    def _known(self, pick: Pick, several: bool) -> tuple[GroupShare, Floats]:
        """A group with all the micro-batches it may have, and its least step by their number."""
        if (pick, several) not in self.known:
            kind, row = pick
            cuts, plans = self.cuts[kind], self.cuts[kind].plans
            unit, cap = int(cuts.bound.unit[row]), int(cuts.cap[row])
            numbers = np.arange(unit, cap + 1, unit)
            bound = cuts.bound.take(np.full(len(numbers), row))
            steps = np.maximum.accumulate(bound.step_s(numbers, self.doublings, several))
            ranks = int(plans.tp[0, 0, row] * plans.cp[row])
            experts = int(plans.segment_ep[0, 0, row] * plans.segment_etp[0, 0, row])
            block = experts // gcd(ranks, experts)
            share = GroupShare(int(plans.replicas[0, row]), cap, unit, block)
            self.known[pick, several] = share, steps
        return self.known[pick, several]

    def _plans(self, found: Sequence[tuple[Picks, tuple[Split, ...]]]) -> Plans:
        """Cuts with their shares of the batch as one table of plans."""
        assert self.table is not None
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
        return combined_plans(self.table, rows, replicas, counts)


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
