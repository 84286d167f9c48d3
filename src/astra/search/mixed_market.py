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
from astra.search.mixed.answer import MIXES, mixed_space, why_not_mixed
from astra.search.mixed.cells import Cell, Kind, cells_of, legal_kinds
from astra.search.mixed.pipelines import best_pipelines
from astra.search.mixed.solve import MixedFinder
from astra.search.mixed.speed import LayerSeconds, layer_seconds
from astra.search.mixed.uniform import UniformSearch
from astra.search.objective import checkpoint_sizes
from astra.search.places import MOST_TYPES, Mixture, mixtures_of, places_of
from astra.search.query import Query
from astra.strategy.plans import Floats, plan_at
from astra.strategy.rules.registry import rules_for
from astra.strategy.space import Space
from astra.timing.layer import LayerCache

MOST_WORK = 120_000_000  # of all mixtures together, counted as in a search of one
MOST_OF_ONE = 30_000_000
SHORTER = 4  # rounds: they overrun what is left by less


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
        self.labels = self.open = self.skipped = 0
        self.left = MOST_WORK
        asked = query.settings
        self.offloads = bool(asked.keys() & {"offload_optimizer_fraction", "offload_activations"})
        # By machines: the fastest plan, or None, and the limit under which it was looked for.
        self.known: dict[tuple[object, ...], tuple[float, PricedPlan | None]] = {}
        self.most = query.cluster.pools
        self.seconds: dict[Gpu, Floats] = {}

    def run(self, mixtures: Sequence[Mixture]) -> None:
        """The most promising first: those that would be cheapest if nothing were lost and those
        that would be fastest, by turns, so that either end of the frontier is looked at early."""
        least = [self._work_s(each) for each in mixtures]
        usd = [s * each.usd_per_hour for s, each in zip(least, mixtures, strict=True)]
        turns = np.stack([np.argsort(usd, kind="stable"), np.argsort(least, kind="stable")], axis=1)
        for row in dict.fromkeys(turns.ravel().tolist()):
            limit = self._limit_s(mixtures[row])
            if least[row] < limit:
                if self.left > 0 or self.query.exact:
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

    def _work_s(self, mixture: Mixture) -> float:
        """No plan is faster than all these GPUs at their best, none of them ever waiting. [s]

            T >= batch x (work of all layers for one sample) / sum over types of n / g

        with n GPUs of a type and g the GPU-seconds it takes at least for a unit of work: layers
        of each kind weigh as much as on the first type.
        """
        counts = np.array(layer_kinds(self.query.model).counts)
        each = [self._gpu_seconds(pool) for pool in mixture.pools]
        weight = each[0]
        with np.errstate(invalid="ignore"):
            speed = sum(
                pool.count / float((own / weight).min())
                for pool, own in zip(mixture.pools, each, strict=True)
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
            space = mixed_space(self._space(Cluster(name=pool.gpu.name, pools=(whole,))))
            cells = legal_kinds(space, cells_of(space), rules_for("flagscale"))
            kinds = len(layer_kinds(space.workload.task.model).counts)
            least = np.full(kinds, np.inf)
            for (cell, ways), own_s in zip(cells, self._layer_seconds(space, cells), strict=True):
                gpus = np.array([way.tp * way.dp * cell.cp for way in ways])
                each = own_s.whole_s * gpus / cell.samples
                least = np.minimum(least, each.min(axis=1))
            self.seconds[pool.gpu] = least
        return self.seconds[pool.gpu]

    def _layer_seconds(
        self, space: Space, cells: list[tuple[Cell, list[Kind]]]
    ) -> list[LayerSeconds]:
        return layer_seconds(space, cells, self.query.stack, LayerCache()) if cells else []

    def _search(self, mixture: Mixture, limit: float) -> None:
        key = (mixture.room_bytes if self.offloads else np.inf, mixture.machines)
        under, best = self.known.get(key, (0.0, None))
        if best is None and under < limit:
            best = self._fastest(mixture, limit)
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
        self.labels += sum(funnel.candidates for funnel in uniform.funnels)
        best = uniform.found[0] if uniform.found and uniform.step_s < limit else None
        for runtime in asked:
            mixing = own.of_runtime(runtime)
            if why_not_mixed(mixing.space) is None:
                found = self._pipeline(mixing, best.step_s if best else limit)
                best = found or best
        return best

    def _pipeline(self, query: Query, limit: float) -> PricedPlan | None:
        """The fastest pipeline over these types by the rules of one runtime, below the limit."""
        space = mixed_space(query.space)
        finder = MixedFinder(space, query.rules, query.stack, query.margin, limit, query.exact)
        if not query.exact:  # what is not proven then is told
            finder.most_total, finder.most_work = MOST_OF_ONE, finder.most_work // SHORTER
        found = best_pipelines(finder, rules_for(space.workload.task.runtime))
        self.left -= finder.tally.work
        self.open += bool(np.isfinite(finder.tally.open_s))
        self.labels += finder.tally.labels
        self.limits.looked_at(finder.tally.labels)
        if not found or found[0].step_s >= limit:
            return None
        plan = plan_at(found[0].plans, 0, space.workload.task)
        (priced,) = price_plans([plan], query.margin)
        return priced


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
    if search.open:
        notes.append(note(NoteCode.MIXTURES_NOT_PROVEN, mixtures=search.open))
    if search.skipped:
        notes.append(note(NoteCode.MIXTURES_SKIPPED, mixtures=search.skipped))
    return search.trades, search.beaten, notes
