"""Fit one compute factor per stack on measured runs, and write it into the stack's file.

    python benchmarks/fit_stacks.py RUNS.csv [RUNS.csv ...]

The factor of a stack brings the mean over its families of their median log error to zero, so
that no large family rules. Nothing else is fitted here: no factor per family, model or row.
"""

import math
import re
import sys
from pathlib import Path
from statistics import fmean, median

import msgspec

from astra.fit.runs import Run, read_files
from astra.fit.score import is_timed
from astra.hardware.stack import FOLDER, Stack, find_stack
from astra.search.price import price_many

ROUNDS = 6


def bias(runs: list[Run], stack: Stack) -> float:
    """Mean over families of the median log error of a stack's runs."""
    plans = [run.plan for run in runs]
    families: dict[str, list[float]] = {}
    for run, priced in zip(runs, price_many(plans, stacks={stack.name: stack}), strict=True):
        assert run.measured_step_s is not None
        error = math.log(priced.step_s / run.measured_step_s)
        families.setdefault(run.family, []).append(error)
    return fmean(median(errors) for errors in families.values())


def fitted(runs: list[Run], stack: Stack) -> Stack:
    for _ in range(ROUNDS):
        off = bias(runs, stack)
        factor = round(stack.compute_factor * math.exp(-off), 3)
        stack = msgspec.structs.replace(stack, compute_factor=factor)
        if abs(off) < 0.005:
            break
    return stack


def write(stack: Stack) -> None:
    path = FOLDER / f"{stack.name}.toml"
    text = path.read_text(encoding="utf-8")
    line = f"compute_factor = {stack.compute_factor}"
    path.write_text(re.sub(r"compute_factor = [0-9.]+", line, text), encoding="utf-8")


def main() -> None:
    found = read_files([Path(name) for name in sys.argv[1:]])
    timed = [run for run in found.runs if run.measured_step_s and is_timed(run.family)]
    names = sorted({run.plan.stack for run in timed})
    print(f"{'stack':<20}{'runs':>6}{'families':>10}{'before':>9}{'factor':>9}{'left':>8}")
    for name in names:
        runs = [run for run in timed if run.plan.stack == name]
        before = bias(runs, find_stack(name))
        stack = fitted(runs, find_stack(name))
        write(stack)
        families = len({run.family for run in runs})
        print(
            f"{name:<20}{len(runs):>6}{families:>10}{before:>+9.2f}"
            f"{stack.compute_factor:>9.3f}{bias(runs, stack):>+8.2f}"
        )


if __name__ == "__main__":
    main()
