"""One page to mail: an answer with its pictures, what binds, what would change it, and how sure
each figure is.

FILE is a search result, a priced plan, a bare plan or an imported job. The HTML is one file that
needs no network and no script, and prints on A4; Markdown has tables in place of pictures, for a
pull request. Searches again for what would change; --quick leaves that out."""

import argparse
import sys
from contextlib import nullcontext

from astra.cli.printing import write_json
from astra.cli.progress import ProgressLine
from astra.errors import InputError

EXAMPLES = """\
examples:
  astra plan llama-3-70b --gpus h100:512 --global-batch 1024 --seq-len 4096 --out result.json
  astra report result.json --out report.html
  astra report result.json --rank 3 --out report.md
  astra report result.json --format md --out - > comment.md"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="a search result, a priced or a bare plan, an imported job"
    )
    parser.add_argument("--out", metavar="FILE", help="report.html or report.md; - prints it")
    parser.add_argument("--format", metavar="WORD", help="html or md; default: as --out ends")
    parser.add_argument(
        "--rank", metavar="N", default="1", help="which plan of a search result; default: 1"
    )
    parser.add_argument("--quick", action="store_true", help="do not search for what would change")


def run(options: argparse.Namespace) -> int:
    from astra.api import report
    from astra.api.reports import report_format

    if options.out is None and not options.json:
        raise InputError("--out is missing: report.html, report.md, or - to print it.")
    if options.out == "-" and options.format is None:
        raise InputError("--out - needs --format html or --format md.")
    path = None if options.out == "-" else options.out
    shows_progress = sys.stderr.isatty() and not options.json
    with ProgressLine(sys.stderr, "reading") if shows_progress else nullcontext() as line:
        found = report(
            options.file,
            path,
            rank=options.rank,
            format=options.format,
            quick=options.quick,
            say=line,
        )
    is_html = report_format(path or "report.html", options.format) == "html"
    text = found.html() if is_html else found.markdown()
    if options.json:
        write_json({"title": found.sheet.title, "out": path, "text": text})
    elif path is None:
        sys.stdout.write(text)
    else:
        sys.stdout.write(f"Wrote {path}: {found.sheet.title}.\n")  # a path is not to be folded
    return 0
