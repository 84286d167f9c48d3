"""Hours, dollars and energy of a priced plan, every term of them."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from astra.cost.result import PricedPlan
from astra.errors import NoPriceError
from astra.hardware.cluster import Cluster
from astra.hardware.pools import RESERVED_RAM_FRACTION
from astra.money.catalogue import Offer
from astra.money.conditions import Conditions
from astra.money.dollars import bill, losses, usd_by_cause
from astra.money.energy import energy_of
from astra.money.goodput import HOUR_S
from astra.money.offers import conditions_of_owner, offers_of, offers_together
from astra.money.options import Goals, MoneyOptions, goals_of
from astra.money.rented import Money, idle_gpus, rented
from astra.notes import Note, NoteCode, note

MILLION = 1e6
OF_TOKENS = ("hours", "hours_low", "hours_high", "usd", "usd_low", "usd_high")


def with_money(
    priced: PricedPlan, offers: Mapping[str, Offer], tokens: float, conditions: Conditions
) -> PricedPlan:
    """The plan with what a run of so many tokens takes and costs; an offer for each GPU type."""
    rents = tuple(rented(gpu, count, offers[gpu]) for gpu, count in priced.gpus.items())
    nodes = np.array([sum(rent.nodes for rent in rents)])
    spot = np.array([sum(rent.nodes for rent in rents if rent.spot)])
    paid = [(rent.nodes, offers[rent.gpu].usd_per_hour) for rent in rents]
    per_hour = float(sum(count * usd for count, usd in paid))  # what is owned comes on top
    size, gpus = np.array([priced.checkpoint_bytes]), np.array([sum(priced.gpus.values())])
    lost = losses(gpus, nodes, spot, size, conditions)
    steps = tokens / (priced.plan.global_batch * priced.plan.seq_len)
    step_s = np.array([priced.step_s, priced.step_s_low, priced.step_s_high])
    price = np.array([per_hour])
    found = bill(step_s, steps, lost, price, size, conditions)
    share, interval = lost.goodput, float(lost.goodput.interval_s[0])
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
        usd_by_cause={name: float(part[0]) for name, part in usd_by_cause(found, lost).items()},
        idle=idle_gpus(conditions.owned, rents),
    )
    return msgspec.structs.replace(
        priced,
        money=money,
        usd_per_hour=float(found.usd_per_hour[0]),
        **dict(zip(OF_TOKENS, (*found.wall_h.tolist(), *found.usd.tolist()), strict=True)),
        notes=_notes(priced, offers),
    )


def _notes(priced: PricedPlan, offers: Mapping[str, Offer]) -> tuple[Note, ...]:
    """Money is there; the nodes that are rented tell what the plan's own do not of their RAM."""
    known = all(offer.machine.ram_bytes is not None for offer in offers.values())
    answered = {NoteCode.NO_MONEY, *([NoteCode.RAM_UNKNOWN] if known else [])}
    found = [each for each in priced.notes if each.code not in answered]
    if not priced.runs:
        found.append(note(NoteCode.UNFIT_MONEY))
    need = priced.host_memory_bytes
    for gpu in priced.gpus if priced.fits_host else ():  # else it is said already
        machine = offers[gpu].machine
        if need > machine.usable_ram_bytes:
            found.append(
                note(
                    NoteCode.INSTANCE_RAM_TOO_SMALL,
                    needed_bytes=need,
                    cloud=machine.cloud,
                    instance=machine.instance,
                    ram_bytes=machine.ram_bytes,
                    usable_fraction=1 - RESERVED_RAM_FRACTION,
                )
            )
    return tuple(found)


def with_dollars(
    plans: Sequence[PricedPlan],
    options: MoneyOptions | None,
    cluster: Cluster,
    offers: Sequence[Offer] | None = None,
    goals: Goals | None = None,  # None: as of the options, like the offers
) -> list[PricedPlan]:
    """Plans with hours and dollars where tokens and prices are known, else with a note on it."""
    if options is None:
        return list(plans)
    goals = goals or goals_of(options)
    try:
        offers = offers or offers_of(options, cluster)
    except NoPriceError as error:
        return [_without_money(plan, note(NoteCode.NO_PRICE, error=str(error))) for plan in plans]
    conditions, found = conditions_of_owner(options, cluster, goals.conditions), []
    for plan in plans:
        try:
            own = offers_together(plan.gpus, cluster, offers, options.any_region)
        except NoPriceError as error:
            found.append(_without_money(plan, note(NoteCode.NO_PRICE, error=str(error))))
            continue
        billed = with_money(plan, own, goals.tokens or 1e12, conditions)
        if goals.tokens is None:
            bare = msgspec.structs.replace(billed, money=None, **dict.fromkeys(OF_TOKENS))
            billed = _without_money(bare, note(NoteCode.NO_TOKENS))
        found.append(billed)
    return found


def _without_money(plan: PricedPlan, why: Note) -> PricedPlan:
    said = (NoteCode.NO_MONEY, NoteCode.UNFIT_MONEY)
    kept = tuple(each for each in plan.notes if each.code not in said)
    return msgspec.structs.replace(plan, notes=(*kept, why))


def with_energy(priced: PricedPlan, options: MoneyOptions | None) -> PricedPlan:
    """The plan, on one GPU type, with what its steps draw."""
    plan, gpu_seconds = priced.plan, sum(priced.gpus.values()) * priced.step_s
    (gpu,) = (pool.gpu for pool in plan.cluster.pools if pool.gpu.name in priced.gpus)
    energy = energy_of(gpu, gpu_seconds, plan.global_batch * plan.seq_len, options)
    return msgspec.structs.replace(priced, energy=energy)
