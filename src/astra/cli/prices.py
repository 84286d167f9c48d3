"""What GPUs cost to rent, cheapest first, with the date and the source of each price."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from astra.cli.printing import print_parts, write_json
from astra.values import whole_number

if TYPE_CHECKING:
    from astra.money.catalogue import Offer

EXAMPLES = """\
examples:
  astra prices                          the cheapest offer of every GPU
  astra prices h100                     every offer of one
  astra prices h100 --cloud aws,gcp --spot
  astra prices --prices sky             SkyPilot's own catalogue in ~/.sky"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gpu", nargs="?", metavar="GPU", help="one GPU; without it, all of them")
    parser.add_argument("--cloud", metavar="NAME[,NAME]", help="only these clouds")
    parser.add_argument("--region", metavar="NAME[,NAME]", help="only these regions")
    parser.add_argument("--spot", action="store_true", help="spot prices too")
    parser.add_argument(
        "--prices", metavar="WORD", default="shipped", help="shipped, or sky: SkyPilot's files"
    )
    parser.add_argument("--top", metavar="K", default="25", help="rows to show; default: 25")


def run(options: argparse.Namespace) -> int:
    from astra.api import prices
    from astra.cli.money import catalogue_of
    from astra.errors import InputError
    from astra.hardware.catalogue import find_gpu
    from astra.report.prices import (
        PRICES_LEGEND,
        cheapest_of_each,
        merge_regions,
        prices_json,
        prices_table,
    )
    from astra.report.words import words

    max_rows = whole_number(options.top, "--top", most=100_000)
    rows: Sequence[Offer] = prices(
        options.gpu,
        cloud=options.cloud,
        region=options.region,
        spot=options.spot,
        offers=catalogue_of(options.prices),
    )
    note: str | None = None
    if options.gpu is None:
        rows = cheapest_of_each(rows)
    else:
        gpu, read_as = find_gpu(options.gpu)
        note = words(read_as) if read_as else None
        if not rows and not (options.cloud or options.region):
            raise InputError(
                f"no price of {gpu.name} is known. Give one where it is needed: "
                f"--price {options.gpu}=2.49 (USD for an hour of one GPU)."
            )
    if options.json:
        write_json(prices_json(rows, note))
    elif not rows:
        sys.stdout.write("No offers there. `astra prices GPU` lists all of them.\n")
    else:
        count = len(merge_regions(rows))
        more = [f"{count - max_rows} more: --top {count} shows all."] if count > max_rows else []
        source = {offer.source for offer in rows}
        print_parts(
            *([f"{note}.", ""] if note else []),
            prices_table(rows, max_rows),
            *more,
            "",
            PRICES_LEGEND,
            *(f"Source: {each}." for each in sorted(source)[:3]),
        )
    return 0
