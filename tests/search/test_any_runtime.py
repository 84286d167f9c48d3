"""Answers for runtime `any`: never slower than FlagScale's, and what is said of them."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.search.replica_groups_brute import random_question
from tests.support.answers import planned
from tests.support.tiers import soak_but_every

import astra
from astra.hardware.cluster import Cluster
from astra.hardware.stack import find_stack
from astra.notes import NoteCode, has
from astra.report.answer import answer_page
from astra.report.explain import explanation_page
from astra.search.query import query_of_space
from astra.search.result import Result
from astra.search.solve import solve
from astra.strategy.rules.registry import broken_rules
from astra.strategy.space import Space

STACK = find_stack("megatron")
PLAIN = ["mb=1", "cp=1", "vpp=1", "sharding=optimizer"]
NARROW = ["tp=2,4", *PLAIN]  # where the best of all plans is
FAST = "h100:8,a100-80g:16"
SMALL: dict[str, Any] = {"gpus": FAST, "global_batch": 96, "seq_len": 8192, "settings": NARROW}


def small(**more: Any) -> astra.Answer:
    return planned("llama-3-8b", **{**SMALL, "runtime": "any", **more})


def answered(space: Space, runtime: str = "any") -> Result:
    task = msgspec.structs.replace(space.workload.task, runtime=runtime)
    workload = replace(space.workload, task=task)
    return solve(query_of_space(Space(workload, space.settings), STACK))


def step_of(answer: Result) -> float:
    return answer.best.step_s if answer.best else np.inf


def on(space: Space, cluster: Cluster) -> Space:
    task = msgspec.structs.replace(space.workload.task, cluster=cluster)
    return Space(replace(space.workload, task=task), space.settings)


@pytest.mark.parametrize("seed", soak_but_every(3, (0, 6, 12, 13, 17, 27, 39)))
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


@pytest.mark.slow
def test_an_answer_says_who_launches_it_and_claims_no_proof() -> None:
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
    launched = small(runtime=None)
    assert launched.best is not None
    assert mixed.launched_step_s == pytest.approx(launched.best.step_s)
    assert best.step_s < launched.best.step_s
    assert answer.search.status == "searched"
    assert mixed.gap_fraction is None
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
    assert "No public runtime launches it" in text and "it is the best found" in text
    assert "Replicas that differ: each GPU type has one kind" in text
    assert "astra export result.json --rank" in text


@pytest.mark.slow
def test_explain_works_on_several_pipelines() -> None:
    answer = small()
    found = answer.explain(quick=True)
    assert {stage.pipeline for stage in found.stages} == {0, 1}
    assert "make" in {exchange.group for exchange in found.exchanges}
    text = "\n".join(part for part in explanation_page(found) if isinstance(part, str))
    assert "Pipeline 2 from the first stage to the last" in text


@pytest.mark.slow
def test_settings_and_caps_hold() -> None:
    answer = small(settings=["tp=2", *PLAIN], max_gpus=16)
    assert answer.plans
    for priced in answer.plans:
        assert sum(priced.gpus.values()) <= 16 and priced.plan.micro_batch == 1
        assert {s.tp for pipe in priced.plan.pipelines for s in pipe.segments} == {2}
    assert len(small(settings=["tp=2", *PLAIN], top=1).plans) == 1


@pytest.mark.slow
def test_all_gpus_are_used_where_that_is_asked_for() -> None:
    answer = small(use_all=True)
    assert answer.plans and all(sum(plan.gpus.values()) == 24 for plan in answer.plans)


@pytest.mark.slow
def test_a_batch_that_no_number_of_replicas_divides_is_shared_out_unevenly() -> None:
    """89 is a prime: FlagScale has one replica, or 89."""
    asked: dict[str, Any] = {"gpus": "h100:8,a100-80g:8", "global_batch": 89}
    answer, plain = small(**asked), small(**asked, runtime="flagscale")
    assert answer.best is not None and plain.best is not None
    assert answer.best.step_s < 0.97 * plain.best.step_s
    counts = [pipe.micro_batches for pipe in answer.best.plan.pipelines]
    assert len(set(counts)) > 1


@pytest.mark.slow
def test_own_rules_hold_for_several_replica_groups(tmp_path: Any) -> None:
    rules = tmp_path / "my.rules"
    rules.write_text("$tensor_model_parallel_size < 2\n", encoding="utf-8")
    answer = small(settings=["tp=1,2", *PLAIN], rules=str(rules))
    tps = {s.tp for each in answer.plans for pipe in each.plan.pipelines for s in pipe.segments}
    assert answer.plans and min(tps) >= 2
    assert_adds_up(answer)


def assert_adds_up(answer: astra.Answer) -> None:
    search = answer.search
    removed = sum(search.removed_by_rule.values())
    looked_at = search.bounded + search.estimated + search.priced
    assert removed + looked_at == search.candidates
    assert search.out_of_memory <= search.priced
    assert 0 < search.simulated <= search.priced


@pytest.mark.parametrize("runtime", ["any", "flagscale"])
def test_the_funnel_adds_up(runtime: str) -> None:
    plain = small(runtime="flagscale")
    answer = small() if runtime == "any" else plain
    assert_adds_up(answer)
    if runtime == "any":  # what FlagScale launches was looked at too
        assert answer.search.candidates > plain.search.candidates
        assert answer.search.simulated > plain.search.simulated
