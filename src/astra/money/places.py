"""Where several GPU types can be rented together, and how many of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.vendors import by_vendor, vendor_note, vendor_of
from astra.money.catalogue import Offer, joins
from astra.money.conditions import Conditions
from astra.money.dollars import Floats, losses, step_within
from astra.money.machines import gpu_in
from astra.notes import Note, NoteCode, note

MOST_TYPES = 3  # that are mixed; more take minutes
PARTS = (1, 2, 4, 8)  # of one type of a mixture: all there are, a half, a quarter, an eighth
Place = tuple[Offer, ...]  # one offer for each type


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Up to so many GPUs of each type, rented in one place."""

    place: Place
    pools: tuple[Pool, ...]  # in the order of the place
    max_gpus: int | None = None

    @property
    def gpus(self) -> int:
        return min(sum(pool.count for pool in self.pools), self.max_gpus or 1 << 30)

    @property
    def nodes(self) -> int:
        return sum(self._nodes)

    @property
    def spot_nodes(self) -> int:
        return self.nodes if self.place[0].spot else 0

    @property
    def usd_per_hour(self) -> float:
        """Of all of them; where fewer may be used in all, of as many of the cheapest type."""
        if self.gpus < sum(pool.count for pool in self.pools):
            return self.gpus * min(offer.usd_per_gpu_hour for offer in self.place)
        each = [offer.usd_per_hour for offer in self.place]
        return sum(count * usd for count, usd in zip(self._nodes, each, strict=True))

    @property
    def _nodes(self) -> list[int]:
        pairs = zip(self.pools, self.place, strict=True)
        return [pool.count // offer.machine.gpus for pool, offer in pairs]

    def step_within(
        self,
        wall_h: Floats,
        usd: Floats,
        steps: float,
        checkpoint_bytes: Floats,
        conditions: Conditions,
    ) -> float:
        """The step from which on all these GPUs are dominated by points of hours and dollars. [s]

        `checkpoint_bytes`: of one checkpoint, (1,).
        """
        gpus, nodes, spot = (np.array([n]) for n in (self.gpus, self.nodes, self.spot_nodes))
        lost = losses(gpus, nodes, spot, checkpoint_bytes, conditions)
        price = np.array([self.usd_per_hour])
        return float(
            step_within(wall_h, usd, steps, lost, price, checkpoint_bytes, conditions).min()
        )

    @property
    def machines(self) -> tuple[tuple[Gpu, int], ...]:
        """What its plans depend on: prices do not."""
        return tuple((pool.gpu, pool.count) for pool in self.pools)

    @property
    def room_bytes(self) -> float:
        """Of the RAM of its smallest node, for what plans offload."""
        return min(offer.machine.usable_ram_bytes for offer in self.place)

    @property
    def cluster(self) -> Cluster:
        name = " + ".join(dict.fromkeys(" ".join(offer.place) for offer in self.place))
        return Cluster(name=name, pools=self.pools, max_gpus=self.max_gpus)


def all_mixtures(
    cluster: Cluster, offers: Sequence[Offer], anywhere: bool
) -> tuple[list[Mixture], list[Note]]:
    """Of every place; and why there are no others, or none at all."""
    apart = vendor_note(cluster)
    notes = [apart] if apart else []
    types = max(len(own.pools) for own in by_vendor(cluster))
    if types < 2:
        return [], notes
    if types > MOST_TYPES:
        many = note(NoteCode.MIXTURES_TOO_MANY_TYPES, most=MOST_TYPES, types=types)
        return [], [*notes, many]
    places = places_of(cluster.pools, offers, anywhere)
    if not places:
        elsewhere = bool(places_of(cluster.pools, offers, True))
        notes.append(note(NoteCode.MIXTURES_APART, elsewhere=elsewhere))
    every = (mixtures_of(cluster.pools, place, cluster.max_gpus) for place in places)
    return [mixture for own in every for mixture in own], notes


def places_of(pools: Sequence[Pool], offers: Sequence[Offer], anywhere: bool) -> list[Place]:
    """Where two types of one vendor or more can be rented in one region, on demand or as spot,
    cheapest first.

    The same machines in several places only where each has a type that is cheaper there.
    `anywhere`: clouds and regions may be mixed.
    """
    own = {pool.gpu.name: pool for pool in pools}
    sold: dict[tuple[bool, str, str], dict[str, Offer]] = {}
    for offer in sorted(offers, key=lambda each: each.usd_per_gpu_hour):
        fits = offer.machine.gpus <= own[offer.machine.gpu].count
        if fits and joins(offer.machine):
            where = ("", "") if anywhere else offer.place
            sold.setdefault((offer.spot, *where), {}).setdefault(offer.machine.gpu, offer)
    found: dict[tuple[object, ...], list[Place]] = {}
    for there in sold.values():
        for count in range(2, min(len(there), MOST_TYPES) + 1):
            for names in combinations(sorted(there), count):
                if len({vendor_of(own[name].gpu) for name in names}) > 1:
                    continue
                place = tuple(there[name] for name in names)
                kinds = tuple(gpu_in(o.machine, own[o.machine.gpu].gpu) for o in place)
                found.setdefault((place[0].spot, *kinds), []).append(place)
    best = [place for alike in found.values() for place in _undominated(alike)]
    return sorted(best, key=lambda place: (-len(place), _price(place)))


def _undominated(alike: list[Place]) -> list[Place]:
    kept: list[Place] = []
    for place in sorted(alike, key=_price):
        own = [offer.usd_per_hour for offer in place]
        if not any(
            all(o.usd_per_hour <= usd for o, usd in zip(other, own, strict=True)) for other in kept
        ):
            kept.append(place)
    return kept


def _price(place: Place) -> float:
    return sum(offer.usd_per_gpu_hour for offer in place)


def mixtures_of(pools: Sequence[Pool], place: Place, max_gpus: int | None) -> list[Mixture]:
    """All GPUs of every type, and all but of one type, of which there are fewer."""
    own = {pool.gpu.name: pool for pool in pools}
    wanted = {name: min(pool.count, max_gpus or pool.count) for name, pool in own.items()}
    most = [wanted[o.machine.gpu] // o.machine.gpus for o in place]  # nodes
    gpus: list[Gpu] = [gpu_in(o.machine, own[o.machine.gpu].gpu) for o in place]
    parts = [parts for parts in product(PARTS, repeat=len(place)) if sum(p > 1 for p in parts) < 2]
    counts = {
        tuple(max(nodes // part, 1) for nodes, part in zip(most, each, strict=True))
        for each in parts
    }
    return [
        Mixture(
            place=place,
            pools=tuple(
                Pool(gpu=gpu, count=nodes * o.machine.gpus, usd_per_hour=o.usd_per_gpu_hour)
                for gpu, nodes, o in zip(gpus, each, place, strict=True)
            ),
            max_gpus=max_gpus,
        )
        for each in sorted(counts, reverse=True)
    ]
