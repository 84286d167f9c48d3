"""What a run rents and pays, in the words of the JSON."""

import msgspec

from astra.money.catalogue import Offer, PriceFrom


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
    usd = hours x (sum of nodes x node_usd_per_hour) + storage_usd + egress_usd.
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


def rented(gpu: str, count: int, offer: Offer) -> RentedNodes:
    """Whole nodes that hold so many GPUs."""
    machine = offer.machine
    nodes = -(-count // machine.gpus)
    return RentedNodes(
        gpu=gpu,
        cloud=machine.cloud,
        region=offer.region,
        instance=machine.instance,
        spot=offer.spot,
        nodes=nodes,
        node_gpus=machine.gpus,
        idle_gpus=nodes * machine.gpus - count,
        node_usd_per_hour=offer.usd_per_hour,
        usd_per_gpu_hour=offer.usd_per_gpu_hour,
        price_date=offer.date,
        price_source=offer.source,
        network_certainty=machine.certainty,
        node_ram_bytes=machine.ram_bytes,
        price_from=offer.price_from,
    )
