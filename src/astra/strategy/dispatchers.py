"""Dispatchers that are libraries of their own: where they run, and which one a plan takes.

None needs more memory or takes longer than a plain all-to-all, so a plan takes the first that its
GPUs and its runtime have; no search multiplies them out.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from astra.files import Source, convert, parse_toml
from astra.hardware.cluster import Gpu
from astra.strategy.plans import Codes, Flags, Ints, code
from astra.strategy.space import Workload

FILE = Path(__file__).parent.parent / "data" / "dispatchers.toml"


class DispatchLibrary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dispatcher, as the file has it."""

    library: str
    module: str  # that Python must find
    runtimes: tuple[str, ...]
    precisions: tuple[str, ...]
    compute_capabilities: tuple[str, ...]
    node_gpus: int | None = None  # None: any node whose GPUs are joined
    group_sizes: tuple[int, ...] = ()  # etp x ep; none: any
    sized_runtimes: tuple[str, ...] = ()  # where these sizes hold
    source: Source

    def runs_on(self, gpu: Gpu) -> bool:
        """Whether it is known to run there: on these chips, the GPUs of a node joined by links."""
        joined = gpu.link.domain_gpus >= gpu.node.gpus > 1
        node = self.node_gpus in (None, gpu.node.gpus)
        return gpu.compute_capability in self.compute_capabilities and joined and node


@cache
def dispatch_libraries() -> dict[str, DispatchLibrary]:
    """By the dispatcher's word."""
    document = parse_toml(FILE.read_text(encoding="utf-8"), FILE.name)
    return convert(document, dict[str, DispatchLibrary], FILE.name)


def available(runtime: str, gpus: Iterable[Gpu], precision: str) -> tuple[str, ...]:
    """What all these types and the runtime have, the fastest first.

    HybridEP pads for fp8 on its way; in bf16 both take as long, and DeepEP is in more frameworks.
    """
    order = ("hybridep", "deepep") if precision == "fp8" else ("deepep", "hybridep")
    types, every = tuple(gpus), dispatch_libraries()
    return tuple(
        name
        for name in order
        if runtime in every[name].runtimes
        and precision in every[name].precisions
        and all(every[name].runs_on(gpu) for gpu in types)
    )


def dispatchers_for(workload: Workload, ep: Ints, etp: Ints) -> Codes:
    """Codes of the dispatcher of each plan with these degrees: the fastest that is available.

    Replica groups of several types keep to the all-to-all that all of them have.
    """
    if workload.task.model.moe is None:
        return np.full(ep.shape, code("dispatcher", None), np.int8)
    task, found = workload.task, np.full(ep.shape, code("dispatcher", "alltoall"), np.int8)
    types = workload.gpu_types or tuple(pool.gpu for pool in task.cluster.pools)
    names = () if workload.part_of_batch else available(task.runtime, types, workload.precision)
    for name in reversed(names):
        served = (ep > 1) & serves(name, task.runtime, ep * etp)
        found = np.where(served, np.int8(code("dispatcher", name)), found)
    return found


def serves(name: str, runtime: str, group: Ints) -> Flags:
    """Whether a library has groups of these sizes in a runtime."""
    library = dispatch_libraries()[name]
    return np.isin(group, library.group_sizes) | (runtime not in library.sized_runtimes)


def usual_dispatcher(runtime: str, gpus: Iterable[Gpu], precision: str, ep: int, etp: int) -> str:
    """What a search would give a plan of these degrees."""
    names = available(runtime, gpus, precision) if ep > 1 else ()
    fits = (name for name in names if serves(name, runtime, np.array(ep * etp)))
    return next(fits, "alltoall")
