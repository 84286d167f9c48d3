"""Clusters of several GPU types rented in one place: the fastest plan over all of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import msgspec
import numpy as np

from astra.errors import InputError
from astra.hardware.cluster import Cluster, Pool
from astra.money.catalogue import Offer
from astra.money.conditions import Conditions
from astra.money.dollars import bill, losses
from astra.search.answer import Wanted
from astra.search.find import Progress
from astra.search.market import Trade, gpu_in, joins
from astra.search.priced import Priced
from astra.strategy.space import Space

MOST_TYPES = 3  # that are mixed; more take minutes
Place = tuple[Offer, ...]  # one offer for each type


def places_of(wanted: Wanted, offers: Sequence[Offer], anywhere: bool) -> list[Place]:
    """Where at least two types can be rented in one region, cheapest first; the same machines in
    several places once. `anywhere`: clouds and regions may be mixed.
    """
    pools = {pool.gpu.name: pool for pool in wanted.space.question.task.cluster.pools}
    sold: dict[tuple[str, str], dict[str, Offer]] = {}
    for offer in sorted(offers, key=lambda each: each.usd_per_gpu_hour):
        fits = offer.machine.gpus <= pools[offer.machine.gpu].count
        if fits and joins(offer.machine) and not offer.spot:
            where = ("", "") if anywhere else offer.place
            sold.setdefault(where, {}).setdefault(offer.machine.gpu, offer)
    found: dict[tuple[object, ...], Place] = {}
    for there in sold.values():
        for count in range(2, min(len(there), MOST_TYPES) + 1):
            for names in combinations(sorted(there), count):
                place = tuple(there[name] for name in names)
                kinds = tuple(
                    (o.machine.gpu, o.machine.gpus, o.machine.nic_bytes_per_s) for o in place
                )
                if kinds not in found or _price(place) < _price(found[kinds]):
                    found[kinds] = place
    return sorted(found.values(), key=lambda place: (-len(place), _price(place)))


def _price(place: Place) -> float:
    return sum(offer.usd_per_gpu_hour for offer in place)


def mixed_trade(
    wanted: Wanted, place: Place, tokens: float, kept: Conditions, progress: Progress | None = None
) -> Trade | None:
    """The fastest plan that mixes the types of a place, where one beats each type alone."""
    from astra.search.mixed.answer import answer_mixed

    question = wanted.space.question
    own = {pool.gpu.name: pool for pool in question.task.cluster.pools}
    pools = tuple(
        Pool(
            gpu=gpu_in(offer.machine, own[offer.machine.gpu].gpu),
            count=own[offer.machine.gpu].count // offer.machine.gpus * offer.machine.gpus,
            usd_per_hour=offer.usd_per_gpu_hour,
        )
        for offer in place
    )
    name = " + ".join(dict.fromkeys(" ".join(offer.place) for offer in place))
    cluster = Cluster(name=name, pools=pools, max_gpus=question.task.cluster.max_gpus)
    task = msgspec.structs.replace(question.task, cluster=cluster, runtime="flagscale")
    space = Space(replace(question, task=task), wanted.space.chosen)
    answer = answer_mixed(replace(wanted, space=space, top=1), {}, progress)
    best = answer.best
    if best is None or len(best.gpus) < 2:
        return None
    offers = {offer.machine.gpu: offer for offer in place}
    hours, usd = hours_and_usd(best, offers, tokens, kept)
    return Trade(wall_h=hours, usd=usd, plan=best.plan, offers=offers, machine=None)


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


def mixed_trades(
    wanted: Wanted,
    offers: Sequence[Offer],
    anywhere: bool,
    tokens: float,
    kept: Conditions,
    progress: Progress | None = None,
) -> tuple[list[Trade], list[str]]:
    """A trade for every place where mixing wins, and words on what was not looked at."""
    types = len(wanted.space.question.task.cluster.pools)
    if types < 2:
        return [], []
    if types > MOST_TYPES:
        return [], [f"mixed pools are searched over up to {MOST_TYPES} types; these are {types}"]
    if wanted.space.question.task.runtime not in ("megatron", "flagscale"):
        return [], []
    found = []
    for place in places_of(wanted, offers, anywhere):
        try:
            trade = mixed_trade(wanted, place, tokens, kept, progress)
        except InputError as error:  # models and settings that cannot be mixed
            return [], [f"mixed pools are left out: {error}"]
        if trade is not None:
            found.append(trade)
    return found, []
