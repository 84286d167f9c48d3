"""Options about money that several commands share, and how their values are read."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astra.cli.printing import print_note
from astra.values import word

if TYPE_CHECKING:
    from astra.money.catalogue import Offer

# Name, metavar, help; a name with `-` is the argument of `astra.plan` with `_`.
PRICE_OPTIONS = {
    "tokens": ("N", "tokens to train on: 1T, 300B"),
    "price": ("GPU=USD[,...]", "for an hour of one GPU; default: the catalogue's (`astra prices`)"),
    "cloud": ("NAME[,NAME]", "rent only there"),
    "region": ("NAME[,NAME]", "rent only there"),
    "owned": ("GPU=USD[,...]", "GPUs of your own: what one was bought for"),
    "amortise-years": ("X", "over which that is paid; default: 4"),
    "power-price": ("USD", "of a kWh, for GPUs of your own; default: 0.0806 (US industry)"),
    "pue": ("X", "power of the whole site over that of its machines; default: 1.3"),
}
GOAL_OPTIONS = {
    "budget": ("USD", "the fastest within it: 400000, 400k"),
    "deadline": ("HOURS", "the cheapest within it; also 30d, 6w, or a date: 2027-03-01"),
    "longest": ("HOURS", "leave out plans that take longer; default: 1y, or the deadline"),
    "order": (
        "WORD",
        "throughput, cost or knee: what comes first among plans that meet the goals; "
        "default: throughput with a budget alone, cost with a deadline, else knee",
    ),
}
RUN_OPTIONS = {
    "mtbf": ("HOURS", "of one GPU between failures; default: 50,700 (Llama 3)"),
    "spot-interruptions": ("X", "of a spot node in an hour; default: 0.005"),
    "restart": ("TIME", "after a failure: 10m; default: 10m, spot 20m"),
    "startup": ("TIME", "before the first step; default: 30m"),
    "storage-bandwidth": ("RATE", "of all nodes, for checkpoints: '20 GB/s'; default: 2 a node"),
    "storage-price": ("USD", "for a GB and a month; default: 0"),
    "storage-size": ("GB", "that are stored; default: one checkpoint"),
    "egress-price": ("USD", "for a GB that leaves; default: 0"),
    "egress-size": ("GB", "that leave at the end; default: one checkpoint"),
}


def add_money_options(parser: argparse.ArgumentParser, goals: bool) -> None:
    """`goals`: with the options that only a search has."""
    group = parser.add_argument_group("money")
    for name, (metavar, meaning) in {**PRICE_OPTIONS, **(GOAL_OPTIONS if goals else {})}.items():
        group.add_argument(f"--{name}", metavar=metavar, help=meaning)
    if goals:
        group.add_argument(
            "--what-if",
            metavar="KEY=CHANGE[,...]",
            action="append",
            help="the same with network=x0.5, gpus=+64xh200 or price.h100=1.99 beside it; may be "
            "given often",
        )
    group.add_argument(
        "--prices", metavar="WORD", default="shipped", help="shipped, or sky: SkyPilot's files"
    )
    group.add_argument("--spot", action="store_true", help="spot nodes too")
    if goals:
        group.add_argument(
            "--join-guessed",
            action="store_true",
            help="clusters also of nodes between which no network is published",
        )
        group.add_argument("--no-mixed", action="store_true", help="no clusters of several types")
    group.add_argument(
        "--any-region", action="store_true", help="clusters of several types across clouds, too"
    )
    group = parser.add_argument_group("what a run loses (`src/astra/data/money.toml`)")
    group.add_argument("--no-failures", action="store_true", help="nothing: every second trains")
    for name, (metavar, meaning) in RUN_OPTIONS.items():
        group.add_argument(f"--{name}", metavar=metavar, help=meaning)


def money_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options about money that were given, as arguments of `astra.plan`."""
    given: dict[str, Any] = {}
    for name in (*PRICE_OPTIONS, *GOAL_OPTIONS, *RUN_OPTIONS, "what-if"):
        field = name.replace("-", "_")
        value = getattr(options, field, None)
        if value is not None:
            given[field] = value
    if options.prices != "shipped":
        given["offers"] = catalogue_of(options.prices)
    if options.spot:
        given["spot"] = True
    for name in ("join_guessed", "any_region"):
        if getattr(options, name, False):
            given[name] = True
    if getattr(options, "no_mixed", False):
        given["mixed"] = False
    if options.no_failures:
        given["failures"] = False
    return given


def catalogue_of(which: str) -> "tuple[Offer, ...] | None":
    """SkyPilot's price lists in the user's home; None: the shipped ones."""
    if word(which, "--prices", ("shipped", "sky")) == "shipped":
        return None
    from astra.money.skypilot_catalogue import skypilot_offers

    offers, notes = skypilot_offers(Path(os.environ.get("SKY_RUNTIME_DIR") or Path.home()))
    for text in notes:
        print_note(text)
    return offers
