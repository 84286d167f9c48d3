"""What lies beside the launch files: how to start, what to expect and a script that compares."""

import json
from collections.abc import Sequence
from importlib.resources import files as package_files
from typing import Any

from astra.cost.result import PricedPlan
from astra.export.run_row import row_of
from astra.export.torchrun import one_line

README = """\
# {title}

{gpus}. Written by Astra for {name}.
{nodes}
## Expected

{expected}

## Before you train

{yours}

## Start

{steps}

## Compare

Keep the log of a process that prints every step. {logs}
Then:

    python3 check.py job.log

It prints measured against expected, and what to do where they differ.

## Files

{files}
"""
ABOUT = {
    "plan.json": "the plan; `astra predict --plan plan.json` prices it again, `astra explain` "
    "says why it is as it is",
    "launch.sh": "starts this node's part of the job",
    "args.txt": "options, one with its values a line",
    "env.txt": "environment, `NAME=value` a line",
    "expected.json": "the numbers above, for check.py",
    "check.py": "reads a log and compares; needs nothing but Python",
    "ds_config.json": "DeepSpeed's configuration",
    "accelerate.yaml": "the configuration of `accelerate launch`",
    "astra_plan.py": "torchtitan's configuration",
    "recipe.py": "Megatron-Bridge's recipe",
    "overrides.txt": "the same as overrides, for a recipe of your own",
    "train.yaml": "FlagScale's experiment",
    "train/plan.yaml": "FlagScale's task",
    "hostfile": "your hosts in the order of ranks: put their names in",
    "job.sbatch": "the SLURM job",
    "jobset.yaml": "the Kubernetes JobSet",
}


def expected(priced: PricedPlan, nodes: Sequence[str] = ()) -> dict[str, Any]:
    """What a run should show, as numbers; `nodes` says in lines which are of which type."""
    plan, memory = priced.plan, priced.memory
    (segment, *_) = plan.pipelines[0].segments
    world = sum(priced.gpus.values())
    logged = plan.micro_batch * plan.pipelines[0].micro_batches * world
    whole = plan.runtime != "deepspeed" or segment.tp == 1
    row, lost = row_of(priced)
    return {
        "model": plan.model.name,
        "summary": priced.summary,
        "gpus": world,
        "nodes": list(nodes),
        "tokens_per_step": plan.global_batch * plan.seq_len,
        # what DeepSpeed takes for the batch: with tensor parallelism every rank counts
        "samples_logged": plan.global_batch if whole else logged,
        "step_s": priced.step_s,
        "step_s_low": priced.step_s_low,
        "step_s_high": priced.step_s_high,
        "reserved_bytes": memory.reserved_bytes,
        "allocated_bytes": memory.allocated_bytes,
        "usable_bytes": memory.usable_bytes,
        "usd_per_hour": usd_per_hour(priced),
        "row": row,
        "row_lacks": lost,
    }


def usd_per_hour(priced: PricedPlan) -> float | None:
    """Of all GPUs of the plan, where the price of each type is known."""
    if priced.usd_per_hour is not None:
        return priced.usd_per_hour
    prices = {pool.gpu.name: pool.usd_per_hour for pool in priced.plan.cluster.pools}
    total = 0.0
    for name, count in priced.gpus.items():
        price = prices.get(name)
        if price is None:
            return None
        total += price * count
    return total


def expected_lines(priced: PricedPlan) -> list[str]:
    """The same for a person, as lines of a list."""
    memory = priced.memory
    tokens = priced.plan.global_batch * priced.plan.seq_len
    lines = [
        f"- a step: {priced.step_s:.3g} s, four times of five between {priced.step_s_low:.3g} and "
        f"{priced.step_s_high:.3g} s; {tokens / priced.step_s:,.0f} tokens/s on all GPUs",
        f"- memory: {memory.reserved_bytes / 2**30:.1f} of {memory.usable_bytes / 2**30:.1f} GiB "
        f"reserved on the fullest GPU; it fits with a chance of {memory.fit_probability:.0%}",
    ]
    price = usd_per_hour(priced)
    if price is None:
        lines.append(
            "- money: not asked for; plan with `--tokens`, and `--price` or the catalogue's"
        )
    else:
        per_token = price / 3600 / (tokens / priced.step_s) * 1e9
        spread = [per_token * s / priced.step_s for s in (priced.step_s_low, priced.step_s_high)]
        lines.append(
            f"- money: ${price:,.2f} an hour; ${per_token:,.2f} for a billion tokens "
            f"(${spread[0]:,.2f} to ${spread[1]:,.2f})"
        )
    return lines


def folder_files(
    priced: PricedPlan,
    name: str,
    steps: Sequence[str],
    logs: str,
    yours: Sequence[str],
    made: Sequence[str],
    nodes: Sequence[str] = (),
) -> dict[str, str]:
    """README.md, expected.json and check.py beside the files that were made.

    `yours`: what the files cannot settle and a person has to. `nodes`: where there are several
    kinds, which are which.
    """
    plan = priced.plan
    gpus = " + ".join(f"{count} x {gpu}" for gpu, count in plan.gpus.items())
    every = sorted({*made, "expected.json", "check.py"})
    kinds = ["In the order of ranks:", "", *(f"- {line}" for line in nodes)] if nodes else []
    text = README.format(
        title=one_line(f"{plan.model.name}: {plan.summary()}"),
        gpus=gpus,
        name=name,
        nodes="".join(f"\n{line}" for line in kinds) + ("\n" if kinds else ""),
        expected="\n".join(expected_lines(priced)),
        yours="\n".join(f"- {one_line(text)}" for text in yours),
        steps="\n".join(steps),
        logs=logs,
        files="\n".join(f"- `{file}`: {ABOUT.get(file, 'one part of the job')}" for file in every),
    )
    return {
        "README.md": text,
        "expected.json": json.dumps(expected(priced, nodes), indent=2) + "\n",
        "check.py": package_files("astra.export").joinpath("check_job.py").read_text("utf-8"),
    }
