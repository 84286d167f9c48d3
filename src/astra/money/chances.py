"""How likely a run keeps its goals, by the interval of its step.

The step is log-normal around the predicted one, four times of five inside its interval. Start-up
and failures are taken as they are assumed.
"""

import math
from statistics import NormalDist

import msgspec

from astra.money.options import Goals

INSIDE = NormalDist().inv_cdf(0.9)  # standard deviations to either end of an 80 % interval


class Chances(msgspec.Struct, frozen=True, kw_only=True):
    """Of one plan; None where there is no such goal. The intervals hold four times of five."""

    fits: float  # into its GPUs
    deadline: float | None
    budget: float | None
    all: float  # fits and keeps every goal
    hours_low: float
    hours_high: float
    usd_low: float
    usd_high: float


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a plan: its hours and dollars, and what of them no step changes."""

    hours: float
    usd: float
    startup_hours: float
    egress_usd: float
    spread: float  # the upper end of the step's interval over the step
    fits: float

    def hours_at(self, factor: float) -> float:
        """With steps so many times as long."""
        return self.startup_hours + factor * (self.hours - self.startup_hours)

    def usd_at(self, factor: float) -> float:
        hourly = (self.usd - self.egress_usd) / self.hours
        return self.egress_usd + hourly * self.hours_at(factor)


def chances_of(run: RunFigures, goals: Goals) -> Chances:
    """What the interval of the step says of each goal; one step decides on all of them."""
    deadline = budget = None
    if goals.deadline_h is not None:
        deadline = _chance(run, goals.deadline_h)
    if goals.budget_usd is not None and run.usd > run.egress_usd:
        share = (goals.budget_usd - run.egress_usd) / (run.usd - run.egress_usd)
        budget = _chance(run, share * run.hours)
    elif goals.budget_usd is not None:  # nothing is paid by the hour
        budget = float(run.usd <= goals.budget_usd)
    kept = min(chance for chance in (deadline, budget, 1.0) if chance is not None)
    return Chances(
        fits=run.fits,
        deadline=deadline,
        budget=budget,
        all=run.fits * kept,
        hours_low=run.hours_at(1 / run.spread),
        hours_high=run.hours_at(run.spread),
        usd_low=run.usd_at(1 / run.spread),
        usd_high=run.usd_at(run.spread),
    )


def _chance(run: RunFigures, latest_h: float) -> float:
    """That it is done by then: P(step <= predicted x share), share = (latest - s) / (hours - s)."""
    share = (latest_h - run.startup_hours) / (run.hours - run.startup_hours)
    if share <= 0 or run.spread <= 1:
        return float(share >= 1)
    return NormalDist().cdf(math.log(share) / math.log(run.spread) * INSIDE)
