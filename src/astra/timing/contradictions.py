"""Predictions that contradict the hardware: of two GPUs of one maker the one that has no less of
anything takes longer, or one link has very different speeds. The data says so, no list.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import ge

import numpy as np
from msgspec.structs import replace

from astra.hardware.catalogue import find_gpu, gpu_names
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.slowest import flops_per_s
from astra.hardware.stack import Stack
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.stage_view import stage_view
from astra.timing.collectives import all_gather_s, all_to_all_s, reduce_scatter_s
from astra.timing.device import dense_peak
from astra.timing.stage import stage_times

TRAFFIC = ("tensor", "expert", "data")
SAME_LINK_RATIO = 2.5  # times of one link that differ by more contradict each other
LEAST_RATIO = 1.01  # closer ones are taken for equal
NEAR_RANKS = 8  # side by side, or as many as both can have there
NODES = 8
NEAR_BYTES = 64.0 * 2**20
DATA_BYTES = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Seconds of the same work on two GPUs that the hardware does not explain."""

    work: str  # kernels, or traffic: tensor, expert or data
    slower: str
    faster: str
    ratio: float  # the slower one's seconds over the faster one's
    same_link: bool  # they share the link; else the slower one has no less of anything


def has_no_less(gpu: Gpu, other: Gpu, precision: str) -> bool:
    """Whether a GPU has at least what another of its maker has: rates, memory, links, network.

    Both must have units for the precision.
    """
    related = gpu.vendor is not None and gpu.vendor == other.vendor
    related = related and min(flops_per_s(gpu, precision), flops_per_s(other, precision)) > 0
    return related and all(map(ge, _figures(gpu, precision), _figures(other, precision)))


def _figures(gpu: Gpu, precision: str) -> tuple[float, ...]:
    link, node = gpu.link, gpu.node
    return (
        dense_peak(gpu, precision),
        dense_peak(gpu, "bf16"),
        gpu.memory_bytes_per_s,
        gpu.memory_bytes,
        link.bytes_per_s,
        link.peer_bytes_per_s,
        link.domain_gpus,
        _near_gpus(gpu),
        node.nic_bytes_per_s / (node.gpus / node.nics if node.nics else 1),
        node.pcie_bytes_per_s,
    )


def _near_gpus(gpu: Gpu) -> int:
    """Those that it reaches without the network."""
    return max(gpu.link.domain_gpus, gpu.node.gpus)


def relatives_of(gpu: Gpu) -> tuple[Gpu, ...]:
    """The other GPUs of its maker and generation in the catalogue."""
    return tuple(
        other
        for other in map(_known, gpu_names())
        if other.vendor == gpu.vendor and other.name != gpu.name and _age(other) == _age(gpu)
    )


def _known(name: str) -> Gpu:
    return find_gpu(name)[0]


def _age(gpu: Gpu) -> str | None:
    """The major compute capability; of other makers the architecture."""
    major, dot, _ = (gpu.compute_capability or "").partition(".")
    return major if dot else gpu.architecture


def contradictions(
    plan: Plan, stack: Stack, gpus: Iterable[Gpu], others: Iterable[Gpu]
) -> list[Contradiction]:
    """All that the kernels of a plan and traffic of its kinds show between GPUs of either list."""
    pairs = {frozenset((gpu.name, other.name)): (gpu, other) for gpu in gpus for other in others}
    found = []
    for first, second in (pair for pair in pairs.values() if pair[0].name != pair[1].name):
        for better, worse in ((first, second), (second, first)):
            if has_no_less(better, worse, plan.precision):
                times = _kernels_s(plan, better, stack), _kernels_s(plan, worse, stack)
                found += _slower("kernels", better, worse, times)
        found += _traffic_contradictions(first, second, stack, plan.precision)
    has_experts = plan.model.moe is not None
    return [each for each in found if has_experts or each.work != "expert"]


def _traffic_contradictions(
    first: Gpu, second: Gpu, stack: Stack, precision: str
) -> list[Contradiction]:
    found = []
    ranks = min(NEAR_RANKS, _near_gpus(first), _near_gpus(second))
    for work in TRAFFIC:
        times = {gpu.name: _traffic_s(gpu, stack, ranks)[work] for gpu in (first, second)}
        slow, fast = sorted((first, second), key=lambda gpu: -times[gpu.name])
        both = times[slow.name], times[fast.name]
        if has_no_less(slow, fast, precision):
            found += _slower(work, slow, fast, both)
        elif _same_link(first, second, work) and both[0] > SAME_LINK_RATIO * both[1]:
            found += _slower(work, slow, fast, both, same_link=True)
    return found


def _slower(
    work: str, slow: Gpu, fast: Gpu, times: tuple[float, float], *, same_link: bool = False
) -> list[Contradiction]:
    ratio = times[0] / times[1]
    if ratio < LEAST_RATIO:
        return []
    names = {"slower": slow.name, "faster": fast.name}
    return [Contradiction(work=work, ratio=ratio, same_link=same_link, **names)]


def _same_link(first: Gpu, second: Gpu, work: str) -> bool:
    """Whether both send over a link of one kind and speed, between nodes with equal NICs too."""
    links = {
        (gpu.link.kind, gpu.link.bytes_per_s, gpu.link.peer_bytes_per_s) for gpu in (first, second)
    }
    nics = {gpu.node.nic_bytes_per_s for gpu in (first, second)}
    return len(links) == 1 and (work != "data" or len(nics) == 1)


@lru_cache(maxsize=512)
def _traffic_s(gpu: Gpu, stack: Stack, ranks: int) -> dict[str, float]:
    """Exchanges of ranks side by side, and of eight nodes, with a stack's factors. [s]"""
    own = stack.on(gpu)
    near = (ranks, min(ranks, gpu.link.domain_gpus), gpu, min(ranks, gpu.node.gpus))
    gathered_s = all_gather_s(NEAR_BYTES, *near) + reduce_scatter_s(NEAR_BYTES, *near)
    hosted = gpu.link.domain_gpus < min(ranks, gpu.node.gpus)
    seconds = {
        "tensor": gathered_s * (1.0 if hosted else own.tensor_factor),
        "expert": all_to_all_s(NEAR_BYTES, *near) * own.dispatch_factor,
        "data": reduce_scatter_s(DATA_BYTES, NODES, 1.0, gpu, 1.0)
        * (own.data_factor if gpu.node.nics is None else 1.0),
    }
    return {
        name: own.communication_factor * float(np.max(value)) for name, value in seconds.items()
    }


@lru_cache(maxsize=256)
def _kernels_s(plan: Plan, gpu: Gpu, stack: Stack) -> float:
    """Kernels of one micro-batch, as if the whole plan lay on this GPU. [s]"""
    moved = on_type(plan, gpu)
    times = stage_times(stage_view(plans_of([moved]), task_of(moved)), stack)
    return float((times.part("forward_s") + times.part("backward_s")).sum())


def on_type(plan: Plan, gpu: Gpu) -> Plan:
    """The same plan with another GPU in every place."""
    pipelines = tuple(
        replace(
            pipeline,
            segments=tuple(replace(segment, gpu=gpu.name) for segment in pipeline.segments),
        )
        for pipeline in plan.pipelines
    )
    pool = Pool(gpu=gpu, count=sum(plan.gpus.values()))
    return replace(plan, pipelines=pipelines, cluster=Cluster(name=gpu.name, pools=(pool,)))
