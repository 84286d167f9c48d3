"""What can be rented, where and for how much: the shipped catalogue, dated and sourced."""

import csv
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from astra.errors import InputError, did_you_mean, shorten
from astra.files import Source, convert, read_text, read_toml
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Count, Gpu, Positive
from astra.hardware.pools import usable_ram_bytes

FOLDER = Path(__file__).parent.parent / "data" / "prices"
GBPS = 1e9 / 8
GIB = 2**30
DEFAULT_NODE_GBPS = 25.0  # of a node whose network nobody tells: one port
GUESSED = "guessed"
MAX_USD_PER_HOUR = 1e6  # an hour of one node; more is a slip


# Whose price it is: a catalogue's, the user's, or a catalogue's for nodes that the user described.
PriceFrom = Literal["catalogue", "user", "owned", "described"]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that a cloud rents out: its GPUs and what joins them."""

    cloud: str
    instance: str
    gpu: str
    gpus: Count
    nic_bytes_per_s: Positive  # of one GPU, one direction
    domain_gpus: Count
    rdma: bool
    certainty: str  # of the network: high, medium, low or guessed
    network_source: str
    ram_bytes: Positive | None = None  # of the whole node; None: not known

    @property
    def usable_ram_bytes(self) -> float:
        """What plans may keep there; infinite where it is not known."""
        return usable_ram_bytes(self.ram_bytes)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """An instance in one region, on demand or spot, at a price of a certain day."""

    machine: Instance
    region: str
    usd_per_hour: Annotated[float, Meta(ge=0)]  # of the whole instance
    spot: bool = False
    date: str
    source: str
    price_from: PriceFrom = "catalogue"
    owned_usd_per_hour: float = 0.0  # besides, whether it works or not, where one owns it

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / self.machine.gpus

    @property
    def place(self) -> tuple[str, str]:
        return self.machine.cloud, self.region


@cache
def instances() -> dict[tuple[str, str], Instance]:
    """Every instance type that is known, by cloud and name."""
    found = {}
    for row in _rows("instances.csv"):
        machine = Instance(
            cloud=row["cloud"],
            instance=row["instance"],
            gpu=row["gpu"],
            gpus=int(row["gpus"]),
            nic_bytes_per_s=float(row["nic_gbps_per_gpu"]) * GBPS,
            domain_gpus=int(row["domain_gpus"]),
            rdma=row["rdma"] == "yes",
            certainty=row["certainty"],
            network_source=row["network_source"],
            ram_bytes=float(row["ram_gib"]) * GIB if row["ram_gib"] else None,
        )
        found[machine.cloud, machine.instance] = machine
    return found


@cache
def shipped_offers() -> tuple[Offer, ...]:
    """The catalogue that comes with the product: one offer for every region and way to pay."""
    return _offers("offers.csv")


@cache
def old_offers() -> tuple[Offer, ...]:
    """Those of clouds whose lists are older than half a year: for who asks for such a cloud."""
    return _offers("old_offers.csv")


def offers_at(clouds: Sequence[str]) -> tuple[Offer, ...]:
    """The shipped catalogue, with the old lists of clouds that are named."""
    if not clouds:
        return shipped_offers()
    old = (offer for offer in old_offers() if offer.machine.cloud in clouds)
    return (*shipped_offers(), *old)


def _offers(name: str) -> tuple[Offer, ...]:
    known, found = instances(), []
    source = price_source().where
    for row in _rows(name):
        for region in row["regions"].split():
            for price, spot in (("usd_per_hour", False), ("spot_usd_per_hour", True)):
                if row[price]:
                    found.append(
                        Offer(
                            machine=known[row["cloud"], row["instance"]],
                            region=region,
                            usd_per_hour=float(row[price]),
                            spot=spot,
                            date=row["date"],
                            source=source,
                        )
                    )
    return tuple(found)


@cache
def price_source() -> Source:
    """Where the shipped prices come from."""
    return convert(read_toml(FOLDER / "prices.toml")["prices"]["source"], Source, "prices.toml")


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_text(FOLDER / name))))


def machine_gpu(machine: Instance, own: Gpu | None = None) -> Gpu:
    """The GPU in this machine's node: its links and NICs in place of the typical ones.

    `own`: the GPU, where it is not as in the catalogue.
    """
    gpu = own or find_gpu(machine.gpu)[0]
    node = replace(gpu.node, gpus=machine.gpus, nic_bytes_per_s=machine.nic_bytes_per_s)
    link = replace(gpu.link, domain_gpus=machine.domain_gpus)
    guesses = (
        (f"node.nic_bytes_per_s: {machine.network_source}",) if machine.certainty == GUESSED else ()
    )
    return replace(gpu, node=node, link=link, assumed=(*gpu.assumed, *guesses))


def default_network(gpu: Gpu, gpus: int) -> dict[str, object]:
    """What is guessed of an instance about which nothing is known."""
    return {
        "nic_bytes_per_s": DEFAULT_NODE_GBPS * GBPS / gpus,
        "domain_gpus": min(gpu.link.domain_gpus, gpus),
        "rdma": False,
        "certainty": GUESSED,
        "network_source": "guessed: one 25 Gbps port a node, for want of anything published",
    }


def filter_offers(
    offers: Sequence[Offer],
    clouds: Sequence[str] = (),
    regions: Sequence[str] = (),
    spot: bool = False,
) -> list[Offer]:
    """Offers of these clouds and regions; spot ones only where they are asked for."""
    known = sorted({offer.machine.cloud for offer in offers})
    for cloud in clouds:
        if cloud not in known:
            own = f"The clouds are {', '.join(known)}. Prices of your own: --price h100=2.49."
            hint = did_you_mean(cloud, known, own)
            raise InputError(f"--cloud {shorten(cloud)}: no prices of it. {hint}")
    in_clouds = [offer for offer in offers if not clouds or offer.machine.cloud in clouds]
    places = sorted({offer.region for offer in in_clouds})
    for region in regions:
        if region not in places:
            where = f" at {', '.join(clouds)}" if clouds else ""
            hint = did_you_mean(region, places, "`astra prices GPU` lists the regions.")
            raise InputError(f"--region {shorten(region)}: no prices of it{where}. {hint}")
    return [
        offer
        for offer in in_clouds
        if (not regions or offer.region in regions) and (spot or not offer.spot)
    ]


def joins(machine: Instance) -> bool:
    """Whether something is known of the network between nodes, or RDMA is at least likely."""
    return machine.certainty != GUESSED or machine.rdma
