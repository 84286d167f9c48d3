"""Plans of several makes: against brute force, never slower than FlagScale's, priced as told."""

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.makes_brute import best_of_makes_s, random_question
from tests.search.mixed_brute import MARGIN

import astra
from astra.hardware.cluster import Cluster
from astra.hardware.stack import find_stack
from astra.notes import NoteCode, has
from astra.report.answer import answer_page
from astra.report.explain import explanation_page
from astra.search.makes.allot import ReplicaShare, shared_out
from astra.search.makes.commons import commons_of, degrees_of
from astra.search.makes.find import MakesFinder
from astra.search.makes.stock import ReplicaStock
from astra.search.query import query_of_space
from astra.search.result import Result
from astra.search.solve import solve
from astra.strategy.rules.registry import broken_rules, rules_for
from astra.strategy.space import Space
from astra.timing.layer import LayerCache

STACK = find_stack("megatron")
SMALL: dict[str, Any] = {"global_batch": 96, "seq_len": 8192, "runtime": "any"}
FAST = "h100:8,a100-80g:16"


@cache
def small() -> astra.Answer:
    return astra.plan("llama-3-8b", gpus=FAST, **SMALL)


def check_against_brute_force(seeds: range, **options: Any) -> int:
    """Raises where the bound is too high, or a plan of replicas that differ is faster than what
    was found; how many winners have several pipelines.
    """
    several = 0
    for seed in seeds:
        space = random_question(seed, **options)
        wanted, _ = best_of_makes_s(space, STACK)
        finder = MakesFinder(space, rules_for("any"), STACK, MARGIN, np.inf)
        found = finder.run()
        if np.isinf(wanted):
            assert all(each.plan.is_one_job for each in found), seed
            continue
        best = found[0]
        assert finder.bound_s <= wanted * (1 + 1e-9), seed
        assert best.step_s <= wanted * (1 + 1e-9), seed  # on pools as small as these
        # replicas that do not differ are one job, whose states are sharded over all of them
        assert best.step_s >= wanted * (1 - 1e-9) or best.plan.is_one_job, seed
        assert not broken_rules(best.plan)
        assert astra.predict_plan(best.plan).step_s == pytest.approx(best.step_s, rel=1e-12)
        several += len(best.plan.pipelines) > 1
    return several


def test_the_best_of_several_makes_is_that_of_brute_force_on_small_pools() -> None:
    assert check_against_brute_force(range(10, 20)) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 90, 15))
def test_the_best_of_several_makes_is_that_of_brute_force_on_many_pools(first: int) -> None:
    seeds = [seed for seed in range(first, first + 15) if seed not in (33, 34)]  # too many plans
    several = sum(check_against_brute_force(range(seed, seed + 1)) for seed in seeds)
    assert several >= 2


@pytest.mark.slow
def test_the_best_of_several_makes_of_three_types_is_that_of_brute_force() -> None:
    assert check_against_brute_force(range(8), types=3) >= 2


def answered(space: Space, runtime: str = "any") -> Result:
    task = msgspec.structs.replace(space.workload.task, runtime=runtime)
    workload = replace(space.workload, task=task)
    return solve(query_of_space(Space(workload, space.settings), STACK))


def step_of(answer: Result) -> float:
    return answer.best.step_s if answer.best else np.inf


def on(space: Space, cluster: Cluster) -> Space:
    task = msgspec.structs.replace(space.workload.task, cluster=cluster)
    return Space(replace(space.workload, task=task), space.settings)


@pytest.mark.parametrize("seed", (0, 6, 12, 13, 17, 27, 39))
def test_a_larger_pool_is_never_slower_and_any_is_never_slower_than_flagscale(seed: int) -> None:
    space = random_question(seed)
    cluster = space.workload.task.cluster
    whole = step_of(answered(space))
    assert whole <= step_of(answered(space, "flagscale")) * (1 + 1e-12)
    for row, pool in enumerate(cluster.pools):
        others = tuple(p for at, p in enumerate(cluster.pools) if at != row)
        less = [msgspec.structs.replace(cluster, pools=others)] if len(others) > 1 else []
        if pool.count > 1:
            fewer = msgspec.structs.replace(pool, count=pool.count - 1)
            pools = tuple(fewer if at == row else p for at, p in enumerate(cluster.pools))
            less.append(msgspec.structs.replace(cluster, pools=pools))
        for smaller in less:
            assert whole <= step_of(answered(on(space, smaller))) * (1 + 1e-9)


def test_an_answer_says_who_launches_it_and_what_is_proven() -> None:
    answer = small()
    best, mixed = answer.best, answer.mixed
    assert best is not None and mixed is not None
    assert len(best.plan.pipelines) > 1 and best.plan.runtime == "any"
    assert has(best.notes, NoteCode.NOT_LAUNCHABLE)
    assert not broken_rules(best.plan) and best.memory.fits
    plan = best.plan
    assert plan.global_batch == plan.micro_batch * sum(
        pipeline.replicas * pipeline.micro_batches for pipeline in plan.pipelines
    )
    launched = astra.plan("llama-3-8b", gpus=FAST, **(SMALL | {"runtime": None}))
    assert launched.best is not None
    assert mixed.launched_step_s == pytest.approx(launched.best.step_s)
    assert best.step_s < launched.best.step_s
    assert 0 < mixed.gap_fraction < 0.1
    assert [stage.pipeline for stage in mixed.stages] == [
        row for row, pipeline in enumerate(plan.pipelines) for _ in range(pipeline.stages)
    ]
    others = [each for each in answer.plans if each.plan.is_one_job]
    assert others and all(each.plan.runtime in ("megatron", "flagscale") for each in others)
    assert not any(has(each.notes, NoteCode.NOT_LAUNCHABLE) for each in others)


def test_the_page_draws_every_pipeline_and_tells_the_space() -> None:
    answer = small()
    lines = [part for part in answer_page(answer, "result.json") if isinstance(part, str)]
    text = "\n".join(lines)
    assert answer.best is not None
    for row, pipeline in enumerate(answer.best.plan.pipelines, 1):
        assert f"{row}: {pipeline.replicas} replicas with {pipeline.micro_batches}" in text
    assert "No public runtime launches it" in text and "none is faster by more than" in text
    assert "Replicas that differ: each GPU type has one kind" in text
    assert "astra export result.json --rank" in text


def test_explain_works_on_several_pipelines() -> None:
    answer = small()
    found = answer.explain(quick=True)
    assert {stage.pipeline for stage in found.stages} == {0, 1}
    assert "make" in {exchange.group for exchange in found.exchanges}
    text = "\n".join(part for part in explanation_page(found) if isinstance(part, str))
    assert "Pipeline 2 from the first stage to the last" in text


def test_settings_and_caps_hold() -> None:
    answer = astra.plan("llama-3-8b", gpus=FAST, settings=["tp=2", "mb=1"], max_gpus=16, **SMALL)
    assert answer.plans
    for priced in answer.plans:
        assert sum(priced.gpus.values()) <= 16 and priced.plan.micro_batch == 1
        assert {s.tp for pipe in priced.plan.pipelines for s in pipe.segments} == {2}
    one = astra.plan("llama-3-8b", gpus=FAST, top=1, **SMALL)
    assert len(one.plans) == 1


def test_all_gpus_are_used_where_that_is_asked_for() -> None:
    answer = astra.plan("llama-3-8b", gpus=FAST, use_all=True, **SMALL)
    assert all(sum(plan.gpus.values()) == 24 for plan in answer.plans)


def test_a_batch_that_no_number_of_replicas_divides_is_shared_out_unevenly() -> None:
    """89 is a prime: FlagScale has one replica, or 89."""
    asked = SMALL | {"global_batch": 89}
    answer = astra.plan("llama-3-8b", gpus="h100:8,a100-80g:8", **asked)
    plain = astra.plan("llama-3-8b", gpus="h100:8,a100-80g:8", **(asked | {"runtime": "flagscale"}))
    assert answer.best is not None and plain.best is not None
    assert answer.best.step_s < 0.97 * plain.best.step_s
    counts = [pipe.micro_batches for pipe in answer.best.plan.pipelines]
    assert len(set(counts)) > 1


def test_own_rules_hold_for_several_makes(tmp_path: Any) -> None:
    rules = tmp_path / "my.rules"
    rules.write_text("$tensor_model_parallel_size < 2\n", encoding="utf-8")
    answer = astra.plan("llama-3-8b", gpus=FAST, rules=str(rules), **SMALL)
    tps = {s.tp for each in answer.plans for pipe in each.plan.pipelines for s in pipe.segments}
    assert answer.plans and min(tps) >= 2
    assert_adds_up(answer)


def assert_adds_up(answer: astra.Answer) -> None:
    search = answer.search
    removed = sum(search.removed_by_rule.values())
    assert removed + search.bounded + search.priced == search.candidates
    assert 0 <= search.out_of_memory <= search.priced and search.bounded >= 0
    assert 0 < search.simulated <= search.priced


@pytest.mark.parametrize("runtime", ["any", "flagscale"])
def test_the_funnel_adds_up(runtime: str) -> None:
    plain = astra.plan("llama-3-8b", gpus=FAST, **(SMALL | {"runtime": "flagscale"}))
    answer = small() if runtime == "any" else plain
    assert_adds_up(answer)
    if runtime == "any":  # what FlagScale launches was looked at too
        assert answer.search.candidates > plain.search.candidates
        assert answer.search.simulated > plain.search.simulated


@pytest.mark.parametrize("seed", range(3))
def test_makes_are_counted_once_however_often_they_are_looked_at(seed: int) -> None:
    space, rules = random_question(seed), rules_for("any")
    stock = ReplicaStock(space, rules, STACK, MARGIN, LayerCache())
    degrees = sum(
        len(degrees_of(space, pool, commons_of(space)))
        for pool in range(len(space.workload.task.cluster.pools))
    )
    stock.below(1e-9)  # nothing is as fast
    assert stock.candidates == degrees and stock.priced == 0
    stock.below(1e3)
    once = stock.candidates, stock.bounded, stock.priced, stock.out_of_memory
    assert stock.priced > 0
    stock.below(1e3)
    assert once == (stock.candidates, stock.bounded, stock.priced, stock.out_of_memory)


@st.composite
def makes(draw: st.DrawFn) -> list[ReplicaShare]:
    count = draw(st.integers(1, 3))
    found = []
    for _ in range(count):
        unit, block = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2)))
        replicas = block * draw(st.integers(1, 6))
        found.append(ReplicaShare(replicas, unit * draw(st.integers(1, 8)), unit, block))
    return found


@given(makes(), st.integers(1, 200))
def test_shares_add_up_and_nobody_has_more_than_there_is_time_for(
    parts: list[ReplicaShare], needed: int
) -> None:
    for shares in shared_out(parts, needed):
        assert sum(replicas * count for share in shares for replicas, count in share) == needed
        for part, share in zip(parts, shares, strict=True):
            assert sum(replicas for replicas, _ in share) == part.replicas
            for replicas, count in share:
                assert 0 < count <= part.micro_batches and count % part.unit == 0
                assert replicas % part.block == 0


@given(makes(), st.integers(1, 60))
def test_what_can_be_shared_out_in_ones_is(parts: list[ReplicaShare], less: int) -> None:
    parts = [ReplicaShare(part.replicas, part.micro_batches, 1, 1) for part in parts]
    most, least = sum(part.takes for part in parts), sum(part.replicas for part in parts)
    assert bool(shared_out(parts, most - less)) is (most - less >= least)
