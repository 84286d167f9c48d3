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

from astra.cost.host import host_rule
from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.vendors import by_vendor, vendor_note
from astra.model.layer_kinds import layer_kinds
from astra.money.catalogue import Offer
from astra.money.conditions import Conditions
from astra.money.dollars import losses, step_within
from astra.notes import Note, NoteCode, note
from astra.search.bill import bill_of
from astra.search.evaluator import Limits, Stopped
from astra.search.market import Trade, beaten_by, best_of
from astra.search.mixed_space import MIXES, why_not_mixed
from astra.search.objective import checkpoint_sizes
from astra.search.pipeline.settings import settings_with_options
from astra.search.pipeline.stage_lines import INSIDE, NO_RECOMPUTE, LineCache, StagePricer
from astra.search.pipelines import Pipelines
from astra.search.places import MOST_TYPES, Mixture, mixtures_of, places_of
from astra.search.query import Query
from astra.search.uniform import UniformSearch
from astra.strategy.plans import Floats
from astra.strategy.rules.registry import rules_for
from astra.strategy.space import Space

MAX_SEARCHED = 24  # mixtures, the most promising; all with --exact


Searched = tuple[float, tuple[tuple[Gpu, int], ...]]  # room of a node for offload; GPUs


class MixedSearch:
    """One search over mixtures; what one finds prunes the next."""

    def __init__(
        self,
        query: Query,
        known: Sequence[Trade],
        tokens: float,
        conditions: Conditions,
        latest_h: float,
        limits: Limits,
    ) -> None:
        self.query, self.tokens, self.conditions, self.latest_h = (
            query,
            tokens,
            conditions,
            latest_h,
        )
        self.trades, self.limits = list(known), limits
        self.beaten: set[tuple[float, float]] = set()
        self.searched = self.skipped = 0
        asked = query.settings
        self.offloads = bool(asked.keys() & {"offload_optimizer_fraction", "offload_activations"})
        # By machines: the fastest plan, or None, and the limit under which it was looked for.
        self.known: dict[Searched, tuple[float, PricedPlan | None]] = {}
        self.most = query.cluster.pools
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
        steps = self.tokens / self.query.tokens_per_step
        size = checkpoint_sizes(self.query.space)[:1]
        gpus, nodes = np.array([mixture.gpus]), np.array([mixture.nodes])
        lost = losses(gpus, nodes, np.array([mixture.spot_nodes]), size, self.conditions)
        hours = np.array([*(trade.wall_h for trade in self.trades), self.latest_h])
        usd = np.array([*(trade.usd for trade in self.trades), -np.inf])
        price = np.array([mixture.usd_per_hour])
        return float(step_within(hours, usd, steps, lost, price, size, self.conditions).min())

    def _space(self, cluster: Cluster) -> Space:
        return self.query.on(cluster).of_runtime("flagscale").space

    def _least_waste(self) -> float:
        """How many times its work the step of the most efficient known plan on one type takes:
        plans over several types are taken to waste no less.
        """
        ratios = []
        for each in price_plans([trade.plan for trade in self.trades], self.query.margin):
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
            own = next(p for p in self.most if p.gpu.name == pool.gpu.name)
            whole = msgspec.structs.replace(own, gpu=pool.gpu)
            space = self._space(Cluster(name=pool.gpu.name, pools=(whole,)))
            self.seconds[pool.gpu] = _layer_gpu_seconds(space, self.query)
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
        bill = bill_of(best, offers, self.tokens, self.conditions).bill
        hours, usd = float(bill.wall_h[0]), float(bill.usd[0])
        plan = msgspec.structs.replace(best.plan, cluster=mixture.cluster)
        trade = Trade(wall_h=hours, usd=usd, plan=plan, offers=offers, machine=None)
        every = [*self.trades, trade]
        self.trades = best_of(every)
        self.beaten |= beaten_by(self.trades, every)

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
        uniform = UniformSearch(own.of_runtime(asked[0]), {}, self.limits, limit).run()
        best = uniform.found[0] if uniform.found and uniform.step_s < limit else None
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


def _layer_gpu_seconds(space: Space, query: Query) -> Floats:
    """The least that a layer of each kind takes of one sample on the type of a space, both ways,
    times the GPUs it takes; experts' traffic in the open or hidden. (layer kind,)
    """
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


def mixed_trades(
    query: Query,
    offers: Sequence[Offer],
    anywhere: bool,
    known: Sequence[Trade],
    tokens: float,
    conditions: Conditions,
    latest_h: float,
    limits: Limits,
) -> tuple[list[Trade], set[tuple[float, float]], list[Note]]:
    """The frontier with mixtures where they win, what fell from it, and notes on what was not
    looked at."""
    pools = query.cluster.pools
    apart = vendor_note(query.cluster)
    notes = [apart] if apart else []
    most = max(len(own.pools) for own in by_vendor(query.cluster))
    if most < 2:
        return list(known), set(), notes
    if most > MOST_TYPES:
        many = note(NoteCode.MIXTURES_TOO_MANY_TYPES, most=MOST_TYPES, types=most)
        return list(known), set(), [*notes, many]
    places = places_of(pools, offers, anywhere)
    if not places:
        elsewhere = bool(places_of(pools, offers, True))
        return list(known), set(), [*notes, note(NoteCode.MIXTURES_APART, elsewhere=elsewhere)]
    try:
        search = MixedSearch(query, known, tokens, conditions, latest_h, limits)
        cap = query.cluster.max_gpus
        with suppress(Stopped):
            search.run([each for place in places for each in mixtures_of(pools, place, cap)])
    except InputError as error:  # models and settings that cannot be mixed
        return list(known), set(), [*notes, note(NoteCode.MIXTURES_REFUSED, error=str(error))]
    notes.append(note(NoteCode.MIXTURES_SEARCHED))
    for runtime in query.runtimes:
        if why := why_not_mixed(query.of_runtime(runtime).space):
            notes.append(why)
    if query.runtime == "any":
        notes.append(note(NoteCode.MIXTURES_OF_LAUNCHABLE))
    if search.skipped:
        notes.append(note(NoteCode.MIXTURES_SKIPPED, mixtures=search.skipped))
    return search.trades, search.beaten, notes
