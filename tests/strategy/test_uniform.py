"""Uniform plans over several GPU types: where their ranks lie."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.api import predict
from astra.errors import InputError
from astra.strategy.plan import Plan
from astra.strategy.plans import plan_at, plans_of, task_of
from astra.strategy.replica_groups import is_one_job
from astra.strategy.rules.registry import broken_rules
from astra.strategy.uniform import over_types


def completed(gpus: str, model: str = "llama-3-8b", **more: Any) -> Plan:
    batch = {"global_batch": 256, "seq_len": 4096, "recompute": "full"}
    return predict(model, gpus=gpus, **{**batch, **more}).plan


def lies(plan: Plan) -> list[tuple[int, list[tuple[str, int]]]]:
    """Replicas of each group, and its stages by type."""
    return [
        (each.replicas, [(segment.gpu.split("-")[0], segment.stages) for segment in each.segments])
        for each in plan.pipelines
    ]


def test_plain_data_parallelism_has_a_group_of_replicas_on_each_type() -> None:
    plan = completed("h100:48,h200:16")
    assert lies(plan) == [(48, [("H100", 1)]), (16, [("H200", 1)])]
    assert plan.is_one_job
    assert plan.summary() == "tp 1 pp 1 dp 64 mb 1 recompute full:uniform:1"


def test_a_replica_may_lie_on_two_types_stage_by_stage() -> None:
    """56 + 8 GPUs in four stages of 16: of the last one two replicas lie on each type."""
    plan = completed("h100:56,h200:8", tp=4, pp=4)
    assert lies(plan) == [(2, [("H100", 4)]), (2, [("H100", 3), ("H200", 1)])]
    assert plan.rank_blocks == (("H100-80GB-SXM", 56), ("H200-SXM", 8))


def test_where_stages_fill_types_there_is_one_pipeline() -> None:
    plan = completed("h100:32,h200:32", tp=4, pp=4)
    assert lies(plan) == [(4, [("H100", 2), ("H200", 2)])]


def test_with_the_other_order_of_ranks_replicas_come_one_by_one() -> None:
    plan = completed("h100:48,h200:16", tp=4, pp=4, rank_order="tp-cp-ep-pp-dp")
    assert lies(plan) == [(3, [("H100", 4)]), (1, [("H200", 4)])]
    plan = completed("h100:40,h200:24", tp=4, pp=4, rank_order="tp-cp-ep-pp-dp")
    assert lies(plan) == [(2, [("H100", 4)]), (1, [("H100", 2), ("H200", 2)]), (1, [("H200", 4)])]
    assert plan.rank_blocks == (("H100-80GB-SXM", 40), ("H200-SXM", 24))


def test_a_stage_of_a_replica_lies_on_one_type() -> None:
    with pytest.raises(InputError, match="12 H100-80GB-SXM do not divide into stages of 8"):
        completed("h100:12,h200:4", tp=8)


def test_an_expert_group_lies_on_one_type() -> None:
    with pytest.raises(InputError, match=r"an expert group lies on one GPU type.*ep 8"):
        completed("h100:12,h200:4", "mixtral-8x7b", ep=8)


@st.composite
def placed(draw: st.DrawFn) -> tuple[Plan, tuple[tuple[str, int], ...]]:
    """A plan of one type, and how many of its GPUs are to be of each of two or three."""
    names = ["h100", "h200", "a100-80g"][: draw(st.integers(2, 3))]
    tp, pp, dp = (draw(st.sampled_from(each)) for each in ((1, 2, 4), (1, 2, 3, 5), (1, 2, 3, 8)))
    blocks = pp * dp
    edges = sorted(draw(st.lists(st.integers(0, blocks), min_size=len(names) - 1, max_size=2)))
    edges = [0, *edges[: len(names) - 1], blocks]
    counts = [tp * (b - a) for a, b in pairwise(edges)]
    order = draw(st.sampled_from(("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")))
    gpus = ",".join(f"{name}:{blocks * tp}" for name in names)
    whole = completed(gpus, tp=tp, pp=pp, dp=dp, global_batch=dp * 8, rank_order=order)
    pools = [pool.gpu.name for pool in whole.cluster.pools]
    one = whole.pipelines[0]
    layers = whole.pipelines[0].layers
    segment = msgspec.structs.replace(one.segments[0], stages=pp, layers=layers)
    pipeline = msgspec.structs.replace(one, replicas=dp, segments=(segment,))
    plan = msgspec.structs.replace(whole, pipelines=(pipeline,))
    held = tuple((n, c) for n, c in zip(pools, counts, strict=False) if c)
    return plan, held


@pytest.mark.slow
@given(placed())
@settings(max_examples=60, deadline=None)
def test_ranks_lie_in_blocks_by_type_and_nothing_else_changes(
    case: tuple[Plan, tuple[tuple[str, int], ...]],
) -> None:
    plan, counts = case
    found = over_types(plan, counts)
    assert found.rank_blocks == counts
    assert found.gpus == dict(counts)
    assert found.dp == plan.dp
    assert found.is_one_job
    assert {each.layers for each in found.pipelines} == {plan.pipelines[0].layers}
    if plan.rank_order == "tp-cp-ep-dp-pp":
        assert len(found.pipelines) <= len(counts)
    table = plans_of([found])
    assert plan_at(table, 0, task_of(found)) == found
    assert not [rule.name for rule in broken_rules(found) if rule.name.startswith("one-")]


SAID_OTHERWISE: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"ep": 1, "etp": 1, "micro_batch": 1}, True),  # the plan's own, said again
    ({"recompute": "full:uniform:1"}, True),
    ({"recompute": "none"}, False),
    ({"micro_batch": 2}, False),
    ({"tp": 2}, False),
]


@pytest.mark.parametrize(("said", "same"), SAID_OTHERWISE)
def test_a_plan_and_its_table_agree_on_what_is_one_job(said: dict[str, Any], same: bool) -> None:
    """However the settings of the second group are spelled."""
    plan = completed("h100:48,h200:16")
    first, second = plan.pipelines
    segments = tuple(msgspec.structs.replace(segment, **said) for segment in second.segments)
    other = msgspec.structs.replace(second, segments=segments)
    changed = msgspec.structs.replace(plan, pipelines=(first, other))
    assert changed.is_one_job is same
    assert bool(is_one_job(plans_of([changed]))[0]) is same
    late = msgspec.structs.replace(second, micro_batches=second.micro_batches + 1)
    unequal = msgspec.structs.replace(plan, pipelines=(first, late))
    assert not unequal.is_one_job and not is_one_job(plans_of([unequal]))[0]
