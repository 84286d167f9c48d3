"""Kinds of nodes for rent, with the cheapest offers of each: what a search compares."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.pools import gpu_specs
from astra.money.catalogue import GUESSED, Instance, Offer, joins, machine_gpu
from astra.money.dollars import Rent


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One kind of node, up to a number of GPUs, with the cheapest ways to rent it."""

    gpu: Gpu
    most: int
    offers: tuple[Offer, ...]  # on demand, spot, or both: the cheapest of each
    elsewhere: tuple[Offer, ...]  # all the others, whatever their RAM
    room_bytes: float = np.inf  # of a node's RAM, for what plans offload; infinite: not known
    extends: bool = False  # there is one alike that costs no more, with less RAM

    @property
    def rents(self) -> list[Rent]:
        return [
            Rent(
                node_gpus=offer.machine.gpus, node_usd_per_hour=offer.usd_per_hour, spot=offer.spot
            )
            for offer in self.offers
        ]

    @property
    def usd_per_flop(self) -> float:
        """At its cheapest and at its peak rate, an hour of it. [USD s / h]"""
        rate = self.gpu.bf16_flops_per_s or self.gpu.fp16_flops_per_s or 1.0
        return min(offer.usd_per_gpu_hour for offer in self.offers) / rate

    def cluster(self, whole: Cluster) -> Cluster:
        """Of such nodes alone."""
        return msgspec.structs.replace(whole, pools=(Pool(gpu=self.gpu, count=self.most),))

    def rented(self, offer: Offer, gpus: int) -> Cluster:
        """Nodes for so many GPUs, in the place of an offer; less than one node is that many."""
        node = msgspec.structs.replace(self.gpu.node, ram_bytes=offer.machine.ram_bytes)
        gpu = msgspec.structs.replace(self.gpu, node=node)
        count = gpus if gpus < node.gpus else -(-gpus // node.gpus) * node.gpus
        name = " ".join(dict.fromkeys((*offer.place, offer.machine.instance)))
        pool = Pool(gpu=gpu, count=count, usd_per_hour=offer.usd_per_gpu_hour)
        return Cluster(name=name, pools=(pool,))


class OtherRegion(msgspec.Struct, frozen=True, kw_only=True):
    """The best plan in another place."""

    cloud: str
    region: str
    instance: str
    spot: bool
    price_date: str
    network_certainty: str
    usd_per_hour: float
    hours: float
    usd: float


class NodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of node that was compared, and the cheapest place to rent it."""

    gpu: str
    node_gpus: int
    nic_bytes_per_s: float
    most_gpus: int
    cloud: str
    region: str
    instance: str
    usd_per_gpu_hour: float
    spot_usd_per_gpu_hour: float | None
    network_certainty: str
    points: int  # of the frontier that it has


def machines_of(
    pools: Sequence[Pool], offers: Sequence[Offer], join_guessed: bool = False
) -> list[Machine]:
    """For every type and kind of node: the cheapest offers, and up to how many GPUs.

    One for each size of RAM that costs more than all smaller ones. Nodes between which no network
    is published are not joined unless asked for: one at a time.
    """
    found = []
    for pool in pools:
        kinds: dict[Gpu, list[Offer]] = {}
        for offer in offers:
            if offer.machine.gpu == pool.gpu.name:
                kinds.setdefault(gpu_specs(gpu_in(offer.machine, pool.gpu)), []).append(offer)
        for own in kinds.values():
            most = 0
            for room, some in _by_room(own):
                gpu = gpu_in(some[0].machine, pool.gpu)
                alone = not (join_guessed or joins(some[0].machine))
                count = min(pool.count, gpu.node.gpus) if alone else pool.count
                rest = tuple(offer for offer in own if offer not in some)
                found.append(
                    Machine(
                        gpu=gpu,
                        most=count,
                        offers=some,
                        elsewhere=rest,
                        room_bytes=room,
                        extends=count <= most,
                    )
                )
                most = max(most, count)
    return found


def _by_room(own: Sequence[Offer]) -> list[tuple[float, tuple[Offer, ...]]]:
    """The cheapest offers with at least so much room for offload, the smallest room first.

    Of rooms with the same offers the largest; offers with less room never cost more.
    """
    by_price = sorted(own, key=_by_price)
    found: dict[tuple[Offer, ...], float] = {}
    for room in sorted({offer.machine.usable_ram_bytes for offer in own}):
        best: dict[bool, Offer] = {}
        for offer in by_price:
            if offer.machine.usable_ram_bytes >= room:
                best.setdefault(offer.spot, offer)
        found[tuple(best.values())] = room
    return [(room, some) for some, room in found.items()]


def undominated(machines: Sequence[Machine]) -> list[Machine]:
    """Without those that another one equals but for faster NICs at no higher price.

    A plan takes no longer with faster NICs, which tests of collectives and of searches hold.
    """
    groups: dict[Gpu, list[Machine]] = {}
    for machine in machines:
        slow = msgspec.structs.replace(machine.gpu.node, nic_bytes_per_s=1.0)
        key = gpu_specs(msgspec.structs.replace(machine.gpu, node=slow))
        groups.setdefault(key, []).append(machine)
    return [
        machine
        for group in groups.values()
        for machine in group
        if not any(_outdoes(other, machine) for other in group if other is not machine)
    ]


def _outdoes(better: Machine, worse: Machine) -> bool:
    """Faster between nodes, as many, and each way to pay for it no dearer."""
    faster = better.gpu.node.nic_bytes_per_s > worse.gpu.node.nic_bytes_per_s
    return (
        faster
        and better.most >= worse.most
        and better.room_bytes >= worse.room_bytes
        and all(
            any(
                o.spot == offer.spot and o.usd_per_hour <= offer.usd_per_hour for o in better.offers
            )
            for offer in worse.offers
        )
    )


def _by_price(offer: Offer) -> tuple[object, ...]:
    """Cheapest first; what is known before what is guessed."""
    machine = offer.machine
    guessed = machine.certainty == GUESSED
    return offer.usd_per_hour, guessed, machine.cloud, offer.region, machine.instance


def gpu_in(machine: Instance, own: Gpu) -> Gpu:
    """The GPU in its node; one that the user described keeps the node it was given."""
    return own if machine.cloud == "given" else machine_gpu(machine, own)


def node_summary(machine: Machine, points: int) -> NodeSummary:
    """A machine with so many points of the frontier, at its cheapest."""
    steady = [offer for offer in machine.offers if not offer.spot]
    spot = [offer.usd_per_gpu_hour for offer in machine.offers if offer.spot]
    offer = (*steady, *machine.offers)[0]
    return NodeSummary(
        gpu=machine.gpu.name,
        node_gpus=machine.gpu.node.gpus,
        nic_bytes_per_s=machine.gpu.node.nic_bytes_per_s,
        most_gpus=machine.most,
        cloud=offer.machine.cloud,
        region=offer.region,
        instance=offer.machine.instance,
        usd_per_gpu_hour=offer.usd_per_gpu_hour,
        spot_usd_per_gpu_hour=spot[0] if spot else None,
        network_certainty=offer.machine.certainty,
        points=points,
    )
