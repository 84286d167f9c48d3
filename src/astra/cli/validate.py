"""Predictions against measured runs: step time, memory and ranking, with every error shown.

A run is a row of a CSV file; unknown cells are empty, and what must be assumed for one is listed
with the run. The score is the mean over families of their mean |log(predicted / measured)|, as a
fraction."""

import argparse
import sys

from astra.cli.printing import print_note, print_parts, write_json

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
    from astra.api import validate
    from astra.errors import shorten
    from astra.report.validation import validation_json, validation_page

    if sys.stderr.isatty():  # two thousand runs take ten seconds
        print_note(f"reading and pricing the runs of {', '.join(map(shorten, options.files))} ...")
    answer = validate(options.files, family=options.family, worst=options.worst, say=print_note)
    if options.json:
        write_json(validation_json(answer))
    else:
        print_parts(*validation_page(answer))
    return 0
