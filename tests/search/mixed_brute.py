"""Mixed pipelines by brute force: every order, stage count, split, tp and recompute setting.

Shares the pricing of plans with the product, and nothing of its mixed search.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations, product

import msgspec
import numpy as np

from astra.cost.step import step_s
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.stack import Stack
from astra.hardware.topology import allowed_counts
from astra.memory.stage import memory_of
from astra.model.zoo import find_model
from astra.strategy.plan import Pipeline, Plan, Runtime, Segment
from astra.strategy.plans import Task, plans_of
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space, Workload, divisors, parse_set
from astra.strategy.stage_view import stage_view
from astra.timing.stage import stage_times

TYPES = ("h100", "a100-80g", "a100-40g", "l40s", "h200")
MARGIN = 0.05
MANY = 4096  # plans of one table


MODELS = ("llama-3-8b", "mistral-7b")
SEVERAL = ("deepseek-v2-lite", "gpt-oss-20b", "mixtral-8x7b")  # layers of several kinds, experts


def random_space(
    seed: int,
    tied: bool = False,
    meshes: bool = False,
    experts: bool = False,
    use_all: bool = False,
    megatron: bool = False,
    sharded: bool = False,
    turns: bool = False,
    hides: bool = False,
) -> Space:
    """A small question: two or three types, a few layers, memory that binds or does not.

    `meshes`: several dp and micro-batches to choose from, for each type its own. `megatron`: one
    cut for all stages, nothing recomputed. `sharded`: with plans whose parameters are. `turns`:
    the same with interleaved plans, and some ways to recompute. `hides`: some of them hide the
    traffic of their experts.
    """
    dice = random.Random(seed)
    types = dice.choice((2, 2, 3))
    layers = dice.choice((4, 5, 6) if types == 2 else (4, 5))
    if turns:
        layers = dice.choice((6, 7, 8, 9, 10) if types == 2 else (6, 7, 8))
    layers -= meshes + experts  # fewer, where each type can be cut in more ways
    model = msgspec.structs.replace(
        find_model(dice.choice(SEVERAL if experts else MODELS)),
        layers=layers,
        tied_embeddings=tied,
        parameters=None,
        active_parameters=None,
    )
    if model.window is not None:
        window = msgspec.structs.replace(model.window, layers=tuple(range(0, layers, 2)))
        model = msgspec.structs.replace(model, window=window)
    pools = []
    for name in sorted(dice.sample(TYPES, types)):
        gpu = _changed(find_gpu(name)[0], dice)
        pools.append(Pool(gpu=gpu, count=dice.choice((1, 2, 2, 4))))
    pools.sort(key=lambda pool: pool.gpu.name)
    cluster = Cluster(name="some", pools=tuple(pools))
    runtime: Runtime = "megatron" if megatron or turns else "flagscale"
    task = Task(model=model, cluster=cluster, runtime=runtime)
    dp, size = dice.choice((1, 1, 2)), dice.choice((1, 2, 4))
    batch = dp * size * dice.choice((1, 3, 8, 24, 24))
    tps = dice.choice(("1", "1,2"))
    texts = [f"dp={dp}", f"micro_batch={size}", "cp=1", f"tp={tps}", "sharding=optimizer"]
    if meshes:
        texts[:2] = ["dp=1,2", f"micro_batch={size},{2 * size}"]
        batch = 4 * size * dice.choice((1, 3, 6))
    if experts:
        texts += [f"ep={dice.choice(('1,2', '1', '2'))}", "etp=1"]
    if megatron:
        texts += ["recompute=none", "vpp=1"]
    if turns:
        batch = dp * size * dice.choice((2, 3, 4, 5, 6, 8, 12))
        some = dice.choice(("none", "none,full:block:1,full:uniform:1", "none,selective:mlp"))
        texts += [f"recompute={some}", f"overlap_ep={'false,true' if hides else 'false'}"]
    if sharded:
        texts[texts.index("sharding=optimizer")] = "sharding=optimizer,parameters"
    workload = Workload(task, batch, dice.choice((2048, 8192)), use_all=use_all)
    return Space(workload, parse_set(texts))


def _changed(gpu: Gpu, dice: random.Random) -> Gpu:
    """Less memory and slower links, by chance."""
    share = dice.choice((1.0, 0.6, 0.5, 0.4, 0.3))
    slow = dice.choice((1.0, 1.0, 0.1, 0.02))
    node = msgspec.structs.replace(gpu.node, nic_bytes_per_s=slow * gpu.node.nic_bytes_per_s)
    return msgspec.structs.replace(gpu, usable_bytes=share * gpu.usable_bytes, node=node)


def best_step_s(space: Space, stack: Stack, types: int = 1) -> tuple[float, int]:
    """The shortest step of all plans of two stages or more, over so many types at least, and how
    many were tried.
    """
    plans = (p for p in every_plan(space) if len({s.gpu for s in p.pipelines[0].segments}) >= types)
    return shortest_of(plans, lambda some: _shortest(some, stack))


def shortest_of(
    plans: Iterable[Plan], shortest: Callable[[list[Plan]], float]
) -> tuple[float, int]:
    """The shortest step of many plans, table by table, and how many there are."""
    best, tried, some = np.inf, 0, list[Plan]()
    for plan in plans:
        some.append(plan)
        if len(some) == MANY:
            best, tried, some = min(best, shortest(some)), tried + len(some), []
    if some:
        best, tried = min(best, shortest(some)), tried + len(some)
    return best, tried


def every_plan(space: Space) -> Iterator[Plan]:
    """Every way to lay stages along a pipeline, nothing recomputed."""
    cluster, workload = space.workload.task.cluster, space.workload
    sizes, dps = space.settings["micro_batch"], space.settings["dp"]
    for samples in {dp * size for dp, size in product(dps, sizes)}:
        if workload.global_batch % samples:
            continue
        for count in range(1, len(cluster.pools) + 1):
            for order in permutations(cluster.pools, count):
                for cuts in product(*(_cuts(pool, space, samples) for pool in order)):
                    yield from _of_cuts(space, order, cuts, samples)


Cut = tuple[int, int, int]  # tp, dp, ep


def _of_cuts(
    space: Space, order: tuple[Pool, ...], cuts: tuple[Cut, ...], samples: int
) -> Iterator[Plan]:
    model = space.workload.task.model
    counts = [
        [n // (tp * dp) for n in allowed_counts(pool) if n % (tp * dp) == 0]
        for pool, (tp, dp, _) in zip(order, cuts, strict=True)
    ]
    for stages in product(*counts):
        total = sum(stages)
        whole = all(
            n * tp * dp == allowed_counts(pool)[-1]
            for pool, (tp, dp, _), n in zip(order, cuts, stages, strict=True)
        )
        everything = whole and len(order) == len(space.workload.task.cluster.pools)
        if 2 <= total <= model.layers and (everything or not space.workload.use_all):
            if not _turns(space):
                for layers in _splits(model.layers, total):
                    yield _plan(space, order, cuts, stages, layers, samples)
                continue
            for text in space.settings["recompute"]:
                for layers in _splits(model.layers, total):
                    plan = _plan(space, order, cuts, stages, layers, samples)
                    yield _all_recompute(plan, text)
                hides = True in space.settings["overlap_ep"]
                yield from _interleaved(_all_recompute(plan, text), total, hides)


def _turns(space: Space) -> bool:
    return space.workload.task.runtime == "megatron" and space.allows("vpp", 2)


def _all_recompute(plan: Plan, text: str) -> Plan:
    (pipeline,) = plan.pipelines
    segments = [msgspec.structs.replace(each, recompute=text) for each in pipeline.segments]
    changed = msgspec.structs.replace(pipeline, segments=tuple(segments))
    return msgspec.structs.replace(plan, pipelines=(changed,))


def _interleaved(plan: Plan, stages: int, hides: bool) -> Iterator[Plan]:
    """Every number of chunks, sizes of the chunks of every stage, and lighter ends."""
    layers, (pipeline,) = plan.model.layers, plan.pipelines
    groups = [g for g in range(stages, pipeline.micro_batches + 1) if _accepted(g, stages, plan)]
    for vpp in range(2, layers // stages + 1) if groups else ():
        for sizes in product(range(1, layers // vpp + 1), repeat=stages):
            for first in (0, 1):
                last = vpp * sum(sizes) - first - layers
                if not 0 <= last < sizes[-1] or first == sizes[0]:
                    continue
                chunks = list(sizes) * vpp
                chunks[0], chunks[-1] = chunks[0] - first, chunks[-1] - last
                yield _chunked(plan, tuple(chunks), vpp, groups[0])
                if hides:
                    other = msgspec.structs.replace(plan, overlap_ep=True)
                    yield _chunked(other, tuple(chunks), vpp, groups[0])


def _accepted(group: int, stages: int, plan: Plan) -> bool:
    rest = plan.pipelines[0].micro_batches % group
    return rest == 0 or rest >= stages


def _chunked(plan: Plan, chunks: tuple[int, ...], vpp: int, group: int) -> Plan:
    (pipeline,) = plan.pipelines
    held = [sum(chunks[stage :: pipeline.stages]) for stage in range(pipeline.stages)]
    segments, at = [], 0
    for segment in pipeline.segments:
        own = tuple(held[at : at + segment.stages])
        segments.append(msgspec.structs.replace(segment, layers=own))
        at += segment.stages
    changed = msgspec.structs.replace(pipeline, segments=tuple(segments))
    return msgspec.structs.replace(
        plan,
        pipelines=(changed,),
        chunk_layers=chunks,
        vpp=vpp,
        schedule="interleaved",
        microbatch_group=group,
        overlap_p2p=True,
    )


def _cuts(pool: Pool, space: Space, samples: int) -> list[Cut]:
    reach = divisors(max(pool.gpu.link.domain_gpus, pool.gpu.node.gpus))
    found = []
    for tp, dp, ep in product(
        space.settings["tp"], space.settings["dp"], space.settings.get("ep", (1,))
    ):
        fed = samples % dp == 0 and samples // dp in space.settings["micro_batch"]
        if tp in reach and fed and tp * dp % ep == 0:
            found.append((tp, dp, ep))
    return found


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
    cuts: tuple[Cut, ...],
    stages: tuple[int, ...],
    layers: tuple[int, ...],
    samples: int,
) -> Plan:
    workload = space.workload
    segments, at = [], 0
    for pool, (tp, dp, ep), count in zip(order, cuts, stages, strict=True):
        own = layers[at : at + count]
        size = samples // dp
        segments.append(
            Segment(
                gpu=pool.gpu.name, stages=count, layers=own, tp=tp, dp=dp, ep=ep, micro_batch=size
            )
        )
        at += count
    dp, most = cuts[0][1], max(dp for _, dp, _ in cuts)
    pipeline = Pipeline(
        replicas=dp, micro_batches=workload.global_batch // samples, segments=tuple(segments)
    )
    hides = all(
        1 < tp <= pool.gpu.link.domain_gpus for pool, (tp, _, _) in zip(order, cuts, strict=True)
    )
    return Plan(
        model=workload.task.model,
        cluster=workload.task.cluster,
        runtime=workload.task.runtime,
        pipelines=(pipeline,),
        micro_batch=samples // dp,
        ep=cuts[0][2],
        global_batch=workload.global_batch,
        seq_len=workload.seq_len,
        shard_group=dp,
        sequence_parallel=max(tp for tp, _, _ in cuts) > 1,
        overlap_grad_reduce=most > 1,
        overlap_param_gather=most > 1,
        overlap_tp=hides,
        dispatcher="alltoall" if workload.task.model.moe else None,
    )


def _shortest(plans: list[Plan], stack: Stack) -> float:
    """With recompute where stages do not fit without: every choice of every such stage."""
    if not plans:
        return np.inf
    overfull = _overfull(plans, stack)
    fitting = [plan for plan, full in zip(plans, overfull, strict=True) if not full.any()]
    best = _least(fitting, stack)
    if plans[0].runtime == "megatron":
        return best
    for plan, full in zip(plans, overfull, strict=True):
        if full.any():
            best = min(best, _least(list(_recomputed(plan, full)), stack))
    return best


def _overfull(plans: list[Plan], stack: Stack) -> np.ndarray:
    """(plan, stage)"""
    view = stage_view(plans_of(plans), _task(plans[0]), every_stage=True)
    memory = memory_of(view, stack)
    needed = memory.allocated_bytes * (1 + stack.slack_fraction) + memory.runtime_bytes
    usable = np.array([pool.gpu.usable_bytes for pool in view.task.cluster.pools])
    limit = usable[view.stages.of(view.plans.gpu)] * (1 - MARGIN)
    return ((needed > limit) & (view.stages.count > 0))[0].T


def _task(plan: Plan) -> Task:
    return Task(model=plan.model, cluster=plan.cluster, runtime=plan.runtime, stack=plan.stack)


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
        table = table.take(check(table, task, rules_for(task.runtime)).allowed)
        if not len(table):
            continue
        view = stage_view(table, task, every_stage=True)
        memory = memory_of(view, stack)
        needed = memory.allocated_bytes * (1 + stack.slack_fraction) + memory.runtime_bytes
        usable = np.array([pool.gpu.usable_bytes for pool in task.cluster.pools])
        limit = usable[view.stages.of(table.gpu)] * (1 - MARGIN)
        fits = ((needed <= limit) | (view.stages.count == 0)).all(axis=(0, 1))
        steps = step_s(table, view.stages, stage_times(view, stack))
        best = min(best, float(np.where(fits, steps, np.inf).min()))
    return best


def fitting(plans: list[Plan], stack: Stack) -> list[Plan]:
    """Those that the rules accept and that fit."""
    found = []
    for start in range(0, len(plans), MANY):
        some = plans[start : start + MANY]
        table, task = plans_of(some), _task(plans[0])
        good = check(table, task, rules_for(task.runtime)).allowed
        rows = np.flatnonzero(good & ~np.asarray(_overfull(some, stack).any(axis=1)))
        found += [some[row] for row in rows.tolist()]
    return found
