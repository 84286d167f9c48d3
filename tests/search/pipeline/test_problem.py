"""One pipeline over several types: against brute force, and what a question narrows it to."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.search.mixed_brute import MARGIN, best_step_s, random_space
from tests.search.pipeline.evaluator import KeepingEvaluator

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.stack import find_stack
from astra.model.zoo import find_model
from astra.search.pipeline import problem, settings
from astra.search.pipeline.problem import MixedPipeline
from astra.strategy.plan import Plan
from astra.strategy.plans import Task
from astra.strategy.space import Space, Workload, parse_set

STACK = find_stack("megatron")


def searched(space: Space) -> tuple[KeepingEvaluator, float]:
    """The search, and its bound."""
    evaluator = KeepingEvaluator(space.workload.task, STACK, MARGIN)
    return evaluator, MixedPipeline(space).search(evaluator)


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
    evaluator, _ = searched(space)
    plans = evaluator.plans()
    assert plans
    return plans


@pytest.fixture
def whole_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As brute force has it: FlagScale's stages recompute whole layers alone."""
    every = settings.recompute_settings
    monkeypatch.setattr(
        problem,
        "recompute_settings",
        lambda space: every(space) if space.workload.task.runtime == "megatron" else [None],
    )


def check_against_brute_force(seeds: range, **options: bool) -> None:
    found = 0
    for seed in seeds:
        space = random_space(seed, **options)
        wanted_s, _ = best_step_s(space, STACK, types=2)
        evaluator, bound_s = searched(space)
        if np.isfinite(wanted_s):
            assert evaluator.best_s == pytest.approx(wanted_s, rel=1e-9), seed
            assert bound_s <= wanted_s * (1 + 1e-9), seed
            found += 1
        else:
            assert not evaluator.kept
    assert found


@pytest.mark.usefixtures("whole_layers")
@pytest.mark.parametrize(
    ("start", "options"),
    [
        (0, {}),
        (400, {"experts": True}),
        (200, {"tied": True}),
        (700, {"use_all": True}),
        (800, {"megatron": True}),
    ],
)
def test_small_pools_are_as_by_brute_force(start: int, options: dict[str, bool]) -> None:
    check_against_brute_force(range(start, start + 4), **options)


@pytest.mark.usefixtures("whole_layers")
def test_types_with_a_dp_of_their_own_are_as_by_brute_force() -> None:
    check_against_brute_force(range(500, 501), meshes=True)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_layers")
def test_more_small_pools_are_as_by_brute_force() -> None:
    check_against_brute_force(range(3, 45))
    check_against_brute_force(range(203, 212), tied=True)
    check_against_brute_force(range(403, 412), experts=True)
    check_against_brute_force(range(501, 508), meshes=True)
    check_against_brute_force(range(900, 903), meshes=True, sharded=True)
    check_against_brute_force(range(703, 717), use_all=True)
    check_against_brute_force(range(803, 830), megatron=True)


@pytest.mark.usefixtures("whole_layers")
def test_nine_of_ten_small_pools_are_found_without_listing_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(problem, "are_few", lambda *_: False)
    equal, number = 0, 10
    for seed in range(6, 6 + number):
        space = random_space(seed)
        wanted_s, _ = best_step_s(space, STACK, types=2)
        best_s = searched(space)[0].best_s
        equal += best_s == wanted_s or best_s <= wanted_s * (1 + 1e-9)
    assert equal >= 0.9 * number


def test_sets_of_modules_make_no_step_longer() -> None:
    for seed in range(4):
        space = random_space(seed)
        wanted_s, _ = best_step_s(space, STACK, types=2)
        assert searched(space)[0].best_s <= wanted_s * (1 + 1e-9)


@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-oss-20b"])
def test_the_bound_is_no_higher_than_the_best_step_and_of_use(model: str) -> None:
    evaluator, bound_s = searched(mixed_space("h100:8,a100-80g:16", model=model))
    assert 0.5 * evaluator.best_s < bound_s <= evaluator.best_s * (1 + 1e-12)


def test_a_limit_that_nothing_beats_stops_the_search_early() -> None:
    space = mixed_space("h100:8,a100-80g:16")
    free, _ = searched(space)
    evaluator = KeepingEvaluator(space.workload.task, STACK, MARGIN, limit_s=free.best_s / 2)
    bound_s = MixedPipeline(space).search(evaluator)
    assert evaluator.charged < free.charged / 2
    assert bound_s <= free.best_s / 2


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


def test_no_plan_has_more_gpus_than_the_cap() -> None:
    plans = plans_of_search(mixed_space("h100:8,a100-80g:16", max_gpus=16))
    assert all(gpus(plan) <= 16 for plan in plans)


def test_all_gpus_are_used_where_that_is_asked() -> None:
    plans = plans_of_search(mixed_space("h100:8,a100-80g:16", use_all=True))
    assert all(gpus(plan) == 24 for plan in plans)


def gpus(plan: Plan) -> int:
    (pipeline,) = plan.pipelines
    own = [s.stages * s.tp * (s.dp or pipeline.replicas) for s in pipeline.segments]
    return sum(own) * plan.cp


def test_megatron_has_one_config_for_all_types() -> None:
    for plan in plans_of_search(mixed_space("h100:8,a100-80g:8", runtime="megatron")):
        (pipeline,) = plan.pipelines
        assert len({(s.tp, s.dp, s.micro_batch, s.recompute) for s in pipeline.segments}) == 1


def test_further_plans_come_with_the_best() -> None:
    evaluator, _ = searched(mixed_space("h100:8,a100-80g:16"))
    steps = [step_s for step_s, _ in evaluator.kept]
    assert len(steps) == evaluator.top and steps == sorted(steps)


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
    evaluator, _ = searched(mixed_space("h100:8,a100-80g:8", model="llama-3.1-405b"))
    assert not evaluator.kept
