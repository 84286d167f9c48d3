"""The same questions as tools for assistants, by the Model Context Protocol over standard input and
output: plan, predict, explain, export, import.

Needs the extra `mcp`. No file that a question names is read; an assistant gives its content."""

import argparse

from astra.cli.options import add_server_options, missing_extra, server_options

EXAMPLES = """\
examples:
  astra mcp                       started by an assistant, whose settings name this command:
  {"mcpServers": {"astra": {"command": "astra", "args": ["mcp"]}}}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    add_server_options(parser, time_limit="600")


def run(options: argparse.Namespace) -> int:
    try:
        from astra.web.tools import run_tools
    except ImportError as error:
        raise missing_extra("mcp", "mcp", error) from None
    run_tools(*server_options(options))
    return 0
