"""What `astra plan` answers."""

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import astra
from astra.cli.main import run
from astra.errors import InputError
from astra.recommend.expectation import expected_steps_s
from astra.report.answer import sureness_lines
from astra.report.headline import safer_plan
from astra.report.ranking import as_good, ranking
from astra.strategy.plan_file import read_plans
from astra.strategy.plan_keys import plan_family
from astra.strategy.plans import plans_of

SMALL: dict[str, Any] = {"gpus": "h100:16", "global_batch": 32, "seq_len": 4096}


def test_the_plans_are_ranked_legal_and_fit() -> None:
    answer = astra.plan("llama-3-8b", **SMALL)
    assert [plan.rank for plan in answer.plans] == list(range(1, 11))
    expected_s = expected_steps_s(answer.plans)
    assert expected_s == sorted(expected_s) and answer.best is answer.plans[0]
    assert all(plan.memory.fits for plan in answer.plans)
    for plan in answer.plans:
        again = astra.predict_plan(plan.plan)
        assert again.step_s == pytest.approx(plan.step_s, rel=1e-9)


@pytest.mark.slow
def test_near_identical_plans_are_folded_unless_asked_for() -> None:
    folded = astra.plan("llama-3-8b", **SMALL)
    whole = astra.plan("llama-3-8b", **SMALL, fold=False)
    kinds = plan_family(plans_of([plan.plan for plan in folded.plans]))
    assert len(set(kinds)) == len(kinds)
    assert folded.plans[0].step_s == whole.plans[0].step_s
    assert whole.plans[-1].step_s <= folded.plans[-1].step_s


def test_the_funnel_accounts_for_every_candidate() -> None:
    search = astra.plan("llama-3-8b", **SMALL).search
    removed = sum(search.removed_by_rule.values())
    assert removed + search.bounded + search.priced == search.candidates
    assert search.out_of_memory <= search.priced


def test_no_plan_takes_less_than_the_bound() -> None:
    found = astra.plan("llama-3-8b", **SMALL)
    fastest = astra.plan("llama-3-8b", **SMALL, risk="none").best
    assert fastest is not None and found.search.bound_s == fastest.step_s
    asked = itertools.count()
    stopped = astra.plan(
        "llama-3-8b", **SMALL, risk="none", is_cancelled=lambda: next(asked) > 10
    ).search
    assert stopped.status == "cancelled" and stopped.bound_s is not None
    assert 0 < stopped.bound_s < fastest.step_s


def test_the_fewest_gpus_are_the_fewest_that_fit() -> None:
    asked: dict[str, Any] = {"settings": ["recompute=none"], "risk": "none"}
    few = astra.plan("llama-2-13b", **SMALL, objective="gpus", **asked)
    assert few.best is not None and few.best.gpus == {"H100-80GB-SXM": 2}
    assert not astra.plan("llama-2-13b", **SMALL | {"gpus": "h100:1"}, **asked).plans


@pytest.mark.slow
def test_the_fewest_gpus_reach_the_throughput_asked_for() -> None:
    wanted = 60_000.0
    few = astra.plan("llama-3-8b", **SMALL, objective="gpus", min_tokens_per_s=wanted)
    assert few.best is not None and few.best.tokens_per_s >= wanted
    used = sum(few.best.gpus.values())
    less = astra.plan("llama-3-8b", **{**SMALL, "gpus": f"h100:{used // 2}"})
    assert used <= 8  # of a node 1, 2, 4 or all eight are rented
    assert less.best is None or less.best.tokens_per_s < wanted


def test_where_no_other_plan_is_as_fast_it_is_said_how_much_slower_they_are() -> None:
    answer = astra.plan("llama-3-8b", **SMALL, top=3)
    best, *others = answer.plans
    slower = [
        msgspec.structs.replace(plan, step_s=best.step_s * factor)
        for plan, factor in zip(others, (1.2, 1.5), strict=True)
    ]
    apart = msgspec.structs.replace(answer, plans=(best, *slower))
    assert "The others are 20.0% to 50.0% slower." in sureness_lines(apart)
    assert not any("The others are" in line for line in sureness_lines(answer))


def test_plans_nearer_than_measured_layouts_are_told_apart_are_called_alike() -> None:
    def step_s(plan: astra.PricedPlan) -> float:
        return plan.step_s

    plans = astra.plan("llama-3-8b", **SMALL).plans
    limit = min(plan.step_s for plan in plans) * (1 + ranking().pair_fraction)
    assert 0.01 < ranking().pair_fraction < 0.3 and ranking().pairs > 100
    assert as_good(plans, step_s) == [plan for plan in plans if plan.step_s < limit]
    assert as_good(plans[:1], step_s) == [plans[0]]


def test_nothing_fits_is_an_answer_with_the_closest_plan_and_what_helps() -> None:
    answer = astra.plan("llama-3-70b", gpus="a10:8", global_batch=16, seq_len=4096)
    why = answer.nothing_fits
    assert not answer.plans and why is not None and why.closest is not None
    assert "GiB needed" in why.binding and not why.closest.memory.fits
    assert any("GPUs" in change or "--seq-len" in change for change in why.tries)


@pytest.mark.slow
def test_when_nothing_fits_each_change_that_is_proposed_helps() -> None:
    asked: dict[str, Any] = {"global_batch": 64, "seq_len": 8192}
    settings = ["recompute=none", "micro_batch=4", "tp=1", "pp=1"]
    why = astra.plan("llama-3-70b", gpus="h100:64", **asked, settings=settings).nothing_fits
    assert why is not None
    named = [change.split()[2] for change in why.tries if change.startswith("without --set")]
    assert named == ["recompute", "micro_batch", "tp"]  # another pp alone does not help
    for place, setting in enumerate(settings):
        rest = settings[:place] + settings[place + 1 :]
        fits = astra.plan("llama-3-70b", gpus="h100:64", **asked, settings=rest).best is not None
        assert fits == (setting.split("=")[0] in named)


@pytest.mark.slow
def test_the_gpus_that_are_proposed_are_the_fewest_that_fit() -> None:
    asked: dict[str, Any] = {"global_batch": 64, "seq_len": 2048}
    why = astra.plan("gpt3-175b", gpus="a100-40g:16", **asked).nothing_fits
    assert why is not None
    (count,) = [int(change.split()[0]) for change in why.tries if change.endswith("GPUs")]
    assert astra.plan("gpt3-175b", gpus=f"a100-40g:{count}", **asked).best is not None
    assert astra.plan("gpt3-175b", gpus=f"a100-40g:{count - 8}", **asked).best is None


def test_a_space_emptied_by_rules_says_by_which(tmp_path: Path) -> None:
    rules = tmp_path / "own.rules"
    rules.write_text("all-gone: $tp >= 1\n")
    answer = astra.plan("llama-3-8b", **SMALL, rules=rules)
    assert answer.nothing_fits is not None and "all-gone" in answer.nothing_fits.binding


def test_own_rules_are_obeyed(tmp_path: Path) -> None:
    rules = tmp_path / "own.rules"
    rules.write_text("$tensor_model_parallel_size > 1\n")
    answer = astra.plan("llama-3-8b", **SMALL, rules=rules)
    assert {plan.plan.pipelines[0].segments[0].tp for plan in answer.plans} == {1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": ["tp=3x"]}, "not a whole number"),
        ({"settings": ["tpp=2"]}, "Did you mean tp"),
        ({"settings": ["tp=2", "tp=4"]}, "given twice"),
        ({"objective": "speed"}, "Use one of time, money, frontier, gpus"),
        ({"stack": "megatronn"}, "Did you mean megatron"),
    ],
)
def test_bad_questions_are_errors_that_help(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        astra.plan("llama-3-8b", **{**SMALL, **changes})


def test_the_kept_answer_is_read_back_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "result.json"
    command = "plan llama-3-8b --gpus h100:8 --global-batch 16,32 --seq-len 4k --top 3 --json"
    assert run([*command.split(), "--out", str(kept)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(kept.read_text())
    assert [row["global_batch"] for row in printed["batches"]] == [16, 32]
    assert len(read_plans(kept)) == 3
    job = tmp_path / "job"
    assert run(["export", str(kept), "--to", "megatron", "--rank", "all", "--out", str(job)]) == 0
    assert (job / "rank-003" / "args.txt").exists()


def test_a_batch_may_be_given_in_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    command = "plan llama-3-8b --gpus h100:8 --global-batch 0.131072M-tokens --seq-len 4096 --json"
    assert run([*command.split(), "--top", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["global_batch"] == 32


def test_a_plan_that_may_not_fit_comes_with_a_safer_one() -> None:
    answer = astra.plan("llama-3-8b", **SMALL)
    first = answer.plans[0]

    def with_chance(chance: float) -> Any:
        memory = msgspec.structs.replace(first.memory, fit_probability=chance)
        return msgspec.structs.replace(first, memory=memory)

    def later(chance: float) -> Any:
        return msgspec.structs.replace(with_chance(chance), rank=2, step_s=first.step_s * 1.1)

    assert safer_plan((with_chance(0.97), later(1.0))) is None
    assert safer_plan((with_chance(0.6), later(0.96))) is None
    found = safer_plan((with_chance(0.96), later(0.97)))
    assert found is not None and (found.rank, found.fit_probability) == (2, 0.97)
    assert found.slower_fraction == found.more_fraction == pytest.approx(0.1)
    assert "plan 2 is 10.0% slower" in found.sentence and "97%" in found.sentence


@pytest.mark.parametrize(
    "settings, batch, said",
    [
        (["tp=3"], 64, "without --set tp=3 (tp 1, 2, 4 or 8 are searched)"),
        (["dp=8"], 7, "without --set dp=8"),
        (["tp=3", "dp=7"], 64, "another --global-batch"),
    ],
)
def test_settings_that_contradict_each_other_are_named(
    settings: list[str], batch: int, said: str
) -> None:
    asked: dict[str, Any] = {"gpus": "h100:8", "global_batch": batch, "seq_len": 4096}
    why = astra.plan("llama-3-8b", **asked, settings=settings).nothing_fits
    assert why is not None and all(f"--set {each}" in why.binding for each in settings)
    assert any(said in each for each in why.tries), why.tries


def test_a_narrowed_question_never_beats_the_whole_where_nodes_are_small() -> None:
    """One GPU a node: tensor parallelism over the network may still be the best there is."""
    asked: dict[str, Any] = {"gpus": {"gh200": 16}, "global_batch": 32, "seq_len": 2048}
    whole = astra.plan("llama-3-70b", **asked, risk="none").best
    narrowed = astra.plan("llama-3-70b", **asked, risk="none", tp=[2, 4]).best
    assert whole is not None and narrowed is not None
    assert whole.step_s <= narrowed.step_s
