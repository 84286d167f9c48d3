"""What all makes of a plan have in common, and how each GPU type may be cut beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from astra.hardware.topology import allowed_counts
from astra.search.mixed.columns import DEGREES, Columns, plans_table
from astra.strategy.enumerate import recompute_module_sets
from astra.strategy.layer_splits import layer_splits
from astra.strategy.plans import Flags, Ints, Plans, code
from astra.strategy.recompute import Recompute
from astra.strategy.space import Space, divisors

SLOTS = 3  # first stages, middle stages, last stages


@dataclass(frozen=True, slots=True)
class Common:
    """One choice of all that holds for the whole plan."""

    micro_batch: int
    cp: int
    cp_comm_type: str
    sharding: str
    overlap_tp: bool
    vpp: int = 1
    offload: float = 0.0
    modules: int = 0  # bits of those that every stage of every make recomputes
    micro_batches: int = 1  # of a make by itself: any number of them
    overlap_ep: bool = False  # not in the space of makes

    @property
    def cut(self) -> "Common":
        """With what no degree depends on left out: recompute and offload."""
        return replace(self, offload=0.0, modules=0)


def commons_of(space: Space) -> list[Common]:
    """All choices, nothing recomputed or offloaded."""
    traffic, cps = space.values("cp_comm_type") or (), space.values("cp") or ()
    sizes, sharding = space.values("micro_batch") or (), space.values("sharding") or ()
    turns = space.settings.get("vpp") or range(1, space.workload.task.model.layers // 2 + 1)
    found = product(sizes, cps, traffic, sharding, (False, True), turns)
    return [Common(*each) for each in found if each[1] > 1 or each[2] == traffic[0]]


def selected(space: Space) -> list[int]:
    """Sets of modules that stages may recompute, 0 for none, by their bits."""
    asked = space.settings.get("recompute")
    if asked is not None:
        return list(dict.fromkeys(Recompute.parse(text).module_bits for text in asked))
    sets = [
        Recompute("selective", 0, some).module_bits
        for some in recompute_module_sets(space.workload)
    ]
    return [0, *sets]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Degrees:
    """Ways to cut one GPU type, each beside one common choice. (row,)"""

    common: Ints
    tp: Ints
    pp: Ints
    replicas: Ints
    ep: Ints
    etp: Ints

    def take(self, rows: Ints) -> "Degrees":
        return Degrees(
            self.common[rows],
            self.tp[rows],
            self.pp[rows],
            self.replicas[rows],
            self.ep[rows],
            self.etp[rows],
        )

    def __len__(self) -> int:
        return len(self.tp)


def degrees_of(space: Space, pool: int, commons: Sequence[Common]) -> Degrees:
    """All of one type that take GPUs as they are rented."""
    workload = space.workload
    gpu, batch = workload.task.cluster.pools[pool].gpu, workload.global_batch
    layers = workload.task.model.layers
    turned = {vpp: _turned(layers, vpp) for vpp in {each.vpp for each in commons}}
    grids = {cp: _grid(space, pool, cp) for cp in {each.cp for each in commons}}
    parts = []
    for row, common in enumerate(commons):
        tp, pp, replicas, ep, etp = grids[common.cp]
        good = common.micro_batch * replicas <= batch
        if common.overlap_tp:
            good &= (tp > 1) & (tp <= gpu.link.domain_gpus)
        if common.vpp > 1:
            good &= turned[common.vpp][pp]
        at = np.flatnonzero(good)
        parts.append((np.full(len(at), row), *(each[at] for each in (tp, pp, replicas, ep, etp))))
    return Degrees(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _grid(space: Space, pool: int, cp: int) -> tuple[Ints, ...]:
    """tp, stages, replicas, ep and etp whose GPUs can be rented."""
    workload = space.workload
    own = workload.task.cluster.pools[pool]
    reach = max(own.gpu.link.domain_gpus, own.gpu.node.gpus)
    cap = min(own.count, workload.task.cluster.max_gpus or own.count)
    counts = [count for count in allowed_counts(own) if count <= cap]
    counts = counts[-1:] if workload.use_all else counts
    tps = [tp for tp in space.settings.get("tp") or divisors(reach) if tp <= reach]
    stages = range(1, workload.task.model.layers + 1)
    moe = workload.task.model.moe is not None
    etps = space.settings.get("etp") or ((1, 0) if moe else (1,))  # 0 stands for tp
    experts = np.array(list(product(space.values("ep") or (), etps)), np.int64).reshape(-1, 2)
    columns = np.array(counts, np.int64), np.array(tps, np.int64), np.array(stages, np.int64)
    count, tp, pp = (each.ravel() for each in np.meshgrid(*columns, indexing="ij"))
    at = np.flatnonzero(count % (tp * cp * pp) == 0)
    row = np.repeat(at, len(experts))
    ep, etp = np.tile(experts, (len(at), 1)).T
    count, tp, pp = count[row], tp[row], pp[row]
    replicas = count // (tp * cp * pp)
    good = (etp != 0) | (tp > 1)
    etp = np.where(etp == 0, tp, etp)
    good &= tp * cp * replicas % (ep * etp) == 0
    if "dp" in space.settings:
        good &= np.isin(replicas, space.settings["dp"])
    return tp[good], pp[good], replicas[good], ep[good], etp[good]


def _turned(layers: int, vpp: int) -> Flags:
    """Numbers of stages for which all stages can be cut into so many chunks."""
    found = np.zeros(layers + 1, np.bool_)
    for pp in range(2, layers // vpp + 1):
        found[pp] = bool(chunked(layers, pp, vpp))
    return found


@lru_cache(maxsize=4096)
def chunked(layers: int, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Ways to share out layers that cut every stage into so many chunks."""
    return tuple(s for s in layer_splits(layers, pp) if all(held % vpp == 0 for held in s[1::2]))


def layouts_of(
    space: Space, pool: int, commons: Sequence[Common], degrees: Degrees, every: bool
) -> tuple[Plans, Ints]:
    """Plans of one pipeline, with every way to share out the layers or the even one, and the
    degrees that each is of. A make has as few micro-batches here as it can have.
    """
    layers_in_all = space.workload.task.model.layers
    turns = np.array([common.vpp for common in commons], np.int64)
    known: dict[tuple[int, int], Ints] = {}
    for pp, vpp in {*zip(degrees.pp.tolist(), turns[degrees.common].tolist(), strict=True)}:
        ways = np.array(chunked(layers_in_all, pp, vpp), np.int64).reshape(-1, 2 * SLOTS)
        known[pp, vpp] = ways if every else ways[:1]
    parts = [
        known[key] for key in zip(degrees.pp.tolist(), turns[degrees.common].tolist(), strict=True)
    ]
    counts = np.array([len(part) for part in parts], np.int64)
    row = np.repeat(np.arange(len(degrees)), counts)
    flat = np.concatenate(parts) if parts else np.zeros((0, 2 * SLOTS), np.int64)
    degrees = degrees.take(row)
    stages, layers = flat[:, 0::2].T, flat[:, 1::2].T
    size = np.array([common.micro_batch for common in commons], np.int64)[degrees.common]
    own = {
        "tp": degrees.tp,
        "dp": degrees.replicas,
        "segment_ep": degrees.ep,
        "segment_etp": degrees.etp,
        "segment_micro_batch": size,
    }
    used, zeros = stages > 0, np.zeros_like(stages)
    slots: Columns = {name: np.where(used, own[name], 1) for name in DEGREES}
    slots |= {"gpu": np.where(used, pool, 0), "stages": stages, "layers": layers}
    slots |= dict.fromkeys(("recompute", "recompute_layers", "recompute_modules"), zeros)
    table = plans_table(space.workload, commons, degrees.common, slots, degrees.tp > 1)
    vpp = turns[degrees.common]
    several = vpp > 1
    table = replace(
        table,
        vpp=vpp,
        schedule=several.astype(np.int8),
        overlap_p2p=several,
        micro_batches=np.where(several, degrees.pp, 1)[np.newaxis],
    )
    return table, row


def whole_layers(space: Space, most: int) -> list[tuple[int, int]]:
    """Codes and numbers of layers that a stage of so many may recompute whole."""
    asked = space.settings.get("recompute")
    if asked is not None:
        some = [Recompute.parse(text) for text in asked]
        some = [each for each in some if each.mode != "selective" and each.layers <= most]
        return [(code("recompute", each.mode), each.layers) for each in some]
    found = [(code("recompute", "none"), 0)]
    found += [(code("recompute", "full:block"), number) for number in range(1, most)]
    found += [(code("recompute", "full:uniform"), number) for number in range(1, most + 1)]
    return found
