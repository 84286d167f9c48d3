"""Hours and dollars of a priced plan, every term of them."""

from collections.abc import Mapping

import msgspec
import numpy as np

from astra.money.catalogue import GIB, Instance, Offer
from astra.money.conditions import Conditions
from astra.money.dollars import Rent, bill, losses
from astra.money.goodput import HOUR_S
from astra.search.host import KEPT, room_bytes
from astra.search.priced import NO_MONEY, RAM_UNKNOWN, UNFIT_MONEY, Money, Priced, Rented

MILLION = 1e6


def rent_of(offer: Offer) -> Rent:
    return Rent(node_gpus=offer.machine.gpus, node_usd_per_hour=offer.usd_per_hour, spot=offer.spot)


def rented(gpu: str, count: int, offer: Offer) -> Rented:
    """Whole nodes that hold so many GPUs."""
    machine = offer.machine
    nodes = -(-count // machine.gpus)
    return Rented(
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
    )


def with_money(
    priced: Priced, offers: Mapping[str, Offer], tokens: float, conditions: Conditions
) -> Priced:
    """The plan with what a run of so many tokens takes and costs; an offer for each GPU type."""
    plan = priced.plan
    rents = tuple(rented(gpu, count, offers[gpu]) for gpu, count in priced.gpus.items())
    nodes = sum(rent.nodes for rent in rents)
    spot = sum(rent.nodes for rent in rents if rent.spot)
    per_hour = sum(rent.nodes * rent.node_usd_per_hour for rent in rents)
    size = np.array([priced.checkpoint_bytes])
    gpus = np.array([sum(priced.gpus.values())])
    lost = losses(gpus, np.array([nodes]), np.array([spot]), size, conditions)
    steps = tokens / (plan.global_batch * plan.seq_len)
    found = bill(np.array([priced.step_s]), steps, lost, np.array([per_hour]), size, conditions)
    share = lost.goodput
    need = priced.host_memory_bytes
    small = [gpu for gpu in priced.gpus if need > room_bytes(offers[gpu].machine)]
    small = small if priced.fits_host else []  # said already
    interval = float(share.interval_s[0])
    money = Money(
        tokens=tokens,
        rents=rents,
        training_hours=float(found.training_h[0]),
        goodput_fraction=float(share.training[0]),
        writing_fraction=float(share.writing[0]),
        lost_fraction=float(share.lost[0]),
        restarting_fraction=float(share.restarting[0]),
        failures_per_hour=float(share.failures_per_s[0]) * HOUR_S,
        checkpoint_s=float(lost.checkpoint_s[0]),
        checkpoint_interval_s=interval if np.isfinite(interval) else None,
        restart_s=float(lost.restart_s[0]),
        startup_hours=lost.startup_h,
        rent_usd=float(found.rent_usd[0]),
        storage_usd=float(found.storage_usd[0]),
        egress_usd=float(found.egress_usd[0]),
        usd_per_million_tokens=float(found.usd[0]) / tokens * MILLION,
    )
    return msgspec.structs.replace(
        priced,
        money=money,
        usd_per_hour=float(per_hour),
        hours=float(found.wall_h[0]),
        usd=float(found.usd[0]),
        warnings=(
            *(text for text in priced.warnings if text != NO_MONEY and not _answered(text, offers)),
            *(() if priced.runs else (UNFIT_MONEY,)),
            *(_too_small(priced.host_memory_bytes, offers[gpu].machine) for gpu in small),
        ),
    )


def _answered(warning: str, offers: Mapping[str, Offer]) -> bool:
    """Whether the machines that are rented tell what the plan's own nodes do not."""
    known = all(offer.machine.ram_bytes is not None for offer in offers.values())
    return known and warning.endswith(RAM_UNKNOWN)


def _too_small(need: float, machine: Instance) -> str:
    """For plans that were not searched for this machine."""
    assert machine.ram_bytes is not None
    return (
        f"{need / GIB:.0f} GiB a node of offload do not fit into {machine.cloud} "
        f"{machine.instance}: {1 - KEPT:.0%} of its {machine.ram_bytes / GIB:.0f} GiB of RAM are "
        "counted on. Try less offload, or --objective money, which looks for machines that hold it"
    )
