"""Plans of several makes by brute force: every make of each type, every share of the batch.

Shares the pricing of plans and the ways to share out layers with the product, and nothing of its
search.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

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
from astra.strategy.layer_splits import layer_splits
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.plans import Flags, Plans, Task, plans_of
from astra.strategy.replica_groups import is_one_job
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space, Workload, parse_set
from astra.strategy.stage_view import stage_view
from astra.timing.stage import stage_times

FULL = ("none", "full:block:1", "full:uniform:1")


def random_question(seed: int, types: int | None = None, experts: bool = False) -> Space:
    """A small question for runtime any: two or three types, a few layers, tight memory or not."""
    dice = random.Random(seed)
    types = types or dice.choice((2, 2, 2, 3))
    layers = dice.choice((2, 3, 4)) if types == 2 else 2
    name = "mixtral-8x7b" if experts else dice.choice(("llama-3-8b", "mistral-7b"))
    changed = {"layers": layers, "parameters": None, "active_parameters": None}
    model = msgspec.structs.replace(find_model(name), **changed)
    pools = []
    for gpu in sorted(dice.sample(TYPES, types)):
        count = dice.choice((1, 2, 3, 4) if types == 2 else (1, 2))
        pools.append(Pool(gpu=_some(find_gpu(gpu)[0], dice), count=count))
    pools.sort(key=lambda pool: pool.gpu.name)
    total = sum(pool.count for pool in pools)
    cap = dice.choice((None, None, max(total - 1, 1)))
    cluster = Cluster(name="some", pools=tuple(pools), max_gpus=cap)
    texts = [f"micro_batch={dice.choice(('1', '2', '1,2'))}", "cp=1", f"tp={dice.choice('12')}"]
    texts += [f"sharding={dice.choice(('optimizer', 'optimizer,parameters'))}"]
    texts += ["offload_optimizer=0", f"recompute={','.join(FULL[: dice.choice((1, 3))])}"]
    texts += [f"ep={dice.choice(('1', '1,2'))}", "etp=1"] if experts else []
    task = Task(model=model, cluster=cluster, runtime="any")
    batch = 2 * dice.choice((3, 5, 6, 7, 8, 12))
    return Space(Workload(task, batch, dice.choice((4096, 16384))), parse_set(texts))


def _some(gpu: Gpu, dice: random.Random) -> Gpu:
    """Less memory, and mostly a network that lets makes exchange their gradients."""
    share, fast = dice.choice((1.0, 1.0, 0.6, 0.4)), dice.choice((0.1, 1.0, 20.0, 20.0, 20.0))
    node = msgspec.structs.replace(gpu.node, nic_bytes_per_s=fast * gpu.node.nic_bytes_per_s)
    return msgspec.structs.replace(gpu, usable_bytes=share * gpu.usable_bytes, node=node)


def best_of_makes_s(space: Space, stack: Stack) -> tuple[float, int]:
    """The shortest step of all plans with one make of each type or none, and how many there are.

    Without replicas on several types that differ in nothing, or only in what they recompute
    without need: those are one job.
    """
    return shortest_of(every_plan(space), lambda some: _shortest(some, stack))


def _shortest(plans: list[Plan], stack: Stack) -> float:
    """Of those that the rules accept and that fit."""
    table, task = plans_of(plans), plans[0]
    whole = Task(model=task.model, cluster=task.cluster, runtime=task.runtime)
    table = table.take(check(table, whole, rules_for("any")).allowed)
    table = table.take(~_is_or_could_be_one_job(table, whole, stack))
    if not len(table):
        return np.inf
    view = stage_view(table, whole, every_stage=True)
    fits = memory_fraction(view, memory_of(view, stack), stack) <= 1 - MARGIN
    steps = step_s(table, view.stages, stage_times(view, stack))
    return float(steps[fits].min(initial=np.inf))


def _on_several_types(plans: Plans) -> Flags:
    """Whether the stages of a plan lie on more than one GPU type. (plan,)"""
    found: Flags = ((plans.gpu != plans.gpu[:1, :1]) & plans.used).any(axis=(0, 1))
    return found


def _is_or_could_be_one_job(table: Plans, task: Task, stack: Stack) -> Flags:
    names = ("recompute", "recompute_layers", "recompute_modules")
    least = replace(table, **{name: 0 * getattr(table, name) for name in names})
    view = stage_view(least, task, every_stage=True)
    fits = memory_fraction(view, memory_of(view, stack), stack) <= 1 - MARGIN
    found: Flags = (is_one_job(table) | (is_one_job(least) & fits)) & _on_several_types(table)
    return found


Make = tuple[Segment, int, int]  # its replicas, and how many micro-batches come together


def every_plan(space: Space) -> Iterator[Plan]:
    pools = space.workload.task.cluster.pools
    layers, chosen = space.workload.task.model.layers, space.settings
    whole = product(chosen["micro_batch"], chosen["sharding"], (False, True), range(1, layers + 1))
    for size, sharding, overlap, vpp in whole:
        options = [[None, *_makes(space, pool, vpp, overlap)] for pool in pools]
        for picked in product(*options):
            makes = [make for make in picked if make is not None]
            if not makes:
                continue
            for counts in _counts(makes, space.workload.global_batch // size):
                yield _plan(space, makes, counts, size, sharding, overlap, vpp)


def _makes(space: Space, pool: Pool, vpp: int, overlap: bool) -> Iterator[Make]:
    layers = space.workload.task.model.layers
    settings = space.settings["tp"], range(1, layers + 1), allowed_counts(pool)
    for tp, pp, gpus in product(*settings):
        replicas, rest = divmod(gpus, tp * pp)
        if rest or not replicas or (vpp > 1 and pp == 1):
            continue
        if overlap and not 1 < tp <= pool.gpu.link.domain_gpus:
            continue
        for flat in layer_splits(layers, pp):
            held = tuple(n for at in range(0, 6, 2) for n in [flat[at + 1]] * flat[at])
            for recompute, ep in product(
                space.settings["recompute"], space.settings.get("ep", (1,))
            ):
                segment = Segment(
                    gpu=pool.gpu.name, stages=pp, layers=held, tp=tp, recompute=recompute, ep=ep
                )
                if all(number % vpp == 0 for number in held):
                    yield segment, replicas, pp if vpp > 1 else 1


def _counts(makes: list[Make], needed: int) -> Iterator[tuple[tuple[tuple[int, int], ...], ...]]:
    """Replicas and their micro-batches, in all ways that are as even in a make as can be."""
    (_, replicas, unit), *others = makes
    for rounds in range(replicas, needed // unit + 1):
        left = needed - rounds * unit
        each, more = divmod(rounds, replicas)
        shares = ((replicas - more, each * unit), (more, (each + 1) * unit))
        own = tuple(part for part in shares if part[0])
        if not others and left == 0:
            yield (own,)
        elif others:
            for rest in _counts(others, left):
                yield (own, *rest)


def _plan(
    space: Space,
    makes: list[Make],
    counts: tuple[tuple[tuple[int, int], ...], ...],
    size: int,
    sharding: str,
    overlap: bool,
    vpp: int,
) -> Plan:
    workload = space.workload
    pipelines = tuple(
        Pipeline(replicas=replicas, micro_batches=number, segments=(segment,))
        for (segment, _, _), shares in zip(makes, counts, strict=True)
        for replicas, number in shares
    )
    copies = sum(pipeline.replicas for pipeline in pipelines)
    return Plan(
        model=workload.task.model,
        cluster=workload.task.cluster,
        runtime="any",
        pipelines=pipelines,
        micro_batch=size,
        global_batch=workload.global_batch,
        seq_len=workload.seq_len,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        ep=makes[0][0].ep or 1,
        sharding=sharding,  # type: ignore[arg-type]
        shard_group=makes[0][1],
        sequence_parallel=any(segment.tp > 1 for segment, _, _ in makes),
        overlap_grad_reduce=copies > 1,
        overlap_param_gather=copies > 1,
        overlap_p2p=vpp > 1,
        overlap_tp=overlap,
        dispatcher="alltoall" if workload.task.model.moe else None,
    )
