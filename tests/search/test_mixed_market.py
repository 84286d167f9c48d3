"""Clusters of several types: where they win, and where they may be rented."""

from typing import Any

import pytest
from tests.search.test_market import assert_terms

import astra
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.stack import find_stack
from astra.money.catalogue import Instance, Offer
from astra.money.given import given_offer
from astra.search.answer import Answer, Wanted
from astra.search.mixed_market import places_of
from astra.strategy.plans import Task
from astra.strategy.space import Question, Space


def asked(**more: Any) -> Answer:
    return astra.plan(
        "llama-3-8b",
        gpus="h100:16,a100-80g:16",
        global_batch=32,
        seq_len=4096,
        objective="frontier",
        tokens="20B",
        price={"h100": 3.0, "a100-80g": 1.2},
        settings=["micro_batch=1,2", "cp=1", "tp=1,2,4"],
        **more,
    )


def test_all_gpus_together_are_the_fast_end_of_the_frontier() -> None:
    mixed, apart = asked(), asked(mixed=False)
    first = mixed.frontier[0]
    assert set(first.gpus) == {"H100-80GB-SXM", "A100-80GB-SXM"}
    assert (first.hours or 0) < (apart.frontier[0].hours or 0)
    assert first.money is not None and len(first.money.rents) == 2
    assert_terms(first)
    assert [p.summary for p in mixed.frontier[1:]] == [p.summary for p in apart.frontier]
    fastest = astra.plan(
        "llama-3-8b",
        gpus="h100:16,a100-80g:16",
        global_batch=32,
        seq_len=4096,
        settings=["micro_batch=1,2", "cp=1", "tp=1,2,4"],
    ).best
    assert fastest is not None and first.step_s == pytest.approx(fastest.step_s)


def test_what_cannot_be_mixed_is_said() -> None:
    found = astra.plan(
        "mixtral-8x7b",
        gpus="h100:16,a100-80g:16",
        global_batch=32,
        seq_len=4096,
        objective="frontier",
        tokens="20B",
        price={"h100": 3.0, "a100-80g": 1.2},
        settings=["micro_batch=1", "cp=1", "pp=2", "vpp=1"],
    )
    notes = found.request["notes"]
    assert isinstance(notes, list) and any("mixed pools are left out" in note for note in notes)


def offer(gpu: str, cloud: str, region: str, price: float, certainty: str = "high") -> Offer:
    plain = given_offer(find_gpu(gpu)[0], price, "2026-01-01")
    fields = {name: getattr(plain.machine, name) for name in Instance.__struct_fields__}
    machine = Instance(**fields | {"cloud": cloud, "certainty": certainty, "rdma": False})
    return Offer(
        machine=machine, region=region, usd_per_hour=8 * price, date="2026-01-01", source="test"
    )


def test_a_cluster_lies_in_one_cloud_and_region_unless_told_otherwise() -> None:
    pools = tuple(Pool(gpu=find_gpu(name)[0], count=64) for name in ("h100", "a100-80g"))
    task = Task(
        model=astra.find_model("llama-3-8b"),
        cluster=Cluster(name="x", pools=pools),
        runtime="megatron",
        stack="megatron",
    )
    wanted = Wanted(space=Space(Question(task, 64, 4096)), stack=find_stack("megatron"))
    apart = [
        offer("h100", "aws", "us-east-1", 3.0),
        offer("a100-80g", "aws", "us-west-2", 1.0),
        offer("a100-80g", "gcp", "us-east-1", 1.0),
    ]
    assert places_of(wanted, apart, anywhere=False) == []
    assert len(places_of(wanted, apart, anywhere=True)) == 1
    (place,) = places_of(
        wanted, [*apart, offer("a100-80g", "aws", "us-east-1", 2.0)], anywhere=False
    )
    assert {each.place for each in place} == {("aws", "us-east-1")}
    unknown = [*apart[:1], offer("a100-80g", "aws", "us-east-1", 1.0, "guessed")]
    assert places_of(wanted, unknown, anywhere=False) == []
