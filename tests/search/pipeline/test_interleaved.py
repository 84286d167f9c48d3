"""Interleaved pipelines over several GPU types: as good as brute force, and as asked for."""

from collections.abc import Callable

import msgspec
import pytest
from tests.search.pipeline.small_pools import (
    STACK,
    assert_as_good,
    search_interleaved,
    small_pools,
)

from astra.api.inputs import cluster_of, model_of
from astra.cost.stage_lines import LineCache
from astra.search.evaluator import Limits
from astra.search.pipelines import Pipelines
from astra.search.query import query_of_space
from astra.strategy.plan import Plan, Segment
from astra.strategy.plans import Task
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space, Workload, parse_set


def found_in(space: Space) -> list[Plan]:
    """The best first."""
    return search_interleaved(space).plans()


def space_of(
    model: str,
    gpus: str,
    *texts: str,
    batch: int = 64,
    use_all: bool = False,
    max_gpus: int | None = None,
) -> Space:
    cluster, _ = cluster_of(gpus, None, "bf16")
    cluster = msgspec.structs.replace(cluster, max_gpus=max_gpus)
    task = Task(model=model_of(model), cluster=cluster, runtime="megatron", stack=STACK.full_name)
    return Space(Workload(task, batch, 4096, use_all=use_all), parse_set(texts))


def test_a_few_small_pools_are_as_by_brute_force() -> None:
    assert_as_good(small_pools(range(1007, 1009), interleaved=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "options", "at_least"),
    [
        (range(1007, 1031, 2), {}, 6),
        (range(1101, 1116), {"experts": True}, 3),
        (range(1208, 1222), {"experts": True, "hides": True}, 3),
    ],
    ids=["plain", "layers of several kinds", "hidden traffic of experts"],
)
def test_small_pools_are_as_by_brute_force(
    seeds: range, options: dict[str, bool], at_least: int
) -> None:
    assert_as_good(small_pools(seeds, interleaved=True, **options), at_least=at_least)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seeds", "options", "at_least"),
    [
        (range(1007, 1101), {}, 50),
        (range(1116, 1200), {"experts": True}, 8),
        (range(1222, 1300), {"experts": True, "hides": True}, 8),
    ],
    ids=["plain", "layers of several kinds", "hidden traffic of experts"],
)
def test_many_small_pools_are_as_by_brute_force(
    seeds: range, options: dict[str, bool], at_least: int
) -> None:
    assert_as_good(small_pools(seeds, interleaved=True, **options), at_least=at_least)


@pytest.mark.slow
def test_hidden_expert_traffic_is_searched_and_pays() -> None:
    question = "gpt-oss-20b", "h100:8,a100-80g:8", "ep=8", "cp=1"
    open_, hidden, either = (
        search_interleaved(space_of(*question, f"overlap_ep={words}"))
        for words in ("false", "true", "false,true")
    )
    assert hidden.best_s < open_.best_s
    assert either.best_s == pytest.approx(hidden.best_s, rel=1e-3)
    assert hidden.plans()[0].overlap_ep and not open_.plans()[0].overlap_ep


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "holds"),
    [
        (("tp=2", "dp=4"), lambda p: {s.tp for s in segments(p)} == {2} and replicas(p) == 4),
        (("micro_batch=2",), lambda p: p.micro_batch == 2),
        (("cp=2",), lambda p: p.cp == 2),
        (("sharding=parameters",), lambda p: p.sharding == "parameters"),
        (("vpp=3,5",), lambda p: p.vpp in (3, 5)),
        (("recompute=full:block:2",), lambda p: segments(p)[0].recompute == "full:block:2"),
        (("recompute=full:uniform:2",), lambda p: segments(p)[0].recompute == "full:uniform:2"),
        (("offload_optimizer=1",), lambda p: p.offload_optimizer_fraction == 1.0),
    ],
)
def test_what_is_set_is_obeyed(texts: tuple[str, ...], holds: Callable[[Plan], bool]) -> None:
    plans = found_in(space_of("llama-3-8b", "h100:8,a100-80g:8", *texts))
    assert plans
    assert all(holds(plan) and plan.vpp > 1 and len(plan.gpus) > 1 for plan in plans)


@pytest.mark.slow
def test_degrees_of_experts_are_obeyed() -> None:
    plans = found_in(
        space_of("mixtral-8x7b", "h100:32,a100-80g:32", "ep=4", "etp=1", "overlap_ep=true")
    )
    assert plans
    assert {(plan.ep, plan.etp, plan.overlap_ep) for plan in plans} == {(4, 1, True)}


def test_one_chunk_for_each_stage_is_not_interleaved() -> None:
    assert not found_in(space_of("llama-3-8b", "h100:16,a100-80g:16", "vpp=1"))


@pytest.mark.slow
def test_no_more_gpus_are_taken_than_allowed_and_all_where_asked() -> None:
    pool = "h100:16,a100-80g:16"
    few = found_in(space_of("llama-3-8b", pool, max_gpus=16))
    assert few
    assert all(sum(plan.gpus.values()) <= 16 for plan in few)
    every = found_in(space_of("llama-3-8b", pool, use_all=True))
    assert every
    assert all(sum(plan.gpus.values()) == 32 for plan in every)


@pytest.mark.slow
def test_context_parallelism_helps_short_sequences_where_memory_is_tight() -> None:
    question = "llama-3-70b", "l40s:64,a100-40g:64"
    best, plain = (
        search_interleaved(space_of(*question, *texts, batch=256)) for texts in ((), ("cp=1",))
    )
    assert best.plans()[0].cp > 1
    assert best.best_s < 0.95 * plain.best_s


@pytest.mark.slow
def test_few_plans_are_simulated_of_those_that_are_estimated() -> None:
    funnel = search_interleaved(space_of("llama-3-70b", "h100:16,a100-80g:16")).funnel
    assert 0 < funnel.simulated < funnel.estimated / 3


@pytest.mark.slow
def test_who_looks_at_more_finds_no_longer_step() -> None:
    space = space_of("llama-3-8b", "l40s:12,a100-80g:16", "tp=1,2", "micro_batch=1")
    some, more = (search_interleaved(space, breadth=breadth) for breadth in (1, 10))
    assert more.best_s <= some.best_s < 1.02 * more.best_s
    assert more.funnel.simulated > 2 * some.funnel.simulated


@pytest.mark.slow
def test_a_stage_that_rounding_leaves_too_little_for_is_not_lost() -> None:
    """Layers of two kinds and three types: the last stage alone can hold what is left."""
    assert_as_good(small_pools([1121], interleaved=True, experts=True))


@pytest.mark.slow
def test_rules_of_ones_own_are_asked_of_every_pipeline() -> None:
    """Not only of the best: what a rule refuses does not crowd out what it allows."""
    space = space_of("llama-3-8b", "h100:16,a100-80g:16")
    free = search_interleaved(space)
    best = free.plans()[0]
    rule = Rule(
        name="own",
        layer="ours",
        reason="asked for",
        settings=("pp", "vpp"),
        where="here",
        holds=lambda plans, _: (plans.pp[0] != best.pp) & (plans.vpp > best.vpp),
    )
    narrowed = search_interleaved(space, rules=(rule,))
    assert narrowed.plans()
    assert all(plan.pp != best.pp and plan.vpp > best.vpp for plan in narrowed.plans())
    assert free.best_s <= narrowed.best_s < 1.5 * free.best_s


def segments(plan: Plan) -> tuple[Segment, ...]:
    (pipeline,) = plan.pipelines
    return pipeline.segments


def replicas(plan: Plan) -> int:
    return plan.pipelines[0].replicas


@pytest.mark.parametrize(
    ("vpp", "is_bounded"), [("vpp=1", True), ("vpp=4", False), ("vpp=1,3", False)]
)
def test_nothing_is_said_to_bound_interleaved_pipelines(vpp: str, is_bounded: bool) -> None:
    space = space_of("llama-3-8b", "h100:16,a100-80g:16", vpp)
    pipelines = Pipelines(query_of_space(space, STACK), Limits(), LineCache())
    assert (pipelines.least_s(best_s=10.0) > 0) is is_bounded
