"""One pipeline over several types: against brute force, and what a question narrows it to."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.search.mixed_brute import best_step_s, random_space
from tests.search.pipeline.small_pools import (
    SAME,
    STACK,
    assert_as_good,
    evaluator_of,
    problem_of,
    search_plain,
    small_pools,
)
from tests.support.tiers import slow_after

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.model.zoo import find_model
from astra.search.evaluator import Limits
from astra.strategy.plan import Plan
from astra.strategy.plans import Task
from astra.strategy.space import Space, Workload, parse_set

# Seeds of small pools, and what is special about them.
ALIKE: dict[str, tuple[range, dict[str, bool]]] = {
    "whole layers or modules": (range(2, 24, 3), {}),
    "tied ends": (range(200, 205), {"tied": True}),
    "tied ends, own dp": (range(224, 227), {"tied": True, "meshes": True}),  # table and plan differ
    "layers of several kinds": (range(416, 419), {"experts": True}),
    "own dp": (range(500, 504), {"meshes": True}),
    "all GPUs": (range(700, 706, 2), {"use_all": True}),
    "one config": (range(800, 806, 2), {"megatron": True, "any_recompute": True}),
    "sharded parameters": (range(912, 916), {"sharded": True}),
}
MORE: dict[str, tuple[range, dict[str, bool]]] = {
    "whole layers or modules": (range(2, 206), {}),
    "tied ends": (range(205, 260), {"tied": True}),
    "tied ends, own dp": (range(212, 240), {"tied": True, "meshes": True}),
    "layers of several kinds": (range(413, 460), {"experts": True}),
    "own dp": (range(504, 560), {"meshes": True}),
    "own dp of several kinds": (range(600, 620), {"meshes": True, "experts": True}),
    "all GPUs": (range(700, 780), {"use_all": True}),
    "one config, no recompute": (range(800, 840), {"megatron": True}),
    "one config": (range(800, 860), {"megatron": True, "any_recompute": True}),
    "one config, several kinds": (
        range(840, 870),
        {"megatron": True, "any_recompute": True, "experts": True},
    ),
    "sharded parameters": (range(916, 960), {"sharded": True}),
    "sharded parameters, own dp": (range(900, 930), {"meshes": True, "sharded": True}),
}


def test_a_few_small_pools_are_as_by_brute_force() -> None:
    assert_as_good(small_pools(range(2)), at_least=2)


@pytest.mark.slow
def test_where_only_recomputed_modules_fit_they_are_found() -> None:
    assert_as_good(small_pools([164]), equal=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_small_pools_are_as_by_brute_force(name: str) -> None:
    seeds, options = ALIKE[name]
    assert_as_good(small_pools(seeds, **options), at_least=2)


@pytest.mark.soak
@pytest.mark.parametrize("name", MORE)
def test_many_small_pools_are_as_by_brute_force(name: str) -> None:
    seeds, options = MORE[name]
    assert_as_good(small_pools(seeds, **options), at_least=5)


@pytest.mark.slow
def test_stages_that_wait_for_their_sends_are_laid_as_by_brute_force() -> None:
    """The bound knows nothing of it, and need not: waiting never makes a step shorter."""
    waits = msgspec.structs.replace(STACK, holds_sends=True)
    pools = small_pools((1, 2, 4, 7), waits)
    assert_as_good(pools, at_least=4)
    plain_s = [best_step_s(random_space(each.seed), STACK)[0] for each in pools]
    assert sum(each.least_s > 1.001 * s for each, s in zip(pools, plain_s, strict=True)) >= 3


@pytest.mark.parametrize("seed", slow_after(1, (2, 9, 14)))
def test_a_set_of_modules_is_recomputed_where_whole_layers_take_longer(seed: int) -> None:
    space = random_space(seed)
    (text,) = recomputed(search_plain(space).plans()[0])
    assert text.startswith("selective:")
    whole = {"recompute": tuple(f"full:{way}" for way in ("block:1", "block:2", "uniform:1"))}
    layers_s, _ = best_step_s(Space(space.workload, {**space.settings, **whole}), STACK)
    assert search_plain(space).best_s < layers_s


@pytest.mark.slow
def test_a_type_that_any_plan_can_use_has_room() -> None:
    """Types without room are left out of the question: they would lose no plan by it."""
    used, left_out = 0, 0
    for seed in range(900, 912):
        space = random_space(seed)
        pools, room = space.workload.task.cluster.pools, problem_of(space).types_with_room()
        for row, pool in enumerate(pools):
            if has_plan_on(space, pool.gpu.name):
                assert row in room, (seed, pool.gpu.name)
                used += 1
            left_out += row not in room
    assert used >= 10 and left_out


def has_plan_on(space: Space, gpu: str) -> bool:
    least_s, _ = best_step_s(space, STACK, lambda plan: gpu in plan.gpus)
    return bool(np.isfinite(least_s))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 303))
def test_a_larger_pool_is_never_slower(seed: int) -> None:
    space = random_space(seed)
    cluster = space.workload.task.cluster
    whole_s = search_plain(space).best_s
    for row, pool in enumerate(cluster.pools):
        others = tuple(p for at, p in enumerate(cluster.pools) if at != row)
        half = msgspec.structs.replace(pool, count=max(pool.count // 2, 1))
        fewer = tuple(half if at == row else p for at, p in enumerate(cluster.pools))
        for pools in (others, fewer):
            if len(pools) > 1:
                part_s = search_plain(on_pools(space, pools)).best_s
                assert whole_s <= part_s * SAME


@pytest.mark.slow
@pytest.mark.parametrize("seed", (300, 301, 500))
def test_the_order_of_types_changes_nothing(seed: int) -> None:
    space = random_space(seed, meshes=seed >= 500)
    pools = space.workload.task.cluster.pools
    other_s = search_plain(on_pools(space, pools[::-1])).best_s
    assert other_s == pytest.approx(search_plain(space).best_s, rel=1e-12)


def on_pools(space: Space, pools: tuple[Pool, ...]) -> Space:
    cluster = msgspec.structs.replace(space.workload.task.cluster, pools=pools)
    task = msgspec.structs.replace(space.workload.task, cluster=cluster)
    return Space(replace(space.workload, task=task), space.settings)


def mixed_space(
    gpus: str, *texts: str, model: str = "llama-3-8b", max_gpus: int | None = None, **more: Any
) -> Space:
    pools = []
    for text in gpus.split(","):
        name, _, count = text.partition(":")
        pools.append(Pool(gpu=find_gpu(name)[0], count=int(count)))
    cluster = Cluster(name="some", pools=tuple(pools), max_gpus=max_gpus)
    runtime = more.pop("runtime", "flagscale")
    task = Task(model=find_model(model), cluster=cluster, runtime=runtime, stack=STACK.full_name)
    return Space(Workload(task, 64, 2048, **more), parse_set(texts))


def plans_of_search(space: Space) -> list[Plan]:
    plans = search_plain(space).plans()
    assert plans
    return plans


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-oss-20b"])
def test_the_bound_is_no_higher_than_the_best_step_and_of_use(model: str) -> None:
    space = mixed_space("h100:8,a100-80g:16", model=model)
    best_s = search_plain(space).best_s
    bound_s = problem_of(space).least_s(1.5 * best_s, lambda _: None)
    assert 0.6 * best_s < bound_s <= best_s * SAME
    assert problem_of(space).least_s(best_s, lambda _: None) <= bound_s * SAME


@pytest.mark.slow
def test_a_limit_that_nothing_beats_stops_the_search_early() -> None:
    space = mixed_space("h100:8,a100-80g:16")
    free = search_plain(space)
    evaluator = evaluator_of(space, limit_s=free.best_s / 2)
    problem_of(space).search(evaluator)
    assert not evaluator.plans()
    assert evaluator.funnel.candidates < free.funnel.candidates / 2


def test_a_search_that_is_cancelled_ends_with_what_it_has() -> None:
    space, asked = mixed_space("h100:8,a100-80g:16"), list[int]()

    def is_cancelled() -> bool:
        asked.append(1)
        return len(asked) > 5

    evaluator = evaluator_of(space, limits=Limits(is_cancelled=is_cancelled))
    evaluator.run(problem_of(space).search)
    assert evaluator.limits.stopped == "cancelled" and len(asked) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["tp=2"], lambda plan: {s.tp for s in plan.pipelines[0].segments} == {2}),
        (["micro_batch=2"], lambda plan: sizes(plan) == {2}),
        (["dp=2,4"], lambda plan: replicas(plan) <= {2, 4}),
        (["mesh_dp=false"], lambda plan: len(replicas(plan)) == 1),
        (["sharding=none"], lambda plan: plan.sharding == "none"),
        (["recompute=full:block:1"], lambda plan: recomputed(plan) == {"full:block:1"}),
        (
            ["offload_optimizer_fraction=1"],
            lambda plan: plan.offload_optimizer_fraction == 1.0,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_settings_that_are_asked_for_hold(texts: list[str], wanted: Any) -> None:
    plans = plans_of_search(mixed_space("h100:8,a100-80g:8", *texts))
    assert all(wanted(plan) for plan in plans)


def sizes(plan: Plan) -> set[int]:
    return {segment.micro_batch or plan.micro_batch for segment in plan.pipelines[0].segments}


def replicas(plan: Plan) -> set[int]:
    (pipeline,) = plan.pipelines
    return {segment.dp or pipeline.replicas for segment in pipeline.segments}


def recomputed(plan: Plan) -> set[str]:
    return {segment.recompute for segment in plan.pipelines[0].segments}


@pytest.mark.slow
def test_no_plan_has_more_gpus_than_the_cap() -> None:
    plans = plans_of_search(mixed_space("h100:8,a100-80g:16", max_gpus=16))
    assert all(gpus(plan) <= 16 for plan in plans)


@pytest.mark.slow
def test_all_gpus_are_used_where_that_is_asked() -> None:
    plans = plans_of_search(mixed_space("h100:8,a100-80g:16", use_all=True))
    assert all(gpus(plan) == 24 for plan in plans)


def gpus(plan: Plan) -> int:
    (pipeline,) = plan.pipelines
    own = [s.stages * s.tp * (s.dp or pipeline.replicas) for s in pipeline.segments]
    return sum(own) * plan.cp


@pytest.mark.slow
def test_megatron_has_one_config_for_all_types() -> None:
    for plan in plans_of_search(mixed_space("h100:8,a100-80g:8", runtime="megatron")):
        (pipeline,) = plan.pipelines
        assert len({(s.tp, s.dp, s.micro_batch, s.recompute) for s in pipeline.segments}) == 1


@pytest.mark.slow
def test_further_plans_come_with_the_best() -> None:
    kept = search_plain(mixed_space("h100:8,a100-80g:16")).objective.incumbents
    steps = [step_s for step_s, *_ in kept]
    assert len(steps) == 10 and steps == sorted(steps)


@pytest.mark.slow
def test_prediction_layers_are_in_all_plans() -> None:
    """Multi-token prediction of DeepSeek-V3, cut down to four layers."""
    model = msgspec.structs.replace(
        find_model("deepseek-v3"), layers=4, mtp_layers=1, parameters=None, active_parameters=None
    )
    space = mixed_space("h100:16,h200:16", "tp=8", "ep=8", "etp=1", "micro_batch=1", mtp_layers=1)
    task = msgspec.structs.replace(space.workload.task, model=model)
    space = Space(replace(space.workload, task=task), space.settings)
    assert {plan.mtp_layers for plan in plans_of_search(space)} == {1}


def test_a_pool_that_holds_nothing_has_no_plan() -> None:
    assert not search_plain(mixed_space("h100:8,a100-80g:8", model="llama-3.1-405b")).plans()
