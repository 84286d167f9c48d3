"""Fit the factors of all stacks on measured runs, together, into their files.

    python -m tools.fit_stacks [RUNS.csv ...]

Prices every run with each factor moved a little, solves for the effects of stacks, GPUs, number
formats and releases (`astra.fit.hierarchy`), writes the stacks, and prices again: three rounds, as
steps are not quite linear. Spreads come from models and cluster sizes held back. Prints the score
of either kind.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from astra.cost.price import steps_s
from astra.fit.hierarchy import FACTOR_FIELDS, Floats, Observed, fit, held_out_errors, stack_of
from astra.fit.observe import (
    gpu_groups,
    model_groups,
    observe,
    predicted_s,
    random_fifths,
    run_conditions,
)
from astra.fit.runs import Run, read_files
from astra.fit.score import is_timed, pair_spread, score
from astra.fit.validate import SWEEP_ROWS, sweep_key
from astra.hardware.stack import FOLDER, Stack, StackSetting, find_stack, stack_names
from astra.report.ranking import FILE as RANKING

RUNS = Path(__file__).parents[1] / "validation" / "runs" / "one-type.csv"
ROUNDS = 3
KNOWN = 10  # runs that the scatter of all stacks counts for
KINDS = (
    "host_forward_s",
    "host_backward_s",
    "host_experts_s",
    "host_expert_kernel_s",
    "step_s",
    "jitter_fraction",
)


def scored(runs: Sequence[Run], logs: Floats) -> float:
    """The score of log errors."""
    families: dict[str, list[tuple[float, float]]] = {}
    for run, log in zip(runs, logs, strict=True):
        families.setdefault(run.family, []).append((float(np.exp(log)), 1.0))
    return score(families) or 0.0


def shares(families: Sequence[str]) -> Floats:
    """What each run counts, each family counted alike."""
    members = Counter(families)
    return np.array([1 / members[family] for family in families]) / max(len(members), 1)


def spread(errors: Floats, families: Sequence[str], own: Sequence[bool]) -> float:
    """80 % of a stack's `own` runs lie within this fraction; few of them are believed in part."""
    mine = np.flatnonzero(own)
    counted = KNOWN * shares(families)
    counted[mine] += len(mine) * shares([families[row] for row in mine.tolist()])
    order = np.argsort(errors)
    reached = np.cumsum(counted[order]) / counted.sum()
    return round(float(errors[order][int(np.searchsorted(reached, 0.8 - 1e-9))]), 3)


def with_spreads(stack: Stack, runs: Sequence[Run], backs: Sequence[Floats]) -> Stack:
    """How far runs of a stack lie from predictions that have not seen their model, or their
    number of GPUs: what a new question meets.
    """
    found = {}
    for field, moe in (("spread_fraction", False), ("moe_spread_fraction", True)):
        rows = [row for row, run in enumerate(runs) if (run.plan.model.moe is not None) == moe]
        errors = np.concatenate([np.expm1(np.abs(logs[rows])) for logs in backs])
        families = [runs[row].family for row in rows] * len(backs)
        own = [run_conditions(runs[row]).stack == stack.name for row in rows] * len(backs)
        found[field] = spread(errors, families, own)
    found["moe_spread_fraction"] = max(found.values())
    return replace(stack, **found)


def written(stack: Stack, old: str) -> str:
    """The stack's file: what was fitted is replaced, all else stays as it was written."""
    fitted = {*FACTOR_FIELDS, *KINDS, "spread_fraction", "moe_spread_fraction", "runs"}
    top = old[: old.index("[source]")].splitlines()
    kept = [line for line in top if line and line.split(" = ")[0] not in fitted]
    lines = [line for line in kept if line.startswith("#")]
    lines += [f"{field} = {getattr(stack, field)}" for field in FACTOR_FIELDS]
    lines += [f"{field} = {getattr(stack, field):g}" for field in KINDS]
    lines += [line for line in kept if not line.startswith("#")]
    lines += [
        f"spread_fraction = {stack.spread_fraction}",
        f"moe_spread_fraction = {stack.moe_spread_fraction}",
        f"runs = {stack.runs}",
        "",
        "[source]",
        f'kind = "{stack.source.kind}"',
        f'where = "{stack.source.where}"',
        f'read_on = "{stack.source.read_on}"',
    ]
    return "\n".join(lines + [_setting(row) for row in stack.settings]) + "\n"


def _setting(row: StackSetting) -> str:
    lines = ["", "[[settings]]"]
    for field in ("gpu", "architecture", "precision", "release"):
        value = getattr(row, field)
        lines += [f'{field} = "{value}"'] if value else []
    lines += [f"{name}_factor = {value}" for name, value in row.factors().items()]
    return "\n".join([*lines, f"runs = {row.runs}"])


def solved(runs: Sequence[Run], stacks: dict[str, Stack]) -> tuple[dict[str, Stack], Observed]:
    seen = observe(runs, stacks, steps_s)
    conditions = seen.conditions
    found = fit(seen)
    names = sorted({condition.stack for condition in conditions})
    return stacks | {name: stack_of(stacks[name], found, conditions) for name in names}, seen


def write_ranking(runs: Sequence[Run], logs: Floats) -> None:
    """How well two layouts of a sweep are told apart, by predictions that have not seen them."""
    sweeps: dict[tuple[str, ...], list[float]] = {}
    for run, log in zip(runs, logs, strict=True):
        sweeps.setdefault(sweep_key(run), []).append(float(log))
    sweeps = {key: found for key, found in sweeps.items() if len(found) >= SWEEP_ROWS}
    fraction, pairs = pair_spread(sweeps)
    text = RANKING.read_text(encoding="utf-8")
    values = {"pair_fraction": round(fraction, 3), "pairs": pairs, "sweeps": len(sweeps)}
    for name, value in values.items():
        text = re.sub(rf"(?m)^{name} = [0-9.]+", f"{name} = {value}", text)
    RANKING.write_text(text, encoding="utf-8")
    print(f"two layouts of one sweep are told apart to {fraction:.1%} ({pairs} pairs)")


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]] or [RUNS]
    found = read_files(files)
    runs = [run for run in found.runs if run.measured_step_s and is_timed(run.family)]
    measured = np.log([run.measured_step_s or 1.0 for run in runs])
    stacks = {name: find_stack(name) for name in stack_names()}
    for _ in range(ROUNDS):
        stacks, seen = solved(runs, stacks)
        errors = np.log(predicted_s(runs, stacks, steps_s)) - measured
        print(f"score {scored(runs, errors):.1%}", flush=True)
    groups = {"models": model_groups, "cluster sizes": gpu_groups, "a fifth": random_fifths}
    back = {name: held_out_errors(seen, group(runs)) for name, group in groups.items()}
    for name, logs in back.items():
        print(f"score with {name} held back {scored(runs, logs):.1%}")
    write_ranking(runs, back["a fifth"])
    for name in sorted({condition.stack for condition in seen.conditions}):
        stack = with_spreads(stacks[name], runs, (back["models"], back["cluster sizes"]))
        path = FOLDER / f"{name}.toml"
        path.write_text(written(stack, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
