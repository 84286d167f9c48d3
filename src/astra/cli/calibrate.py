"""A stack of your own, fitted on your own measured runs, for --stack.

Three runs or more; the factors of a known stack move as far as the runs insist, little if they are
few. The error is shown before, after, and for each run by a stack that has not seen it."""

import argparse
import sys

from astra.cli.printing import print_note, print_parts, write_json

EXAMPLES = """\
examples:
  astra calibrate runs.csv --name my-cluster
  astra calibrate runs.csv --name my-cluster --base nemo --force
  astra plan llama-3-70b --gpus h100:512 --global-batch 1024 --seq-len 4096 --stack my-cluster

runs.csv, one row per run; further columns are known (tp, pp, vpp, cp, ep, dp, micro_batch,
recompute, precision, framework ...), these must be there:
  row_id,model,num_layers,hidden_size,seq_len,global_batch,gpu_id,num_gpus,measured_step_time_s

The stack is kept in ~/.config/astra/stacks, where --stack finds it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="RUNS.csv", help="your measured runs")
    parser.add_argument("--name", required=True, metavar="NAME", help="what to call the stack")
    parser.add_argument(
        "--base", metavar="STACK", help="the stack to start from; default: that of most runs"
    )
    parser.add_argument("--force", action="store_true", help="replace a stack of that name")


def run(options: argparse.Namespace) -> int:
    from astra.api import calibrate
    from astra.errors import shorten
    from astra.report.calibration import calibration_json, calibration_page

    if sys.stderr.isatty():  # two thousand runs take ten seconds
        print_note(f"reading and pricing the runs of {', '.join(map(shorten, options.files))} ...")
    made = calibrate(
        options.files, options.name, base=options.base, force=options.force, say=print_note
    )
    if options.json:
        write_json(calibration_json(made.fit, made.skipped, made.path))
    else:
        print_parts(*calibration_page(made.fit, made.skipped, made.path))
    return 0
