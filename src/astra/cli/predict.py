"""One plan, checked against its runtime's rules and priced.

What is not given is what an expert would set, and is listed as assumed. A plan that the runtime
would refuse is an error that names the rule and what to try."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from astra.cli.options import (
    add_cluster_options,
    add_plan_options,
    cluster_of,
    runtime_of,
    wish_of,
)
from astra.cli.printing import print_parts, write_json
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.search.priced import Priced
    from astra.strategy.settle import Settled, Wish

EXAMPLES = """\
examples:
  astra predict llama-3-8b --gpus h100:64 --tp 2 --pp 2 --global-batch 256 --seq-len 8192
  astra predict mixtral-8x7b --gpus h100:128 --tp 2 --pp 4 --ep 8 --global-batch 512
  astra predict ./config.json --cluster my-cluster.toml --tp 8 --global-batch 64 --json
  astra predict --plan plan.json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a known name, a config.json or a small TOML"
    )
    parser.add_argument("--plan", metavar="FILE", help="a plan as JSON, in place of the options")
    parser.add_argument("--rank", metavar="N", default="1", help="which plan of a search result")
    add_cluster_options(parser)
    add_plan_options(parser)


def run(options: argparse.Namespace) -> int:
    from astra.report.priced import page, priced_json

    priced = _from_file(options) if options.plan is not None else _from_options(options)
    if options.json:
        write_json(priced_json(priced))
    else:
        print_parts(*page(priced))
    return 0


def _from_file(options: argparse.Namespace) -> "Priced":
    from astra.cli.options import whole
    from astra.search.price import price
    from astra.strategy.advice import refuse
    from astra.strategy.plan_file import read_plan
    from astra.strategy.rules.book import broken_rules

    given = [name for name in ("model", "gpus", "cluster") if getattr(options, name) is not None]
    given += [name for name, value in vars(_wish(options)).items() if value is not None]
    if given:
        raise InputError(
            f"--plan {options.plan} is a whole plan; leave out {', '.join(given)}, "
            "or change the file."
        )
    plan = read_plan(Path(options.plan), whole(options.rank, "--rank"))
    broken = broken_rules(plan)
    if broken:
        raise InputError(f"{options.plan}: {refuse(plan, broken, None, None)}")
    return price(plan)


def _wish(options: argparse.Namespace) -> argparse.Namespace:
    """The plan options that were given, to say which ones --plan excludes."""
    from dataclasses import asdict

    return argparse.Namespace(**asdict(wish_of(options)))


def _from_options(options: argparse.Namespace) -> "Priced":
    from astra.model.zoo import find_model
    from astra.search.price import price
    from astra.strategy.advice import refuse
    from astra.strategy.rules.book import broken_rules
    from astra.strategy.settle import settle

    if options.model is None:
        raise InputError("name a model (`astra models` lists them), or give --plan FILE.")
    wish = wish_of(options)
    model = find_model(options.model)
    cluster, notes = cluster_of(options)
    runtime = runtime_of(options, len(cluster.pools))

    def settled(changed: "Wish") -> "Settled":
        return settle(changed, model, cluster, runtime, options.stack)

    answer = settled(wish)
    broken = broken_rules(answer.plan)
    if broken:
        raise InputError(refuse(answer.plan, broken, settled, wish))
    return price(answer.plan, answer.assumed, notes)
