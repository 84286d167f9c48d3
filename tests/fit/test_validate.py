"""The comparison: arithmetic by hand with a stand-in for the prediction."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from astra.cli.main import run as cli
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.fit.factors import cross_validated, cross_validated_rows, fit_family_factors
from astra.fit.runs import Run, Skipped, read_runs
from astra.fit.validate import validate
from astra.report.validation import validation_json, validation_page
from astra.strategy.plan import Plan

DATA = Path(__file__).parent / "data"
GIB = 2.0**30


def stage(number: int) -> SimpleNamespace:
    """A stage of six causes of 1 GiB each, and 1 GiB of the driver's."""
    causes = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "runtime")
    parts = {f"{cause}_bytes": GIB for cause in causes}
    return SimpleNamespace(pipeline=0, stage=number, **parts)


def priced(plan: Plan, step_s: float | None, fits: bool | None = True) -> PricedPlan:
    """A prediction of 10 GiB allocated, 12 reserved, 1 of them outside of the allocator."""
    memory = SimpleNamespace(
        fits=fits,
        allocated_bytes=10 * GIB,
        reserved_bytes=12 * GIB,
        worst_pipeline=0,
        worst_stage=0,
        stages=(stage(0), stage(1)),
    )
    answer = SimpleNamespace(step_s=step_s, memory=memory, summary=plan.summary())
    return cast("PricedPlan", answer)


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
    return read_runs(DATA / "runs.csv").runs


def like(run: Run, **changes: object) -> Run:
    """A copy of a run with other figures."""
    return replace(run, **changes)  # type: ignore[arg-type]


def test_a_perfect_prediction_scores_zero_and_ranks_rightly(runs: tuple[Run, ...]) -> None:
    answers = {id(run.plan): run.measured_step_s for run in runs}
    found = validate(runs, price=lambda plan: priced(plan, answers[id(plan)]))
    assert found.score == found.score_dense == found.score_moe == 0
    assert "megatron-ci-tiny" not in found.families
    assert found.sweeps and all(sweep.regret_fraction == 0 for sweep in found.sweeps)
    assert all(sweep.kendall_tau == 1 for sweep in found.sweeps)
    assert found.memory.called_fit_but_failed == 2


def test_errors_factors_and_families_by_hand(runs: tuple[Run, ...]) -> None:
    one = runs[0]
    measured = [1.0, 2.0, 4.0]
    rows = [like(one, measured_step_s=m, family="f", row_id=f"r{m}") for m in measured]
    found = validate(rows, price=lambda plan: priced(plan, 2.0))
    assert [row.error_fraction for row in found.runs] == [1.0, 0.0, -0.5]
    family = found.families["f"]
    assert family.mean_abs_error_fraction == pytest.approx(0.5)
    assert family.median_error_fraction == 0 and family.runs == 3
    assert found.score == pytest.approx((1 + 0 + 1) / 3)
    doubled = validate(rows, price=lambda plan: priced(plan, 1.0), family_factors={"f": 2.0})
    assert doubled.score == found.score
    assert fit_family_factors(found.runs) == {"f": pytest.approx(1.0)}


def test_a_model_left_out_is_scaled_by_the_others_factor(runs: tuple[Run, ...]) -> None:
    one = runs[0]
    rows = [
        like(one, measured_step_s=m, family="f", model_name=name)
        for name, m in (("a", 2.0), ("b", 2.0), ("c", 4.0))
    ]
    found = validate(rows, price=lambda plan: priced(plan, 1.0))
    a, b, c = cross_validated_rows(found.runs)
    assert c.predicted_step_s == pytest.approx(2.0)
    assert a.predicted_step_s == b.predicted_step_s == pytest.approx(8**0.5)
    assert cross_validated(found.runs) == pytest.approx((2 * (2**0.5 - 1) + 1) / 3)
    alone = cross_validated_rows(found.runs[:1])
    assert alone[0].predicted_step_s == 1.0


def test_memory_is_compared_with_the_columns_kind(runs: tuple[Run, ...]) -> None:
    kinds = ("allocated", "reserved", "device", "unknown")
    rows = [like(runs[0], memory_kind=kind, measured_memory_bytes=10 * GIB) for kind in kinds]
    found = validate(rows, price=lambda plan: priced(plan, 1.0, fits=False))
    predicted = [row.predicted_memory_bytes for row in found.runs]
    assert predicted == [10 * GIB, 11 * GIB, 12 * GIB, None]
    assert found.memory.runs == 1 and found.memory.mean_abs_error_fraction == 0
    assert found.memory.called_unfit_but_ran == 4
    logged = like(rows[0], memory_at_last_stage=True)
    found = validate([logged], price=lambda plan: priced(plan, 1.0))
    assert found.runs[0].predicted_memory_bytes == 6 * GIB


def test_what_is_not_predicted_yet_is_listed_and_left_out(runs: tuple[Run, ...]) -> None:
    found = validate(runs, price=lambda plan: priced(plan, None, None), skipped=[Skipped("x", "y")])
    assert len(found.runs) == len(runs) and found.score is None and not found.families
    assert found.memory.called_unfit_but_ran == 0
    assert found.skipped[0].reason == "y"
    assert "no step time" in " ".join(map(str, validation_page(found)))


def test_a_plan_that_cannot_be_priced_is_skipped_with_the_reason(runs: tuple[Run, ...]) -> None:
    def refuse(plan: Plan) -> PricedPlan:
        raise InputError(f"{plan.model.name} has no price.")

    found = validate(runs[:1], price=refuse)
    assert not found.runs and "has no price" in found.skipped[0].reason


def test_the_json_has_the_fields_that_programs_read(runs: tuple[Run, ...]) -> None:
    found = validate(runs, price=lambda plan: priced(plan, 1.0))
    answer = json.loads(msgspec.json.encode(validation_json(found)))
    assert {"runs", "skipped", "families", "score", "memory", "sweeps"} <= set(answer)
    assert {
        "row_id", "family", "measured_step_s", "predicted_step_s", "error_fraction",
        "measured_memory_bytes", "memory_kind", "predicted_memory_bytes",
        "memory_error_fraction", "fits", "assumed",
    } <= set(answer["runs"][0])  # fmt: skip
    assert set(answer["families"]["amp-t4"]) == {
        "runs", "mean_abs_error_fraction", "median_error_fraction", "worst",
    }  # fmt: skip
    assert {"name", "runs", "regret_fraction", "kendall_tau"} == set(answer["sweeps"][0])


def test_the_page_shows_scores_sweeps_and_the_worst_runs(
    runs: tuple[Run, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    from astra.cli.printing import print_parts

    found = validate(runs, price=lambda plan: priced(plan, 1.0), worst=3)
    print_parts(*validation_page(found))
    out = capsys.readouterr().out
    assert "score" in out and "Ranking" in out and "The 3 runs farthest off" in out
    assert "assumed:" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--family", "amp-t5"], "amp-t4"),
        (["--worst", "x"], "--worst"),
        (["--worst", "-1"], "--worst"),
    ],
)
def test_bad_options_say_what_to_try(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cli(["validate", str(DATA / "runs.csv"), *words])


@pytest.mark.slow
def test_the_command_answers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["validate", str(DATA / "runs.csv"), str(DATA / "mixed.csv"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["runs"]) + len(answer["skipped"]) >= 45
