"""What is global to a mixed pipeline (a cell), and how each GPU type may be cut in it (a kind)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.hardware.cluster import Pool
from astra.hardware.stack import Stack
from astra.hardware.topology import allowed_counts, even_share
from astra.strategy.enumerate import module_sets
from astra.strategy.plans import COLUMNS, PLAN_AXES, Floats, Ints, Plans, code, column_dtype
from astra.strategy.recompute import Recompute
from astra.strategy.rules.rule import Rule
from astra.strategy.settle import fp8_recipe
from astra.strategy.space import Question, Space, divisors
from astra.strategy.view import cuts_of
from astra.timing.layer import LayerBook, layers_of

MOST_WAYS = 256  # choices of one tp a type that are looked at one by one
PER_STAGE = Recompute()  # each stage recomputes whole layers, as many as it must
Columns = dict[str, NDArray[Any]]
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One choice of all that holds for the whole plan."""

    dp: int
    micro_batch: int
    cp: int
    cp_comm_type: str
    sharding: str
    ep: int
    overlap_tp: bool
    offload: float
    recompute: Recompute  # one for all stages, or PER_STAGE
    micro_batches: int


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to cut the stages of one GPU type.

    Where the share of a node or link domain that a job takes depends on how many GPUs it takes,
    each share is a kind of its own.
    """

    pool: int
    tp: int
    stages: tuple[int, ...]  # how many of them a plan may have

    @property
    def most(self) -> int:
        return self.stages[-1]


def cells_of(space: Space) -> list[Cell]:
    """All cells of the space."""
    question, found = space.question, []
    batch = question.global_batch
    dps = space.chosen.get("dp") or divisors(batch)
    traffic = space.values("cp_comm_type") or ()
    modes = _modes(space)
    dims = product(
        dps,
        space.values("micro_batch") or (),
        space.values("cp") or (),
        traffic,
        space.values("sharding") or (),
        space.values("ep") or (),
        (False, True),
        space.chosen.get("offload_optimizer_fraction", (0.0,)),
        modes,
    )
    for dp, size, cp, comm, sharding, ep, overlap, offload, mode in dims:
        once = cp > 1 or comm == traffic[0]
        once &= dp * cp > 1 or sharding == (space.values("sharding") or ())[0]
        once &= overlap in space.chosen.get("overlap_tp", (False, True))
        if once and batch % (dp * size) == 0:
            count = batch // (dp * size)
            found.append(Cell(dp, size, cp, comm, sharding, ep, overlap, offload, mode, count))
    return found


def _modes(space: Space) -> list[Recompute]:
    """Whole layers stage by stage, or one set of modules for all stages."""
    asked = space.chosen.get("recompute")
    if asked is not None:
        return [Recompute.parse(text) for text in asked]
    return [PER_STAGE, *(Recompute("selective", 0, some) for some in module_sets(space.question))]


def by_stage(cell: Cell, space: Space) -> bool:
    """Whether stages choose for themselves how much they recompute."""
    return cell.recompute == PER_STAGE and "recompute" not in space.chosen


def kinds_of(cell: Cell, space: Space, known: dict[tuple[int, int], list[Counts]]) -> list[Kind]:
    """How each type may be cut in a cell; rules that speak of one stage are asked later.

    `known` keeps the counts of stages by pool and GPUs of a stage.
    """
    found = []
    cluster = space.question.task.cluster
    tied = space.chosen.get("tp")
    for row, pool in enumerate(cluster.pools):
        gpu = pool.gpu
        for tp in tied or divisors(max(gpu.link.domain_gpus, gpu.node.gpus)):
            if cell.overlap_tp and not 1 < tp <= gpu.link.domain_gpus:
                continue
            if tp > max(gpu.link.domain_gpus, gpu.node.gpus):
                continue
            group = tp * cell.cp * cell.dp
            if (row, group) not in known:
                known[row, group] = _counts(pool, group, space)
            if group % cell.ep == 0:
                found += [Kind(row, tp, stages) for stages in known[row, group]]
    return found


def _counts(pool: Pool, group: int, space: Space) -> list[Counts]:
    """Numbers of stages that take GPUs as they are rented, by the share they have of a node."""
    question = space.question
    cap = min(pool.count, question.task.cluster.max_gpus or pool.count)
    counts = [count for count in allowed_counts(pool) if count <= cap]
    if question.use_all:
        counts = counts[-1:]
    fitting = [count for count in counts if count % group == 0]
    fitting = [count for count in fitting if count // group <= question.task.model.layers]
    if not fitting:
        return []
    table = np.array(fitting)
    shares = even_share(table, pool.gpu.link.domain_gpus), even_share(table, pool.gpu.node.gpus)
    groups: dict[tuple[int, int], list[int]] = {}
    for count, domain, node in zip(fitting, *(s.tolist() for s in shares), strict=True):
        groups.setdefault((domain, node), []).append(count // group)
    return [tuple(stages) for stages in groups.values()]


def plans_table(
    question: Question,
    cells: Sequence[Cell],
    which: Ints,
    slots: dict[str, Ints],
    sequence_parallel: NDArray[np.bool_],
) -> Plans:
    """Plans with these slots, (slot, plan) columns, in these cells. (plan,)"""

    def of(name: str) -> NDArray[Any]:
        return np.array([getattr(cell, name) for cell in cells])[which]

    def word(name: str) -> NDArray[Any]:
        return np.array([code(name, getattr(cell, name)) for cell in cells], np.int8)[which]

    moe = question.task.model.moe is not None
    copies = of("dp") * of("cp")
    sharded = word("sharding") != code("sharding", "none")
    stages, used = slots["stages"], slots["stages"] > 0
    recipe = fp8_recipe(question.task.cluster) if question.precision == "fp8" else None
    columns: Columns = {
        "global_batch": np.array(question.global_batch),
        "seq_len": np.array(question.seq_len),
        "mtp_layers": np.array(question.mtp_layers),
        "precision": np.array(code("precision", question.precision)),
        "micro_batch": of("micro_batch"),
        "cp": of("cp"),
        "ep": of("ep"),
        "microbatch_group": stages.sum(axis=0),
        "shard_group": np.where(sharded, copies, 1),
        "chunking": np.array(-1),
        "cp_comm_type": word("cp_comm_type"),
        "sharding": word("sharding"),
        "fp8_recipe": np.array(code("fp8_recipe", recipe)),
        "dispatcher": np.array(code("dispatcher", "alltoall" if moe else None)),
        "sequence_parallel": sequence_parallel,
        "overlap_grad_reduce": copies > 1,
        "overlap_param_gather": (copies > 1) & sharded,
        "overlap_tp": of("overlap_tp"),
        "offload_optimizer_fraction": of("offload"),
        "capacity_factor": np.array(np.nan),
        "replicas": of("dp")[np.newaxis],
        "micro_batches": of("micro_batches")[np.newaxis],
        "dp": np.where(used, of("dp"), 1)[np.newaxis],
        "segment_ep": np.where(used, of("ep"), 1)[np.newaxis],
        "segment_etp": np.ones_like(stages)[np.newaxis],
        "segment_micro_batch": np.where(used, of("micro_batch"), 1)[np.newaxis],
        **{name: column[np.newaxis] for name, column in slots.items()},
    }
    first = {"etp": 1, "vpp": 1}
    shapes = {1: which.shape, 2: (1, *which.shape), 3: (1, *stages.shape)}
    full: dict[str, Any] = {
        name: np.broadcast_to(
            np.asarray(columns.get(name, first.get(name, 0))).astype(column_dtype(name)),
            shapes[PLAN_AXES.get(name, 1)],
        )
        for name in COLUMNS
    }
    return Plans(**full)


def one_stage(question: Question, cells: Sequence[Cell], which: Ints, kinds: list[Kind]) -> Plans:
    """A plan of one stage for every kind: what rules and layer times are asked on."""
    size = len(kinds)
    pool, tp = np.array([k.pool for k in kinds]), np.array([k.tp for k in kinds])
    zeros = np.zeros((1, size), np.int64)
    slots = {
        "gpu": pool[np.newaxis],
        "tp": tp[np.newaxis],
        "stages": zeros + np.array([k.stages[0] for k in kinds]),
        "layers": zeros + question.task.model.layers,
        "recompute": zeros,
        "recompute_layers": zeros,
        "recompute_modules": zeros,
    }
    return plans_table(question, cells, which, slots, tp > 1)


def legal_kinds(
    space: Space, cells: Sequence[Cell], rules: Sequence[Rule]
) -> list[tuple[Cell, list[Kind]]]:
    """Cells with the kinds that the rules accept by themselves."""
    question = space.question
    known: dict[tuple[int, int], list[Counts]] = {}
    pairs = [(row, kind) for row, cell in enumerate(cells) for kind in kinds_of(cell, space, known)]
    if not pairs:
        return []
    which = np.array([row for row, _ in pairs])
    table = one_stage(question, cells, which, [kind for _, kind in pairs])
    asked = [rule for rule in rules if not {"layers", "overlap_tp"} & set(rule.about.split())]
    good = np.logical_and.reduce([rule.holds(table, question.task) for rule in asked])
    found: dict[int, list[Kind]] = {}
    for (row, kind), legal in zip(pairs, good.tolist(), strict=True):
        if legal:
            found.setdefault(row, []).append(kind)
    return [(cells[row], kinds) for row, kinds in found.items()]


def layer_seconds(
    space: Space, cells: Sequence[tuple[Cell, list[Kind]]], stack: Stack, book: LayerBook
) -> list[Floats]:
    """Least seconds of one layer and micro-batch, recompute of modules with it. (kind,) per cell"""
    question = space.question
    sizes = [len(kinds) for _, kinds in cells]
    which = np.repeat(np.arange(len(cells)), sizes)
    table = one_stage(question, [c for c, _ in cells], which, [k for _, ks in cells for k in ks])
    layers = layers_of(cuts_of(table, question.task), stack, book)
    each = []
    for time in layers.kinds:
        back = (time.backward_s, time.tensor_backward_s, time.context_backward_s)
        total = time.whole_forward_s + time.expert_backward_s + sum(back, np.zeros(1))
        for name, extra in time.module_s.items():
            chosen = np.array([name in cell.recompute.modules for cell, _ in cells])[which]
            total = total + np.where(chosen, extra, 0.0)
        each.append(total[0, 0])
    return np.split(np.min(each, axis=0), np.cumsum(sizes)[:-1])


def speed_bounds_s(
    space: Space, cells: Sequence[tuple[Cell, list[Kind]]], layer_s: list[Floats]
) -> Floats:
    """No plan of a cell is faster: all its layers, shared out by speed over all GPUs. (cell,) [s]

    A stage that begins when those above it have passed on the first micro-batch does K t <= T - A,
    A the seconds of the stages above. So, the fastest first, stages get 1 / K of what is left:

        T >= L / sum over stages k of  (1 / K) (1 - 1 / K)^k / (seconds of a layer)

    for the best choice of one tp a type.
    """
    layers = space.question.task.model.layers
    pools = len(space.question.task.cluster.pools)
    tps = sorted({kind.tp for _, kinds in cells for kind in kinds})
    shape = (pools, len(tps), len(cells))
    pace, most = np.full(shape, np.inf), np.zeros(shape)
    for row, ((_, kinds), seconds) in enumerate(zip(cells, layer_s, strict=True)):
        for kind, second in zip(kinds, seconds.tolist(), strict=True):
            at = (kind.pool, tps.index(kind.tp), row)
            pace[at], most[at] = min(pace[at], second), max(most[at], kind.most)
    count = np.array([cell.micro_batches for cell, _ in cells])
    if len(tps) ** pools > MOST_WAYS:
        return count * layers / (most / pace).max(axis=1).sum(axis=0)
    stays = 1 - 1 / count
    best = np.zeros(len(cells))
    for way in product(range(len(tps)), repeat=pools):
        own = [(pace[pool, tp], most[pool, tp]) for pool, tp in enumerate(way)]
        seconds, stages = np.stack([p for p, _ in own]), np.stack([m for _, m in own])
        order = np.argsort(seconds, axis=0, kind="stable")
        seconds = np.take_along_axis(seconds, order, axis=0)
        ends = np.cumsum(np.take_along_axis(stages, order, axis=0), axis=0)
        left = np.concatenate([np.ones((1, len(cells))), stays**ends])
        best = np.maximum(best, (-np.diff(left, axis=0) / seconds).sum(axis=0))
    return layers / best
