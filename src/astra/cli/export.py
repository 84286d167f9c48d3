"""Launch files for a plan: all settings, the environment and a script that starts it.

FILE is a search result, a priced plan or a bare plan, as `astra predict --json` writes it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from astra.cli.options import number, out_path, whole_number, word
from astra.cli.printing import print_parts, write_json
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.export.verify import FrameworkCheck
    from astra.strategy.plan import Plan

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
    parser.add_argument("file", metavar="FILE", help="a plan, priced or not, or a search result")
    parser.add_argument("--to", metavar="TARGET", required=True, help=", ".join(TARGETS))
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for the launch files")
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
    from astra.export import tuner
    from astra.export.folder import write_folder
    from astra.export.rents import read_rents
    from astra.export.targets import export_files
    from astra.strategy.plan_file import read_plans

    target = word(options.to, "--to", TARGETS)
    launcher = word(options.launcher, "--launcher", LAUNCHERS)
    folder = out_path(options.out, "--out", inside="plan.json")
    steps = whole_number(options.train_iters, "--train-iters", most=10**9)
    rate = number(options.lr, "--lr", least=1e-12, most=100.0)
    rank = None if options.rank == "all" else whole_number(options.rank, "--rank")
    plans = read_plans(Path(options.file), rank)
    if not plans:
        raise InputError(f"{options.file}: the search found no plan; there is nothing to export.")
    rents = read_rents(Path(options.file), rank)
    files: dict[str, str] = {}
    checks: list[FrameworkCheck] = []
    for place, plan in enumerate(plans, 1):
        prefix = f"rank-{place:03d}/" if rank is None else ""
        made = export_files(
            plan,
            target,
            launcher=launcher,
            rents=rents[place - 1],
            train_iters=steps,
            learning_rate=rate,
        )
        if options.verify:
            checks += _framework_checks(plan, target, made, prefix)
        files |= {f"{prefix}{name}": text for name, text in made.items()}
    if rank is None and target == "flagscale":
        files |= tuner.files(plans)
    write_folder(folder, files)
    _report(options, plans, files, checks)
    return 0


def _framework_checks(
    plan: "Plan", target: str, made: dict[str, str], prefix: str
) -> "list[FrameworkCheck]":
    """What the framework says; a refusal ends the command before anything is written."""
    from astra.export.megatron import architecture
    from astra.export.verify import verify

    found = verify(made, target, sum(plan.gpus.values()), architecture(plan))
    for check in found:
        if check.outcome == "refused":
            raise InputError(f"--verify: {prefix}{check.line()}. Nothing was written.")
    return found


def _report(
    options: argparse.Namespace,
    plans: "list[Plan]",
    files: dict[str, str],
    checks: "list[FrameworkCheck]",
) -> None:
    from astra.cost.price import price_plan
    from astra.export.targets import TARGETS, expectations, next_steps, unsupported

    missing = unsupported(plans[0], options.to)
    expected = expectations(price_plan(plans[0]))
    if options.json:
        answer = {"out": options.out, "files": sorted(files)}
        said = [check.line() for check in checks]
        write_json(answer | {"expected": expected, "not_expressed": missing, "verified": said})
        return
    count = f"{len(plans)} plans" if len(plans) > 1 else plans[0].summary()
    lines = [f"Wrote {len(files)} files to {options.out}: {count}."]
    lines += [f"  {name}" for name in sorted(files)[:12]]
    lines += expected
    lines += dict.fromkeys(f"verify: {check.line()}" for check in checks)
    if missing:
        name = TARGETS[options.to].name
        lines += [f"{name}'s settings do not say:", *(f"  {setting}" for setting in missing)]
    script = next(name for name in sorted(files) if name.endswith("launch.sh"))
    print_parts(
        *lines, *next_steps(plans[0], options.to, f"{options.out}/{script}", options.launcher)
    )
