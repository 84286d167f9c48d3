"""Launch files for a plan: all settings, the environment and a script that starts it.

FILE is a search result, a priced plan or a bare plan, as `astra predict --json` writes it."""

import argparse
from typing import TYPE_CHECKING

from astra.cli.printing import print_note, print_parts, write_json
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.api.exports import ExportedJob

EXAMPLES = """\
examples:
  astra predict llama-3-8b --gpus h100:64 --tp 2 --global-batch 256 --seq-len 8192 --json >plan.json
  astra export plan.json --to megatron --out job
  MEGATRON=~/Megatron-LM NODE_RANK=0 MASTER_ADDR=10.0.0.1 job/launch.sh --mock-data \\
    --tokenizer-type NullTokenizer --log-interval 1
  astra export mixed.json --to flagscale --out job
  astra predict llama-3-8b --gpus h100:48,h200:16 --global-batch 256 --json >uniform.json
  astra export uniform.json --to megatron --launcher slurm --out job
  astra plan llama-3-8b --gpus h100:64 --global-batch 128 --seq-len 8192 \\
    --runtime fsdp --json >found.json
  astra export found.json --to torchtitan --out job"""

LAUNCHERS = ("torchrun", "slurm", "skypilot", "kubernetes")
TARGETS = ("megatron", "bridge", "flagscale", "torchtitan", "accelerate", "deepspeed")


def arguments(parser: argparse.ArgumentParser) -> None:
    from astra.export.installed_targets import installed_names

    parser.add_argument("file", metavar="FILE", help="a plan, priced or not, or a search result")
    names = dict.fromkeys([*TARGETS, *installed_names()])
    parser.add_argument("--to", metavar="TARGET", required=True, help=", ".join(names))
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the launch files; with --json it may be left out"
    )
    parser.add_argument(
        "--rank", metavar="N|all", default="1", help="which plan of a search result; default: 1"
    )
    parser.add_argument(
        "--launcher", metavar="NAME", default="torchrun", help=f"{', '.join(LAUNCHERS)}"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="let the framework's own code judge the files, where it is installed",
    )
    parser.add_argument(
        "--train-iters", metavar="N", default="100", help="steps to train; default: 100"
    )
    parser.add_argument(
        "--lr", metavar="X", default="1e-4", help="learning rate; default: 1e-4, set your own"
    )


def run(options: argparse.Namespace) -> int:
    from astra.api import export

    if options.out is None and not options.json:
        raise InputError("--out DIR: where are the launch files to go? With --json it prints them.")
    job = export(
        options.file,
        options.to,
        options.out,
        rank=options.rank,
        launcher=options.launcher,
        verify=options.verify,
        train_iters=options.train_iters,
        learning_rate=options.lr,
    )
    if options.json:
        names = ("out", "files", "expected", "not_expressed", "verified", "notes")
        write_json({**{name: getattr(job, name) for name in names}, "texts": job.texts})
    else:
        print_parts(*_page(job, options.to))
        for text in job.notes:
            print_note(text)
    return 0


def _page(job: "ExportedJob", target: str) -> list[str]:
    from astra.export.targets import target_named

    count = f"{len(job.plans)} plans" if len(job.plans) > 1 else job.plans[0].summary()
    lines = [f"Wrote {len(job.files)} files to {job.out}: {count}."]
    lines += [f"  {name}" for name in job.files[:12]]
    lines += job.expected
    lines += dict.fromkeys(f"verify: {line}" for line in job.verified)
    if job.not_expressed:
        name = target_named(target).name
        lines += [f"{name}'s settings do not say:", *(f"  {each}" for each in job.not_expressed)]
    return [*lines, *job.next_steps]
