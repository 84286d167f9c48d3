"""The same questions as JSON over HTTP, on this machine alone; `/api/openapi.json` describes them.

Needs the extra `web`. Nothing of a client's is read from the disk, and stopping it (Ctrl-C,
SIGTERM) ends every search."""

import argparse
import sys

from astra.cli.options import add_server_options, missing_extra, server_options
from astra.cli.printing import print_note, write_json
from astra.cli.stopping import stop_requests
from astra.values import whole_number

EXAMPLES = """\
examples:
  astra serve
  astra serve --port 9000 --workers 4 --time-limit 300
  curl -H 'content-type: application/json' http://127.0.0.1:8400/api/plan -d \\
    '{"model": "llama-3-8b", "gpus": "h100:64", "global_batch": 256, "seq_len": 8192}'"""

STOPPED = 130  # exit code


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", metavar="N", default="8400", help="default: 8400; 0: any free one"
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="where to listen; default: 127.0.0.1, this machine alone. There are no accounts",
    )
    add_server_options(parser, time_limit="60")


def run(options: argparse.Namespace) -> int:
    try:
        from astra.web.serve import listener, run_server
    except ImportError as error:
        raise missing_extra("serve", "web", error) from None
    listening = listener(options.host, whole_number(options.port, "--port", least=0, most=65535))
    port = listening.getsockname()[1]
    address = f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{port}"
    if options.json:
        write_json({"address": address})
        sys.stdout.flush()
    else:
        print_note(f"listening at {address}; Ctrl-C stops it")
    with stop_requests() as request:
        run_server(listening, options.host, *server_options(options))
    return STOPPED if request.is_made else 0
