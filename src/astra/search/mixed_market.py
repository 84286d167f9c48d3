"""Clusters of several GPU types rented in one place: plans that mix them, where they win.

Of every mixture (a place, and up to so many GPUs of each type) the fastest plan is of use if at
the price of all its GPUs nothing that is known is both as fast and as cheap. That is a limit on
its step, under which alone it is searched; most are not, by bounds on their speed.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from astra.errors import InputError
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.vendors import by_vendor, vendor_note
from astra.model.kinds import layer_kinds
from astra.money.catalogue import Offer
from astra.money.conditions import Conditions
from astra.money.dollars import bill, losses, step_within
from astra.search.answer import Wanted, rules_of
from astra.search.find import Progress
from astra.search.frontier import checkpoint_sizes
from astra.search.host import host_rule
from astra.search.market import Trade, beaten_by, best_of
from astra.search.mixed.answer import MIXES, as_runtime, mixed_space, why_not_mixed
from astra.search.mixed.cells import Cell, Kind, cells_of, legal_kinds
from astra.search.mixed.solve import MixedFinder
from astra.search.mixed.speed import LayerSeconds, layer_seconds
from astra.search.mixed.uniform import UniformSearch
from astra.search.places import MOST_TYPES, Mixture, mixtures_of, places_of
from astra.search.price import price_many
from astra.search.priced import Priced
from astra.strategy.plans import Floats, plan_at
from astra.strategy.rules.book import rules_for
from astra.strategy.space import Space
from astra.timing.layer import LayerCache

MOST_WORK = 120_000_000  # of all mixtures together, counted as in a search of one
MOST_OF_ONE = 30_000_000
SHORTER = 4  # rounds: they overrun what is left by less
LEFT_OUT = (
    "clusters of several GPU types are searched with all GPUs of each type, and with a half, a "
    "quarter and an eighth of one of them; other mixtures are left out"
)
APART = (
    "clusters of several GPU types are not looked at: no two of these are to be had in one cloud "
    "and region, or both at prices that were given, in nodes that a network is known to join"
)
ONE_MAKE = (
    "for money, mixtures are searched as public runtimes launch them; plans whose replicas differ "
    "are not searched"
)


def hours_and_usd(
    plan: Priced, offers: dict[str, Offer], tokens: float, kept: Conditions
) -> tuple[float, float]:
    """As `with_money` says them."""
    nodes = {gpu: -(-count // offers[gpu].machine.gpus) for gpu, count in plan.gpus.items()}
    price = sum(count * offers[gpu].usd_per_hour for gpu, count in nodes.items())
    spot = sum(count for gpu, count in nodes.items() if offers[gpu].spot)
    size = np.array([plan.checkpoint_bytes])
    gpus = np.array([sum(plan.gpus.values())])
    lost = losses(gpus, np.array([sum(nodes.values())]), np.array([spot]), size, kept)
    steps = tokens / (plan.plan.global_batch * plan.plan.seq_len)
    found = bill(np.array([plan.step_s]), steps, lost, np.array([price]), size, kept)
    return float(found.wall_h[0]), float(found.usd[0])


class MixedSearch:
    """One search over mixtures; what one finds prunes the next."""

    def __init__(
        self,
        wanted: Wanted,
        known: Sequence[Trade],
        tokens: float,
        kept: Conditions,
        latest_h: float,
        progress: Progress | None = None,
    ) -> None:
        self.wanted, self.tokens, self.kept, self.latest_h = wanted, tokens, kept, latest_h
        self.trades, self.progress = list(known), progress
        self.beaten: set[tuple[float, float]] = set()
        self.labels = self.open = self.skipped = 0
        self.left = MOST_WORK
        asked = wanted.space.chosen
        self.offloads = bool(asked.keys() & {"offload_optimizer_fraction", "offload_activations"})
        # By machines: the fastest plan, or None, and the limit under which it was looked for.
        self.known: dict[tuple[object, ...], tuple[float, Priced | None]] = {}
        self.most = wanted.space.question.task.cluster.pools
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
                if self.left > 0 or self.wanted.exact:
                    self._search(mixtures[row], limit)
                else:
                    self.skipped += 1

    def _limit_s(self, mixture: Mixture) -> float:
        """The step from which on all these GPUs are dominated by what is known. [s]"""
        question = self.wanted.space.question
        steps = self.tokens / (question.global_batch * question.seq_len)
        size = checkpoint_sizes(self.wanted.space)[:1]
        gpus, nodes = np.array([mixture.gpus]), np.array([mixture.nodes])
        lost = losses(gpus, nodes, np.array([mixture.spot_nodes]), size, self.kept)
        hours = np.array([*(trade.wall_h for trade in self.trades), self.latest_h])
        usd = np.array([*(trade.usd for trade in self.trades), -np.inf])
        price = np.array([mixture.usd_per_hour])
        return float(step_within(hours, usd, steps, lost, price, size, self.kept).min())

    def _space(self, cluster: Cluster) -> Space:
        question = self.wanted.space.question
        task = msgspec.structs.replace(question.task, cluster=cluster, runtime="flagscale")
        return Space(replace(question, task=task), self.wanted.space.chosen)

    def _work_s(self, mixture: Mixture) -> float:
        """No plan is faster than all these GPUs at their best, none of them ever waiting. [s]

            T >= batch x (work of all layers for one sample) / sum over types of n / g

        with n GPUs of a type and g the GPU-seconds it takes at least for a unit of work: layers
        of each kind weigh as much as on the first type.
        """
        question = self.wanted.space.question
        counts = np.array(layer_kinds(question.task.model).counts)
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
        return question.global_batch * float((counts * weight).sum()) / speed

    def _gpu_seconds(self, pool: Pool) -> Floats:
        """Of a type: the least that a layer takes for one sample, both ways. (layer kind,)"""
        if pool.gpu not in self.seconds:
            own = next(p for p in self.most if p.gpu.name == pool.gpu.name)
            whole = msgspec.structs.replace(own, gpu=pool.gpu)
            space = mixed_space(self._space(Cluster(name=pool.gpu.name, pools=(whole,))))
            cells = legal_kinds(space, cells_of(space), rules_for("flagscale"))
            kinds = len(layer_kinds(space.question.task.model).counts)
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
        return layer_seconds(space, cells, self.wanted.stack, LayerCache()) if cells else []

    def _search(self, mixture: Mixture, limit: float) -> None:
        key = (mixture.room_bytes if self.offloads else np.inf, mixture.machines)
        under, best = self.known.get(key, (0.0, None))
        if best is None and under < limit:
            best = self._fastest(mixture, limit)
            self.known[key] = (limit, best)
        if best is None or len(best.gpus) < 2:
            return
        offers = {offer.machine.gpu: offer for offer in mixture.place}
        hours, usd = hours_and_usd(best, offers, self.tokens, self.kept)
        plan = msgspec.structs.replace(best.plan, cluster=mixture.cluster)
        trade = Trade(wall_h=hours, usd=usd, plan=plan, offers=offers, machine=None)
        every = [*self.trades, trade]
        self.trades = best_of(every)
        self.beaten |= beaten_by(self.trades, every)

    def _fastest(self, mixture: Mixture, limit: float) -> Priced | None:
        """The fastest plan on these GPUs with a step below the limit: uniform, or a pipeline over
        types by the rules of a runtime that is asked.
        """
        own = replace(self.wanted, space=self._space(mixture.cluster))
        if self.offloads:
            rule = host_rule(mixture.room_bytes, own.stack)
            own = replace(own, own_rules=(*own.own_rules, rule))
        asked = MIXES if "any" in own.asked_runtimes else own.asked_runtimes
        uniform = UniformSearch(as_runtime(own, asked[0]), {}, None, limit).run()
        self.labels += sum(funnel.candidates for funnel in uniform.funnels)
        best = uniform.found[0] if uniform.found and uniform.step_s < limit else None
        for runtime in asked:
            mixing = as_runtime(own, runtime)
            if why_not_mixed(mixing.space) is None:
                found = self._pipeline(mixing, best.step_s if best else limit)
                best = found or best
        return best

    def _pipeline(self, wanted: Wanted, limit: float) -> Priced | None:
        """The fastest pipeline over these types by the rules of one runtime, below the limit."""
        space, rules = mixed_space(wanted.space), rules_of(wanted)
        finder = MixedFinder(space, rules, wanted.stack, wanted.margin, limit, wanted.exact)
        if not wanted.exact:  # what is not proven then is told
            finder.most_total, finder.most_work = MOST_OF_ONE, finder.most_work // SHORTER
        found = finder.run(rules_for(space.question.task.runtime))
        self.left -= finder.tally.work
        self.open += bool(np.isfinite(finder.tally.open_s))
        self.labels += finder.tally.labels
        if self.progress:
            self.progress(self.labels)
        if not found or found[0].step_s >= limit:
            return None
        plan = plan_at(found[0].plans, 0, space.question.task)
        (priced,) = price_many([plan], wanted.margin)
        return priced


def mixed_trades(
    wanted: Wanted,
    offers: Sequence[Offer],
    anywhere: bool,
    known: Sequence[Trade],
    tokens: float,
    kept: Conditions,
    latest_h: float,
    progress: Progress | None = None,
) -> tuple[list[Trade], set[tuple[float, float]], list[str]]:
    """The frontier with mixtures where they win, what fell from it, and words on what was not
    looked at."""
    question = wanted.space.question
    pools = question.task.cluster.pools
    apart = vendor_note(question.task.cluster)
    notes = [apart] if apart else []
    most = max(len(own.pools) for own in by_vendor(question.task.cluster))
    if most < 2:
        return list(known), set(), notes
    if most > MOST_TYPES:
        words = f"mixed pools are searched over up to {MOST_TYPES} types; these are {most}"
        return list(known), set(), [*notes, words]
    places = places_of(pools, offers, anywhere)
    if not places:
        elsewhere = "; --any-region looks at them" if places_of(pools, offers, True) else ""
        return list(known), set(), [*notes, f"{APART}{elsewhere}"]
    try:
        search = MixedSearch(wanted, known, tokens, kept, latest_h, progress)
        cap = question.task.cluster.max_gpus
        search.run([each for place in places for each in mixtures_of(pools, place, cap)])
    except InputError as error:  # models and settings that cannot be mixed
        return list(known), set(), [*notes, f"mixed pools are left out: {error}"]
    notes.append(LEFT_OUT)
    for runtime in wanted.asked_runtimes:
        if why := why_not_mixed(as_runtime(wanted, runtime).space):
            notes.append(why)
    if question.task.runtime == "any":
        notes.append(ONE_MAKE)
    if search.open:
        notes.append(f"of {search.open} mixtures the fastest plan is not proven to be the fastest")
    if search.skipped:
        notes.append(f"{search.skipped} mixtures that may win were not looked at; --exact does")
    return search.trades, search.beaten, notes
