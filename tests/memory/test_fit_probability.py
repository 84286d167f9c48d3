"""The chance that a plan fits is that of the runs that were measured."""

from math import isclose, log
from pathlib import Path
from statistics import fmean

import pytest
from scipy import stats

from astra.cost.price import price_plans
from astra.fit.runs import read_runs
from astra.fit.validate import predicted_memory_bytes
from astra.memory.constants import memory_constants
from astra.memory.fit_probability import fit_probability, margin_of

ROOT = Path(__file__).parents[2]


def test_it_is_students_t_with_four_degrees_of_freedom() -> None:
    scale = memory_constants().spread.scale
    for filled in (0.3, 0.7, 0.84, 0.95, 1.0, 1.2):
        known = stats.t(4).cdf(-log(filled) / scale)
        assert isclose(fit_probability(filled * 80e9, 80e9), known, rel_tol=1e-9)


def test_what_must_stay_free_for_a_chance_gives_that_chance() -> None:
    for probability in (0.5, 0.9, 0.97, 0.99, 0.999):
        assert isclose(fit_probability(1 - margin_of(probability), 1.0), probability)
    assert margin_of(0.97) > margin_of(0.9) > margin_of(0.5) == 0.0


@pytest.mark.slow
def test_measured_runs_lie_as_near_as_it_says() -> None:
    """Families of runs that measured what a GPU held in all, each counting alike."""
    runs = read_runs(ROOT / "validation" / "runs" / "one-type.csv").runs
    whole = [run for run in runs if run.memory_kind in ("reserved", "device")]
    chances: dict[str, list[float]] = {}
    for run, found in zip(whole, price_plans([run.plan for run in whole]), strict=True):
        predicted, measured = predicted_memory_bytes(run, found), run.measured_memory_bytes
        assert predicted and measured
        chances.setdefault(run.family, []).append(fit_probability(predicted, measured))
    assert sum(map(len, chances.values())) > 80
    for wanted in (0.5, 0.8, 0.95):
        low, high = (1 - wanted) / 2, (1 + wanted) / 2
        inside = fmean(fmean(low <= p <= high for p in each) for each in chances.values())
        assert abs(inside - wanted) < 0.12, f"{inside:.0%} lie in the range of {wanted:.0%}"
