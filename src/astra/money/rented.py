"""What a run rents and pays, in the words of the JSON."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from astra.money.catalogue import Offer, PriceFrom
from astra.money.conditions import OwnedGpus


class RentedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind, and what an hour of them costs."""

    gpu: str
    cloud: str
    region: str
    instance: str
    spot: bool
    nodes: int
    node_gpus: int
    idle_gpus: int  # paid for, not used
    node_usd_per_hour: float
    usd_per_gpu_hour: float
    price_date: str
    price_source: str
    network_certainty: str  # of what joins the nodes: high, medium, low or guessed
    node_ram_bytes: float | None = None  # None: not known
    price_from: PriceFrom = "catalogue"


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """Hours and dollars of a whole run, term by term.

    hours = training_hours / goodput_fraction + startup_hours; the four fractions sum to one.
    usd = hours x (sum of nodes x node_usd_per_hour, and of count x usd_per_gpu_hour of idle GPUs of
    one's own) + storage_usd + egress_usd.
    """

    tokens: float
    rents: tuple[RentedNodes, ...]
    training_hours: float
    goodput_fraction: float
    writing_fraction: float
    lost_fraction: float
    restarting_fraction: float
    failures_per_hour: float
    checkpoint_s: float
    checkpoint_interval_s: float | None  # of training; None: none is needed
    restart_s: float
    startup_hours: float
    rent_usd: float
    storage_usd: float
    egress_usd: float
    usd_per_million_tokens: float
    # training, checkpoints, lost_work, restarts, startup, storage, egress: they sum to `usd`
    usd_by_cause: dict[str, float]
    idle: tuple[OwnedGpus, ...] = ()  # of one's own, that are paid for and do nothing


def rented(gpu: str, count: int, offer: Offer) -> RentedNodes:
    """Whole nodes that hold so many GPUs."""
    machine = offer.machine
    nodes, usd_per_hour = -(-count // machine.gpus), offer.usd_per_hour + offer.owned_usd_per_hour
    return RentedNodes(
        gpu=gpu,
        cloud=machine.cloud,
        region=offer.region,
        instance=machine.instance,
        spot=offer.spot,
        nodes=nodes,
        node_gpus=machine.gpus,
        idle_gpus=nodes * machine.gpus - count,
        node_usd_per_hour=usd_per_hour,
        usd_per_gpu_hour=usd_per_hour / machine.gpus,
        price_date=offer.date,
        price_source=offer.source,
        network_certainty=machine.certainty,
        node_ram_bytes=machine.ram_bytes,
        price_from=offer.price_from,
    )


def idle_gpus(owned: Sequence[OwnedGpus], rents: Sequence[RentedNodes]) -> tuple[OwnedGpus, ...]:
    """GPUs of one's own that a plan leaves alone."""
    busy = {rent.gpu: rent.nodes * rent.node_gpus for rent in rents if rent.price_from == "owned"}
    left = [replace(each, count=each.count - busy.get(each.gpu, 0)) for each in owned]
    return tuple(each for each in left if each.count > 0)
