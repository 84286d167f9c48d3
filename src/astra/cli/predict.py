"""One plan, checked against its runtime's rules and priced.

What is not given is what an expert would set, and is listed as assumed. A plan that the runtime
would refuse is an error that names the rule and what to try."""

import argparse
from typing import TYPE_CHECKING, Any

from astra.cli.money import add_money_options, money_of
from astra.cli.options import (
    add_cluster_options,
    add_pipeline_model,
    add_plan_options,
    add_plot_option,
    plan_settings,
    plot_path,
)
from astra.cli.printing import print_note, print_parts, write_json
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.api.prediction import Prediction

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
    parser.add_argument(
        "--rank", metavar="N", help="which plan of a search result (with --plan); default: 1"
    )
    parser.add_argument(
        "--memory-margin",
        metavar="X",
        default="0.05",
        help="fraction of the memory to keep free; default: 0.05",
    )
    add_pipeline_model(parser, "the formula of arXiv 2502.13480 in its place")
    add_cluster_options(parser)
    add_plan_options(parser)
    add_money_options(parser, goals=False)
    add_plot_option(parser)


def run(options: argparse.Namespace) -> int:
    from astra.report.plan_page import plan_page
    from astra.report.priced_plan import priced_json

    picture = plot_path(options)
    priced = _from_file(options) if options.plan is not None else _from_options(options)
    if picture is not None:
        priced.plot(picture)
        print_note(f"drawn in {picture}")
    if options.json:
        write_json(priced_json(priced))
    else:
        print_parts(*plan_page(priced))
    return 0


def _from_file(options: argparse.Namespace) -> "Prediction":
    from astra.api import predict_plan

    others = ("model", "gpus", "cluster", "runtime", "stack")
    given = [name for name in others if getattr(options, name) is not None]
    given += [name for name, value in _settings(options).items() if value is not None]
    given = [name if name == "model" else f"--{name.replace('_', '-')}" for name in given]
    if given:
        raise InputError(
            f"--plan {options.plan} is a whole plan; leave out {', '.join(given)}, "
            "or change the file."
        )
    return predict_plan(
        options.plan,
        options.rank or 1,
        margin=options.memory_margin,
        pipeline_model=options.pipeline_model,
        money=money_of(options),
    )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The plan options that were given."""
    from dataclasses import asdict

    return {name: said for name, said in asdict(plan_settings(options)).items() if said is not None}


def _from_options(options: argparse.Namespace) -> "Prediction":
    from astra.api import predict

    if options.model is None:
        raise InputError("name a model (`astra models` lists them), or give --plan FILE.")
    if options.rank is not None:
        raise InputError("--rank chooses among the plans of a file; give --plan FILE with it.")
    return predict(
        options.model,
        gpus=options.gpus,
        cluster=options.cluster,
        runtime=options.runtime,
        stack=options.stack,
        margin=options.memory_margin,
        pipeline_model=options.pipeline_model,
        money=money_of(options),
        **_settings(options),
    )
