"""Whether the best plans can be told apart, from how well measured layouts were."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import msgspec

from astra.cost.result import PricedPlan
from astra.files import Source, convert, parse_toml

FILE = Path(__file__).parent.parent / "data" / "ranking.toml"


class Ranking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the ratio of two layouts' steps is off."""

    pair_fraction: float  # in 80 % of the pairs
    pairs: int
    sweeps: int
    source: Source


@cache
def ranking() -> Ranking:
    return convert(parse_toml(FILE.read_text(encoding="utf-8"), FILE.name), Ranking, FILE.name)


def as_good(
    plans: Sequence[PricedPlan], cost_of: Callable[[PricedPlan], float]
) -> list[PricedPlan]:
    """Those of these plans that may as well be the best one."""
    limit = min(map(cost_of, plans)) * (1 + ranking().pair_fraction)
    return [plan for plan in plans if cost_of(plan) < limit]
