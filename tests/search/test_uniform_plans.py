"""Uniform plans over several GPU types: what they need and take."""

from typing import Any

import msgspec
import pytest
from tests.cost.some_plans import numbers

import astra
from astra.cost.result import PricedPlan
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.strategy.uniform import over_types


def named(gpu: str, name: str, **node: Any) -> Gpu:
    """A GPU of the catalogue under another name, so that two pools may hold it."""
    found = find_gpu(gpu)[0]
    return msgspec.structs.replace(
        found, name=name, node=msgspec.structs.replace(found.node, **node)
    )


def on_one_and_on_two(
    model: str, gpu: str, counts: tuple[int, int], **settings: Any
) -> tuple[PricedPlan, PricedPlan]:
    """The same plan on one pool of a GPU and on two of it."""
    first, second = named(gpu, "X"), named(gpu, "Y")
    single = Cluster(name="one", pools=(Pool(gpu=first, count=sum(counts)),))
    both = Cluster(
        name="two", pools=(Pool(gpu=first, count=counts[0]), Pool(gpu=second, count=counts[1]))
    )
    batch = {"global_batch": 240, "seq_len": 4096}
    alone = astra.predict(model, cluster=single, **{**batch, **settings})
    plan = msgspec.structs.replace(alone.plan, cluster=both)
    return alone, astra.predict_plan(over_types(plan, tuple(zip("XY", counts, strict=True))))


TWELVE_CHUNKS = {"layers_per_stage": (21, 21, 21, 17), "chunk_layers": (*[7] * 11, 3)}


@pytest.mark.parametrize(
    ("model", "counts", "settings"),
    [
        ("llama-3-8b", (32, 16), {}),
        ("llama-3-8b", (32, 16), {"sharding": "parameters"}),
        ("llama-3-8b", (32, 16), {"sharding": "none"}),
        ("llama-3-8b", (40, 8), {"tp": 2, "pp": 4}),
        ("llama-3.2-1b", (40, 8), {"pp": 2}),  # tied embeddings
        ("llama-3-70b", (56, 8), {"tp": 4, "pp": 4, "vpp": 4, "global_batch": 256}),
        ("llama-3-70b", (56, 8), {"tp": 4, "vpp": 3, "global_batch": 256, **TWELVE_CHUNKS}),
        ("mixtral-8x7b", (48, 16), {"tp": 2, "pp": 2, "ep": 8, "global_batch": 256}),
        ("deepseek-v3", (88, 40), {"tp": 2, "pp": 8, "ep": 4, "global_batch": 256}),
        ("llama-3-8b", (32, 16), {"runtime": "fsdp"}),
        ("llama-3-8b", (32, 16), {"runtime": "deepspeed"}),
    ],
)
def test_two_pools_of_one_gpu_are_one_pool_to_the_last_digit(
    model: str, counts: tuple[int, int], settings: dict[str, Any]
) -> None:
    alone, both = on_one_and_on_two(model, "h100", counts, **settings)
    assert len(both.plan.pipelines) == 2
    assert both.step_s == alone.step_s
    assert both.memory.reserved_bytes == alone.memory.reserved_bytes
    for name, value in numbers(alone).items():
        assert numbers(both)[name] == pytest.approx(value, rel=1e-12), name
    first = [row for row in both.memory.stages if row.pipeline == 0]
    assert [row.allocated_bytes for row in first] == [
        row.allocated_bytes for row in alone.memory.stages
    ]


def test_a_domain_of_gpus_never_spans_two_pools() -> None:
    """64 GB200 in one NVLink domain are faster than two domains of 32."""
    alone, both = on_one_and_on_two("llama-3-8b", "gb200", (32, 32), global_batch=64)
    assert both.step_s > alone.step_s
    assert both.memory.reserved_bytes == alone.memory.reserved_bytes


def test_states_are_sharded_over_the_replicas_of_all_types() -> None:
    settings: dict[str, Any] = {"global_batch": 256, "seq_len": 8192, "recompute": "full"}
    alone = astra.predict("llama-3-8b", gpus="h100:64", **settings)
    both = astra.predict("llama-3-8b", gpus="h100:32,h200:32", **settings)
    held = {row.optimizer_bytes for row in both.memory.stages}
    assert held == {alone.memory.stages[0].optimizer_bytes}
    assert both.step_s == pytest.approx(alone.step_s, rel=1e-3)
    assert not any("launches" in text for text in both.warnings)


def test_a_group_over_two_types_runs_at_the_pace_of_the_slower_network() -> None:
    """The same GPU in two pools, one with a tenth of the network: all of them wait for it."""
    fast, slow = named("h100", "X"), named("h100", "Y", nic_bytes_per_s=5e9)
    settings: dict[str, Any] = {"global_batch": 64, "seq_len": 4096, "recompute": "full"}

    def step(*pools: tuple[Gpu, int]) -> float:
        cluster = Cluster(name="c", pools=tuple(Pool(gpu=g, count=n) for g, n in pools))
        return astra.predict("llama-3-8b", cluster=cluster, **settings).step_s

    mixed = step((fast, 56), (slow, 8))
    assert mixed == pytest.approx(step((slow, 64)), rel=1e-9)
    assert mixed > 1.1 * step((fast, 64))
