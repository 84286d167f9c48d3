"""The command line: parse, call, print. Nothing is imported before it is needed."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from astra.errors import InputError, did_you_mean, either, near, shorten

COMMANDS = {
    "plan": "the best plans for a model on the GPUs you have",
    "predict": "one plan, checked and priced",
    "explain": "why this plan, and why not that one",
    "export": "launch files for a plan",
    "trace": "one simulated step, for Perfetto or as a picture",
    "report": "one page to mail: the answer with its pictures",
    "import": "a plan out of an existing job's launch file",
    "validate": "predictions against measured runs",
    "calibrate": "a stack of your own, fitted on your runs",
    "models": "the models that are known, or one model's shape and counts",
    "gpus": "the GPUs that are known, or one GPU's facts and their source",
    "prices": "what GPUs cost to rent, where, and since when",
    "rules": "what makes a plan illegal, who says so, and why",
    "stacks": "the software that is known to run plans, and its factors",
    "profile": "measure this machine's GPU and links",
    "serve": "the same as JSON over HTTP, on this machine",
    "mcp": "the same as tools for assistants",
}

EXAMPLES = """\
examples:
  astra plan llama-3-70b --gpus h100:512 --global-batch 1024 --seq-len 4096
  astra predict llama-3-8b --gpus h100:64 --tp 2 --pp 2 --global-batch 256 --seq-len 8192
  astra predict ./config.json --gpus a100-80g:16 --tp 4 --global-batch 64 --seq-len 4096 --json
  astra models qwen3-30b-a3b
  astra gpus h100
  astra rules --runtime megatron

`astra COMMAND --help` tells more about a command.

exit codes: 0 an answer; 3 an answer without a plan (nothing fits, or the rules leave none);
2 bad input; 1 our fault; 130 stopped"""


class Parser(argparse.ArgumentParser):
    """argparse with suggestions for typos, and our exit code and wording for bad input."""

    def check_flags(self, arguments: Sequence[str]) -> None:
        """A misspelt option is named as one, not as another that is missing."""
        known = {text for action in self._actions for text in action.option_strings}
        for text in arguments[: arguments.index("--") if "--" in arguments else None]:
            flag = text.partition("=")[0]
            if flag.startswith("--") and flag not in known:
                self.error(f"unrecognized arguments: {text}")

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            flag = (unknown.split() or [""])[0]
            is_option = flag.startswith("-")
            what = "unknown option" if is_option else "one argument too many:"
            hint = self._suggestion(flag) if is_option else ""
            message = f"{what} {shorten(flag)}. {hint}".rstrip()
        raise InputError(f"{message} (`{self.prog} --help` lists the options)")

    def _suggestion(self, flag: str) -> str:
        """Options of this command that a word is part of, else those that look like it."""
        wanted = flag.partition("=")[0].lstrip("-")
        flags = [text for action in self._actions for text in action.option_strings]
        known = [text.removeprefix("--") for text in flags if text.startswith("--")]
        found = near(wanted, [name for name in known if wanted in name or name in wanted] or known)
        return f"Did you mean {either(f'--{name}' for name in found)}?" if found else ""


def _module(command: str) -> str:
    """Where a command lives; `import` is a word of Python's."""
    return f"astra.cli.{'import_job' if command == 'import' else command}"


def parser_for(command: str) -> Parser:
    """The parser of one command, from its module `astra.cli.COMMAND`."""
    module = import_module(_module(command))
    parser = Parser(
        prog=f"astra {command}",
        description=module.__doc__,
        epilog=module.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.arguments(parser)
    if not any("--json" in action.option_strings for action in parser._actions):
        parser.add_argument("--json", action="store_true", help="the result alone, as JSON")
    return parser


def help_text() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "usage: astra COMMAND ...\n\n"
        "Finds the fastest and the cheapest way to train a large language model\n"
        "on the GPUs you have or could rent.\n\n"
        f"commands:\n{rows}\n\n{EXAMPLES}\n"
    )


def run(arguments: Sequence[str]) -> int:
    """One call of `astra`; raises InputError for anything the user can mend."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(help_text())
        return 0
    if arguments[0] in ("-V", "--version"):
        from importlib.metadata import version

        sys.stdout.write(f"astra {version('astra-planner')}\n")
        return 0
    command = arguments[0]
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS, f"The commands are {', '.join(COMMANDS)}.")
        raise InputError(f"unknown command {command!r}. {hint}")
    parser = parser_for(command)
    parser.check_flags(arguments[1:])
    options = parser.parse_args(arguments[1:])
    result: int = import_module(_module(command)).run(options)
    return result


def _write_error(error: InputError, command: str) -> None:
    """Bad input as the JSON that the server answers with."""
    from astra.cli.printing import write_json
    from astra.report.refusals import ErrorDocument, refusal

    actions = parser_for(command)._actions if command in COMMANDS else ()
    words = {action.dest for action in actions} - {"json", "help"}
    write_json(ErrorDocument(error=refusal(error, words, as_typed=True)))


def main() -> int:
    """Exit codes: those of `astra --help`."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
        return code
    except InputError as error:
        sys.stderr.write(f"astra: {error}\n")
        if "--json" in sys.argv[2:]:
            _write_error(error, sys.argv[1])
        return 2
    except BrokenPipeError:  # `astra models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk behind `astra models > list.txt`
        if error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"astra: the answer cannot be written: {error.strerror}.\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nastra: stopped.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
