"""`--what-if price.h100=1.99,failures=x2`: the same market with something different."""

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from astra.errors import InputError, shorten
from astra.hardware.cluster import Cluster
from astra.money.catalogue import Offer
from astra.money.conditions import Conditions

KEYS = (
    "price",
    "spot-price",
    "network",
    "failures",
    "mtbf",
    "spot-interruptions",
    "storage-bandwidth",
)
OF_A_GPU = ("price", "spot-price", "network")
OF_SPOT = ("spot-price", "spot-interruptions")
OF_FAILURES = ("failures", "mtbf", "spot-interruptions", "storage-bandwidth")


class MarketChange(msgspec.Struct, frozen=True, kw_only=True):
    """One figure times a factor, or a price in its place."""

    key: str
    gpu: str | None  # None: of all of them
    where: str  # as it was typed, for errors
    factor: float = 1.0
    usd_per_gpu_hour: float | None = None


def change_factor(text: str, where: str, form: str) -> float:
    """`-20%`, `+10%`, `x2`: times as much."""
    percent = re.fullmatch(r"([+-]?[0-9]{1,6}(?:\.[0-9]{1,6})?) *%", text)
    times = re.fullmatch(r"[x*] *([0-9]{1,6}(?:\.[0-9]{1,6})?)", text)
    value = 0.0
    if percent:
        value = 1 + float(percent[1]) / 100
    elif times:
        value = float(times[1])
    else:
        raise InputError(f"{where}: {shorten(text)} is no change. {form}")
    if not 0 < value <= 1e6:
        raise InputError(f"{where}: that leaves {value:g} times as much. {form}")
    return value


def check_changes(
    changes: Sequence[MarketChange],
    cluster: Cluster,
    offers: Sequence[Offer],
    spot: bool,
    failures: bool,
) -> None:
    """Refuses what could change nothing in this market."""
    names = {pool.gpu.name for pool in cluster.pools}
    for change in changes:
        where = change.where
        owned = {offer.machine.gpu for offer in offers if offer.price_from == "owned"}
        if change.key == "price" and owned >= ({change.gpu} if change.gpu else names):
            raise InputError(
                f"{where}: {change.gpu or 'every type'} is owned, and not paid by the hour. Give "
                "another --owned or --power-price."
            )
        if change.key in OF_SPOT and not spot:
            raise InputError(f"{where}: no spot nodes are asked for. Add --spot.")
        sold = {offer.machine.gpu for offer in offers if offer.spot}
        if change.key in OF_SPOT and not sold & ({change.gpu} if change.gpu else names):
            which = change.gpu or "these GPUs"
            raise InputError(f"{where}: no spot price of {which} is known, so nothing changes.")
        if change.key in OF_FAILURES and not failures:
            raise InputError(f"{where}: --no-failures leaves all of that out; drop one of them.")


def changed_offers(offers: Sequence[Offer], changes: Sequence[MarketChange]) -> list[Offer]:
    """The offers at other prices and with other networks."""
    return [_offer(offer, changes) for offer in offers]


def _offer(offer: Offer, changes: Sequence[MarketChange]) -> Offer:
    for change in changes:
        if change.gpu not in (None, offer.machine.gpu):
            continue
        if change.key == "price" or (change.key == "spot-price" and offer.spot):
            usd = offer.usd_per_hour * change.factor
            if change.usd_per_gpu_hour is not None:
                usd = change.usd_per_gpu_hour * offer.machine.gpus
            offer = replace(offer, usd_per_hour=usd)
        elif change.key == "network":
            speed = offer.machine.nic_bytes_per_s * change.factor
            offer = replace(offer, machine=replace(offer.machine, nic_bytes_per_s=speed))
    return offer


def changed_conditions(conditions: Conditions, changes: Sequence[MarketChange]) -> Conditions:
    """Other failures, other storage."""
    fields = {
        "mtbf": ("gpu_mtbf_hours",),
        "spot-interruptions": ("spot_interruptions_per_hour",),
        "storage-bandwidth": ("storage_bytes_per_s_per_node", "storage_bytes_per_s_most"),
    }
    for change in changes:
        if change.key == "failures":  # so many times as many
            fewer = conditions.gpu_mtbf_hours / change.factor
            conditions = replace(conditions, gpu_mtbf_hours=fewer)
        for name in fields.get(change.key, ()):
            conditions = replace(conditions, **{name: getattr(conditions, name) * change.factor})
    return conditions
