"""Why a plan is as fast as it is, what the next plans lose, and what would change it.

FILE is a search result, a priced plan or a bare plan, of one GPU type or of several. Searches the
same question again for --against and for what would change; --quick leaves the latter out."""

import argparse
import sys
from contextlib import nullcontext

from astra.cli.options import add_plot_option, plot_path
from astra.cli.printing import print_note, print_parts, write_json
from astra.cli.progress import ProgressLine

EXAMPLES = """\
examples:
  astra explain result.json
  astra explain result.json --rank 3
  astra explain result.json --against "tp=4 pp=8"
  astra explain plan.json --quick --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a search result, a priced or a bare plan")
    parser.add_argument(
        "--rank", metavar="N", default="1", help="which plan of a search result; default: 1"
    )
    parser.add_argument(
        "--against",
        metavar="SETTINGS",
        help='only why not these: "tp=4 pp=8" in the words of `astra plan --set`, or a plan of the '
        "file as its table names it",
    )
    parser.add_argument("--quick", action="store_true", help="do not search for what would change")
    parser.add_argument(
        "--memory-margin",
        metavar="X",
        help="memory to keep free; default: as in the search result, else 0.05",
    )
    add_plot_option(parser)


def run(options: argparse.Namespace) -> int:
    from astra.api import explain
    from astra.report.explain import explanation_json, explanation_page

    picture = plot_path(options)
    shows_changes = options.json or picture is not None
    shows_progress = sys.stderr.isatty() and not options.json
    with ProgressLine(sys.stderr, "pricing") if shows_progress else nullcontext() as line:
        explanation = explain(
            options.file,
            against=options.against,
            rank=options.rank,
            # the page of --against shows nothing of what would change; JSON and charts do
            quick=options.quick or (options.against is not None and not shows_changes),
            margin=options.memory_margin,
            say=None if line is None else lambda what: line(f"searching {what}"),
        )
    if picture is not None:
        explanation.plot(picture)
        print_note(f"drawn in {picture}")
    if options.json:
        write_json(explanation_json(explanation))
    else:
        print_parts(*explanation_page(explanation))
    return 0
