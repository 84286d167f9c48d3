"""Uniform plans over two GPU types by brute force: every layout, number of GPUs and order.

Shares the pricing of plans with the product, and nothing of its search.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import msgspec
import numpy as np
from tests.search.mixed_brute import MARGIN, TYPES, shortest_of

from astra.cost.evaluate import memory_fraction
from astra.cost.step import step_s
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.stack import Stack
from astra.hardware.topology import allowed_counts
from astra.memory.stage import memory_of
from astra.model.zoo import find_model
from astra.strategy.enumerate import enumerate_layouts
from astra.strategy.plan import Plan
from astra.strategy.plans import Task, plan_at, plans_of
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space, Workload, parse_set
from astra.strategy.stage_view import stage_view
from astra.strategy.uniform import over_types
from astra.strategy.variants import variants_of
from astra.timing.stage import stage_times


def random_question(seed: int) -> Space:
    """A few layers on up to eight GPUs of each of two types; memory binds or does not."""
    dice = random.Random(seed)
    experts = dice.random() < 0.3
    model = msgspec.structs.replace(
        find_model("mixtral-8x7b" if experts else dice.choice(("llama-3-8b", "mistral-7b"))),
        layers=dice.choice((3, 4, 6)),
        parameters=None,
        active_parameters=None,
    )
    pools = [
        Pool(gpu=_changed(find_gpu(name)[0], dice), count=dice.choice((1, 2, 4, 8)))
        for name in sorted(dice.sample(TYPES, 2))
    ]
    pools.sort(key=lambda pool: pool.gpu.name)
    cluster = Cluster(name="some", pools=tuple(pools))
    texts = ["tp=1,2", f"micro_batch={dice.choice(('1', '1,2'))}", "cp=1", "sharding=optimizer"]
    texts += ["offload_optimizer_fraction=0", "recompute=none,full:uniform:1"]
    if experts:
        texts += [f"ep={dice.choice(('1', '2'))}", "etp=1", "overlap_ep=false"]
    batch = dice.choice((6, 8, 12, 24))
    workload = Workload(Task(model=model, cluster=cluster), batch, dice.choice((2048, 4096)))
    return Space(workload, parse_set(texts))


def _changed(gpu: Gpu, dice: random.Random) -> Gpu:
    share, slow = dice.choice((1.0, 1.0, 0.6, 0.4)), dice.choice((1.0, 1.0, 0.1))
    node = msgspec.structs.replace(gpu.node, nic_bytes_per_s=slow * gpu.node.nic_bytes_per_s)
    return msgspec.structs.replace(gpu, usable_bytes=share * gpu.usable_bytes, node=node)


def best_uniform_s(space: Space, stack: Stack) -> tuple[float, int]:
    """The shortest step of all uniform plans over both types, and how many there are."""
    return shortest_of(every_plan(space), lambda some: _shortest(some, stack))


def every_plan(space: Space) -> Iterator[Plan]:
    cluster = space.workload.task.cluster
    for counts in product(*(allowed_counts(pool) for pool in cluster.pools)):
        for base in cluster.pools:
            one = msgspec.structs.replace(
                cluster, pools=(msgspec.structs.replace(base, count=sum(counts)),)
            )
            task = msgspec.structs.replace(space.workload.task, cluster=one)
            single = Space(replace(space.workload, task=task, use_all=True), space.settings)
            for layouts in enumerate_layouts(single):
                table = variants_of(layouts, single)
                for row in range(len(table)):
                    yield from _placed(plan_at(table, row, task), cluster, counts)


def _placed(plan: Plan, cluster: Cluster, counts: tuple[int, ...]) -> Iterator[Plan]:
    tp = plan.pipelines[0].segments[0].tp
    domain = min(pool.gpu.link.domain_gpus for pool in cluster.pools)
    if any(count % (tp * plan.cp) for count in counts) or (plan.overlap_tp and tp > domain):
        return  # tensor-parallel traffic is hidden inside the link domains of all types
    named = [(pool.gpu.name, count) for pool, count in zip(cluster.pools, counts, strict=True)]
    for order in permutations(named):
        yield over_types(msgspec.structs.replace(plan, cluster=cluster), order)


def _shortest(plans: list[Plan], stack: Stack) -> float:
    """Of those that Megatron-LM accepts and that fit."""
    table = plans_of(plans)
    task = Task(model=plans[0].model, cluster=plans[0].cluster)
    table = table.take(check(table, task, rules_for("megatron")).allowed)
    if not len(table):
        return np.inf
    view = stage_view(table, task, every_stage=True)
    fits = memory_fraction(view, memory_of(view, stack), stack) <= 1 - MARGIN
    steps = step_s(table, view.stages, stage_times(view, stack))
    return float(steps[fits].min(initial=np.inf))
