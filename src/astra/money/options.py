"""What is asked about money, in a person's words, read and checked."""

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from astra.errors import InputError, shorten
from astra.files import convert
from astra.hardware.cluster import Gpu
from astra.hardware.units import BYTES_PER_S, quantity
from astra.money.catalogue import Offer
from astra.money.conditions import POWER_PRICE, Conditions, conditions, defaults
from astra.money.user_prices import (
    PUE,
    YEAR_H,
    gpu_named,
    owned_usd_per_gpu_hour,
    parse_prices,
    parse_usd,
)
from astra.values import of_kind

MAX_TOKENS = 1e18
MAX_HOURS = 1e7
AMORTISE_YEARS = 4.0  # over which GPUs of one's own are paid
ORDERS = ("throughput", "cost", "knee")
DURATIONS = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0, "y": YEAR_H}
Amount = float | int | str | None


class MoneyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Goals, prices and conditions as they were given; None where nothing was said."""

    tokens: Amount = None
    budget: Amount = None  # USD
    deadline: Amount = None  # hours, or a date
    longest: Amount = None  # hours; plans that take longer are left out
    price: str | dict[str, Amount] | None = None  # USD for an hour of one GPU
    offers: tuple[Offer, ...] | None = None  # a catalogue in place of the shipped one
    cloud: str | tuple[str, ...] | None = None
    region: str | tuple[str, ...] | None = None
    spot: bool = False
    join_guessed: bool = False
    mixed: bool = True  # clusters of several types, too
    any_region: bool = False  # such clusters across clouds and regions
    order: str | None = None
    owned: str | dict[str, Amount] | None = None  # purchase price of one GPU
    amortise_years: Amount = None
    power_price: Amount = None  # USD per kWh
    pue: Amount = None
    failures: bool = True
    mtbf: Amount = None  # hours of one GPU
    spot_interruptions: Amount = None  # an hour of one node
    restart: Amount = None
    startup: Amount = None
    storage_bandwidth: Amount = None  # of all nodes together
    storage_price: Amount = None  # USD for a GB and a month
    storage_size: Amount = None  # GB
    egress_price: Amount = None  # USD for a GB
    egress_size: Amount = None  # GB
    what_if: str | None = None  # of files from before: `plan` asks other questions instead


OPTION_NAMES = MoneyOptions.__struct_fields__


class Goals(msgspec.Struct, frozen=True, kw_only=True):
    """The options in numbers."""

    tokens: float | None
    budget_usd: float | None
    deadline_h: float | None
    max_hours: float | None
    order: str
    conditions: Conditions


def money_options_of(said: Mapping[str, Any]) -> MoneyOptions:
    given = {name: _plain(value) for name, value in said.items() if value is not None}
    offers = given.pop("offers", None)
    if isinstance(offers, list) and offers and isinstance(offers[0], dict):  # out of a file
        offers = convert(offers, tuple[Offer, ...], "money: offers")
    options = convert(given, MoneyOptions, "money")
    return msgspec.structs.replace(options, offers=None if offers is None else tuple(offers))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def goals_of(options: MoneyOptions) -> Goals:
    """Everything that can be read without knowing the GPUs."""
    budget = None if options.budget is None else usd(options.budget, "--budget", 1e15)
    deadline = None if options.deadline is None else hours_until(options.deadline, "--deadline")
    longest = None if options.longest is None else hours(options.longest, "--longest")
    goals = (("--budget", budget), ("--deadline", deadline), ("--longest", longest))
    for name, value in goals:
        if value is not None and value <= 0:
            raise InputError(f"{name} {value:g}: it must be more than nothing.")
    unsaid = "knee" if budget is None else "throughput"
    order = "cost" if deadline is not None else unsaid
    order = order if options.order is None else options.order
    if order not in ORDERS:
        raise InputError(f"--order {shorten(order)}: use throughput, cost or knee.")
    return Goals(
        tokens=None if options.tokens is None else tokens(options.tokens),
        budget_usd=budget,
        deadline_h=deadline,
        max_hours=longest,
        order=order,
        conditions=conditions_of(options),
    )


def conditions_of(options: MoneyOptions) -> Conditions:
    """Failures, checkpoints and what else is paid for."""
    losing = ("mtbf", "spot_interruptions", "restart", "startup")
    odd = [name.replace("_", "-") for name in losing if getattr(options, name) is not None]
    if odd and not options.failures:
        raise InputError(f"--no-failures leaves all of that out: drop --{' --'.join(odd)}.")
    said: dict[str, float | bool | None] = {"failures": options.failures}
    if options.mtbf is not None:
        between = said["gpu_mtbf_hours"] = hours(options.mtbf, "--mtbf", most=1e12)
        if between < 1e-3:
            raise InputError(
                f"--mtbf {shorten(options.mtbf)}: a GPU that never works trains nothing."
            )
    if options.spot_interruptions is not None:
        said["spot_interruptions_per_hour"] = _number(
            options.spot_interruptions, "--spot-interruptions", 0.0, 60.0
        )
    if options.restart is not None:
        said["restart_s"] = said["spot_restart_s"] = hours(options.restart, "--restart") * 3600
    if options.startup is not None:
        said["startup_s"] = hours(options.startup, "--startup") * 3600
    if options.storage_bandwidth is not None:
        speed = quantity(options.storage_bandwidth, BYTES_PER_S, "--storage-bandwidth")
        said["storage_bytes_per_s_per_node"] = said["storage_bytes_per_s_most"] = speed
    for name, into, scale in (
        ("storage_price", "storage_usd_per_gb_month", 1.0),
        ("egress_price", "egress_usd_per_gb", 1.0),
        ("storage_size", "storage_bytes", 1e9),
        ("egress_size", "egress_bytes", 1e9),
    ):
        value = getattr(options, name)
        if value is not None:
            where = f"--{name.replace('_', '-')}"
            said[into] = _number(value, where, 0.0, 1e12) * scale
    return conditions(**said)


def power_usage_effectiveness(options: MoneyOptions) -> float:
    """Power of the whole site over that of its machines."""
    return _number(_given(options.pue, PUE), "--pue", 1.0, 10.0)


def power_usd_per_kwh(options: MoneyOptions) -> float:
    """What a kWh costs whoever owns GPUs."""
    default = defaults()[POWER_PRICE].value
    return _number(_given(options.power_price, default), "--power-price", 0.0, 100.0)


def owned_cost_terms(
    options: MoneyOptions, user_gpus: Sequence[Gpu] = ()
) -> dict[str, dict[str, float]]:
    """What an hour of a GPU that one owns costs, term by term, by its full name."""
    years = _number(_given(options.amortise_years, AMORTISE_YEARS), "--amortise-years", 0.01, 100.0)
    kwh, pue = power_usd_per_kwh(options), power_usage_effectiveness(options)
    found = {}
    for name, purchase in _table(options.owned, "--owned", user_gpus, most=1e9).items():
        gpu = gpu_named(name, user_gpus, "--owned")
        unknown = gpu.power_w is None and options.power_price is None
        found[name] = owned_usd_per_gpu_hour(gpu, purchase, years, 0.0 if unknown else kwh, pue)
    return found


def user_gpu_prices(options: MoneyOptions, user_gpus: Sequence[Gpu] = ()) -> dict[str, float]:
    """USD for an hour of one GPU that works, by its full name: given outright; of GPUs that one
    owns their power, for what they were bought for is paid whether they work or not.
    """
    found = _table(options.price, "--price", user_gpus)
    for name, terms in owned_cost_terms(options, user_gpus).items():
        if name in found:
            raise InputError(f"{name} has both a --price and an --owned; which is it?")
        found[name] = terms["power"]
    if not options.owned:
        for word in ("amortise_years", "power_price", "pue"):
            if getattr(options, word) is not None:
                option = f"--{word.replace('_', '-')}"
                raise InputError(f"{option} is about GPUs one owns: give --owned h100=30000.")
    return found


def _table(
    said: str | Mapping[str, Amount] | None, where: str, user_gpus: Sequence[Gpu], most: float = 1e6
) -> dict[str, float]:
    if said is None:
        return {}
    if isinstance(said, str):
        return parse_prices(said, where, most, user_gpus)
    text = ",".join(f"{name}={value}" for name, value in said.items())
    return parse_prices(text, where, most, user_gpus)


def split_names(said: str | Sequence[str] | None) -> list[str]:
    parts = said.split(",") if isinstance(said, str) else said or ()
    names = of_kind(parts, "cloud, region", Sequence, "a name or a list of names")
    return [name.strip() for name in names if of_kind(name, "cloud, region", str, "a name").strip()]


def tokens(said: Amount) -> float:
    """`1T`, `300B`, `1.5e12`."""
    text = str(said).strip().replace("_", "").replace(",", "")
    scale = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}.get(text[-1:].lower(), 1.0)
    value = _number(text[:-1] if scale > 1 else text, "--tokens", -math.inf, math.inf, said) * scale
    if not 1 <= value <= MAX_TOKENS:
        raise InputError(f"--tokens {shorten(said)}: that is {value:g} tokens. Try 1T or 300B.")
    return value


def usd(said: Amount, where: str, most: float = 1e6) -> float:
    return parse_usd(str(said), where, most)


def hours_until(said: Amount, where: str, now: datetime.datetime | None = None) -> float:
    """Hours from now, with a unit or without; or a date, on which the day begins in UTC."""
    try:
        day = datetime.date.fromisoformat(str(said).strip())
    except ValueError:
        return hours(said, where)
    begins = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
    left = (begins - (now or datetime.datetime.now(datetime.UTC))).total_seconds() / 3600
    if left <= 0:
        raise InputError(f"{where} {said}: that day has come; today is {today()}.")
    return left


def hours(said: Amount, where: str, most: float = MAX_HOURS) -> float:
    """Hours, or with a unit: 90m, 36h, 30d, 6w, 2y."""
    text = str(said).strip().replace("_", "").replace(",", "")
    unit = DURATIONS.get(text[-1:].lower())
    amount = text[:-1] if unit else text
    if not amount.replace(".", "", 1).replace("e", "", 1).lstrip("+-").isdecimal():
        date = ", or a date: 2027-03-01" if where == "--deadline" else ""
        raise InputError(
            f"{where} {shorten(said)}: not a time. Try hours (36), days (30d) or weeks (6w){date}."
        )
    return _number(amount, where, 0.0, most, said) * (unit or 1.0)


def _given(value: Amount, default: float) -> Amount:
    """What was said, zero too."""
    return default if value is None else value


def _number(value: Any, where: str, least: float, most: float, said: Any = None) -> float:
    shown = shorten(value if said is None else said)
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{where} {shown}: not a number.") from None
    if not least <= found <= most:
        raise InputError(f"{where} {shown}: must lie between {least:g} and {most:g}.")
    return found


def today() -> str:
    return datetime.date.today().isoformat()
