"""Every word of `--objective`: what it wants, what it needs, and which search it has.

A new objective is a class in `objective.py`, a function that answers a query with it, and a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

from astra.cost.bill import with_energy
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.money.options import MoneyOptions

step_kwh = attrgetter("energy.step_kwh")  # of a plan with its energy


@dataclass(frozen=True, slots=True)
class Measure:
    """What plans are ordered by where that is not their step; of one plan in proportion to it."""

    noun: str  # "takes 3 % more energy"
    column: str  # of the table
    of: Callable[[PricedPlan], float]  # of a step
    filled: Callable[[PricedPlan, MoneyOptions | None], PricedPlan]  # with what `of` reads


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveRow:
    """One word. Searches are `module:function`, of a query and its limits to a result."""

    about: str  # for the help
    search: str  # on one GPU type
    over_types: str | None = None  # on several; None: it is for one
    measure: Measure | None = None  # what is to be small; None: the step
    is_for_money: bool = False  # weighs hours against dollars, and needs tokens
    against_use_all: str = ""  # why `--use-all` contradicts it
    takes: tuple[str, ...] = ()  # options that are of no use without it


MONEY = ObjectiveRow(
    about="hours against dollars, as with a budget or a deadline",
    search="astra.search.rent:solve_for_money",
    over_types="astra.search.rent:solve_for_money",
    is_for_money=True,
    against_use_all="chooses how many GPUs; --use-all forbids it",
    takes=("budget", "deadline", "longest", "order"),
)
OBJECTIVES: dict[str, ObjectiveRow] = {
    "time": ObjectiveRow(
        about="the fastest",
        search="astra.search.best_plans:solve_one_type",
        over_types="astra.search.over_types:solve_over_types",
    ),
    "money": MONEY,
    "frontier": MONEY,
    "gpus": ObjectiveRow(
        about="the fewest that fit or reach --min-tokens-per-s",
        search="astra.search.best_plans:fewest_gpus",
        over_types="astra.search.over_types:fewest_over_types",
        against_use_all="looks for fewer GPUs, and --use-all forbids it",
        takes=("min_tokens_per_s",),
    ),
    "energy": ObjectiveRow(
        about="the fewest kWh, on one GPU type",
        search="astra.search.best_plans:least_energy",
        measure=Measure("energy", "kWh a step", step_kwh, with_energy),
    ),
}
RISKS = ("none", "normal", "careful")  # none: the least simulated step, whatever it risks


def search_of(word: str, types: int) -> Callable[..., Any]:
    """The search of an objective on so many GPU types."""
    row = OBJECTIVES[word]
    name = row.search if types == 1 else row.over_types
    if name is None:
        why = f"--objective {word} is for one GPU type, and there are {types}."
        raise InputError(f"{why} Try --gpus with each of them in turn.")
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)
