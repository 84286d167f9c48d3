"""Replica groups with cuts of their own: against brute force, promises, settings."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.mixed_brute import MARGIN
from tests.search.replica_groups_brute import best_of_makes_s, random_question
from tests.support.tiers import soak_but_every

import astra
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.stack import find_stack
from astra.model.zoo import find_model
from astra.search.data_parallel import ReplicaGroups, replica_shares
from astra.search.evaluator import Evaluator
from astra.search.objective import Fastest
from astra.strategy.plans import Task
from astra.strategy.rules.registry import broken_rules, rules_for
from astra.strategy.space import Space, Workload, parse_set

STACK = find_stack("megatron")
SAME = 1 + 1e-9


def searched(space: Space, limit_s: float = np.inf) -> Evaluator:
    """Where the plans were decided on."""
    evaluator = Evaluator(
        task=space.workload.task,
        rules=rules_for("any"),
        stack=STACK,
        margin=MARGIN,
        objective=Fastest(64, ceiling_s=limit_s),
    )
    ReplicaGroups(space).search(evaluator)
    return evaluator


def compared(seeds: Sequence[int], **options: Any) -> list[float]:
    """Of each pool the best step over that of brute force."""
    found = []
    for seed in seeds:
        space = random_question(seed, **options)
        wanted_s, _ = best_of_makes_s(space, STACK)
        evaluator = searched(space)
        plans = evaluator.plans()
        if np.isinf(wanted_s):
            assert all(plan.is_one_job for plan in plans), seed
            continue
        # replicas that do not differ are one job, whose states are sharded over all of them
        assert evaluator.best_s * SAME >= wanted_s or plans[0].is_one_job, seed
        assert not any(broken_rules(plan) for plan in plans), seed
        predicted_s = astra.predict_plan(plans[0]).step_s
        assert predicted_s == pytest.approx(evaluator.best_s, rel=1e-9), seed
        found.append(evaluator.best_s / wanted_s)
    return found


def assert_nearly_all_equal(ratios: Sequence[float]) -> None:
    """Nineteen of twenty equal, none worse by more than 0.4 %."""
    assert max(ratios) <= 1.004
    assert sum(ratio > SAME for ratio in ratios) <= len(ratios) / 20


@pytest.mark.slow
def test_the_best_plan_is_that_of_brute_force_on_small_pools() -> None:
    assert_nearly_all_equal(compared(range(10, 20)))


@pytest.mark.parametrize("first", soak_but_every(12, range(12)))
def test_the_best_plan_is_that_of_brute_force_on_many_pools(first: int) -> None:
    too_many_plans = (33, 34)
    seeds = [seed for seed in range(first, 90, 12) if seed not in too_many_plans]
    assert_nearly_all_equal(compared(seeds))


@pytest.mark.slow
def test_the_best_plan_is_that_of_brute_force_on_three_types() -> None:
    assert_nearly_all_equal(compared(range(8), types=3))


def on(space: Space, cluster: Cluster) -> Space:
    task = msgspec.structs.replace(space.workload.task, cluster=cluster)
    return Space(replace(space.workload, task=task), space.settings)


@pytest.mark.slow
@pytest.mark.parametrize("seed", (0, 6, 12, 13, 17, 27, 39))
def test_a_larger_pool_is_never_slower_and_the_order_of_types_changes_nothing(seed: int) -> None:
    space = random_question(seed)
    cluster = space.workload.task.cluster
    whole_s = searched(space).best_s
    turned = on(space, msgspec.structs.replace(cluster, pools=cluster.pools[::-1]))
    assert searched(turned).best_s == pytest.approx(whole_s, rel=1e-9)
    for row, pool in enumerate(cluster.pools):
        others = cluster.pools[:row] + cluster.pools[row + 1 :]
        some = [others]
        if pool.count > 1:
            some.append((*others, msgspec.structs.replace(pool, count=pool.count - 1)))
        for pools in some:
            smaller = on(space, msgspec.structs.replace(cluster, pools=pools))
            assert whole_s <= searched(smaller).best_s * SAME


def question(
    batch: int = 96,
    settings: Sequence[str] = (),
    max_gpus: int | None = None,
    use_all: bool = False,
) -> Space:
    """llama-3-8b on 8 H100 and 16 A100."""
    counts = (("A100-80GB-SXM", 16), ("H100-80GB-SXM", 8))
    pools = tuple(Pool(gpu=find_gpu(name)[0], count=count) for name, count in counts)
    cluster = Cluster(name="some", pools=pools, max_gpus=max_gpus)
    task = Task(model=find_model("llama-3-8b"), cluster=cluster, runtime="any")
    return Space(Workload(task, batch, 8192, use_all=use_all), parse_set(settings))


@pytest.mark.slow
@pytest.mark.parametrize("batch", (96, 89))
def test_the_batch_adds_up(batch: int) -> None:
    """89 is a prime: only groups with unequal micro-batches use all GPUs."""
    evaluator = searched(question(batch))
    best, *_ = plans = evaluator.plans()
    assert len(best.pipelines) > 1 and not best.is_one_job
    for plan in plans:
        done = sum(pipeline.replicas * pipeline.micro_batches for pipeline in plan.pipelines)
        assert plan.micro_batch * done == batch
        assert all(len(pipeline.segments) == 1 for pipeline in plan.pipelines)
        assert not broken_rules(plan)


@pytest.mark.slow
def test_settings_caps_and_use_all_hold() -> None:
    settings = ("tp=2", "mb=1", "recompute=none,full:uniform:1", "sharding=optimizer")
    evaluator = searched(question(settings=settings, max_gpus=16))
    plans = evaluator.plans()
    assert plans
    for plan in plans:
        segments = [pipeline.segments[0] for pipeline in plan.pipelines]
        assert sum(plan.gpus.values()) <= 16 and plan.micro_batch == 1
        assert {segment.tp for segment in segments} == {2} and plan.sharding == "optimizer"
        assert {segment.recompute for segment in segments} <= {"none", "full:uniform:1"}
    evaluator = searched(question(use_all=True))
    assert evaluator.plans()
    assert all(sum(plan.gpus.values()) == 24 for plan in evaluator.plans())
    evaluator = searched(question(settings=("pp=2", "vpp=1", "dp=2,4")))
    assert evaluator.plans()
    for plan in evaluator.plans():
        assert {pipeline.stages for pipeline in plan.pipelines} == {2} and plan.vpp == 1


@pytest.mark.slow
def test_a_cap_and_settings_are_never_faster_than_without() -> None:
    free_s = searched(question()).best_s
    for narrowed in (question(max_gpus=16), question(settings=["tp=4"]), question(use_all=True)):
        assert searched(narrowed).best_s >= free_s * (1 - 1e-9)


@pytest.mark.slow
def test_below_a_limit_that_nothing_beats_nothing_is_simulated() -> None:
    best_s = searched(question()).best_s
    evaluator = searched(question(), limit_s=0.9 * best_s)
    assert not evaluator.plans() and not evaluator.funnel.simulated


def test_groups_of_experts_and_of_other_kinds_of_stages_obey_the_rules() -> None:
    found = [searched(random_question(seed, experts=True)).plans() for seed in range(3)]
    assert any(found)
    assert not any(broken_rules(plan) for plans in found for plan in plans)


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 8), st.integers(0, 60))
def test_what_is_taken_off_adds_up_and_comes_in_whole_units(
    replicas: int, unit: int, units: int, less: int
) -> None:
    less = min(less, replicas * (units - 1)) * unit  # every replica keeps one at least
    parts = replica_shares(replicas, unit * units, unit, less)
    assert sum(number for number, _ in parts) == replicas and len(parts) <= 2
    assert sum(number * count for number, count in parts) == replicas * unit * units - less
    assert all(0 < count <= unit * units and count % unit == 0 for _, count in parts)
