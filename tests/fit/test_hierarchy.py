"""Effects are found where runs insist, and stay at zero where they do not."""

import math

import msgspec
import numpy as np
import pytest
from tests.support.published import published_runs

from astra.cost.price import steps_s
from astra.fit.hierarchy import (
    FITTED_FACTORS,
    Effect,
    Observed,
    RunConditions,
    _design,
    _penalty,
    _solved,
    fit,
    held_out_errors,
    stack_of,
)
from astra.fit.observe import observe
from astra.hardware.catalogue import find_gpu
from astra.hardware.stack import find_stack


def condition(
    release: str | None = "24.07", gpu: str = "H100-80GB-SXM", stack: str = "nemo"
) -> RunConditions:
    return RunConditions(stack, gpu, "Hopper", "bf16", release)


def observed(conditions: list[RunConditions], logs: list[float], name: str = "compute") -> Observed:
    slopes = np.zeros((len(conditions), len(FITTED_FACTORS)))
    slopes[:, FITTED_FACTORS.index(name)] = 1.0
    return Observed(tuple(conditions), np.array(logs), slopes, np.ones(len(conditions)))


def test_many_runs_that_agree_move_a_factor_all_the_way() -> None:
    found = fit(observed([condition()] * 200, [0.2] * 200))
    assert found.logs(condition())[FITTED_FACTORS.index("compute")] == pytest.approx(0.2, abs=0.01)


def test_one_odd_run_is_believed_in_part_and_what_nobody_felt_stays() -> None:
    """A far run counts like one at the edge, so nineteen others outvote it."""
    found = fit(observed([condition()] * 19 + [condition("25.02")], [0.0] * 19 + [0.6]))
    compute = FITTED_FACTORS.index("compute")
    assert abs(found.logs(condition())[compute]) < 0.02
    assert 0 < found.logs(condition("25.02"))[compute] < 0.4
    assert found.logs(condition())[FITTED_FACTORS.index("tensor")] == 0


def test_a_release_only_speaks_for_itself() -> None:
    conditions = [condition("24.07")] * 40 + [condition("25.02")] * 40
    found = fit(observed(conditions, [0.0] * 40 + [0.2] * 40))
    compute = FITTED_FACTORS.index("compute")
    old, new, other = (found.logs(condition(r))[compute] for r in ("24.07", "25.02", None))
    assert new - old == pytest.approx(0.2, abs=0.05) and old < other < new


def test_held_back_runs_are_predicted_without_themselves() -> None:
    conditions = [condition()] * 30 + [condition(None, "T4", "deepspeed-3d")]
    logs = [0.0] * 30 + [0.5]
    groups = [str(row % 3) for row in range(30)] + ["alone"]
    left = held_out_errors(observed(conditions, logs), groups)
    assert np.abs(left[:30]).max() < 0.05 and left[30] == pytest.approx(-0.5, abs=0.1)


def test_runs_held_back_are_off_as_by_a_fit_of_the_others_alone() -> None:
    """Against normal equations set up again for every group, far runs weighed as in all."""
    rng = np.random.default_rng(3)
    conditions = [
        condition(release, gpu) for release in ("24.07", "25.02") for gpu in ("H100", "B200")
    ] * 9
    slopes = rng.uniform(0, 1, (len(conditions), len(FITTED_FACTORS)))
    runs = Observed(
        tuple(conditions), rng.normal(0, 0.2, len(conditions)), slopes, np.ones(len(conditions))
    )
    groups = rng.choice(["a", "b", "c", "d", "e"], len(conditions)).tolist()
    effects, matrix = _design(runs)
    _, weight = _solved(effects, matrix, runs)
    left = held_out_errors(runs, groups)
    for group in set(groups):
        out = np.array([name == group for name in groups])
        scaled = (matrix * weight[:, np.newaxis])[~out]
        whole = matrix[~out].T @ scaled + _penalty(effects)
        values = np.linalg.solve(whole, scaled.T @ runs.logs[~out])
        assert left[out] == pytest.approx(matrix[out] @ values - runs.logs[out], abs=1e-8)


def test_a_stack_has_the_factors_of_its_fit() -> None:
    conditions = [condition("24.07")] * 60 + [condition("25.02")] * 60
    found = fit(observed(conditions, [0.1] * 60 + [0.3] * 60))
    stack = stack_of(find_stack("nemo"), found, conditions)
    gpu = find_gpu("h100")[0]
    for release in ("24.07", "25.02", "30.01"):
        known = stack_of(find_stack(f"nemo@{release}"), found, conditions).on(gpu, "bf16")
        expected = math.exp(found.logs(condition(release))[FITTED_FACTORS.index("compute")])
        assert known.compute_factor == pytest.approx(expected, rel=0.03)
    assert stack.runs == 120 and set(stack.releases) == {"24.07", "25.02"}
    assert all(row.runs in (60, 120) for row in stack.settings)
    assert Effect("nemo", "compute", ("release",), ("24.07",)) in found.effects


@pytest.mark.slow
def test_a_pinned_factor_stays_and_no_run_is_asked_for_it() -> None:
    pinned = msgspec.structs.replace(find_stack("sailor"), pinned=("elementwise", "host"))
    conditions = [RunConditions("sailor", "GH200-96GB", "Hopper", "fp32", None)] * 50
    for name, moves in (("elementwise", False), ("host", False), ("data", True)):
        found = stack_of(pinned, fit(observed(conditions, [0.4] * 50, name)), conditions)
        field = f"{name}_factor"
        assert (getattr(found, field) != getattr(pinned, field)) is moves
        assert moves or not any(name in row.factors() for row in found.settings)
    runs = [run for run in published_runs().runs if run.family == "sailor-gh200"][:2]
    seen = observe(runs, {"sailor": pinned}, steps_s)
    felt = dict(zip(FITTED_FACTORS, np.abs(seen.slopes).max(axis=0), strict=True))
    assert felt["elementwise"] == felt["host"] == 0 < felt["compute"]
