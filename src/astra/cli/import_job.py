"""A plan out of an existing job's launch file.

FILE is a Megatron-LM (or NeMo) launch script or command line, a torchtitan configuration (TOML,
Python or flags), FlagScale's or NeMo's YAML, DeepSpeed's JSON, or a folder that `astra export`
wrote. It is read as text and never executed. What it does not say is the framework's own
default."""

import argparse
from typing import TYPE_CHECKING

from astra.cli.printing import print_parts, write_json
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.imports.read import ImportedJob

EXAMPLES = """\
examples:
  astra import pretrain_gpt.sh --gpus a100-80g --out plan.json
  astra import train.sbatch --gpus h100 --world-size 64 --out plan.json
  astra import ds_config.json --gpus h100:16 --model llama-3-8b --seq-len 4096 --out plan.json
  astra import llama3_70b.toml --gpus h100:128 --out plan.json
  astra import conf/train.yaml --gpus a800 --out plan.json
  astra import pretrain_gpt.sh --gpus h100:256,h200:64 --out plan.json    the last 64 ranks on H200
  astra predict --plan plan.json        what it should take
  astra explain plan.json               what a better plan would change"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a launch script or a configuration")
    parser.add_argument("--out", metavar="FILE", help="where the plan is written, as JSON")
    parser.add_argument(
        "--gpus",
        metavar="TYPE[:COUNT]",
        default=None,
        help="what it runs on, h100 or h100:64; launch files do not say the type; default: h100. "
        "Several types in the order of ranks: h100:256,h200:64",
    )
    parser.add_argument("--world-size", metavar="N", help="GPUs, where the file does not say")
    parser.add_argument("--model", metavar="MODEL", help="what it trains, where it does not say")
    parser.add_argument("--seq-len", metavar="N", help="tokens per sample, where it does not say")
    parser.add_argument("--vocab-size", metavar="N", help="rows of the vocabulary, likewise")


def run(options: argparse.Namespace) -> int:
    from astra.api import import_job
    from astra.api.saving import out_path
    from astra.export.folder import write_folder
    from astra.export.targets import plan_json

    if options.out is None and not options.json:
        raise InputError("--out is missing: where the plan goes. Try --out plan.json.")
    path = None if options.out is None else out_path(options.out, "--out")
    job = import_job(
        options.file,
        gpus=options.gpus,
        world_size=options.world_size,
        model=options.model,
        seq_len=options.seq_len,
        vocab_size=options.vocab_size,
    )
    if path is not None:
        write_folder(path.parent, {path.name: plan_json(job.plan)})
    if options.json:
        write_json(_document(job))
    else:
        print_parts(*_page(job, options))
    return 0


def _document(job: "ImportedJob") -> dict[str, object]:
    return {
        "plan": job.plan,
        "framework": job.framework,
        "assumed": list(job.assumed),
        "not_understood": list(job.not_understood),
        "refused": list(job.refused),
        "outside_space": list(job.outside_space),
        "note_codes": list(job.notes),
    }


def _page(job: "ImportedJob", options: argparse.Namespace) -> list[str]:
    plan = job.plan
    gpus = " + ".join(f"{count} x {name}" for name, count in plan.gpus.items())
    lines = [
        f"{job.framework}: {plan.model.name} on {gpus}, batch {plan.global_batch} x "
        f"{plan.seq_len}, {plan.precision}: {plan.summary()}."
    ]
    assumed = list(job.assumed)
    if options.gpus is None:
        assumed.insert(0, "launch files do not say which GPUs: H100 (--gpus names others)")
    for title, found in (
        ("Assumed:", assumed),
        ("Not understood, left out:", job.not_understood),
        (f"{job.framework} will refuse it:", job.refused),
        ("A search for the same job would not try it:", job.outside_space),
    ):
        if found:
            lines += [title, *(f"  {text}" for text in found)]
    lines += [
        f"Wrote {options.out}. Next:",
        f"  astra predict --plan {options.out}",
        f"  astra explain {options.out}    what a better plan would change, and gain",
    ]
    return lines
