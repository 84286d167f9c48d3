"""Predictions against measured runs: step time, memory and ranking, with every error shown.

A run is a row of a CSV file; unknown cells are empty, and what must be assumed for one is listed
with the run. The score is the mean over families of their mean |log(predicted / measured)|, as a
fraction."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astra.cli.options import whole_number
from astra.cli.printing import print_note, print_parts, write_json

if TYPE_CHECKING:
    from astra.fit.runs import Runs

EXAMPLES = """\
examples:
  astra validate runs.csv
  astra validate runs.csv mixed.csv --worst 20
  astra validate runs.csv --family llm-foundry
  astra validate runs.csv --json

runs.csv, one row per run; further columns are known, these must be there:
  row_id,model,num_layers,hidden_size,seq_len,global_batch,gpu_id,num_gpus,measured_step_time_s
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="RUNS.csv", help="measured runs")
    parser.add_argument("--family", metavar="NAME", help="only the runs of this source")
    parser.add_argument("--worst", metavar="N", default="10", help="runs shown in full; default 10")


def run(options: argparse.Namespace) -> int:
    from astra.cost.price import price_plans
    from astra.errors import shorten
    from astra.fit.runs import read_files
    from astra.fit.validate import validate
    from astra.report.validation import validation_json, validation_page

    worst = whole_number(options.worst, "--worst", least=0, most=100_000)
    if sys.stderr.isatty():  # two thousand runs take ten seconds
        print_note(f"reading and pricing the runs of {', '.join(map(shorten, options.files))} ...")
    runs_read = read_files([Path(name) for name in options.files])
    for text in runs_read.notes:
        print_note(text)
    if options.family is not None:
        runs_read = _only(runs_read, options.family)
    plans = [run.plan for run in runs_read.runs]
    priced = dict(zip(map(id, plans), price_plans(plans), strict=True))
    answer = validate(
        runs_read.runs,
        price=lambda plan: priced[id(plan)],
        skipped=runs_read.skipped,
        worst=worst,
    )
    if options.json:
        write_json(validation_json(answer))
    else:
        print_parts(*validation_page(answer))
    return 0


def _only(runs_read: "Runs", family: str) -> "Runs":
    """The runs of one family; rows that could not be read belong to none."""
    from astra.errors import InputError, did_you_mean, shorten
    from astra.fit.runs import Runs

    names = sorted({run.family for run in runs_read.runs})
    if family not in names:
        hint = did_you_mean(family, names, f"The families are {', '.join(names[:40])}.")
        raise InputError(f"--family {shorten(family)}: no run has it. {hint}")
    return Runs(tuple(run for run in runs_read.runs if run.family == family), ())
