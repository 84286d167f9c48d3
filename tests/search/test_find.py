"""The search finds what brute force finds."""

import random
from typing import Any

import numpy as np
import pytest
from tests.strategy.mixed_plans import small_model

from astra.hardware.gpus_option import parse_gpus
from astra.hardware.stack import find_stack
from astra.search.bulk import bulk_of
from astra.search.find import Finder
from astra.search.step import simulated_step
from astra.strategy.enumerate import enumerate_plans
from astra.strategy.plans import Floats, Plans, Task
from astra.strategy.rules.book import judge, rules_for
from astra.strategy.space import Question, Space
from astra.strategy.view import view_of
from astra.timing.stage import stage_times

STACK = find_stack("megatron")
TOP = 10


def steps_of(plans: Plans, task: Task) -> Floats:
    view = view_of(plans, task, every_stage=True)
    return simulated_step(plans, view.stages, stage_times(view, STACK)).step_s


def space_of(seed: int, **changes: Any) -> Space:
    """A small question: dense or with experts, loose or tight in memory."""
    dice = random.Random(seed)
    wide = dice.choice([1, 2, 6])
    model = small_model(
        layers=dice.choice([3, 4, 5, 6, 8]),
        experts=dice.choice([0, 0, 4]),
        hidden=1024 * wide,
        ffn=4096 * wide,
        vocab=dice.choice([1000, 150_000]),
    )
    gpu = dice.choice(["h100", "a100-40g", "t4", "b200"])
    cluster, _ = parse_gpus(f"{gpu}:{dice.choice([1, 2, 4, 8, 16])}")
    task = Task(model=model, cluster=cluster, **changes)
    precision = "fp16" if gpu == "t4" else "bf16"
    batch, length = dice.choice([2, 4, 6, 8]), dice.choice([1024, 2048, 8192])
    return Space(Question(task, batch, length, precision=precision))


def by_brute_force(space: Space) -> tuple[Floats, int]:
    """The best steps of all plans that the rules allow and that fit, and how many there were."""
    task = space.question.task
    found, count = [np.zeros(0)], 0
    for table in enumerate_plans(space):
        count += len(table)
        legal = table.take(judge(table, task, rules_for(task.runtime)).allowed)
        if len(legal):
            fits = np.flatnonzero(bulk_of(legal, task, STACK).fits)
            if len(fits):
                found.append(steps_of(legal.take(fits), task))
    return np.sort(np.concatenate(found))[:TOP], count


@pytest.mark.parametrize("seed", range(24))
def test_the_best_ten_are_those_of_brute_force(seed: int) -> None:
    space = space_of(seed)
    best, count = by_brute_force(space)
    found = Finder(space, rules_for("megatron"), STACK, TOP, 0.05).run()
    np.testing.assert_allclose(found.step_s, best, rtol=1e-9)
    funnel = found.funnel
    assert funnel.candidates == count
    removed = sum(funnel.removed_by_rule.values())
    assert removed + funnel.bounded + funnel.priced == count
    assert (found.plans is None) == (len(best) == 0)


def test_the_same_question_has_the_same_answer() -> None:
    one, other = (
        Finder(space_of(3), rules_for("megatron"), STACK, TOP, 0.05).run() for _ in range(2)
    )
    assert one.plans is not None and other.plans is not None
    np.testing.assert_array_equal(one.step_s, other.step_s)
    for name, column in one.plans.columns().items():
        np.testing.assert_array_equal(column, other.plans.columns()[name])


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_no_bound_exceeds_its_simulated_step(seed: int) -> None:
    space = space_of(seed)
    task = space.question.task
    for table in enumerate_plans(space):
        legal = table.take(judge(table, task, rules_for("megatron")).allowed)
        if len(legal):
            some = legal.take(np.arange(0, len(legal), max(len(legal) // 200, 1)))
            bounds = bulk_of(some, task, STACK).bound_s
            assert (bounds <= steps_of(some, task) * (1 + 1e-9)).all()
