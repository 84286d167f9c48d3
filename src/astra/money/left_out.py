"""Offers that are not looked at, and why; and what else is assumed of those that are."""

from collections.abc import Sequence
from functools import cache

from astra.files import read_toml
from astra.money.catalogue import FOLDER, GIB, Offer, old_offers
from astra.money.conditions import NODE_RAM, POWER_PRICE, defaults
from astra.money.options import MoneyOptions, power_usd_per_kwh, split_names
from astra.notes import Note, NoteCode, note


@cache
def missing_clouds() -> tuple[str, ...]:
    """Large ones of which no prices are known at all."""
    return tuple(read_toml(FOLDER / "prices.toml")["missing"]["clouds"])


def holds_a_job(offer: Offer) -> bool:
    """Whether a node has RAM for the processes of its GPUs; what is not known is taken to do."""
    machine = offer.machine
    least = defaults()[NODE_RAM].value * GIB * machine.gpus
    return machine.ram_bytes is None or machine.ram_bytes >= least


def offer_notes(
    options: MoneyOptions, listed: Sequence[Offer], used: Sequence[Offer]
) -> list[Note]:
    """`listed`: what the price lists have of these GPUs; `used`: what is looked at."""
    found, clouds = [], split_names(options.cloud)
    names = {offer.machine.gpu for offer in used if offer.price_from == "catalogue"}
    small = {o.machine for o in listed if o.machine.gpu in names and not holds_a_job(o)}
    small -= {offer.machine for offer in used}  # where there is no other
    if small:
        least = min(small, key=lambda machine: (machine.ram_bytes or 0.0) / machine.gpus)
        found.append(
            note(
                NoteCode.SMALL_NODES,
                kinds=len(small),
                least_gib=defaults()[NODE_RAM].value,
                cloud=least.cloud,
                instance=least.instance,
                ram_bytes=least.ram_bytes,
                gpus=least.gpus,
                gpu=least.gpu,
            )
        )
    old = {o.machine.cloud: o.date for o in old_offers() if o.machine.gpu in names}
    if names and options.offers is None and not clouds:
        found.append(note(NoteCode.CLOUDS_LEFT_OUT, old=old, missing=list(missing_clouds())))
    dated = {cloud: old[cloud] for cloud in clouds if cloud in old}
    if dated and options.offers is None:
        found.append(note(NoteCode.OLD_PRICES, dates=dated))
    return found + power_notes(options)


def power_notes(options: MoneyOptions | None) -> list[Note]:
    """What a kWh is taken to cost whoever owns GPUs and does not say it."""
    if options is None or not options.owned or options.power_price is not None:
        return []
    source, usd = defaults()[POWER_PRICE].source.where, power_usd_per_kwh(options)
    return [note(NoteCode.POWER_PRICE, usd_per_kwh=usd, source=source)]
