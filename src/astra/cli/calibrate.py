"""A stack of your own, fitted on your own measured runs, for --stack.

Three runs or more; the factors of a known stack move as far as the runs insist, little if they are
few. The error is shown before, after, and for each run by a stack that has not seen it."""

import argparse
import sys
from pathlib import Path

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
    from astra.cost.price import steps_s
    from astra.errors import shorten
    from astra.export.folder import write_folder
    from astra.fit.calibrate import calibrate, most_named_stack
    from astra.fit.runs import Skipped, read_files
    from astra.fit.stack_file import stack_text
    from astra.hardware.stack import find_stack
    from astra.report.calibration import calibration_json, calibration_page

    path = _file_of(options.name, options.force)
    if sys.stderr.isatty():  # two thousand runs take ten seconds
        print_note(f"reading and pricing the runs of {', '.join(map(shorten, options.files))} ...")
    runs_read = read_files([Path(name) for name in options.files])
    for text in runs_read.notes:
        print_note(text)
    where = ", ".join(Path(name).name for name in options.files)
    base = find_stack(
        options.base or (most_named_stack(runs_read.runs) if runs_read.runs else "megatron")
    )
    fitted = calibrate(runs_read.runs, base, options.name, where, steps_s, runs_read.skipped)
    skipped = [*runs_read.skipped, *(Skipped(*row) for row in fitted.left_out)]
    head = f"{fitted.base} as it runs on one cluster; made by astra calibrate"
    write_folder(path.parent, {path.name: stack_text(fitted.stack, head)})
    if options.json:
        write_json(calibration_json(fitted, skipped, path))
    else:
        print_parts(*calibration_page(fitted, skipped, path))
    return 0


def _file_of(name: str, force: bool) -> Path:
    from astra.errors import InputError, shorten
    from astra.export.folder import check_writable
    from astra.hardware.stack import shipped_stacks, user_stack_folder

    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum() and len(name) <= 60):
        raise InputError(
            f"--name {shorten(name)}: letters, digits, - _ and . make a name, as in my-cluster."
        )
    if name in shipped_stacks():
        raise InputError(f"--name {name}: that stack comes with astra. Try --name my-{name}.")
    path = user_stack_folder() / f"{name}.toml"
    check_writable(path)
    if path.exists() and not force:
        raise InputError(f"{path}: there is a stack {name} already. --force replaces it.")
    return path
