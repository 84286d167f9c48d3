"""Which parallel configs can be interleaved, with how many stages of each type, and about how fast.

A prospect is a config with a number of stages of every type; a shape adds the number of chunks and
what is recomputed. Their steps are estimated type by type, before any order of types is chosen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice, permutations, product

import numpy as np

from astra.search.pipeline.chunked_stages import (
    ChunkedPipelines,
    ChunkedStages,
    ParallelConfig,
    StagePaces,
)
from astra.search.pipeline.stage_lines import INSIDE, LAST
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plans import Flags, Floats, Ints
from astra.strategy.recompute import Recompute
from astra.strategy.segment_columns import SegmentOption
from astra.strategy.space import Space

COUNTS = 2  # most stages of a type that are tried: all, and one fewer
SMALL_COUNTS = 4  # numbers of stages of a type that are all tried
CAPPED_COUNTS = 8  # that are tried where GPUs are capped
MAX_FIRST = 6000  # prospects that are estimated
HALVINGS = 20  # of the pace at which a shape holds the model


@dataclass(frozen=True, slots=True)
class Prospects:
    """Configs with a number of stages of every type. (prospect,)"""

    config: Ints
    options: Ints  # (prospect, type) of all options; any where there are no stages
    counts: Ints  # (prospect, type) stages
    estimate_s: Floats  # about the least step; infinite where little memory is left

    def __len__(self) -> int:
        return len(self.config)

    def take(self, rows: Ints | Flags) -> "Prospects":
        return Prospects(*(getattr(self, each.name)[rows] for each in fields(self)))


@dataclass(frozen=True, slots=True)
class ChunkShapes:
    """Prospects with a number of chunks and a recompute setting. (shape,)"""

    prospect: Ints
    recompute: Ints
    vpp: Ints
    estimate_s: Floats

    def take(self, rows: Ints | Flags) -> "ChunkShapes":
        return ChunkShapes(*(getattr(self, each.name)[rows] for each in fields(self)))

    def ranks(self) -> Ints:
        """How many shapes of its prospect are before each. (shape,)"""
        order = np.lexsort((self.estimate_s, self.prospect))
        sorted_ = self.prospect[order]
        first = np.searchsorted(sorted_, sorted_)
        found = np.zeros(len(order), np.int64)
        found[order] = np.arange(len(order)) - first
        return found


def prospects_of(space: Space, stages: ChunkedStages, vpps: Ints) -> Prospects:
    """Every config of the stages with numbers of stages of two types or more."""
    pools = len(space.workload.task.cluster.pools)
    overlapping = {
        each.setting: {option.pool for option in each.options}
        for each in stages.configs
        if each.setting.overlap_tp
    }
    known: dict[object, tuple[Ints, Ints]] = {}
    tables = []
    for row, config in enumerate(stages.configs):
        key = tuple((option.pool, option.stages) for option in config.options)
        if key not in known:
            known[key] = _stage_counts(space, config.options, pools)
        local, counts = known[key]
        good = _allowed(space, config, counts, int(vpps.min()))
        same = overlapping.get(replace(config.setting, overlap_tp=True))
        if same and not config.setting.overlap_tp:  # it can only hide time
            good &= counts[:, [pool for pool in range(pools) if pool not in same]].any(axis=1)
        options = stages.first_option[row] + local[good]
        tables.append((np.full(len(options), row), options, counts[good]))
    row_of, options, counts = (np.concatenate(each) for each in zip(*tables, strict=True))
    found = Prospects(row_of, options, counts, np.full(len(counts), np.inf))
    if len(found) > MAX_FIRST:
        found = found.take(np.argsort(_bound_s(stages, found), kind="stable")[:MAX_FIRST])
    shapes = shapes_of(stages, found, vpps)
    np.minimum.at(found.estimate_s, shapes.prospect, shapes.estimate_s)
    return found


def _bound_s(stages: ChunkedStages, prospects: Prospects) -> Floats:
    """About the least step of prospects, memory and whole layers left out. (prospect,)

        T = (K + (p - 1) p / L) L / sum over stages of 1 / t

    with as many chunks as there are layers for.
    """
    config, counts = prospects.config, prospects.counts
    depth, none = counts.sum(axis=1), np.zeros(len(prospects), np.int64)
    inside = np.full_like(counts, INSIDE)
    paces = stages.paces(config, none, none + 1, prospects.options, inside, depth)
    turns = stages.micro_batches[config] + (depth - 1) * depth / stages.layers
    found: Floats = turns * stages.layers / (counts / paces.layer_s).sum(axis=1)
    return found


def _stage_counts(space: Space, options: Sequence[SegmentOption], pools: int) -> tuple[Ints, Ints]:
    """Options and numbers of stages of every type. (row, type)"""
    workload = space.workload
    choices: list[list[tuple[int, int]]] = []
    for pool in range(pools):
        own = [] if workload.use_all else [(0, 0)]
        for row, option in enumerate(options):
            counts = option.stages if option.pool == pool else ()
            if len(counts) > SMALL_COUNTS and workload.task.cluster.max_gpus is None:
                counts = counts[-COUNTS:]
            stride = -(-len(counts) // CAPPED_COUNTS) or 1
            own += [(row, count) for count in counts[::-1][::stride]]
        choices.append(own)
    table = np.array(list(product(*choices)), np.int64).reshape(-1, pools, 2)
    return table[..., 0], table[..., 1]


def _allowed(space: Space, config: ParallelConfig, counts: Ints, vpp: int) -> Flags:
    """Which numbers of stages the layers, the micro-batches and the cap on GPUs allow."""
    stages, workload = counts.sum(axis=1), space.workload
    good = ((counts > 0).sum(axis=1) > 1) & (stages * vpp <= workload.task.model.layers)
    if workload.task.cluster.max_gpus is not None:
        good &= stages * config.options[0].stage_gpus <= workload.task.cluster.max_gpus
    deep = [
        space.allows("pp", depth)
        and least_microbatch_group(depth, config.setting.micro_batches) is not None
        for depth in range(2, int(stages.max(initial=1)) + 1)
    ]
    return good & np.array([False, False, *deep])[stages]


def shapes_of(stages: ChunkedStages, prospects: Prospects, vpps: Ints) -> ChunkShapes:
    """Every number of chunks and recompute setting, with an estimate of the step:

        T = (K - 1) B + S / v

    B the least pace at which whole chunks hold the model, S the seconds of all its layers.
    """
    shape = (len(prospects), len(stages.recomputes), len(vpps))
    prospect, recompute, chunks = (axis.reshape(-1) for axis in np.indices(shape))
    depth = prospects.counts.sum(axis=1)
    shows = np.array([_shows_experts(each) for each in stages.recomputes])
    good = depth[prospect] * vpps[chunks] <= stages.layers
    good &= ~((stages.hides[prospects.config[prospect]] > 0) & shows[recompute])
    prospect, recompute, vpp = prospect[good], recompute[good], vpps[chunks[good]]
    config, options = prospects.config[prospect], prospects.options[prospect]
    counts, deep = prospects.counts[prospect], depth[prospect]
    pairs = zip(depth.tolist(), stages.micro_batches[prospects.config].tolist(), strict=True)
    groups = np.array([least_microbatch_group(*pair) or 0 for pair in pairs], np.int64)
    inside = np.full_like(options, INSIDE)
    paces = stages.paces(config, recompute, vpp, options, inside, deep)
    last = stages.paces(config, recompute, vpp, options, np.full_like(options, LAST), deep)
    head_layers = np.where(counts > 0, (last.ends_s - paces.ends_s) / paces.layer_s, np.inf)
    needed = stages.layers + head_layers.min(axis=1, initial=stages.layers)
    estimate_s = np.full(len(vpp), np.inf)
    for slow_first in (True, False):
        below = _stages_below(paces.layer_s, counts, slow_first)
        held = stages.in_flight(config, vpp, groups[prospect], below)
        most = stages.max_sizes(recompute, vpp, options, inside, held)
        pace_s, layers = _least_pace_s(paces, counts, most, vpp, needed)
        work_s = (layers * paces.layer_s).sum(axis=1)
        work_s *= stages.layers / np.maximum(layers.sum(axis=1), 1)
        step_s = (stages.micro_batches[config] - 1) * pace_s + work_s / vpp
        estimate_s = np.minimum(estimate_s, step_s)
    return ChunkShapes(prospect, recompute, vpp, estimate_s)


def _shows_experts(recompute: Recompute) -> bool:
    """Whether Megatron-LM cannot hide the traffic of experts beside this recompute."""
    return recompute.mode.startswith("full") or "moe" in recompute.modules


def _stages_below(layer_s: Floats, counts: Ints, slow_first: bool) -> Ints:
    """Stages below the middle one of every type, with slow types in front or behind."""
    order = np.argsort(-layer_s if slow_first else layer_s, axis=1, kind="stable")
    along = np.take_along_axis(counts, order, axis=1)
    below = along.sum(axis=1, keepdims=True) - np.cumsum(along, axis=1)
    found = np.zeros_like(counts)
    np.put_along_axis(found, order, below + along // 2, axis=1)
    return found


def _least_pace_s(
    paces: StagePaces, counts: Ints, most: Ints, vpp: Ints, layers: Floats
) -> tuple[Floats, Ints]:
    """The least pace at which stages hold the model in whole chunks, one of them in part; and the
    layers on each type. (shape,), (shape, type)
    """
    v = vpp[:, np.newaxis]

    def held(pace_s: Floats) -> tuple[Ints, Ints]:
        can = paces.layers_at(pace_s)
        whole = np.minimum(can // v, most) * v
        part = np.where(counts > 0, np.minimum(can - whole, v - 1), 0).max(axis=1, initial=0)
        return counts * whole, part

    low, high = np.zeros(len(vpp)), paces.stage_s(layers[:, np.newaxis] + 1).max(axis=1, initial=0)
    total, part = held(high)
    never = total.sum(axis=1) + part < layers
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        total, part = held(middle)
        holds = total.sum(axis=1) + part >= layers
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    return np.where(never, np.inf, high), held(high)[0]


def in_orders(
    prospects: Prospects, shapes: ChunkShapes, layer_s: Floats, most: int | None
) -> Iterator[ChunkedPipelines]:
    """The shapes with their types in an order, a table for every depth; chunk sizes still open.

    Slow types in front, then behind, then all other orders, so many at most. `layer_s`: seconds of
    a layer by option.
    """
    tables: dict[int, list[tuple[int, Ints]]] = {}
    for row, prospect in enumerate(shapes.prospect.tolist()):
        counts, options = prospects.counts[prospect], prospects.options[prospect]
        used = np.flatnonzero(counts)
        by_speed = used[np.argsort(-layer_s[options[used]], kind="stable")].tolist()
        orders = dict.fromkeys((tuple(by_speed), tuple(by_speed[::-1])))
        orders |= dict.fromkeys(permutations(by_speed))
        for order in islice(orders, most):
            line = np.repeat(options[list(order)], counts[list(order)])
            tables.setdefault(len(line), []).append((row, line))
    for lines in tables.values():
        rows = np.array([row for row, _ in lines])
        options = np.stack([line for _, line in lines])
        zeros = np.zeros(len(rows), np.int64)
        yield ChunkedPipelines(
            config=prospects.config[shapes.prospect[rows]],
            recompute=shapes.recompute[rows],
            vpp=shapes.vpp[rows],
            options=options,
            sizes=np.zeros_like(options),
            short_first=zeros,
            short_last=zeros,
        )
