"""How far the memory of a whole GPU lies from the predicted: the scale in `data/memory.toml`.

    python -m tools.fit_memory_spread        (needs the extra `fit`)

Runs say it in two ways: some measured what a GPU held, and all of them ran or failed for memory. By
likelihood, each family of runs counting alike; prints how likely families are that were held back,
for a normal distribution and for Student's t with few degrees of freedom.
"""

from collections import Counter
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from astra.cost.price import price_plans
from astra.fit.runs import read_runs
from astra.fit.validate import predicted_memory_bytes

RUNS = Path(__file__).parents[1] / "validation" / "runs" / "one-type.csv"
WHOLE_GPU = ("reserved", "device")  # kinds of measured memory
NEAR = 0.6  # runs that leave more free, as a log, say nothing
RUNS_OF_A_FAMILY = 10  # that count; more of them count as these
SCALES = np.geomspace(0.02, 0.2, 60)
DISTRIBUTIONS = {"normal": stats.norm, **{f"t, {n} degrees": stats.t(n) for n in (2, 3, 4, 6)}}


@dataclass(frozen=True, slots=True)
class Seen:
    """One run: the log of measured over predicted, or of what it had over predicted."""

    family: str
    ratio_log: float
    ran: bool | None  # None: it measured what it held


def seen_runs() -> list[Seen]:
    runs, found = read_runs(RUNS).runs, list[Seen]()
    for run, priced in zip(runs, price_plans([run.plan for run in runs]), strict=True):
        memory, held = priced.memory, predicted_memory_bytes(run, priced)
        if run.memory_kind in WHOLE_GPU and run.measured_memory_bytes and held:
            found.append(Seen(run.family, log(run.measured_memory_bytes / held), None))
        else:
            left = log(memory.usable_bytes / memory.reserved_bytes)
            if left < NEAR or not run.ran:
                found.append(Seen(run.family, left, run.ran))
    return found


def log_likelihood(distribution: Any, scale: float, runs: list[Seen]) -> float:
    counts = Counter((run.family, run.ran is None) for run in runs)
    say = {None: distribution.logpdf, True: distribution.logcdf, False: distribution.logsf}
    total = 0.0
    for ran, function in say.items():
        own = [run for run in runs if run.ran is ran]
        shares = [max(counts[run.family, ran is None], RUNS_OF_A_FAMILY) for run in own]
        values = function(np.array([run.ratio_log for run in own]) / scale)
        values = values - (log(scale) if ran is None else 0.0)
        total += float((values * RUNS_OF_A_FAMILY / np.array(shares, float)).sum())
    return total


def best_scale(distribution: Any, runs: list[Seen]) -> float:
    return float(max(SCALES, key=lambda scale: log_likelihood(distribution, scale, runs)))


def main() -> None:
    runs = seen_runs()
    families = sorted({run.family for run in runs})
    kinds = Counter(run.ran for run in runs)
    print(f"{kinds[None]} measured, {kinds[True]} ran, {kinds[False]} failed")
    for name, distribution in DISTRIBUTIONS.items():
        held_back = 0.0
        for family in families:
            scale = best_scale(distribution, [run for run in runs if run.family != family])
            own = [run for run in runs if run.family == family]
            held_back += log_likelihood(distribution, scale, own)
        scale = best_scale(distribution, runs)
        full = np.exp(-scale * distribution.ppf([0.9, 0.97, 0.99]))
        print(
            f"{name:<14} scale {scale:.3f}, families held back {held_back:6.1f}; "
            "filled to {:.1%}, {:.1%}, {:.1%}: fits with 90, 97, 99 %".format(*full)
        )


if __name__ == "__main__":
    main()
