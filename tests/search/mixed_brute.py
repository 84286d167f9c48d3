"""Mixed pipelines by brute force: every order, stage count, split, tp and recompute setting.

Shares the pricing of plans with the product, and nothing of its mixed search.
"""

import random
from collections.abc import Iterator
from itertools import permutations, product

import msgspec
import numpy as np

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.stack import Stack
from astra.hardware.topology import allowed_counts
from astra.memory.stage import memory_of
from astra.model.zoo import find_model
from astra.search.step import step_s
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.plans import Task, plans_of
from astra.strategy.rules.book import judge, rules_for
from astra.strategy.space import Question, Space, divisors, parse_set
from astra.strategy.view import view_of
from astra.timing.stage import stage_times

TYPES = ("h100", "a100-80g", "a100-40g", "l40s", "h200")
MARGIN = 0.05
MANY = 4096  # plans of one table


def random_space(seed: int, tied: bool = False) -> Space:
    """A small question: two or three types, a few layers, memory that binds or does not."""
    dice = random.Random(seed)
    types = dice.choice((2, 2, 3))
    layers = dice.choice((4, 5, 6) if types == 2 else (4, 5))
    model = msgspec.structs.replace(
        find_model(dice.choice(("llama-3-8b", "mistral-7b"))),
        layers=layers,
        tied_embeddings=tied,
        parameters=None,
        active_parameters=None,
    )
    pools = []
    for name in sorted(dice.sample(TYPES, types)):
        gpu = _changed(find_gpu(name)[0], dice)
        pools.append(Pool(gpu=gpu, count=dice.choice((1, 2, 2, 4))))
    pools.sort(key=lambda pool: pool.gpu.name)
    cluster = Cluster(name="some", pools=tuple(pools))
    task = Task(model=model, cluster=cluster, runtime="flagscale")
    dp, size = dice.choice((1, 1, 2)), dice.choice((1, 2, 4))
    batch = dp * size * dice.choice((1, 3, 8, 24, 24))
    tps = dice.choice(("1", "1,2"))
    chosen = parse_set(
        [f"dp={dp}", f"micro_batch={size}", "cp=1", f"tp={tps}", "sharding=optimizer"]
    )
    return Space(Question(task, batch, dice.choice((2048, 8192))), chosen)


def _changed(gpu: Gpu, dice: random.Random) -> Gpu:
    """Less memory and slower links, by chance."""
    share = dice.choice((1.0, 0.6, 0.5, 0.4, 0.3))
    slow = dice.choice((1.0, 1.0, 0.1, 0.02))
    node = msgspec.structs.replace(gpu.node, nic_bytes_per_s=slow * gpu.node.nic_bytes_per_s)
    return msgspec.structs.replace(gpu, usable_bytes=share * gpu.usable_bytes, node=node)


def best_step_s(space: Space, stack: Stack) -> tuple[float, int]:
    """The shortest step of all plans of two stages or more, and how many were tried."""
    best, tried, some = np.inf, 0, []
    for plan in every_plan(space):
        some.append(plan)
        if len(some) == MANY:
            best, tried, some = min(best, _shortest(some, stack)), tried + len(some), []
    if some:
        best, tried = min(best, _shortest(some, stack)), tried + len(some)
    return best, tried


def every_plan(space: Space) -> Iterator[Plan]:
    """Every way to lay stages along a pipeline, nothing recomputed."""
    cluster, model = space.question.task.cluster, space.question.task.model
    (dp,) = space.chosen["dp"]
    for count in range(1, len(cluster.pools) + 1):
        for order in permutations(cluster.pools, count):
            for tps in product(*(_tps(pool, space) for pool in order)):
                counts = [
                    [n // (tp * dp) for n in allowed_counts(pool) if n % (tp * dp) == 0]
                    for pool, tp in zip(order, tps, strict=True)
                ]
                for stages in product(*counts):
                    total = sum(stages)
                    if 2 <= total <= model.layers:
                        for layers in _splits(model.layers, total):
                            yield _plan(space, order, tps, stages, layers)


def _tps(pool: Pool, space: Space) -> list[int]:
    reach = divisors(max(pool.gpu.link.domain_gpus, pool.gpu.node.gpus))
    return [tp for tp in space.chosen["tp"] if tp in reach]


def _splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to share out layers, one at least to a stage."""
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in _splits(layers - first, stages - 1):
            yield (first, *rest)


def _plan(
    space: Space,
    order: tuple[Pool, ...],
    tps: tuple[int, ...],
    stages: tuple[int, ...],
    layers: tuple[int, ...],
) -> Plan:
    question = space.question
    (dp,), (size,) = space.chosen["dp"], space.chosen["micro_batch"]
    segments, at = [], 0
    for pool, tp, count in zip(order, tps, stages, strict=True):
        own = layers[at : at + count]
        segments.append(Segment(gpu=pool.gpu.name, stages=count, layers=own, tp=tp))
        at += count
    pipeline = Pipeline(
        replicas=dp, micro_batches=question.global_batch // (dp * size), segments=tuple(segments)
    )
    near = [pool.gpu.link.domain_gpus for pool in order]
    hides = all(1 < tp <= reach for tp, reach in zip(tps, near, strict=True))
    return Plan(
        model=question.task.model,
        cluster=question.task.cluster,
        runtime="flagscale",
        pipelines=(pipeline,),
        micro_batch=size,
        global_batch=question.global_batch,
        seq_len=question.seq_len,
        shard_group=dp,
        sequence_parallel=max(tps) > 1,
        overlap_grad_reduce=dp > 1,
        overlap_param_gather=dp > 1,
        overlap_tp=hides,
    )


def _shortest(plans: list[Plan], stack: Stack) -> float:
    """With recompute where stages do not fit without: every choice of every such stage."""
    if not plans:
        return np.inf
    overfull = _overfull(plans, stack)
    fitting = [plan for plan, full in zip(plans, overfull, strict=True) if not full.any()]
    best = _least(fitting, stack)
    for plan, full in zip(plans, overfull, strict=True):
        if full.any():
            best = min(best, _least(list(_recomputed(plan, full)), stack))
    return best


def _overfull(plans: list[Plan], stack: Stack) -> np.ndarray:
    """(plan, stage)"""
    view = view_of(plans_of(plans), _task(plans[0]), every_stage=True)
    memory = memory_of(view, stack)
    needed = memory.allocated_bytes * (1 + stack.slack_fraction) + memory.runtime_bytes
    usable = np.array([pool.gpu.usable_bytes for pool in view.task.cluster.pools])
    limit = usable[view.stages.of(view.plans.gpu)] * (1 - MARGIN)
    return ((needed > limit) & (view.stages.count > 0))[0].T


def _task(plan: Plan) -> Task:
    return Task(model=plan.model, cluster=plan.cluster, runtime="flagscale", stack=plan.stack)


def _recomputed(plan: Plan, full: np.ndarray) -> Iterator[Plan]:
    """One stage to a segment, those that are overfull with every setting of theirs."""
    (pipeline,) = plan.pipelines
    alone = [
        msgspec.structs.replace(segment, stages=1, layers=(layers,))
        for segment in pipeline.segments
        for layers in segment.layers
    ]
    choices = [
        _settings(stage.layers[0]) if full[place] else ["none"] for place, stage in enumerate(alone)
    ]
    for settings in product(*choices):
        segments = [
            msgspec.structs.replace(stage, recompute=setting)
            for stage, setting in zip(alone, settings, strict=True)
        ]
        changed = msgspec.structs.replace(pipeline, segments=tuple(segments))
        yield msgspec.structs.replace(plan, pipelines=(changed,))


def _settings(layers: int) -> list[str]:
    some = [f"full:block:{n}" for n in range(1, layers)]
    return some + [f"full:uniform:{n}" for n in range(1, layers + 1)]


def _least(plans: list[Plan], stack: Stack) -> float:
    best = np.inf
    for start in range(0, len(plans), MANY):
        table = plans_of(plans[start : start + MANY])
        task = _task(plans[0])
        table = table.take(judge(table, task, rules_for("flagscale")).allowed)
        if not len(table):
            continue
        view = view_of(table, task, every_stage=True)
        memory = memory_of(view, stack)
        needed = memory.allocated_bytes * (1 + stack.slack_fraction) + memory.runtime_bytes
        usable = np.array([pool.gpu.usable_bytes for pool in task.cluster.pools])
        limit = usable[view.stages.of(table.gpu)] * (1 - MARGIN)
        fits = ((needed <= limit) | (view.stages.count == 0)).all(axis=(0, 1))
        steps = step_s(table, view.stages, stage_times(view, stack))
        best = min(best, float(np.where(fits, steps, np.inf).min()))
    return best
