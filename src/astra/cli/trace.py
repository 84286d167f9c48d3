"""One simulated step, operation by operation: for Perfetto, or as a picture.

FILE is a search result, a priced plan or a bare plan. A name that ends in .json gets a trace that
ui.perfetto.dev and chrome://tracing open: a process for each stage of each replica group, tracks
for compute, for each kind of communication and for the host, and memory as a counter. A name that
ends in .svg gets a picture of stages against time. --json prints the numbers."""

import argparse

from astra.cli.printing import print_parts, write_json
from astra.errors import InputError

EXAMPLES = """\
examples:
  astra plan llama-3-70b --gpus h100:512 --global-batch 1024 --seq-len 4096 --out result.json
  astra trace result.json --out trace.json
  astra trace result.json --rank 3 --out step.svg
  astra trace result.json --json | jq '.pipelines[0].stages[0].memory_bytes | max'"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a search result, a priced or a bare plan")
    parser.add_argument("--out", metavar="FILE", help="trace.json for Perfetto, or step.svg")
    parser.add_argument(
        "--rank", metavar="N", default="1", help="which plan of a search result; default: 1"
    )


def run(options: argparse.Namespace) -> int:
    from astra.api import trace
    from astra.report.priced_plan import seconds

    if options.out is None and not options.json:
        raise InputError("--out is missing: trace.json for Perfetto, step.svg for a picture.")
    step = trace(options.file, options.out, rank=options.rank)
    if options.json:
        write_json(step)
        return 0
    count = sum(len(stage.kind) for each in step.pipelines for stage in each.stages)
    stages = sum(len(each.stages) for each in step.pipelines)
    print_parts(
        f"Wrote {options.out}: one step of {seconds(step.step_s)}, {count:,} operations on "
        f"{'1 stage' if stages == 1 else f'{stages} stages'} ({step.summary})."
    )
    if options.out.lower().endswith(".json"):
        print_parts("Open it in https://ui.perfetto.dev: it is read in the browser, not sent.")
    return 0
