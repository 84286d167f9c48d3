"""More or better hardware, or a wider space, never makes the best plan slower.

Within one runtime and stack, its host times included.
"""

import random
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace
from tests.strategy.mixed_plans import small_model
from tests.support.tiers import slow_after

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.stack import Stack, find_stack
from astra.search.one_type import search_best
from astra.search.query import query_of_space
from astra.strategy.plan import Runtime
from astra.strategy.plans import Task
from astra.strategy.space import Space, Workload

SEEDS = slow_after(1, range(12))
TIE = 1 + 1e-9
STACKS: dict[Runtime, str] = {"megatron": "megatron", "fsdp": "torch-fsdp"}
RATES = (
    "bf16_flops_per_s",
    "fp16_flops_per_s",
    "tf32_flops_per_s",
    "fp8_flops_per_s",
    "fp32_flops_per_s",
    "memory_bytes_per_s",
)


def stack_of(runtime: Runtime) -> Stack:
    return find_stack(STACKS[runtime])


class Asked:
    """A random small question that can be asked again with other hardware."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        wide = dice.choice([1, 2, 4])
        self.model = small_model(
            layers=dice.choice([4, 6, 8]),
            experts=dice.choice([0, 0, 4]),
            hidden=1024 * wide,
            ffn=4096 * wide,
            vocab=dice.choice([1000, 100_000]),
        )
        self.gpu = find_gpu(dice.choice(["h100", "a100-40g", "b200"]))[0]
        self.count = dice.choice([2, 4, 8, 16])
        self.runtime: Runtime = dice.choice(["megatron", "megatron", "fsdp"])
        self.batch, self.seq_len = dice.choice([8, 16, 24]), dice.choice([1024, 4096])
        self.margin = dice.choice([0.05, 0.6, 0.85])  # loose and tight

    def best_s(
        self, *, gpu: Gpu | None = None, count: int | None = None, **chosen: tuple[Any, ...]
    ) -> float:
        """The best step, infinite where nothing fits."""
        pool = Pool(gpu=gpu or self.gpu, count=count or self.count)
        cluster = Cluster(name="asked", pools=(pool,))
        stack = stack_of(self.runtime)
        task = Task(model=self.model, cluster=cluster, runtime=self.runtime, stack=stack.name)
        space = Space(Workload(task, self.batch, self.seq_len), chosen)
        query = query_of_space(space, stack, top=1, fold=False, margin=self.margin)
        return search_best(query).best_s


@cache
def plain_s(seed: int) -> float:
    """The best step of a question as it is asked."""
    return Asked(seed).best_s()


@pytest.mark.parametrize("seed", SEEDS)
def test_more_gpus_never_slow_the_best_plan(seed: int) -> None:
    asked = Asked(seed)
    assert asked.best_s(count=2 * asked.count) <= plain_s(seed) * TIE


@pytest.mark.parametrize("seed", SEEDS)
def test_more_memory_never_slows_the_best_plan(seed: int) -> None:
    asked = Asked(seed)
    for factor in (1.01, 1.3, 3.0):
        larger = replace(asked.gpu, usable_bytes=asked.gpu.usable_bytes * factor)
        assert asked.best_s(gpu=larger) <= plain_s(seed) * TIE


@pytest.mark.parametrize("factor", (1.1, 4.0))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_faster_link_never_slows_the_best_plan(seed: int, factor: float) -> None:
    asked = Asked(seed)
    link = replace(
        asked.gpu.link,
        bytes_per_s=asked.gpu.link.bytes_per_s * factor,
        peer_bytes_per_s=asked.gpu.link.peer_bytes_per_s * factor,
    )
    assert asked.best_s(gpu=replace(asked.gpu, link=link)) <= plain_s(seed) * TIE


@pytest.mark.parametrize("factor", (1.1, 4.0))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_faster_network_never_slows_the_best_plan(seed: int, factor: float) -> None:
    asked = Asked(seed)
    node = replace(asked.gpu.node, nic_bytes_per_s=asked.gpu.node.nic_bytes_per_s * factor)
    assert asked.best_s(gpu=replace(asked.gpu, node=node)) <= plain_s(seed) * TIE


@pytest.mark.parametrize("factor", (1.1, 3.0))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_faster_gpu_never_slows_the_best_plan(seed: int, factor: float) -> None:
    """All its rates together, so that its efficiency at each shape stays the same."""
    asked = Asked(seed)
    rates = {name: getattr(asked.gpu, name) for name in RATES}
    faster = {name: rate * factor for name, rate in rates.items() if rate is not None}
    assert asked.best_s(gpu=replace(asked.gpu, **faster)) <= plain_s(seed) * TIE


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wider_space_never_slows_the_best_plan(seed: int) -> None:
    asked = Asked(seed)
    whole = plain_s(seed)
    for narrow in (
        {"tp": (1, 2)},
        {"pp": (1, 2)},
        {"micro_batch": (1,)},
        {"recompute": ("none", "full:uniform:1")},
        {"offload_optimizer_fraction": (0.0,)},
    ):
        assert whole <= asked.best_s(**narrow) * TIE
