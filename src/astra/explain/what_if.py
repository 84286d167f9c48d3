"""What would be with a faster network, more memory, another micro-batch or other GPUs."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from astra.explain.explained_plan import ExplainedPlan, difference
from astra.explain.result import WhatIf
from astra.hardware.cluster import Cluster, Gpu
from astra.hardware.topology import allowed_counts
from astra.notes import Note, NoteCode, note
from astra.search.query import Query
from astra.search.solve import solve

RATES = tuple(f"{name}_flops_per_s" for name in ("bf16", "fp16", "tf32", "fp8", "fp4", "fp32"))
FEWER_GPUS = 0.9  # of those that the plan runs on
Change = Callable[[Gpu], Gpu]
Thing = TypeVar("Thing", bound=msgspec.Struct)


def repriced(explained: ExplainedPlan) -> list[WhatIf]:
    """The same plan on other hardware."""
    bandwidth = note(NoteCode.MORE_MEMORY_BANDWIDTH, factor=1.5)
    changes: list[tuple[Note, Change]] = [
        (note(NoteCode.MORE_NETWORK, factor=2), _faster_nic),
        (note(NoteCode.MORE_LINK, factor=2), _faster_link),
        (bandwidth, lambda gpu: _times(gpu, 1.5, "memory_bytes_per_s")),
        (note(NoteCode.MORE_COMPUTE, factor=1.5), lambda gpu: _times(gpu, 1.5, *RATES)),
    ]
    for name in explained.plan.gpus if len(explained.plan.gpus) > 1 else ():
        changes.append((note(NoteCode.MORE_NETWORK, factor=2, gpu=name), _nic_of(name)))
    found = []
    for what, change in changes:
        cluster = _on_gpus(explained.plan.cluster, change)
        plan = msgspec.structs.replace(explained.plan, cluster=cluster)
        other = difference(plan, explained)
        found.append(WhatIf(change=what, how="repriced", plan=other, same_plan=True))
    return found


def _nic_of(name: str) -> Change:
    """A faster network on one type: the slower of two ends rules what passes between types."""
    return lambda gpu: _faster_nic(gpu) if gpu.name == name else gpu


def _times(thing: Thing, factor: float, *figures: str) -> Thing:
    """With these figures so many times as large; those that nobody knows or that are 0 stay."""
    known = {name: getattr(thing, name) for name in figures}
    larger = {name: factor * figure for name, figure in known.items() if figure}
    return msgspec.structs.replace(thing, **larger)


def _faster_nic(gpu: Gpu) -> Gpu:
    return msgspec.structs.replace(gpu, node=_times(gpu.node, 2.0, "nic_bytes_per_s"))


def _faster_link(gpu: Gpu) -> Gpu:
    link = _times(gpu.link, 2.0, "bytes_per_s", "peer_bytes_per_s")
    return msgspec.structs.replace(gpu, link=link)


def _on_gpus(cluster: Cluster, change: Change) -> Cluster:
    """The cluster with changed GPUs."""
    pools = [msgspec.structs.replace(pool, gpu=change(pool.gpu)) for pool in cluster.pools]
    return msgspec.structs.replace(cluster, pools=tuple(pools))


def searched(explained: ExplainedPlan) -> list[WhatIf]:
    """The best plans of the same question with something different."""
    query, plan = explained.query, explained.plan
    queries: list[tuple[Note, Query]] = []
    if not explained.is_best:
        queries.append((note(NoteCode.AS_IS), query))
    roomy = ("memory_bytes", "usable_bytes")
    larger = _on_gpus(query.cluster, lambda gpu: _times(gpu, 1.25, *roomy))
    queries.append((note(NoteCode.MORE_MEMORY, factor=1.25), query.on(larger)))
    if len(query.cluster.pools) > 1:
        queries += _other_pools(query)
    else:
        for size in (plan.micro_batch // 2, plan.micro_batch * 2):
            if size and plan.global_batch % size == 0:
                narrowed = explained.narrowed([f"micro_batch={size}"])
                queries.append((note(NoteCode.OTHER_MICRO_BATCH, micro_batch=size), narrowed))
        (pool,) = query.cluster.pools
        used = sum(plan.gpus.values())
        counts = [count for count in allowed_counts(pool) if count <= FEWER_GPUS * used]
        if counts:
            what = note(NoteCode.OTHER_COUNT, count=max(counts), gpu=None)
            queries.append(
                (what, query.on_pools((msgspec.structs.replace(pool, count=max(counts)),)))
            )
    return [_best(what, other, explained) for what, other in queries]


def _other_pools(query: Query) -> list[tuple[Note, Query]]:
    """Of every type twice as many, and none."""
    found, pools = [], query.cluster.pools
    for row, pool in enumerate(pools):
        twice, name = msgspec.structs.replace(pool, count=2 * pool.count), pool.gpu.name
        before, behind = pools[:row], pools[row + 1 :]
        more = note(NoteCode.OTHER_COUNT, count=twice.count, gpu=name)
        found.append((more, query.on_pools((*before, twice, *behind))))
        none = note(NoteCode.WITHOUT_TYPE, gpu=name)
        found.append((none, query.on_pools((*before, *behind))))
    return found


def _best(what: Note, query: Query, explained: ExplainedPlan) -> WhatIf:
    explained.say(what)
    best = solve(query).best
    cluster = explained.plan.cluster
    return WhatIf(
        change=what,
        how="searched",
        plan=difference(best.plan, explained) if best else None,
        same_plan=best is not None
        and msgspec.structs.replace(best.plan, cluster=cluster) == explained.plan,
    )
