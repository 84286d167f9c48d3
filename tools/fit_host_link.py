"""Fits how fast T4s exchange through their host, on steps of training.

    python -m tools.fit_host_link

No collective of T4s is published; 32 runs on four AWS g4dn.12xlarge are (`amp-t4`). Efficiencies
of two and of four ranks and the half size of their curve are fitted on them together with five
factors of the stack, which are dropped: `tools/fit_stacks.py` has its own. Prints the three
figures for `python -m tools.link_tables`, and the error of every kind of layout left out.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

from astra.cost.price import steps_s
from astra.fit.runs import Run, read_runs
from astra.hardware.stack import Stack, find_stack
from astra.strategy.plans import Floats
from astra.timing import link_curves
from astra.timing.link_curves import Curve, IntraNodeCurves

RUNS = Path(__file__).parents[1] / "validation" / "runs"
FACTORS = ("compute", "elementwise", "data", "pipeline", "host")
START = (0.42, 0.42, 5e5, 0.7, 3.0, 1.0, 1.0, 1.2)
SPREADS = (1.0, 1.0, 2.0, 0.3, 0.5, 0.1, 0.3, 0.3)  # of the logarithms, as believed
SWEEPS = 14


def as_table(
    table: IntraNodeCurves, pair: float, four: float, half_bytes: float
) -> IntraNodeCurves:
    """The T4's table with other figures."""

    def curve(old: Curve) -> Curve:
        return replace(old, efficiency=(pair, four), half_bytes=(half_bytes, half_bytes))

    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    return replace(table, **{name: curve(getattr(table, name)) for name in names})


def patched(values: Floats) -> AbstractContextManager[object]:
    """Link tables in which T4s have these figures."""
    pair, four, half_bytes = (float(value) for value in np.exp(values[:3]))
    tables = tuple(
        as_table(table, min(pair, 0.95), min(four, 0.95), half_bytes)
        if table.gpu == "T4"
        else table
        for table in link_curves.intra_node_tables()
    )
    return patch.object(link_curves, "intra_node_tables", lambda: tables)


def errors(values: Floats, runs: Sequence[Run], stack: Stack) -> Floats:
    """log(predicted / measured)."""
    factors = zip(FACTORS, np.exp(values[3:]).tolist(), strict=True)
    own = replace(stack, settings=(), **{f"{name}_factor": value for name, value in factors})
    with patched(values):
        predicted = steps_s([run.plan for run in runs], {stack.name: own})
    return np.asarray(np.log(predicted) - np.log([run.measured_step_s or 1.0 for run in runs]))


def solved(loss: Callable[[Floats], float]) -> Floats:
    """Pattern search on the logarithms."""
    x = np.log(np.array(START))
    best, steps = loss(x), np.full(x.size, 0.2)
    for _ in range(SWEEPS):
        for i in range(x.size):
            tries = [x + sign * steps[i] * np.eye(x.size)[i] for sign in (1, -1)]
            losses = [loss(tried) for tried in tries]
            place = int(np.argmin(losses))
            if losses[place] < best:
                x, best, steps[i] = tries[place], losses[place], steps[i] * 1.5
            else:
                steps[i] /= 2
    return x


def fitted(runs: Sequence[Run], stack: Stack) -> Floats:
    start, spreads = np.log(np.array(START)), np.array(SPREADS)

    def loss(x: Floats) -> float:
        far = ((x - start) / spreads) ** 2
        return float(np.abs(errors(x, runs, stack)).sum() + 0.01 * far.sum())

    return solved(loss)


def mean_error(logs: Floats) -> float:
    return float(np.abs(np.expm1(logs)).mean())


def main() -> None:
    runs = [run for run in read_runs(RUNS / "one-type.csv").runs if run.family == "amp-t4"]
    stack = find_stack("deepspeed-3d")
    found = fitted(runs, stack)
    pair, four, half_bytes = np.exp(found[:3])
    print(f"T4_EFFICIENCY = ({pair:.3f}, {four:.3f})\nT4_HALF_BYTES = {half_bytes:.3g}")
    print(f"{len(runs)} runs: {mean_error(errors(found, runs, stack)):.1%}")
    for tp in (1, 2, 4):
        inside = [run for run in runs if run.plan.pipelines[0].segments[0].tp == tp]
        rest = [run for run in runs if run not in inside]
        off = mean_error(errors(fitted(rest, stack), inside, stack))
        print(f"tp {tp} left out, {len(inside)} runs: {off:.1%}")


if __name__ == "__main__":
    main()
