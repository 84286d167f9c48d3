"""The models that come with Astra, or one model's shape, parameters and FLOPs.

A model is a name of the list, a Hugging Face config.json (or the folder it is in), or a small
TOML file with the shape."""

import argparse
import json
import sys

from astra.errors import InputError, did_you_mean

EXAMPLES = """\
examples:
  astra models                          all of them
  astra models --filter qwen3           those with qwen3 in name, family or Hugging Face id
  astra models llama-3-8b               one in full
  astra models ./config.json --json     a model of your own
  astra models my-model.toml --seq-len 32768"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="NAME|FILE", help="leave out for the list")
    parser.add_argument("--filter", metavar="TEXT", help="list only what has TEXT in it")
    parser.add_argument(
        "--seq-len",
        metavar="N",
        help="sequence length that FLOPs are counted at; default: 4096, or the model's longest "
        "where that is less",
    )


def run(options: argparse.Namespace) -> int:
    from astra.api.catalogue import flops_seq_len, models, summary_of
    from astra.model.zoo import find_model, zoo_names
    from astra.report.models import listing_json, model_json, print_listing, print_model

    seq_len = None if options.seq_len is None else flops_seq_len(options.seq_len)
    if options.model is not None:
        if options.filter is not None:
            raise InputError("--filter narrows the list; leave it out to see one model.")
        summary = summary_of(find_model(options.model), seq_len)
        if options.json:
            _write(model_json(summary))
        else:
            print_model(summary)
        return 0
    found = models(options.filter or "", seq_len=seq_len)
    if options.json:
        _write(listing_json(found))
    elif found:
        print_listing(found)
    else:
        hint = did_you_mean(options.filter, zoo_names(), "`astra models` lists them all.")
        raise InputError(f"no known model has {options.filter!r} in its name. {hint}")
    return 0


def _write(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
