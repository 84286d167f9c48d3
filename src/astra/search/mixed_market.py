"""Clusters of several GPU types rented in one place: plans that mix them, where they win.

Of every mixture (a place, and up to so many GPUs of each type) the fastest plan is of use if at
the price of all its GPUs nothing that is known is both as fast and as cheap. That is a limit on
its step, under which alone it is searched; most are not, by bounds on their speed.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np

from astra.cost.bill import with_money
from astra.cost.checkpoint import checkpoint_sizes
from astra.cost.host import host_rule
from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.vendors import by_vendor, vendor_note
from astra.model.layer_kinds import layer_kinds
from astra.money.dollars import losses, step_within
from astra.money.places import MOST_TYPES, Mixture, mixtures_of, places_of
from astra.notes import NoteCode, note
from astra.search.evaluator import Stopped
from astra.search.market import MarketSearch, Trade
from astra.search.pipeline.stage_lines import INSIDE, NO_RECOMPUTE, LineCache, StagePricer
from astra.search.pipelines import Pipelines
from astra.search.query import Query
from astra.search.uniform import UniformSearch
from astra.strategy.mixed_space import MIXES, why_not_mixed
from astra.strategy.plans import Floats
from astra.strategy.rules.registry import rules_for
from astra.strategy.segment_options import settings_with_options

MAX_SEARCHED = 24  # mixtures, the most promising; all with --exact


Searched = tuple[float, tuple[tuple[Gpu, int], ...]]  # room of a node for offload; GPUs


class MixedSearch:
    """One search over mixtures; what one finds prunes the next."""

    def __init__(self, frontier: MarketSearch) -> None:
        """`frontier`: of machines of one type; it gets what mixtures add to it."""
        self.frontier, self.market = frontier, frontier.market
        self.query, self.limits = frontier.market.query, frontier.limits
        self.searched = self.skipped = 0
        asked = self.query.settings
        self.offloads = bool(asked.keys() & {"offload_optimizer_fraction", "offload_activations"})
        # By machines: the fastest plan, or None, and the limit under which it was looked for.
        self.known: dict[Searched, tuple[float, PricedPlan | None]] = {}
        self.seconds: dict[Gpu, Floats] = {}
        self.lines = LineCache()
        self.least_waste = self._least_waste()

    def run(self, mixtures: Sequence[Mixture]) -> None:
        """The most promising first: those that would be cheapest if nothing were lost and those
        that would be fastest, by turns, so that either end of the frontier is looked at early."""
        least = [self._work_s(each.pools) for each in mixtures]
        usd = [s * each.usd_per_hour for s, each in zip(least, mixtures, strict=True)]
        turns = np.stack([np.argsort(usd, kind="stable"), np.argsort(least, kind="stable")], axis=1)
        for row in dict.fromkeys(turns.ravel().tolist()):
            limit = self._limit_s(mixtures[row])
            if least[row] * self.least_waste < limit:
                if self.searched < MAX_SEARCHED or self.query.exact:
                    self._search(mixtures[row], limit)
                else:
                    self.skipped += 1

    def _limit_s(self, mixture: Mixture) -> float:
        """The step from which on all these GPUs are dominated by what is known. [s]"""
        market, size = self.market, checkpoint_sizes(self.query.space)[:1]
        gpus, nodes = np.array([mixture.gpus]), np.array([mixture.nodes])
        lost = losses(gpus, nodes, np.array([mixture.spot_nodes]), size, market.conditions)
        known_h, known_usd = self.frontier.points()
        hours, usd = np.append(known_h, self.frontier.latest_h), np.append(known_usd, -np.inf)
        price = np.array([mixture.usd_per_hour])
        within = step_within(hours, usd, market.steps, lost, price, size, market.conditions)
        return float(within.min())

    def _least_waste(self) -> float:
        """How many times its work the step of the most efficient known plan on one type takes:
        plans over several types are taken to waste no less.
        """
        ratios = []
        for each in price_plans([trade.plan for trade in self.frontier.trades], self.query.margin):
            (pool,), (count,) = each.plan.cluster.pools, each.gpus.values()
            work_s = self._work_s([msgspec.structs.replace(pool, count=count)])
            ratios += [each.step_s / work_s] if work_s else []
        return max(min(ratios, default=1.0), 1.0)

    def _work_s(self, pools: Sequence[Pool]) -> float:
        """No plan is faster than all these GPUs at their best, none of them ever waiting. [s]

            T >= batch x (work of all layers for one sample) / sum over types of n / g

        with n GPUs of a type and g the GPU-seconds it takes at least for a unit of work: layers
        of each kind weigh as much as on the first type.
        """
        counts = np.array(layer_kinds(self.query.model).counts)
        each = [self._gpu_seconds(pool) for pool in pools]
        weight = each[0]
        with np.errstate(invalid="ignore"):
            speed = sum(
                pool.count / float((own / weight).min())
                for pool, own in zip(pools, each, strict=True)
                if np.isfinite(own).all()
            )
        if not speed or not np.isfinite(weight).all():
            return 0.0  # nothing is said of types that no plan can use alone
        return self.query.global_batch * float((counts * weight).sum()) / speed

    def _gpu_seconds(self, pool: Pool) -> Floats:
        """Of a type: the least that a layer takes for one sample, both ways. (layer kind,)"""
        if pool.gpu not in self.seconds:
            own = next(p for p in self.query.cluster.pools if p.gpu.name == pool.gpu.name)
            whole = msgspec.structs.replace(own, gpu=pool.gpu)
            alone = self.query.on(Cluster(name=pool.gpu.name, pools=(whole,)))
            self.seconds[pool.gpu] = _layer_gpu_seconds(alone.of_runtime("flagscale"))
        return self.seconds[pool.gpu]

    def _search(self, mixture: Mixture, limit: float) -> None:
        key = (mixture.room_bytes if self.offloads else np.inf, mixture.machines)
        under, best = self.known.get(key, (0.0, None))
        if best is None and under < limit and self._least_known_s(mixture) < limit:
            best = self._fastest(mixture, limit)
            self.searched += 1
            self.known[key] = (limit, best)
        if best is None or len(best.gpus) < 2:
            return
        offers = {offer.machine.gpu: offer for offer in mixture.place}
        billed = with_money(best, offers, self.market.tokens, self.market.conditions)
        assert billed.hours is not None and billed.usd is not None
        plan = msgspec.structs.replace(best.plan, cluster=mixture.cluster)
        self.frontier.add(
            [Trade(wall_h=billed.hours, usd=billed.usd, plan=plan, offers=offers, machine=None)]
        )

    def _least_known_s(self, mixture: Mixture) -> float:
        """What as many GPUs or more, with networks no slower, take at least, as far as they were
        searched. [s]
        """
        found = [0.0]
        for (room_bytes, machines), (under, best) in self.known.items():
            pools = {gpu.name: (gpu, count) for gpu, count in machines}
            if (not self.offloads or mixture.room_bytes <= room_bytes) and all(
                pool.gpu.name in pools and _is_no_better(pool, *pools[pool.gpu.name])
                for pool in mixture.pools
            ):
                found.append(best.step_s if best else under)
        return max(found)

    def _fastest(self, mixture: Mixture, limit: float) -> PricedPlan | None:
        """The fastest plan on these GPUs with a step below the limit: uniform, or a pipeline over
        types by the rules of a runtime that is asked.
        """
        own = self.query.on(mixture.cluster)
        if self.offloads:
            rule = host_rule(mixture.room_bytes, own.stack)
            own = replace(own, user_rules=(*own.user_rules, rule))
        asked = MIXES if "any" in own.runtimes else own.runtimes
        uniform = UniformSearch(own.of_runtime(asked[0]), {}, self.limits, limit).search()
        best = uniform[0] if uniform and uniform[0].step_s < limit else None
        for runtime in asked:
            pipelines = Pipelines(own.of_runtime(runtime), self.limits, self.lines)
            found = pipelines.search(best.step_s if best else limit)
            best = found[0] if found else best
        return best


def _is_no_better(pool: Pool, gpu: Gpu, count: int) -> bool:
    """Than so many of the same type in other nodes."""
    node, other = pool.gpu.node, gpu.node
    alike = msgspec.structs.replace(gpu, node=node) == pool.gpu and node.gpus == other.gpus
    return alike and pool.count <= count and node.nic_bytes_per_s <= other.nic_bytes_per_s


def _layer_gpu_seconds(query: Query) -> Floats:
    """The least that a layer of each kind takes of one sample on one type, both ways, times the
    GPUs it takes; experts' traffic in the open or hidden. (layer kind,)
    """
    space = query.space
    hidden = (False, True) if query.model.moe is not None else (False,)
    pairs = [
        (replace(setting, overlap_ep=hides), option)
        for setting, options in settings_with_options(space, rules_for("flagscale"))
        for option in options
        for hides in hidden
    ]
    if not pairs:
        return np.full(len(layer_kinds(query.model).counts), np.inf)
    lines = StagePricer(space.workload, query.stack, query.margin).lines(pairs, [NO_RECOMPUTE])
    both_s = (lines.fixed["forward_s"] + lines.fixed["backward_s"])[INSIDE, :, 1:]
    each = [option.stage_gpus / setting.samples for setting, option in pairs]
    least: Floats = (both_s * np.array(each)[:, np.newaxis]).min(axis=0)
    return least


def add_mixtures(frontier: MarketSearch, anywhere: bool) -> None:
    """Adds mixtures to the frontier where they win, and notes on what was not looked at."""
    query, notes = frontier.market.query, frontier.notes
    pools, offers = query.cluster.pools, frontier.market.offers
    apart = vendor_note(query.cluster)
    notes += [apart] if apart else []
    most = max(len(own.pools) for own in by_vendor(query.cluster))
    if most < 2:
        return
    if most > MOST_TYPES:
        notes.append(note(NoteCode.MIXTURES_TOO_MANY_TYPES, most=MOST_TYPES, types=most))
        return
    places = places_of(pools, offers, anywhere)
    if not places:
        elsewhere = bool(places_of(pools, offers, True))
        notes.append(note(NoteCode.MIXTURES_APART, elsewhere=elsewhere))
        return
    try:
        search = MixedSearch(frontier)
        cap = query.cluster.max_gpus
        with suppress(Stopped):
            search.run([each for place in places for each in mixtures_of(pools, place, cap)])
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
