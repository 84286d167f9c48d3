"""The plan that is recommended: sure to fit, simple, and about as fast as any."""

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.search.test_one_type import TOP, listed, space_of, stack_of, steps_of
from tests.support.tiers import slow_after

import astra
from astra.cost.evaluate import evaluate
from astra.memory.fit_probability import fit_probability, margin_of
from astra.notes import NoteCode, has
from astra.recommend.expectation import expected_steps_s, recommendation, settings_cost
from astra.report.answer import answer_parts
from astra.search.evaluator import evaluator_of
from astra.search.objective import LeastExpected
from astra.search.one_type import OneType
from astra.search.query import query_of_space
from astra.search.result import Progress
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.variants import enumerate_plans

JOB: dict[str, Any] = {"gpus": {"h100": 16}, "global_batch": 64, "seq_len": 8192}


@pytest.fixture(scope="module")
def answer() -> astra.Answer:
    return astra.plan("llama-3-8b", **JOB)


def test_it_fits_with_97_percent_and_the_fastest_on_paper_stands_beside_it(
    answer: astra.Answer,
) -> None:
    best, on_paper = answer.best, answer.fastest_on_paper
    assert best is not None and on_paper is not None
    assert all(plan.memory.fit_probability >= 0.97 for plan in answer.plans)
    assert on_paper.memory.fit_probability < 0.97 and on_paper.step_s < best.step_s
    risky = astra.plan("llama-3-8b", **JOB, risk="none").best
    assert risky is not None and risky.plan == on_paper.plan
    assert best.step_s < 1.03 * risky.step_s


def test_nothing_is_called_the_fastest_on_paper_that_is_slower_than_a_plan_of_the_answer() -> None:
    """Here the search for it begins with a plan that is."""
    job: dict[str, Any] = {"gpus": {"h200": 128}, "global_batch": 256, "seq_len": 4096}
    found = astra.plan("mixtral-8x7b", **job, pp=(1, 2), tp=1, cp=1)
    assert found.fastest_on_paper is not None
    assert found.fastest_on_paper.step_s <= min(plan.step_s for plan in found.plans)


def test_who_is_more_careful_fills_less() -> None:
    careful = astra.plan("llama-3-8b", **JOB, risk="careful").best
    assert careful is not None and careful.memory.fit_probability >= 0.99


def test_where_none_is_sure_to_fit_the_others_count_and_it_is_said() -> None:
    only: dict[str, Any] = {
        "tp": 2,
        "pp": 1,
        "cp": 1,
        "micro_batch": 2,
        "recompute": "none",
        "use_all": True,
    }
    tight = astra.plan("llama-3-8b", **JOB, sharding="optimizer", **only)
    assert tight.best is not None and tight.best.memory.fit_probability < 0.97
    assert has(tight.request.note_codes, NoteCode.NONE_FITS_SURELY)
    assert "no plan fits with a probability of 97%" in " ".join(tight.request.notes)


def test_a_risk_that_is_not_known_is_refused() -> None:
    with pytest.raises(astra.InputError, match="risk"):
        astra.plan("llama-3-8b", **JOB, risk="brave")


@pytest.mark.parametrize("seed", slow_after(2, range(16)))
def test_no_plan_of_brute_force_has_a_shorter_expected_step(seed: int) -> None:
    space = space_of(seed)
    task, stack = space.workload.task, stack_of(space)
    there = task.cluster.pools[0].count
    objective = LeastExpected(TOP, False, gpus=there)
    evaluator = evaluator_of(query_of_space(space, stack), objective)
    evaluator.run(OneType(space).search)
    found = [np.zeros(0)]
    for table in enumerate_plans(space):
        legal = table.take(check(table, task, rules_for(task.runtime)).allowed)
        if len(legal):
            plans = legal.take(evaluate(legal, task, stack).fits)
            found.append(listed(plans, steps_of(plans, space) * objective.weights(plans)))
    best = np.sort(np.concatenate(found))[:TOP]
    np.testing.assert_allclose([step for step, *_ in objective.incumbents], best, rtol=1e-9)


def plan_with(**changes: Any) -> Plan:
    asked = {
        "gpus": "h100:32",
        "layers_per_stage": [8] * 4,
        "vpp": 1,
        "global_batch": 64,
        "seq_len": 4096,
    }
    return astra.predict("llama-3-8b", **{**asked, **changes}).plan


def test_each_setting_must_save_its_weight() -> None:
    weights = recommendation().weights

    def cost(plan: Plan) -> float:
        return float(settings_cost(plans_of([plan]))[0])

    assert cost(plan_with()) == 0.0
    assert cost(plan_with(vpp=4)) == pytest.approx(2 * weights.doubled_chunks)
    assert cost(plan_with(recompute="full")) == 0.0
    assert cost(plan_with(recompute="selective:mlp")) == weights.unusual_recompute
    assert cost(plan_with(recompute="full:block:3")) == weights.unusual_recompute
    assert cost(plan_with(layers_per_stage=[9, 8, 8, 7])) == weights.uneven_stages
    offloading = msgspec.structs.replace(plan_with(), offload_optimizer_fraction=0.5)
    assert cost(offloading) == weights.offload


def test_expected_steps_count_gpus_types_and_the_chance_of_a_failed_start(
    answer: astra.Answer,
) -> None:
    weights, plan = recommendation().weights, answer.plans[0]
    cost = float(settings_cost(plans_of([plan.plan]))[0])
    cost += weights.gpus * sum(plan.gpus.values()) / 16
    cost += weights.failed_start * (1 - plan.memory.fit_probability)
    assert expected_steps_s([plan]) == [pytest.approx(plan.step_s * (1 + cost))]
    memory = plan.memory
    fuller = msgspec.structs.replace(memory, fit_probability=fit_probability(0.95, 1.0))
    fuller_plan = msgspec.structs.replace(plan, memory=fuller)
    assert expected_steps_s([fuller_plan])[0] > expected_steps_s([plan])[0]


def test_for_money_too_settings_must_save_what_they_must() -> None:
    """Offload of a layer saves less than one per cent here."""
    job: dict[str, Any] = {**JOB, "gpus": {"b300": 8}, "tokens": "1B", "price": {"b300": 2}}
    job |= {"objective": "money", "order": "throughput"}
    own = astra.plan("llama-3-8b", **job).best
    free = astra.plan("llama-3-8b", **job, risk="none", margin=margin_of(0.97)).best
    assert own is not None and free is not None and own.gpus == free.gpus
    costs = settings_cost(plans_of([own.plan, free.plan]))
    assert costs[0] < costs[1] and own.step_s > free.step_s
    assert own.step_s * (1 + costs[0]) <= free.step_s * (1 + costs[1])
    assert own.money is not None and own.hours is not None
    assert own.hours > own.step_s * 1e9 / (64 * 8192) / 3600  # those of its own step


@pytest.mark.slow
def test_slow_gpus_that_save_little_are_left_out() -> None:
    """8 A100 beside 32 H100 save a little on paper, and less than a second type must."""
    asked: dict[str, Any] = {"gpus": {"h100": 32, "a100-80g": 8}, "global_batch": 128}
    asked |= {"seq_len": 4096, "tp": [1, 2], "cp": 1}
    fastest = astra.plan("llama-3-8b", **asked, risk="none").best
    answer = astra.plan("llama-3-8b", **asked)
    assert fastest is not None and len(fastest.gpus) == 2
    assert answer.best is not None and list(answer.best.gpus) == ["H100-80GB-SXM"]
    assert answer.mixed is not None and answer.mixed.idle == {"A100-80GB-SXM": 8}
    page = " ".join(str(part) for part in answer_parts(answer))
    other = next(plan for plan in answer.plans if sum(plan.gpus.values()) == 40)
    change = other.step_s / answer.best.step_s - 1
    assert f"(plan {other.rank}) a step takes {change:+.1%}." in page
    assert "--risk none finds the fastest on paper" in page


@pytest.mark.slow
def test_the_best_step_so_far_is_of_plans_that_may_be_the_answer() -> None:
    """Not of the fastest on paper, nor of dtypes that are off, which are searched besides."""
    heard: list[float] = []

    def listen(progress: Progress) -> None:
        heard.append(progress.best_step_s or float("inf"))

    job: dict[str, Any] = {"gpus": {"h100": 512}, "global_batch": 1024, "seq_len": 4096}
    answer = astra.plan("llama-3-70b", **job, progress=listen)
    paper = answer.fastest_on_paper
    assert paper is not None and answer.best is not None
    assert paper.step_s < 0.995 * answer.best.step_s
    assert heard[-1] == pytest.approx(min(plan.step_s for plan in answer.plans))
