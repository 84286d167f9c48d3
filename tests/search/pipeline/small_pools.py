"""Searches for pipelines held against brute force on small pools of two or three GPU types.

A search is as good as brute force where nineteen of twenty pools get the very best plan, and none
gets one that is slower by more than 0.4 %. What it says that no plan can beat is beaten by none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from tests.search.mixed_brute import MARGIN, best_step_s, random_space

import astra
from astra.cost.stage_lines import StagePricer
from astra.hardware.stack import Stack, find_stack
from astra.search.evaluator import Evaluator, Limits
from astra.search.objective import Fastest
from astra.search.pipeline.interleaved import InterleavedPipeline
from astra.search.pipeline.problem import MixedPipeline
from astra.strategy.rules.registry import broken_rules, rules_for
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space

STACK = find_stack("megatron")
SAME = 1 + 1e-9
WORST = 1.004  # times the step of brute force, on any pool
EQUAL = 0.95  # of all pools, at least


def evaluator_of(
    space: Space, stack: Stack = STACK, limit_s: float = np.inf, limits: Limits | None = None
) -> Evaluator:
    task = space.workload.task
    return Evaluator(
        task=task,
        rules=rules_for(task.runtime),
        stack=stack,
        margin=MARGIN,
        objective=Fastest(10, ceiling_s=limit_s),
        limits=limits or Limits(),
    )


def problem_of(space: Space, stack: Stack = STACK) -> MixedPipeline:
    return MixedPipeline(space, StagePricer(space.workload, stack, MARGIN))


def search_plain(space: Space, stack: Stack = STACK) -> Evaluator:
    """Pipelines with one chunk for each stage."""
    evaluator = evaluator_of(space, stack)
    problem_of(space, stack).search(evaluator)
    return evaluator


def search_interleaved(
    space: Space, stack: Stack = STACK, rules: Sequence[Rule] = (), breadth: int = 1
) -> Evaluator:
    """Pipelines with several chunks for each stage; `rules`: of one's own."""
    evaluator, problem = evaluator_of(space, stack), problem_of(space, stack)
    evaluator.rules = (*evaluator.rules, *rules)
    InterleavedPipeline(space, problem.pricer, problem.options).search(evaluator, breadth)
    return evaluator


@dataclass(frozen=True)
class SmallPool:
    """What was found on one pool, beside what there is."""

    seed: int
    least_s: float  # of brute force
    found_s: float
    bound_s: float  # what the search says that no plan beats

    @property
    def ratio(self) -> float:
        return self.found_s / self.least_s


def small_pools(
    seeds: Iterable[int], stack: Stack = STACK, /, interleaved: bool = False, **options: bool
) -> list[SmallPool]:
    """Those that hold a plan; where brute force finds none, the search finds none."""
    found = []
    for seed in seeds:
        space = random_space(seed, turns=interleaved, **options)
        least_s, _ = best_step_s(space, stack, lambda plan: (plan.vpp > 1) == interleaved)
        search = search_interleaved if interleaved else search_plain
        evaluator = search(space, stack)
        if np.isinf(least_s):
            assert np.isinf(evaluator.best_s), seed
            continue
        _check_best(evaluator, seed)
        bound_s = 0.0  # of interleaved pipelines nothing is said
        if not interleaved:  # from a step on that is easily beaten
            bound_s = problem_of(space, stack).least_s(1.5 * least_s, lambda _: None)
        found.append(SmallPool(seed, least_s, evaluator.best_s, bound_s))
    return found


def _check_best(evaluator: Evaluator, seed: int) -> None:
    """The best plan may be launched, and takes as long as anybody is told who asks for it."""
    for plan in evaluator.plans()[:1]:
        assert not broken_rules(plan), seed
        if evaluator.stack == STACK:
            told_s = astra.predict_plan(plan).step_s
            assert told_s == pytest.approx(evaluator.best_s, rel=1e-12), seed


def assert_as_good(pools: list[SmallPool], equal: float = EQUAL, at_least: int = 1) -> None:
    """As good as brute force, and bounded by what it finds."""
    assert len(pools) >= at_least, "too few pools hold a plan"
    above = {each.seed: each.bound_s / each.least_s for each in pools}
    above = {seed: ratio for seed, ratio in above.items() if ratio > SAME}
    assert not above, f"bounds are above the best step: {above}"
    better = {each.seed: each.ratio for each in pools if each.ratio * SAME < 1}
    assert not better, f"brute force lacks plans: {better}"
    worse = {each.seed: each.ratio for each in pools if each.ratio > SAME}
    assert len(worse) <= (1 - equal) * len(pools), f"{len(pools)} pools, not equal: {worse}"
    assert not [seed for seed, ratio in worse.items() if ratio > WORST], worse
