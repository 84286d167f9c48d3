"""Options about money: read and checked; and what GPUs cost to rent."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astra.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from astra.money.catalogue import Offer
    from astra.money.options import MoneyOptions

FOR_MONEY = ("money", "frontier")  # objectives that weigh hours against dollars
MAX_RENTED_GPUS = 1024  # of a type without a count


def prices(
    gpu: str | None = None,
    *,
    cloud: str | Sequence[str] | None = None,
    region: str | Sequence[str] | None = None,
    spot: bool = False,
) -> "tuple[Offer, ...]":
    """What GPUs cost to rent, cheapest first: offers with their machine, date and source."""
    from astra.hardware.catalogue import find_gpu
    from astra.money.catalogue import filter_offers, shipped_offers
    from astra.money.options import split_names

    listed = filter_offers(shipped_offers(), split_names(cloud), split_names(region), spot)
    wanted = None if gpu is None else find_gpu(gpu)[0].name
    offers = [offer for offer in listed if wanted in (None, offer.machine.gpu)]
    return tuple(sorted(offers, key=lambda offer: (offer.usd_per_gpu_hour, -offer.machine.gpus)))


def money_options(said: Mapping[str, Any], objective: str = "time") -> "MoneyOptions | None":
    """The options about money, checked; None where nobody speaks of it."""
    if not said and objective not in FOR_MONEY:
        return None
    from astra.money.options import OPTION_NAMES, goals_of, money_options_of

    for name in said:
        if name not in OPTION_NAMES:
            hint = did_you_mean(
                name, OPTION_NAMES, f"The words about money are {', '.join(OPTION_NAMES)}."
            )
            raise InputError(f"there is no setting {name!r}. {hint}")
    options = money_options_of(said)
    goals_of(options)
    return options


def has_goals(money: Mapping[str, Any]) -> bool:
    return money.get("budget") is not None or money.get("deadline") is not None


def rentable_gpus(
    gpus: str | None, options: "MoneyOptions", max_gpus: int | None, precision: str
) -> tuple[str, int | None]:
    """GPUs as `--gpus` says them, and how many in all: without any, every type that somebody
    rents out and that knows the format; without a count, as many as are looked at of each.
    """
    from astra.hardware.catalogue import find_gpu
    from astra.money.catalogue import filter_offers, shipped_offers
    from astra.money.options import split_names, user_gpu_prices

    count = max_gpus or MAX_RENTED_GPUS
    if gpus is not None:
        parts = [part.strip() for part in gpus.split(",")]
        parts = [part if ":" in part or not part else f"{part}:{count}" for part in parts]
        return ",".join(parts), max_gpus
    catalogue = shipped_offers() if options.offers is None else options.offers
    listed = filter_offers(
        catalogue, split_names(options.cloud), split_names(options.region), options.spot
    )
    names = {offer.machine.gpu for offer in listed} | set(user_gpu_prices(options))
    able = [name for name in names if getattr(find_gpu(name)[0], f"{precision}_flops_per_s", None)]
    return ",".join(f"{name}:{count}" for name in sorted(able)), None
