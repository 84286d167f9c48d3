"""The best plan of several makes that can be found, and what no such plan can beat."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from astra.cost.evaluate import simulate_fitting
from astra.hardware.stack import Stack
from astra.search.makes.allot import ReplicaShare, block_of, joined, shared_out
from astra.search.makes.commons import Common
from astra.search.makes.stock import Makes, ReplicaStock, refused_by
from astra.search.result import Progress
from astra.strategy.plan import Plan
from astra.strategy.plans import Flags, Floats, Ints, plan_at, plans_of
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space
from astra.timing.layer import LayerCache

TIGHT = 1e-4  # relative, how near the bound is found
RISES = (
    0.0,
    0.002,
    0.005,
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
)  # above the bound, where plans are looked for
LATER = 3  # times after the least one of some makes, at which work is shared out
FIRST = 4  # makes of each type that are tried with each other
FEW = 16  # common choices that are looked at below each limit
MOST_LOOKED = 60_000  # layouts, beyond which nobody looks again
MOST_TRIED = 96  # plans of one common choice and time
PARTS = 128  # of a cap on all GPUs, in which the numbers of each type are counted
NEIGHBOURS = 24  # makes that are tried in place of one of the best plan's
TURNS = 6  # times that this is done
RISING = (1.06, 1.12, 1.2, 1.3, 1.45, 1.7, 2.2, 3.0, 8.0)  # times the work alone

Picks = tuple[tuple[int, int], ...]  # type and make


@dataclass(frozen=True, slots=True)
class ReplicaGroupsFound:
    """One simulated plan."""

    step_s: float
    common: Common
    plan: Plan
    picks: Picks


class MakesFinder:
    """One search; `bound_s`: no plan of several makes, each on one type, has a shorter step."""

    def __init__(
        self,
        space: Space,
        rules: Sequence[Rule],
        stack: Stack,
        margin: float,
        limit_s: float,
        progress: Progress | None = None,
    ) -> None:
        self.space, self.rules, self.stack, self.margin = space, rules, stack, margin
        self.workload, self.task = space.workload, space.workload.task
        self.limit_s, self.progress = limit_s, progress
        self.book = LayerCache()
        self.stock = ReplicaStock(space, rules, stack, margin, self.book)
        self.found: dict[Common, ReplicaGroupsFound] = {}
        self.simulated = self.out_of_memory = 0  # plans put together of makes
        self.removed_by_rule: Counter[str] = Counter()
        self.bound_s = limit_s
        self.makes: list[Makes] = []
        self.commons: list[Common] = []
        self._known: dict[tuple[int, int], Plan] = {}
        self._steps: dict[tuple[tuple[int, int], bool], tuple[ReplicaShare, Floats]] = {}
        self._tried: set[tuple[object, ...]] = set()

    def run(self) -> list[ReplicaGroupsFound]:
        """The best plan of each common choice that was met, the fastest first."""
        limit = 0.0
        for limit in self._limits_s():
            self._below(limit)
            if not self._enough(limit).any():
                continue
            self.bound_s = min(self.bound_s, self._least_s(limit))
            self._look(limit)
            if self.found:
                break
        best = min((each.step_s for each in self.found.values()), default=0.0)
        later = limit < min(best, self.limit_s)  # makes that end later may be better
        if later and self.stock.looked <= MOST_LOOKED:
            self._below(min(best, self.limit_s))
            self._look(min(best, self.limit_s))
        return sorted(self.found.values(), key=lambda each: each.step_s)

    def _below(self, limit_s: float) -> None:
        self.makes, self.commons, self.doublings = self.stock.below(limit_s)
        self._known.clear()
        self._steps.clear()
        self._tried.clear()
        if self.progress:
            self.progress(self.stock.candidates)

    def _limits_s(self) -> list[float]:
        """Limits to look below, one after the other until plans appear: the higher, the more makes
        there are to look at.
        """
        rates = sum(
            float((degrees.replicas * self.stock.sizes(degrees.common) / work).max())
            for degrees, work in self.stock.degrees
            if len(work)
        )
        least = self.workload.global_batch / rates if rates else np.inf
        found = [rise * least for rise in RISING if rise * least < self.limit_s and rates]
        return [*found, self.limit_s] if np.isfinite(self.limit_s) else found

    def _samples(self, limit_s: float, several: bool) -> list[Ints]:
        """What each make does within the limit beside others, or alone; by type."""
        return [
            each.most(limit_s, self.doublings, several) * each.replicas * each.plans.micro_batch
            for each in self.makes
        ]

    def _enough(self, limit_s: float) -> Flags:
        """Which common choices may have a plan below the limit. (common,)"""
        alone = [self._highest(kind, own) for kind, own in enumerate(self._samples(limit_s, False))]
        found: Flags = np.max(alone, axis=0, initial=0.0) >= self.workload.global_batch
        return found | self._together(limit_s)

    def _highest(self, kind: int, samples: Ints | Floats) -> Floats:
        """The most that a make of a type has, by common choice."""
        most = np.zeros(len(self.commons))
        np.maximum.at(most, self.makes[kind].common, samples)
        return most

    def _together(self, limit_s: float) -> Flags:
        """The same of plans with several makes."""
        samples = self._samples(limit_s, True)
        if len(samples) < 2:
            return np.zeros(len(self.commons), np.bool_)
        total = np.sum([self._highest(kind, own) for kind, own in enumerate(samples)], axis=0)
        found: Flags = total >= self.workload.global_batch
        caps = [self.task.cluster.pools[makes.pool].count for makes in self.makes]
        cap = self.task.cluster.max_gpus
        if cap is not None and cap < sum(caps):
            for common in np.flatnonzero(found).tolist():
                found[common] = self._within(common, samples, cap) >= self.workload.global_batch
        return found

    def _within(self, common: int, samples: list[Ints], cap: int) -> float:
        """Most samples of one make of each type or none, on so many GPUs in all, or a few more:
        their numbers are rounded down to parts of the cap.
        """
        part = max(cap // PARTS, 1)
        total = np.zeros(cap // part + 1)
        for makes, own in zip(self.makes, samples, strict=True):
            here = np.flatnonzero(makes.common == common)
            most = np.zeros(len(total))
            at = makes.gpus[here] // part
            np.maximum.at(most, np.minimum(at, len(total) - 1), own[here])
            most = np.maximum.accumulate(most)
            both = [(total[: at + 1] + most[at::-1]).max() for at in range(len(total))]
            total = np.array(both)
        return float(total[-1])

    def _least_s(self, limit_s: float) -> float:
        """No plan has a shorter step: below it no makes can do the batch, however combined."""
        low, high = 0.0, limit_s
        while high - low > TIGHT * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self._enough(middle).any() else (middle, high)
        return low

    def _look(self, limit_s: float) -> None:
        """Plans of the makes that do most within a time a little above the bound."""
        done = 0.0
        for rise in RISES:
            best = min((each.step_s for each in self.found.values()), default=np.inf)
            goal = min(self.bound_s * (1 + rise + 2 * TIGHT), limit_s, best)
            if goal <= done:
                break
            done = goal
            samples = self._samples(goal, True), self._samples(goal, False)
            some = self._most_promising(goal, samples[0])
            for common in some:
                picks = self._combined(common, *samples)
                self._try(common, picks if len(some) < FEW else picks[: MOST_TRIED // FEW])
            self._improve()

    def _most_promising(self, limit_s: float, samples: list[Ints]) -> list[int]:
        """Common choices that may have a plan below the limit, those that do most first."""
        total = np.sum([self._highest(kind, own) for kind, own in enumerate(samples)], axis=0)
        rows = np.flatnonzero(self._enough(limit_s))
        order = rows[np.argsort(-total[rows], kind="stable")]
        return [int(row) for row in order[:FEW]]

    def _combined(self, common: int, samples: list[Ints], alone: list[Ints]) -> list[Picks]:
        """Makes of one common choice that do the batch together, one of each type or none."""
        options: list[list[tuple[int, int] | None]] = []
        for kind, own in enumerate(alone):
            options.append([*((kind, row) for row in self._first(kind, common, own)), None])
        cap = self.task.cluster.max_gpus
        found: list[tuple[tuple[int, int], Picks]] = []
        for chosen in product(*options):
            picks = tuple(pick for pick in chosen if pick is not None)
            if self.workload.use_all and len(picks) < len(self.task.cluster.pools):
                continue
            does = samples if len(picks) > 1 else alone
            total = sum(int(does[kind][row]) for kind, row in picks)
            gpus = sum(int(self.makes[kind].gpus[row]) for kind, row in picks)
            if total >= self.workload.global_batch and (cap is None or gpus <= cap):
                found.append(((gpus, -total), picks))
        fewest = [picks for _, picks in sorted(found)[: MOST_TRIED // 2]]
        most = [picks for _, picks in sorted(found, key=lambda e: e[0][1])[: MOST_TRIED // 2]]
        return list(dict.fromkeys([*most, *fewest]))

    def _first(self, kind: int, common: int, samples: Ints) -> list[int]:
        """The makes of a type that do most, and the best of other numbers of GPUs."""
        each = self.makes[kind]
        here = np.flatnonzero((each.common == common) & (samples > 0))
        order = here[np.lexsort((each.gpus[here], -samples[here]))]
        gpus = each.gpus[order]
        kept, seen = order[:FIRST].tolist(), set(gpus[:FIRST].tolist())
        for row, count in zip(order.tolist(), gpus.tolist(), strict=True):
            if count not in seen and len(kept) < 3 * FIRST:
                seen.add(count)
                kept.append(row)
        return [int(row) for row in kept]

    def _try(self, common: int, some: Sequence[Picks]) -> None:
        """Simulates plans of these makes, their micro-batches shared out so that they end soon."""
        plans, of = [], []
        size = self.commons[common].micro_batch
        for picks in some:
            least = self._least_of(picks, size)
            for limit in self._limits_of(picks, least):
                parts = [self._part(pick, limit, len(picks) > 1) for pick in picks]
                for shares in shared_out(parts, self.workload.global_batch // size):
                    if (common, picks, shares) not in self._tried:
                        self._tried.add((common, picks, shares))
                        plans.append(joined([self._plan(pick) for pick in picks], shares))
                        of.append(picks)
        if plans:
            self._simulate(common, plans, of)

    def _least_of(self, picks: Picks, size: int) -> float:
        """The least time in which these makes do the batch."""
        low, high = self.bound_s * (1 - TIGHT), self.bound_s * (1 + RISES[-1]) * 2
        several = len(picks) > 1
        while high - low > TIGHT * high / 4:
            middle = (low + high) / 2
            does = sum(self._part(pick, middle, several).takes for pick in picks) * size
            low, high = (low, middle) if does >= self.workload.global_batch else (middle, high)
        return high

    def _limits_of(self, picks: Picks, least_s: float) -> list[float]:
        """This time, and the next few at which some make has time for more."""
        several, found = len(picks) > 1, [least_s]
        for _ in range(LATER):
            following = []
            for pick in picks:
                whole, steps = self._steps[pick, several]
                at = self._part(pick, found[-1], several).micro_batches // whole.unit
                following += [float(steps[at])] if at < len(steps) else []
            if not following:
                break
            found.append(min(following) * (1 + 1e-9))
        return found

    def _part(self, pick: tuple[int, int], limit_s: float, several: bool) -> ReplicaShare:
        if (pick, several) not in self._steps:
            self._steps[pick, several] = self._known_part(pick, several)
        whole, steps = self._steps[pick, several]
        count = int(np.searchsorted(steps, limit_s)) * whole.unit
        return ReplicaShare(whole.replicas, count, whole.unit, whole.block)

    def _known_part(self, pick: tuple[int, int], several: bool) -> tuple[ReplicaShare, Floats]:
        """A make with all the micro-batches it may have, and its least step by their number."""
        kind, row = pick
        makes = self.makes[kind]
        unit, cap = int(makes.lines.unit[row]), int(makes.cap[row])
        numbers = np.arange(unit, cap + 1, unit)
        lines = makes.lines.take(np.full(len(numbers), row))
        plans = makes.plans.take([row])
        cut = [int(getattr(plans, name)[0, 0, 0]) for name in ("tp", "segment_ep", "segment_etp")]
        block = block_of(cut[0], int(plans.cp[0]), cut[1], cut[2])
        whole = ReplicaShare(int(makes.replicas[row]), cap, unit, block)
        return whole, np.maximum.accumulate(lines.bound_s(numbers, self.doublings, several))

    def _plan(self, pick: tuple[int, int]) -> Plan:
        if pick not in self._known:
            kind, row = pick
            self._known[pick] = plan_at(self.makes[kind].plans, row, self.task)
        return self._known[pick]

    def _simulate(self, common: int, plans: Sequence[Plan], of: Sequence[Picks]) -> None:
        table = plans_of(plans)
        rows = np.flatnonzero(~refused_by(self.rules, table, self.task, self.removed_by_rule))
        if not len(rows):
            return
        table = table.take(rows)
        steps, fits = simulate_fitting(table, self.task, self.stack, self.margin, self.book)
        self.simulated += len(rows)
        self.out_of_memory += int((~fits).sum())
        best = int(steps.argmin())
        own = self.commons[common]
        known = self.found[own].step_s if own in self.found else np.inf
        if steps[best] < known:
            at = int(rows[best])
            self.found[own] = ReplicaGroupsFound(float(steps[best]), own, plans[at], of[at])
        if self.progress:
            self.progress(self.stock.candidates + self.simulated)

    def _improve(self) -> None:
        """Other makes in place of each of the best plan's, while that helps."""
        for _ in range(TURNS):
            if not self.found:
                return
            best = min(self.found.values(), key=lambda each: each.step_s)
            common = self.commons.index(best.common)
            samples = self._samples(best.step_s, False)
            some: list[Picks] = []
            for kind, (each, own) in enumerate(zip(self.makes, samples, strict=True)):
                here = np.flatnonzero((each.common == common) & (own > 0))
                order = here[np.argsort(-own[here], kind="stable")][:NEIGHBOURS]
                rest = tuple(pick for pick in best.picks if pick[0] != kind)
                some += [tuple(sorted((*rest, (kind, row)))) for row in order.tolist()]
            cap = self.task.cluster.max_gpus
            if cap is not None:
                some = [s for s in some if sum(int(self.makes[k].gpus[r]) for k, r in s) <= cap]
            self._try(common, some)
            if min(each.step_s for each in self.found.values()) >= best.step_s:
                return
