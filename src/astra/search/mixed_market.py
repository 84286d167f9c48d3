"""Clusters of several GPU types rented in one place: plans that mix them, where they win.

Of every mixture (a place, and up to so many GPUs of each type) the fastest plan is of use if at
the price of all its GPUs nothing that is known is both as fast and as cheap. That is a limit on
its step, under which alone it is searched; most are not, by what their types reach alone.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.bill import with_money
from astra.cost.checkpoint import checkpoint_sizes
from astra.cost.host import host_rule
from astra.cost.result import PricedPlan
from astra.cost.stage_lines import LineCache
from astra.errors import InputError
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.slowest import flops_per_s
from astra.money.places import Mixture, all_mixtures
from astra.notes import NoteCode, note
from astra.recommend.expectation import recommendation
from astra.search.evaluator import Stopped
from astra.search.market import USUAL, MarketSearch, Trade
from astra.search.one_type import search_best
from astra.search.pipelines import Pipelines
from astra.search.uniform import UniformSearch
from astra.strategy.mixed_space import MIXES, why_not_mixed

MAX_SEARCHED = 24  # mixtures, the most promising; all with --exact


class MixedSearch:
    """One search over mixtures; what one finds prunes the next."""

    def __init__(self, frontier: MarketSearch) -> None:
        """`frontier`: of machines of one type; it gets what mixtures add to it."""
        self.frontier, self.market = frontier, frontier.market
        self.query, self.limits = replace(frontier.market.query, top=1), frontier.limits
        self.skipped = 0
        self.alone: dict[Gpu, float] = {}  # GPU-seconds of a step, as far as they are known
        self.lines = LineCache()

    def run(self, mixtures: Sequence[Mixture]) -> None:
        """Those of few types first, so that of others only plans over all their types are new. Of
        these the most promising first: those that would be cheapest if nothing were lost and those
        that would be fastest, by turns, so that either end of the frontier is looked at early.
        """
        least = [self._least_s(each.pools) for each in mixtures]
        usd = [s * each.usd_per_hour for s, each in zip(least, mixtures, strict=True)]
        turns = np.stack([np.argsort(usd, kind="stable"), np.argsort(least, kind="stable")], axis=1)
        rows = dict.fromkeys(turns.ravel().tolist())
        for row in sorted(rows, key=lambda row: len(mixtures[row].pools)):
            limit = self._limit_s(mixtures[row])
            if least[row] < limit:
                if self.frontier.mixtures < MAX_SEARCHED or self.query.exact:
                    self._search(mixtures[row], limit)
                else:
                    self.skipped += 1

    def _limit_s(self, mixture: Mixture) -> float:
        """The step from which on all these GPUs are dominated by what is known, or save less than
        more GPU types must where risk matters. [s]
        """
        known_h, known_usd = self.frontier.points()
        hours, usd = np.append(known_h, self.frontier.latest_h), np.append(known_usd, -np.inf)
        job = self.market.steps, checkpoint_sizes(self.query.space)[:1], self.market.conditions
        must_save = 0.0 if self.query.risk == "none" else recommendation().weights.gpu_type
        return mixture.step_within(hours, usd, *job) / (1 + must_save * (len(mixture.pools) - 1))

    def _least_s(self, pools: Sequence[Pool]) -> float:
        """About the least step: as if all types worked apart, none of them ever waiting. [s]

            1 / T = sum over types of n / g

        with n GPUs of a type and g the GPU-seconds of a step on all there are of it alone. A type
        that holds no plan alone is taken to make as much of its peak rate as the best other one; 0
        where none does.
        """
        each = [
            (pool.count, self._gpu_seconds(pool), flops_per_s(pool.gpu, self.query.precision))
            for pool in pools
        ]
        flops = min((alone_s * rate for _, alone_s, rate in each if alone_s < np.inf), default=0.0)
        if not flops:
            return 0.0
        return 1 / sum(
            count / alone_s if alone_s < np.inf else count * rate / flops
            for count, alone_s, rate in each
        )

    def _gpu_seconds(self, pool: Pool) -> float:
        """Of the fastest usual plan on all GPUs of a type; infinite where none fits."""
        if pool.gpu not in self.alone:
            count = next(p.count for p in self.query.cluster.pools if p.gpu.name == pool.gpu.name)
            whole = Cluster(name=pool.gpu.name, pools=(Pool(gpu=pool.gpu, count=count),))
            query = self.query.on(whole)
            usual = replace(query, settings=query.space.narrowed(USUAL).settings, risk="none")
            alone = search_best(usual, self.limits)
            self.frontier.count(alone.funnel)
            self.alone[pool.gpu] = count * alone.best_s
        return self.alone[pool.gpu]

    def _search(self, mixture: Mixture, limit: float) -> None:
        best = self._known_or_searched(mixture, limit, np.inf)
        if best and best.host_memory_bytes > mixture.room_bytes:
            best = self._known_or_searched(mixture, limit, mixture.room_bytes)
        if best is None or len(best.gpus) < 2:
            return
        offers = {offer.machine.gpu: offer for offer in mixture.place}
        billed = with_money(best, offers, self.market.tokens, self.market.conditions)
        assert billed.hours is not None and billed.usd is not None
        plan = msgspec.structs.replace(best.plan, cluster=mixture.cluster)
        self.frontier.add(
            [Trade(wall_h=billed.hours, usd=billed.usd, plan=plan, offers=offers, machine=None)]
        )

    def _known_or_searched(
        self, mixture: Mixture, limit: float, room_bytes: float
    ) -> PricedPlan | None:
        """The fastest plan that offloads no more than this to a node, if it is worth a search."""
        key = (self.query.margin, room_bytes, mixture.machines)
        under, best = self.market.mixtures.get(key, (0.0, None))
        if best is None and max(under, self._least_known_s(mixture)) < limit:
            best = self._fastest(mixture, limit, room_bytes)
            self.frontier.mixtures += 1
            self.market.mixtures[key] = (limit, best)
        return best

    def _least_known_s(self, mixture: Mixture) -> float:
        """What as many GPUs or more, with networks no slower, take at least, as far as they were
        searched. [s]
        """
        found = [0.0]
        for (margin, room_bytes, machines), (under, best) in self.market.mixtures.items():
            pools = {gpu.name: (gpu, count) for gpu, count in machines}
            alike = margin == self.query.margin and mixture.room_bytes <= room_bytes
            if alike and all(
                pool.gpu.name in pools and _is_no_better(pool, *pools[pool.gpu.name])
                for pool in mixture.pools
            ):
                found.append(best.step_s if best else under)
        return max(found)

    def _fastest(self, mixture: Mixture, limit: float, room_bytes: float) -> PricedPlan | None:
        """The fastest plan on these GPUs with a step below the limit: uniform, or a pipeline over
        types by the rules of a runtime that is asked.
        """
        own = self.query.on(mixture.cluster)
        if np.isfinite(room_bytes):
            rule = host_rule(room_bytes, own.stack)
            own = replace(own, user_rules=(*own.user_rules, rule))
        asked = MIXES if "any" in own.runtimes else own.runtimes
        uniform = UniformSearch(own.of_runtime(asked[0]), {}, self.limits, limit, every_type=True)
        best = next((plan for plan in uniform.search() if plan.step_s < limit), None)
        for runtime in asked:
            pipelines = Pipelines(
                own.of_runtime(runtime), self.limits, self.lines, types_interleaved=2
            )
            found = pipelines.search(best.step_s if best else limit)
            self.frontier.count(pipelines.evaluator.funnel)
            best = found[0] if found else best
        self.frontier.count(*uniform.funnels)
        return best


def _is_no_better(pool: Pool, gpu: Gpu, count: int) -> bool:
    """Than so many of the same type in other nodes."""
    node, other = pool.gpu.node, gpu.node
    alike = msgspec.structs.replace(gpu, node=node) == pool.gpu and node.gpus == other.gpus
    return alike and pool.count <= count and node.nic_bytes_per_s <= other.nic_bytes_per_s


def add_mixtures(frontier: MarketSearch, anywhere: bool) -> None:
    """Adds mixtures to the frontier where they win, and notes on what was not looked at."""
    query, notes = frontier.market.query, frontier.notes
    mixtures, why_few = all_mixtures(query.cluster, frontier.market.offers, anywhere)
    notes += why_few
    if not mixtures:
        return
    search = MixedSearch(frontier)
    try:
        with suppress(Stopped):
            search.run(mixtures)
    except InputError as error:  # models and settings that cannot be mixed
        notes.append(note(NoteCode.MIXTURES_REFUSED, error=str(error)))
        return
    notes.append(note(NoteCode.MIXTURES_SEARCHED))
    refusals = (why_not_mixed(query.of_runtime(runtime).space) for runtime in query.runtimes)
    notes += [why for why in refusals if why]
    if query.runtime == "any":
        notes.append(note(NoteCode.MIXTURES_OF_LAUNCHABLE))
    if search.skipped:
        notes.append(note(NoteCode.MIXTURES_SKIPPED, mixtures=search.skipped))
