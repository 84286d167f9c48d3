"""The models that come with Astra, or one model's shape, parameters and FLOPs.

A model is a name of the list, a Hugging Face config.json (or the folder it is in), or a small
TOML file with the shape."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from astra.cli.options import expand_thousands
from astra.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from astra.model.shape import Model
    from astra.model.summary import ModelSummary

EXAMPLES = """\
examples:
  astra models                          all of them
  astra models --filter qwen3           those with qwen3 in name, family or Hugging Face id
  astra models llama-3-8b               one in full
  astra models ./config.json --json     a model of your own
  astra models my-model.toml --seq-len 32768"""

DEFAULT_SEQ_LEN = 4096
MAX_SEQ_LEN = 10**9


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="NAME|FILE", help="leave out for the list")
    parser.add_argument("--filter", metavar="TEXT", help="list only what has TEXT in it")
    parser.add_argument(
        "--seq-len",
        metavar="N",
        help=f"sequence length that FLOPs are counted at; default: {DEFAULT_SEQ_LEN}, or the "
        "model's longest where that is less",
    )


def run(options: argparse.Namespace) -> int:
    from astra.model.zoo import find_model
    from astra.report.models import model_json, print_model

    seq_len = None if options.seq_len is None else _seq_len(options.seq_len)
    if options.model is None:
        return _list(options.filter, seq_len, options.json)
    if options.filter is not None:
        raise InputError("--filter narrows the list; leave it out to see one model.")
    summary = _summary(find_model(options.model), seq_len)
    if options.json:
        _write(model_json(summary))
    else:
        print_model(summary)
    return 0


def _summary(model: "Model", seq_len: int | None) -> "ModelSummary":
    from astra.model.summary import model_summary

    longest = model.max_positions or DEFAULT_SEQ_LEN
    return model_summary(model, seq_len or min(DEFAULT_SEQ_LEN, longest))


def _list(text: str | None, seq_len: int | None, as_json: bool) -> int:
    from astra.model.zoo import matching_names, zoo_model, zoo_names
    from astra.report.models import listing_json, print_listing

    names = matching_names(text or "")
    if not names and not as_json:
        hint = did_you_mean(text or "", zoo_names(), "`astra models` lists them all.")
        raise InputError(f"no known model has {text!r} in its name. {hint}")
    summary = [_summary(zoo_model(name), seq_len) for name in names]
    if as_json:
        _write(listing_json(summary))
    else:
        print_listing(summary)
    return 0


def _seq_len(given: str) -> int:
    text = expand_thousands(given)
    if not text.isdecimal() or not 1 <= int(text[:12]) <= MAX_SEQ_LEN:
        raise InputError(f"--seq-len {given}: a whole number from 1 to {MAX_SEQ_LEN:,} is needed.")
    return int(text)


def _write(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
