"""What the published runs say of us. The numbers are those of `docs/accuracy.md`."""

from pathlib import Path

import pytest

from astra.fit.runs import read_runs
from astra.fit.steps import read_steps
from astra.fit.validate import validate
from astra.search.price import price_many

RUNS = Path(__file__).parents[2] / "validation" / "runs"


@pytest.mark.slow
def test_the_score_over_the_published_runs_is_at_most_15_percent() -> None:
    found = read_runs(RUNS / "one-type.csv")
    plans = [run.plan for run in found.runs]
    priced = dict(zip(map(id, plans), price_many(plans), strict=True))
    answer = validate(found.runs, price=lambda plan: priced[id(plan)], skipped=found.skipped)
    assert len(found.runs) >= 2_000 and len(found.skipped) <= 20
    assert answer.score is not None and answer.score <= 0.15
    worst = {name: family.mean_abs_error_fraction for name, family in answer.families.items()}
    assert worst["korthikanti22"] <= 0.12, "all six within 12 %"


def test_steps_on_one_h200_are_as_predicted() -> None:
    steps = read_steps(RUNS / "h200-steps.jsonl")
    priced = price_many([step.plan for step in steps])
    assert len(steps) == 13
    for step, answer in zip(steps, priced, strict=True):
        dense = step.plan.model.moe is None and step.plan.stack == "torch-compile"
        error = abs(answer.step_s / step.step_s - 1)
        assert error <= (0.04 if dense else 0.12), step.name
        memory = abs(answer.memory.allocated_bytes / step.allocated_bytes - 1)
        assert memory <= 0.02, step.name
