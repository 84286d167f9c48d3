"""What is global to a mixed pipeline (a cell), and how each GPU type may be cut in it (a kind)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from astra.hardware.cluster import Pool
from astra.hardware.topology import allowed_counts, even_share
from astra.search.mixed.columns import one_stage
from astra.strategy.enumerate import recompute_module_sets
from astra.strategy.recompute import Recompute
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space, divisors

OF_CUT = ("samples", "cp", "cp_comm_type", "sharding", "overlap_tp", "alike", "vpp", "overlap_ep")
PER_STAGE = Recompute()  # each stage recomputes whole layers, as many as it must
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alike:
    """What all segments have in common beyond the cell, where the runtime or the user wants so."""

    tp: int | None = None  # None: each segment has its own
    dp: int | None = None
    ep: int | None = None
    etp: int | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One choice of all that holds for the whole plan."""

    samples: int  # of one micro-batch of all replicas: dp x micro-batch of every segment
    micro_batches: int
    cp: int
    cp_comm_type: str
    sharding: str
    overlap_tp: bool
    offload: float
    recompute: Recompute  # one for all stages, or PER_STAGE
    alike: Alike = Alike()
    vpp: int = 1
    overlap_ep: bool = False  # with vpp alone

    def doing(self, again: Recompute) -> "Cell":
        """The same with another setting of recompute; there are many, so none is asked by name."""
        traffic = self.cp, self.cp_comm_type, self.sharding, self.overlap_tp, self.offload
        own = again, self.alike, self.vpp, self.overlap_ep
        return Cell(self.samples, self.micro_batches, *traffic, *own)


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to cut the stages of one GPU type.

    Where the share of a node or link domain that a job takes depends on how many GPUs it takes,
    each share is a kind of its own.
    """

    pool: int
    tp: int
    dp: int
    ep: int
    etp: int
    micro_batch: int
    stages: Counts  # how many of them a plan may have

    @property
    def most(self) -> int:
        return self.stages[-1]


def cells_of(space: Space) -> list[Cell]:
    """All cells of the space."""
    modes = modes_of(space)
    return [cell.doing(mode) for cell in families_of(space) for mode in modes]


def families_of(space: Space) -> list[Cell]:
    """What cells have in common that differ in recompute alone: one that leaves it open."""
    workload, found = space.workload, []
    batch = workload.global_batch
    dps = space.settings.get("dp") or divisors(batch)
    sizes = space.values("micro_batch") or ()
    traffic = space.values("cp_comm_type") or ()
    sharding = space.values("sharding") or ()
    own = space.settings.get("mesh_dp", (True,))
    pairs = [(dp, size) for dp, size in product(dps, sizes) if batch % (dp * size) == 0]
    meshes: list[tuple[int, Alike]] = []
    if workload.task.runtime == "megatron":
        for (dp, size), alike in product(pairs, _one_cut(space)):
            meshes.append((dp * size, replace(alike, dp=dp)))
    elif False in own:
        eps = space.values("ep") or ()
        meshes = [(dp * size, Alike(dp=dp, ep=ep)) for (dp, size), ep in product(pairs, eps)]
    if workload.task.runtime != "megatron" and True in own:
        meshes += [(dp * size, Alike()) for dp, size in pairs]
    dims = product(
        dict.fromkeys(meshes),
        space.values("cp") or (),
        traffic,
        sharding,
        (False, True),
        space.settings.get("offload_optimizer_fraction", (0.0,)),
    )
    for (samples, alike), cp, comm, shards, overlap, offload in dims:
        once = cp > 1 or comm == traffic[0]
        once &= samples * cp > 1 or shards == sharding[0]
        if once:
            count = batch // samples
            own = shards, overlap, offload, PER_STAGE, alike
            found.append(Cell(samples, count, cp, comm, *own))
    return found


def _one_cut(space: Space) -> list[Alike]:
    """Megatron-LM: one tp, ep and etp for all stages."""
    pools = space.workload.task.cluster.pools
    reach = [divisors(max(pool.gpu.link.domain_gpus, pool.gpu.node.gpus)) for pool in pools]
    tps = space.settings.get("tp") or sorted({tp for each in reach for tp in each})
    moe, found = space.workload.task.model.moe is not None, []
    for tp, ep in product(tps, space.values("ep") or ()):
        etps = space.settings.get("etp") or ((1, tp) if moe else (1,))
        found += [Alike(tp=tp, ep=ep, etp=etp) for etp in dict.fromkeys(etps)]
    return found


def modes_of(space: Space) -> list[Recompute]:
    """Whole layers stage by stage, or one set of modules for all stages.

    Megatron-LM has one setting for all stages: then whole layers are all of them, or a number
    of each stage that is a power of two.
    """
    asked = space.settings.get("recompute")
    if asked is not None:
        return [Recompute.parse(text) for text in asked]
    found = [
        PER_STAGE,
        *(Recompute("selective", 0, some) for some in recompute_module_sets(space.workload)),
    ]
    if space.workload.task.runtime == "megatron":
        layers, count = space.workload.task.model.layers, 1
        found.append(Recompute("full:uniform", 1, ()))
        while count < layers:
            found.append(Recompute("full:block", count, ()))
            count *= 2
    return found


def by_stage(cell: Cell, space: Space) -> bool:
    """Whether stages choose for themselves how much they recompute."""
    own = space.workload.task.runtime != "megatron" and "recompute" not in space.settings
    return own and cell.recompute == PER_STAGE


def kinds_of(cell: Cell, space: Space, known: dict[tuple[int, int], list[Counts]]) -> list[Kind]:
    """How each type may be cut in a cell; rules that speak of one stage are asked later.

    `known` keeps the counts of stages by pool and GPUs of a stage.
    """
    found = []
    for row, pool in enumerate(space.workload.task.cluster.pools):
        for tp, dp, ep, etp in _cuts(cell, space, pool):
            group = tp * cell.cp * dp
            if (row, group) not in known:
                known[row, group] = _counts(pool, group, space)
            if group % (ep * etp) == 0:
                size = cell.samples // dp
                found += [Kind(row, tp, dp, ep, etp, size, c) for c in known[row, group]]
    return found


def _cuts(cell: Cell, space: Space, pool: Pool) -> Iterator[tuple[int, int, int, int]]:
    """(tp, dp, ep, etp) of the segments on one type."""
    alike, gpu = cell.alike, pool.gpu
    reach = max(gpu.link.domain_gpus, gpu.node.gpus)
    tps = space.settings.get("tp") or divisors(reach)
    sizes = space.values("micro_batch") or ()
    dps = [cell.samples // size for size in sizes if cell.samples % size == 0]
    dps = [dp for dp in dps if space.allows("dp", dp) and alike.dp in (None, dp)]
    dps = [dp for dp in dps if dp * cell.cp <= pool.count]
    moe = space.workload.task.model.moe is not None
    for tp in tps:
        if cell.overlap_tp and not 1 < tp <= gpu.link.domain_gpus:
            continue
        if tp > reach or alike.tp not in (None, tp):
            continue
        asked = space.settings.get("etp") or ((1, tp) if moe else (1,))
        etps = [etp for etp in dict.fromkeys(asked) if alike.etp in (None, etp)]
        eps = [ep for ep in space.values("ep") or () if alike.ep in (None, ep)]
        yield from product((tp,), dps, eps, etps)


def _counts(pool: Pool, group: int, space: Space) -> list[Counts]:
    """Numbers of stages that take GPUs as they are rented, by the share they have of a node."""
    workload = space.workload
    cap = min(pool.count, workload.task.cluster.max_gpus or pool.count)
    counts = [count for count in allowed_counts(pool) if count <= cap]
    if workload.use_all:
        counts = counts[-1:]
    fitting = [count for count in counts if count % group == 0]
    fitting = [count for count in fitting if count // group <= workload.task.model.layers]
    if not fitting:
        return []
    table = np.array(fitting)
    shares = even_share(table, pool.gpu.link.domain_gpus), even_share(table, pool.gpu.node.gpus)
    groups: dict[tuple[int, int], list[int]] = {}
    for count, domain, node in zip(fitting, *(s.tolist() for s in shares), strict=True):
        groups.setdefault((domain, node), []).append(count // group)
    return [tuple(stages) for stages in groups.values()]


def cut_of(cell: Cell) -> Cell:
    """The cell with what no kind depends on left out: recompute and offload."""
    return replace(cell, recompute=PER_STAGE, offload=0.0)


def cuts_in(cells: Sequence[Cell]) -> list[Cell]:
    """The cut of every cell; those of one cut mostly stand together."""
    found: list[Cell] = []
    before: Cell | None = None
    for cell in cells:
        if before is None or any(getattr(cell, name) != getattr(before, name) for name in OF_CUT):
            cut = cut_of(cell)
        before = cell
        found.append(cut)
    return found


def legal_kinds(
    space: Space, cells: Sequence[Cell], rules: Sequence[Rule]
) -> list[tuple[Cell, list[Kind]]]:
    """Cells with the kinds that the rules accept by themselves."""
    workload = space.workload
    known: dict[tuple[int, int], list[Counts]] = {}
    each = cuts_in(cells)
    cuts = list(dict.fromkeys(each))
    pairs = [(row, kind) for row, cell in enumerate(cuts) for kind in kinds_of(cell, space, known)]
    if not pairs:
        return []
    which = np.array([row for row, _ in pairs])
    table = one_stage(workload, cuts, which, [kind for _, kind in pairs])
    asked = [rule for rule in rules if not {"layers", "overlap_tp"} & set(rule.settings)]
    good = np.logical_and.reduce([rule.holds(table, workload.task) for rule in asked])
    found: dict[Cell, list[Kind]] = {}
    for (row, kind), legal in zip(pairs, good.tolist(), strict=True):
        if legal:
            found.setdefault(cuts[row], []).append(kind)
    return [(cell, found[cut]) for cell, cut in zip(cells, each, strict=True) if cut in found]
