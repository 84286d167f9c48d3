"""Words about money: read, checked, and put on plans as hours and dollars."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from astra.errors import InputError, NoPriceError, did_you_mean

if TYPE_CHECKING:
    from astra.hardware.cluster import Cluster
    from astra.money.catalogue import Offer
    from astra.money.options import MoneyOptions
    from astra.search.answer import Answer, Wanted
    from astra.search.priced import Priced

MONEY = ("money", "frontier")  # objectives
MOST_RENTED = 1024  # GPUs of a type, where nobody says how many there are


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

    some = filter_offers(shipped_offers(), split_names(cloud), split_names(region), spot)
    wanted = None if gpu is None else find_gpu(gpu)[0].name
    own = [offer for offer in some if wanted in (None, offer.machine.gpu)]
    return tuple(sorted(own, key=lambda offer: (offer.usd_per_gpu_hour, -offer.machine.gpus)))


def money_of(said: Mapping[str, Any], objective: str = "time") -> "MoneyOptions | None":
    """The words about money, checked; None where nobody speaks of it."""
    if not said and objective not in MONEY:
        return None
    from astra.money.options import OPTION_NAMES, goals_of, money_options_of

    for name in said:
        if name not in OPTION_NAMES:
            hint = did_you_mean(
                name, OPTION_NAMES, f"The words about money are {', '.join(OPTION_NAMES)}."
            )
            raise InputError(f"there is no setting {name!r}. {hint}")
    wish = money_options_of(said)
    goals_of(wish)
    return wish


def has_goals(money: Mapping[str, Any]) -> bool:
    return money.get("budget") is not None or money.get("deadline") is not None


def money_said(wish: "MoneyOptions") -> dict[str, object]:
    """The words about money as a result keeps them, so that it can be asked again."""
    from astra.money.options import goals_of

    hours = goals_of(wish).deadline_h  # of a date: as many as there are today
    given = msgspec.structs.replace(wish, offers=None, deadline=hours)
    said = msgspec.to_builtins(given)
    plain = msgspec.to_builtins(type(wish)())
    return {"money": {name: value for name, value in said.items() if value != plain[name]}}


def for_rent(
    gpus: str | None, wish: "MoneyOptions", max_gpus: int | None, precision: str
) -> tuple[str, int | None]:
    """GPUs as `--gpus` says them, and how many in all: without any, every type that somebody
    rents out and that knows the format; without a count, as many as are looked at of each.
    """
    from astra.hardware.catalogue import find_gpu
    from astra.money.catalogue import filter_offers, shipped_offers
    from astra.money.options import split_names, user_gpu_prices

    most = max_gpus or MOST_RENTED
    if gpus is not None:
        parts = [part.strip() for part in gpus.split(",")]
        parts = [part if ":" in part or not part else f"{part}:{most}" for part in parts]
        return ",".join(parts), max_gpus
    catalogue = shipped_offers() if wish.offers is None else wish.offers
    listed = filter_offers(catalogue, split_names(wish.cloud), split_names(wish.region), wish.spot)
    names = {offer.machine.gpu for offer in listed} | set(user_gpu_prices(wish))
    able = [name for name in names if getattr(find_gpu(name)[0], f"{precision}_flops_per_s", None)]
    return ",".join(f"{name}:{most}" for name in sorted(able)), None


def bought(
    wanted: "Wanted",
    wish: "MoneyOptions",
    request: dict[str, object],
    progress: Callable[[int], None] | None,
) -> "Answer":
    """The frontier of hours and dollars, and what the goals come to."""
    from astra.money.options import goals_of
    from astra.search.market_answer import Asked, answer_money

    asked = Asked(wanted=wanted, wish=wish, goals=goals_of(wish))
    own = _own_gpus(wanted.space.question.task.cluster)
    return answer_money(asked, request | own | money_said(wish), progress)


def _own_gpus(cluster: "Cluster") -> dict[str, object]:
    """GPUs and nodes that the catalogue does not have, so that a result can be asked again."""
    from astra.hardware.pools import is_user_described

    own = [msgspec.to_builtins(pool.gpu) for pool in cluster.pools if is_user_described(pool)]
    return {"own_gpus": own} if own else {}


def with_dollars(
    plans: "Sequence[Priced]", wish: "MoneyOptions | None", cluster: "Cluster"
) -> "list[Priced]":
    """Plans with hours and dollars where tokens and prices are known, else with a word on it."""
    if wish is None:
        return list(plans)
    from astra.money.options import goals_of
    from astra.search.money import with_money
    from astra.search.offers import offers_for

    goals = goals_of(wish)
    try:
        offers = offers_for(wish, cluster)
    except NoPriceError as error:
        return [_warned(plan, str(error)) for plan in plans]
    if goals.tokens is None:
        found = [with_money(plan, offers, 1e12, goals.conditions) for plan in plans]
        missing = "hours and dollars need --tokens"
        return [
            _warned(msgspec.structs.replace(plan, money=None, hours=None, usd=None), missing)
            for plan in found
        ]
    return [with_money(plan, offers, goals.tokens, goals.conditions) for plan in plans]


def _warned(plan: "Priced", text: str) -> "Priced":
    from astra.search.priced import NO_MONEY, UNFIT_MONEY

    kept = tuple(said for said in plan.warnings if said not in (NO_MONEY, UNFIT_MONEY))
    return msgspec.structs.replace(plan, warnings=(*kept, text))
