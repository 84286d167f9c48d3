"""Fit a compute factor and a spread per stack on measured runs, into the stack's file.

    python benchmarks/fit_stacks.py RUNS.csv [RUNS.csv ...]

The factor of a stack brings the mean over its families of their median log error to zero, so
that no large family rules. Nothing else is fitted here: no factor per family, model or row.
"""

import math
import re
import sys
from collections import Counter
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median

import msgspec

from astra.fit.runs import Run, read_files
from astra.fit.score import is_timed
from astra.hardware.stack import FOLDER, Stack, find_stack
from astra.search.price import price_many

ROUNDS = 6
FEW = 10  # runs that say too little of how far they scatter
UNKNOWN = 0.25  # spread where there are so few


def log_errors(runs: list[Run], stack: Stack) -> dict[str, list[float]]:
    """log(predicted / measured) of a stack's runs, by family."""
    plans = [run.plan for run in runs]
    families: dict[str, list[float]] = {}
    for run, priced in zip(runs, price_many(plans, stacks={stack.name: stack}), strict=True):
        assert run.measured_step_s is not None
        error = math.log(priced.step_s / run.measured_step_s)
        families.setdefault(run.family, []).append(error)
    return families


def bias(runs: list[Run], stack: Stack) -> float:
    """Mean over families of the median log error."""
    return fmean(median(errors) for errors in log_errors(runs, stack).values())


def spread(runs: list[Run], stack: Stack) -> float:
    """80 % of the runs lie within this fraction of the prediction, each family counted alike.

    An answer widens it by the share of its time that is guessed; that is taken off here.
    """
    if len(runs) < FEW:
        return UNKNOWN
    families = Counter(run.family for run in runs)
    plans = [run.plan for run in runs]
    sizes = []
    for run, priced in zip(runs, price_many(plans, stacks={stack.name: stack}), strict=True):
        assert run.measured_step_s is not None
        off = math.expm1(abs(math.log(priced.step_s / run.measured_step_s)))
        sizes.append((off / (1 + priced.provenance.guessed_fraction), 1 / families[run.family]))
    sizes.sort()
    reached = accumulate(weight / len(families) for _, weight in sizes)
    place = next((at for at, share in enumerate(reached) if share >= 0.8), len(sizes) - 1)
    return round(sizes[place][0], 3)


def spreads(runs: list[Run], stack: Stack) -> tuple[float, float]:
    """Of dense models, and of those with experts; few runs of either say little."""
    dense = [run for run in runs if run.plan.model.moe is None]
    experts = [run for run in runs if run.plan.model.moe is not None]
    return spread(dense or runs, stack), max(spread(experts, stack), spread(dense or runs, stack))


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
    text = re.sub(r"compute_factor = [0-9.]+", f"compute_factor = {stack.compute_factor}", text)
    if "spread_fraction" not in text:
        text = text.replace("[source]", "spread_fraction = 0.15\n\n[source]").replace(
            "\n\nspread", "\nspread"
        )
    if "moe_spread_fraction" not in text:
        text = text.replace("spread_fraction", "moe_spread_fraction = 0.3\nspread_fraction")
    for name in ("spread_fraction", "moe_spread_fraction"):
        text = re.sub(rf"(?m)^{name} = [0-9.]+", f"{name} = {getattr(stack, name)}", text)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    found = read_files([Path(name) for name in sys.argv[1:]])
    timed = [run for run in found.runs if run.measured_step_s and is_timed(run.family)]
    names = sorted({run.plan.stack for run in timed})
    print(
        f"{'stack':<20}{'runs':>6}{'families':>10}{'before':>9}{'factor':>9}{'left':>8}{'spread':>8}{'MoE':>8}"
    )
    for name in names:
        runs = [run for run in timed if run.plan.stack == name]
        before = bias(runs, find_stack(name))
        stack = fitted(runs, find_stack(name))
        dense, experts = spreads(runs, stack)
        stack = msgspec.structs.replace(stack, spread_fraction=dense, moe_spread_fraction=experts)
        write(stack)
        families = len({run.family for run in runs})
        print(
            f"{name:<20}{len(runs):>6}{families:>10}{before:>+9.2f}"
            f"{stack.compute_factor:>9.3f}{bias(runs, stack):>+8.2f}"
            f"{stack.spread_fraction:>8.2f}{stack.moe_spread_fraction:>8.2f}"
        )


if __name__ == "__main__":
    main()
