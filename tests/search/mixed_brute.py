"""Pipelines over two GPU types or more by brute force: every order, stage count, split, tp, number
of chunks and recompute setting.

Shares the pricing of plans with the product, and nothing of its search over several types.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
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
from astra.strategy.enumerate import recompute_module_sets
from astra.strategy.plan import Pipeline, Plan, Runtime, Segment
from astra.strategy.plans import SLOT_COLUMNS, UNUSED, Flags, Ints, Plans, Task, code, plans_of
from astra.strategy.recompute import Recompute
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
    any_recompute: bool = False,
) -> Space:
    """A small question: two or three types, a few layers, memory that binds or does not.

    `meshes`: several dp and micro-batches to choose from, for each type its own. `megatron`: one
    cut for all stages, nothing recomputed. `sharded`: with plans whose parameters are. `turns`:
    the same with interleaved plans, and some ways to recompute. `hides`: some of them hide the
    traffic of their experts. `any_recompute`: Megatron-LM may recompute whatever it can.
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
        texts += ["vpp=1"] if any_recompute else ["recompute=none", "vpp=1"]
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


def best_step_s(
    space: Space, stack: Stack, wanted: Callable[[Plan], bool] = lambda _: True
) -> tuple[float, int]:
    """The shortest step of all wanted plans over two types or more, and how many were tried, what
    they recompute apart.
    """
    plans = (plan for plan in every_plan(space) if len(plan.gpus) > 1 and wanted(plan))
    return shortest_of(plans, lambda some: _shortest(some, space, stack))


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
            for sharding in space.settings["sharding"]:
                for layers in _splits(model.layers, total):
                    plan = _plan(space, order, cuts, stages, layers, samples)
                    plan = msgspec.structs.replace(plan, sharding=sharding)
                    yield plan
                if _turns(space):
                    yield from _interleaved(plan, total, True in space.settings["overlap_ep"])


def _turns(space: Space) -> bool:
    return space.workload.task.runtime == "megatron" and space.allows("vpp", 2)


def _interleaved(plan: Plan, stages: int, hides: bool) -> Iterator[Plan]:
    """Every number of chunks, sizes of the chunks of every stage, and lighter ends."""
    layers, (pipeline,) = plan.model.layers, plan.pipelines
    groups = [g for g in range(stages, pipeline.micro_batches + 1) if _accepted(g, stages, plan)]
    for vpp in range(2, layers // stages + 1) if groups else ():
        for chunks in every_chunking(layers, stages, vpp):
            yield _chunked(plan, chunks, vpp, groups[0])
            if hides:
                other = msgspec.structs.replace(plan, overlap_ep=True)
                yield _chunked(other, chunks, vpp, groups[0])


def every_chunking(layers: int, stages: int, vpp: int) -> Iterator[tuple[int, ...]]:
    """One size for all chunks of a stage; the first chunk may lack a layer, the last one any
    number. Layers of all chunks, the first chunk of every stage first.
    """
    for sizes in product(range(1, layers // vpp + 1), repeat=stages - 1):
        for first in (0, 1) if sizes[0] > 1 else (0,):
            for size in range(1, layers + 1):
                lacks = vpp * (sum(sizes) + size) - first - layers
                if 0 <= lacks < size:
                    chunks = [*sizes, size] * vpp
                    chunks[0], chunks[-1] = chunks[0] - first, size - lacks
                    yield tuple(chunks)


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


def _shortest(plans: list[Plan], space: Space, stack: Stack) -> float:
    """With every recompute setting that the question allows."""
    task = space.workload.task
    table = _stage_by_stage(plans_of(plans))
    table = table.take(check(table, task, rules_for(task.runtime)).allowed)
    if not len(table):
        return np.inf
    asked = space.settings.get("recompute")
    if asked is not None or task.runtime == "megatron":
        texts = asked or _one_for_all(space)
        return min(_least_s(_recomputing(table, text), task, stack) for text in texts)
    # Recompute shortens no step: plans that fit without are not tried with any.
    whole = np.logical_and.reduce(_fitting_stages(table, task, stack))
    best = _least_s(table.take(whole), task, stack)
    overfull = table.take(~whole)
    for modules in recompute_module_sets(space):
        text = str(Recompute("selective", 0, modules))
        best = min(best, _least_s(_recomputing(overfull, text), task, stack))
    return min(best, _least_by_stage_s(overfull, task, stack))


def _one_for_all(space: Space) -> list[str]:
    """What Megatron-LM may recompute where nothing is asked for: blocks of powers of two."""
    sets = [Recompute("selective", 0, each) for each in recompute_module_sets(space)]
    layers = space.workload.task.model.layers
    blocks = [f"full:block:{n}" for n in (1, 2, 4, 8, 16) if n < layers]
    return ["none", "full:uniform:1", *blocks, *map(str, sets)]


def _stage_by_stage(table: Plans) -> Plans:
    """A slot for every stage."""
    ends = np.cumsum(table.stages[0], axis=0)  # (slot, plan)
    stage = np.arange(int(ends[-1].max()))[:, np.newaxis]
    used = stage < ends[-1]
    slot = np.where(used, (ends <= stage[:, np.newaxis]).sum(axis=1), 0)
    columns = table.columns()
    for name in SLOT_COLUMNS:
        own = np.take_along_axis(columns[name][0], slot, axis=0)
        own = np.ones_like(own) if name == "stages" else own
        columns[name] = np.where(used, own, UNUSED.get(name, 1)).astype(own.dtype)[np.newaxis]
    return Plans(**columns, chunk_layers=table.chunk_layers)


def _recomputing(table: Plans, text: str) -> Plans:
    """All stages alike."""
    setting, shape = Recompute.parse(text), table.recompute.shape
    return replace(
        table,
        recompute=np.full(shape, code("recompute", setting.mode), np.int8),
        recompute_layers=np.full(shape, setting.layers),
        recompute_modules=np.full(shape, setting.module_bits),
    )


def _fitting_stages(table: Plans, task: Task, stack: Stack) -> Flags:
    """(stage, plan); stages that a plan does not have fit."""
    view = stage_view(table, task, every_stage=True)
    memory = memory_of(view, stack)
    needed = memory.allocated_bytes * (1 + stack.slack_fraction) + memory.runtime_bytes
    usable = np.array([pool.gpu.usable_bytes for pool in task.cluster.pools])
    limit = usable[view.stages.of(table.gpu)] * (1 - MARGIN)
    fits = np.ones(table.layers.shape[1:], np.bool_)
    own = ((needed <= limit) | (view.stages.count == 0))[0]
    fits[: len(own)] = own
    return fits


def _least_by_stage_s(table: Plans, task: Task, stack: Stack) -> float:
    """Stages that are overfull recompute whole layers, each in every way that makes it fit."""
    if not len(table):
        return np.inf
    layers = table.layers[0]
    plain = _fitting_stages(table, task, stack)
    settings, can = [("none", 0)], [plain]
    for mode, number in product(("full:block", "full:uniform"), range(1, int(layers.max()) + 1)):
        fits = _fitting_stages(_recomputing(table, f"{mode}:{number}"), task, stack)
        has = layers > number if mode == "full:block" else layers >= number
        settings.append((mode, number))
        can.append(fits & has & ~plain)
    rows, chosen = list[Ints](), list[Ints]()
    for row, every in enumerate(np.moveaxis(np.stack(can), 2, 0)):  # (setting, stage)
        choices = [np.flatnonzero(own) for own in every.T]
        product_of = np.stack([each.reshape(-1) for each in np.meshgrid(*choices, indexing="ij")])
        rows.append(np.full(product_of.shape[1], row))
        chosen.append(product_of)
    which, setting = np.concatenate(rows), np.concatenate(chosen, axis=1)[np.newaxis]
    modes = np.array([code("recompute", mode) for mode, _ in settings], np.int8)
    numbers = np.array([number for _, number in settings])
    best = np.inf
    for start in range(0, len(which), MANY):
        some = slice(start, start + MANY)
        again = replace(
            table.take(which[some]),
            recompute=modes[setting[..., some]],
            recompute_layers=numbers[setting[..., some]],
        )
        best = min(best, _least_s(again, task, stack))
    return best


def _least_s(table: Plans, task: Task, stack: Stack) -> float:
    """Of those that the rules accept and that fit."""
    if len(table):
        table = table.take(check(table, task, rules_for(task.runtime)).allowed)
    if len(table):
        table = table.take(np.logical_and.reduce(_fitting_stages(table, task, stack)))
    if not len(table):
        return np.inf
    view = stage_view(table, task, every_stage=True)
    return float(step_s(table, view.stages, stage_times(view, stack)).min())
