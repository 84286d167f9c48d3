"""What would be with a faster network, more memory, another micro-batch or other GPUs."""

from typing import Any

from msgspec.structs import replace

from astra.explain.explained_plan import ExplainedPlan
from astra.explain.result import WhatIf
from astra.hardware.cluster import Cluster
from astra.hardware.slowest import RATES
from astra.hardware.topology import allowed_counts
from astra.notes import Note, NoteCode, note
from astra.search.query import Query
from astra.search.solve import solve

FEWER_GPUS = 0.9  # of those that the plan runs on
# What there is more of, in the figures of a GPU, its node and its link.
FIGURES = {
    NoteCode.MORE_NETWORK: ("node.nic_bytes_per_s",),
    NoteCode.MORE_LINK: ("link.bytes_per_s", "link.peer_bytes_per_s"),
    NoteCode.MORE_MEMORY_BANDWIDTH: ("memory_bytes_per_s",),
    NoteCode.MORE_COMPUTE: RATES,
    NoteCode.MORE_MEMORY: ("memory_bytes", "usable_bytes"),
}


def repriced(explained: ExplainedPlan) -> list[WhatIf]:
    """The same plan on other hardware."""
    plan = explained.plan
    changes = [
        note(NoteCode.MORE_NETWORK, factor=2),
        note(NoteCode.MORE_LINK, factor=2),
        note(NoteCode.MORE_MEMORY_BANDWIDTH, factor=1.5),
        note(NoteCode.MORE_COMPUTE, factor=1.5),
    ]
    if len(plan.gpus) > 1:  # the slower of two ends rules what passes between types
        changes += [note(NoteCode.MORE_NETWORK, factor=2, gpu=name) for name in plan.gpus]
    found = []
    for change in changes:
        other = explained.beside(replace(plan, cluster=with_more(plan.cluster, change)))
        found.append(WhatIf(change=change, how="repriced", plan=other, same_plan=True))
    return found


def with_more(cluster: Cluster, change: Note) -> Cluster:
    """The cluster with changed GPUs: of all types, or of the one that the change names."""
    pools = []
    for pool in cluster.pools:
        if change.facts.get("gpu") in (None, pool.gpu.name):
            for figure in FIGURES[change.code]:
                pool = replace(pool, gpu=_times(pool.gpu, figure, change.facts["factor"]))
        pools.append(pool)
    return replace(cluster, pools=tuple(pools))


def _times(thing: Any, figure: str, factor: float) -> Any:
    """With a figure so many times as large; what it has no units for stays without."""
    name, inside, rest = figure.partition(".")
    value = getattr(thing, name)
    if value is None:
        return thing
    return replace(thing, **{name: _times(value, rest, factor) if inside else factor * value})


def searched(explained: ExplainedPlan) -> list[WhatIf]:
    """The best plans of the same question with something different."""
    query, plan = explained.query, explained.plan
    queries = [] if explained.is_best else [(note(NoteCode.AS_IS), query)]
    roomy = note(NoteCode.MORE_MEMORY, factor=1.25)
    queries.append((roomy, query.on(with_more(query.cluster, roomy))))
    if len(query.cluster.pools) > 1:
        queries += _other_pools(query)
    else:
        for size in (plan.micro_batch // 2, plan.micro_batch * 2):
            if size and plan.global_batch % size == 0:
                narrowed = explained.narrowed({"micro_batch": (size,)})
                queries.append((note(NoteCode.OTHER_MICRO_BATCH, micro_batch=size), narrowed))
        (pool,) = query.cluster.pools
        most = FEWER_GPUS * sum(plan.gpus.values())
        fewer = max((count for count in allowed_counts(pool) if count <= most), default=None)
        if fewer:
            what = note(NoteCode.OTHER_COUNT, count=fewer, gpu=None)
            queries.append((what, query.on_pools((replace(pool, count=fewer),))))
    return [_best(what, other, explained) for what, other in queries]


def _other_pools(query: Query) -> list[tuple[Note, Query]]:
    """Of every type twice as many, and none."""
    found, pools = [], query.cluster.pools
    for row, pool in enumerate(pools):
        twice, name = replace(pool, count=2 * pool.count), pool.gpu.name
        before, behind = pools[:row], pools[row + 1 :]
        more = note(NoteCode.OTHER_COUNT, count=twice.count, gpu=name)
        found.append((more, query.on_pools((*before, twice, *behind))))
        none = note(NoteCode.WITHOUT_TYPE, gpu=name)
        found.append((none, query.on_pools((*before, *behind))))
    return found


def _best(what: Note, query: Query, explained: ExplainedPlan) -> WhatIf:
    explained.say(what)
    best = solve(query).best
    if best is None:
        return WhatIf(change=what, how="searched", plan=None, same_plan=False)
    same = replace(best.plan, cluster=explained.plan.cluster) == explained.plan
    return WhatIf(change=what, how="searched", plan=explained.beside(best.plan), same_plan=same)
