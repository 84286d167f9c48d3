"""A stack of one's own out of a few measured runs.

The runs move the factors of a known stack, each as far as they insist: a factor was believed to
lie near the known one, and a step to scatter. So three runs change little but the speed as a
whole, and thirty may tell kernels from traffic. What it is worth is seen on runs left out.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec.structs import replace

from astra.errors import InputError
from astra.files import Source
from astra.fit.hierarchy import FITTED_FACTORS, Floats
from astra.fit.observe import LOG_FACTOR_STEP, Steps
from astra.fit.runs import Run, Skipped
from astra.hardware.stack import Stack
from astra.strategy.plan import Plan

MIN_RUNS = 3  # runs
MAX_STEP_RATIO = (
    30.0  # times as long as predicted, or as short: a slip, no cluster (a minute is 60 seconds)
)
LINEARISATION_ROUNDS = 2  # steps are not quite linear in the factors
REWEIGHTING_ROUNDS = 6  # rounds that weigh far runs down
NOISE = 0.03  # of a measured step that no factor explains
# How far a cluster may lie from what its framework was fitted on elsewhere; guessed.
FACTOR_SPREADS = {
    "compute": 0.21,
    "attention": 0.18,
    "elementwise": 0.18,
    "experts": 0.18,
    "tensor": 0.1,  # traffic is more the links' than the framework's
    "context": 0.21,
    "dispatch": 0.21,
    "data": 0.21,
    "pipeline": 0.21,
    "host": 0.28,
    "optimizer": 0.21,
}
BASE_SPREAD_RUNS = 10  # runs that the spread of the known stack counts for
SIGMAS_OF_80_PERCENT = 1.2816  # standard deviations that hold 80 % of a normal distribution


class CalibrationCase(msgspec.Struct, frozen=True, kw_only=True):
    """One run, predicted by the known stack, by the new one, and by one that has not seen it."""

    row_id: str
    measured_step_s: float
    before_step_s: float
    after_step_s: float
    left_out_step_s: float

    def error(self, which: str) -> float:
        """predicted / measured - 1, for `before`, `after` or `left_out`."""
        return float(getattr(self, f"{which}_step_s")) / self.measured_step_s - 1


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The new stack, and what it is worth."""

    stack: Stack
    base: str
    factors: dict[str, float]  # new over old
    cases: tuple[CalibrationCase, ...]
    left_out: tuple[tuple[str, str], ...] = ()  # row ids of runs too far off, and why
    assumed: dict[str, int] = {}  # what rows do not say, and of how many runs

    def __repr__(self) -> str:
        before, seen, unseen = map(self.mean_abs_error, ("before", "after", "left_out"))
        return (
            f"Calibration({self.stack.name}: {self.base} moved to {len(self.cases)} runs; mean "
            f"error {before:.1%} before, {seen:.1%} after, {unseen:.1%} on runs left out)"
        )

    def mean_abs_error(self, which: str) -> float:
        return float(np.mean([abs(case.error(which)) for case in self.cases]))

    @property
    def helps(self) -> bool:
        """Whether runs that it has not seen are predicted better than before."""
        return self.mean_abs_error("left_out") < self.mean_abs_error("before")


@dataclass(frozen=True, slots=True)
class _Tangent:
    """Runs around a point: (run,) log(measured / predicted), the factors at 1 over the known ones,
    and (run, name) how the log of a step answers to the log of a factor.
    """

    logs: Floats
    slopes: Floats

    def without(self, row: int) -> "_Tangent":
        return _Tangent(np.delete(self.logs, row), np.delete(self.slopes, row, axis=0))


def most_named_stack(runs: Sequence[Run]) -> str:
    """The stack that most of the runs name."""
    return Counter(run.plan.stack for run in runs).most_common(1)[0][0]


def calibrate(
    runs: Sequence[Run],
    base: Stack,
    name: str,
    where: str,
    steps: Steps,
    skipped: Sequence[Skipped] = (),
) -> Calibration:
    """Fit a stack of this name on runs, starting from a known one.

    `skipped`: rows that could not be read, for the words on too few runs.
    """
    timed, left_out = _plausible([run for run in runs if run.measured_step_s], base, steps)
    if len(timed) < MIN_RUNS:
        lost = [*((row.row_id, row.reason) for row in skipped), *left_out]
        why = f" {len(lost)} rows are left out, the first: {': '.join(lost[0])}." if lost else ""
        raise InputError(
            f"{where}: {len(timed)} runs with a step time. {MIN_RUNS} or more are needed, best of "
            f"several models and layouts.{why}"
        )
    plans = [replace(run.plan, stack=base.full_name) for run in timed]
    measured = np.array([run.measured_step_s or 1.0 for run in timed])
    logs = np.zeros(len(FITTED_FACTORS))
    for _ in range(LINEARISATION_ROUNDS):
        tangent = _tangent(plans, base, logs, np.log(measured), steps)
        logs = _solved(tangent)
    found = _moved(base, logs)
    before, after = (steps(plans, {base.full_name: stack}) for stack in (base, found))
    others = [_solved(tangent.without(row)) for row in range(len(timed))]
    off = (tangent.slopes * np.array(others)).sum(axis=1) - tangent.logs
    cases = tuple(
        CalibrationCase(
            row_id=run.row_id,
            measured_step_s=float(step),
            before_step_s=float(old),
            after_step_s=float(new),
            left_out_step_s=float(step * math.exp(log)),
        )
        for run, step, old, new, log in zip(timed, measured, before, after, off, strict=True)
    )
    factors = {key: round(math.exp(log), 3) for key, log in zip(FITTED_FACTORS, logs, strict=True)}
    return Calibration(
        stack=_named(found, name, base, timed, off, where),
        base=base.full_name,
        factors=factors,
        cases=cases,
        left_out=tuple(left_out),
        assumed=dict(Counter(text for run in timed for text in run.assumed).most_common()),
    )


def _plausible(
    runs: Sequence[Run], base: Stack, steps: Steps
) -> tuple[list[Run], list[tuple[str, str]]]:
    """Runs whose steps may be seconds, and what is wrong with the others."""
    if not runs:
        return [], []
    plans = [replace(run.plan, stack=base.full_name) for run in runs]
    plausible: list[Run] = []
    far: list[tuple[str, str]] = []
    for run, predicted in zip(runs, steps(plans, {base.full_name: base}), strict=True):
        ratio = (run.measured_step_s or 1.0) / float(predicted)
        if 1 / MAX_STEP_RATIO <= ratio <= MAX_STEP_RATIO:
            plausible.append(run)
            continue
        times = f"{ratio:,.0f} times as long" if ratio > 1 else f"{1 / ratio:,.0f} times as short"
        reason = (
            f"a step of {run.measured_step_s:,.4g} s is {times} as {base.full_name} predicts "
            f"({float(predicted):,.3g} s), while measured_step_time_s counts seconds"
        )
        far.append((run.row_id, reason))
    return plausible, far


def _tangent(
    plans: Sequence[Plan], base: Stack, logs: Floats, measured: Floats, steps: Steps
) -> _Tangent:
    """The tangent at these factors, told from the known ones."""
    here = _moved(base, logs)
    predicted = np.log(steps(plans, {base.full_name: here}))
    slopes = np.zeros((len(plans), len(FITTED_FACTORS)))
    for column, _ in enumerate(FITTED_FACTORS):
        aside = np.zeros(len(FITTED_FACTORS))
        aside[column] = LOG_FACTOR_STEP
        after = np.log(steps(plans, {base.full_name: _moved(here, aside)}))
        slopes[:, column] = (after - predicted) / LOG_FACTOR_STEP
    return _Tangent(measured - predicted + slopes @ logs, slopes)


def _solved(tangent: _Tangent) -> Floats:
    """Logs of the factors: penalised least squares, far runs weighed down."""
    belief = np.diag([1 / FACTOR_SPREADS[name] ** 2 for name in FITTED_FACTORS])
    values: Floats = np.zeros(len(FITTED_FACTORS))
    for _ in range(REWEIGHTING_ROUNDS):
        left = np.abs(tangent.logs - tangent.slopes @ values)
        weight = 1 / (NOISE * np.maximum(left, NOISE))
        scaled = tangent.slopes * weight[:, np.newaxis]
        whole = tangent.slopes.T @ scaled + belief
        values = np.asarray(np.linalg.solve(whole, scaled.T @ tangent.logs), np.float64)
    return values


def _moved(stack: Stack, logs: Floats) -> Stack:
    fields = {
        f"{name}_factor": math.exp(log) for name, log in zip(FITTED_FACTORS, logs, strict=True)
    }
    return replace(stack, **{key: getattr(stack, key) * value for key, value in fields.items()})


def _named(
    stack: Stack, name: str, base: Stack, runs: Sequence[Run], off: Floats, where: str
) -> Stack:
    """The stack under its own name, its spread that of runs left out, few of them believed less."""
    fields = {f"{key}_factor": round(getattr(stack, f"{key}_factor"), 4) for key in FITTED_FACTORS}
    for field, moe in (("spread_fraction", False), ("moe_spread_fraction", True)):
        rows = [row for row, run in enumerate(runs) if (run.plan.model.moe is not None) == moe]
        known = getattr(base, field) / SIGMAS_OF_80_PERCENT
        square = (BASE_SPREAD_RUNS * known**2 + float((off[rows] ** 2).sum())) / (
            BASE_SPREAD_RUNS + len(rows)
        )
        fields[field] = round(SIGMAS_OF_80_PERCENT * math.sqrt(square), 3)
    settings = tuple(  # of the release that it started from, which it has no name for
        replace(row, release=None) for row in stack.settings if row.release in (None, base.release)
    )
    where = f"{base.full_name}, calibrated on {len(runs)} runs of {where}"
    named = replace(stack, name=name, release=None, runs=len(runs), settings=settings, **fields)
    return replace(named, source=Source(kind="fitted", where=where))
