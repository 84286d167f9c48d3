"""Options about money: read and checked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astra.api.inputs import GpuCounts, check_keywords, gpu_objects, gpus_text, has_units
from astra.errors import InputError
from astra.search.objectives import OBJECTIVES

if TYPE_CHECKING:
    from astra.money.options import MoneyOptions
    from astra.notes import Note

MAX_RENTED_GPUS = 1024  # of a type without a count


def money_options(said: Mapping[str, Any], objective: str = "time") -> "MoneyOptions | None":
    """The options about money, checked; None where nobody speaks of it."""
    if not said and not OBJECTIVES[objective].is_for_money:
        return None
    from astra.money.options import OPTION_NAMES, goals_of, money_options_of

    check_keywords(said, OPTION_NAMES)
    options = money_options_of(said)
    goals_of(options)
    return options


def default_objective(money: Mapping[str, Any]) -> str:
    """What is wanted where nobody says it: with a budget or a deadline it is money."""
    goals = (money.get("budget"), money.get("deadline"))
    return "time" if goals == (None, None) else "money"


def rentable_gpus(
    gpus: GpuCounts, options: "MoneyOptions", max_gpus: int | None, precision: str
) -> "tuple[GpuCounts, int | None, list[Note]]":
    """GPUs with their counts, and how many in all: without any, every type that somebody
    rents out and that knows the format; without a count, as many as are looked at of each, which
    a note says.
    """
    from astra.hardware.catalogue import find_gpu
    from astra.money.catalogue import filter_offers, offers_at
    from astra.money.options import split_names, user_gpu_prices
    from astra.notes import NoteCode, note

    count = max_gpus or MAX_RENTED_GPUS
    assumed = note(NoteCode.COUNT_ASSUMED, count=count)
    text = gpus_text(gpus)
    _check_owned(options, gpus)
    if text is not None:
        parts = [part.strip() for part in text.split(",")]
        parts = [part if ":" in part or not part else f"{part}:{count}" for part in parts]
        given, split = gpu_objects(gpus), [part.rpartition(":") for part in parts]
        entries: list[Any] = [
            (given[name], number) if name in given else part
            for part, (name, _, number) in zip(parts, split, strict=True)
        ]
        return entries, max_gpus, [] if all(":" in part for part in text.split(",")) else [assumed]
    clouds = split_names(options.cloud)
    catalogue = offers_at(clouds) if options.offers is None else options.offers
    listed = filter_offers(catalogue, clouds, split_names(options.region), options.spot)
    names = {offer.machine.gpu for offer in listed} | set(user_gpu_prices(options))
    able = [name for name in names if has_units(find_gpu(name)[0], precision)]
    return ",".join(f"{name}:{count}" for name in sorted(able)), None, [assumed]


def _check_owned(options: "MoneyOptions", gpus: GpuCounts) -> None:
    """Who owns GPUs says how many: all of them are paid for."""
    from astra.money.options import owned_cost_terms
    from astra.money.user_prices import gpu_named

    if not options.owned:
        return
    text = gpus_text(gpus)
    parts = [part.strip() for part in (text or "").split(",")]
    uncounted = {gpu_named(part, (), "--gpus").name for part in parts if part and ":" not in part}
    for name in owned_cost_terms(options, tuple(gpu_objects(gpus).values())):
        if text is None or name in uncounted:
            raise InputError(
                f"--owned {name}: how many are there? All of them are paid for. Give --gpus "
                f"{name}:256."
            )
