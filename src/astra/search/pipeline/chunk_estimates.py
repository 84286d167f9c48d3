"""About how long interleaved pipelines take, before any order of their types is chosen.

Every layer counts as the mean of all, and every stage of a type as the middle one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Self

import numpy as np

from astra.search.pipeline.constants import PACE_HALVINGS, STAGE_COUNTS
from astra.search.pipeline.plan_columns import GlobalSetting, SegmentOption
from astra.search.pipeline.stage_lines import ALL_LAYERS, INSIDE, LAST, NO_RECOMPUTE, StagePricer
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plans import Flags, Floats, Ints
from astra.strategy.recompute import Recompute
from astra.strategy.space import Space
from astra.timing.stage import exposed_data_parallel_s

ROUNDING_LAYERS = 1e-9


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """One parallel config for all stages, with the options that the types have in it."""

    setting: GlobalSetting
    options: tuple[SegmentOption, ...]


@dataclass(frozen=True, slots=True)
class ChunkShapes:
    """Pipelines whose stages have so many chunks each, their sizes left open. (shape,)"""

    config: Ints  # row of the configs
    recompute: Ints  # row of the recompute settings
    vpp: Ints
    options: Ints  # (shape, segment) row of the options of all configs; any without stages
    counts: Ints  # (shape, segment) stages

    def __len__(self) -> int:
        return len(self.config)

    @property
    def depth(self) -> Ints:
        found: Ints = self.counts.sum(axis=1)
        return found

    def take(self, rows: Ints | Flags | slice) -> Self:
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))


@dataclass(frozen=True, slots=True)
class MeanStages:
    """Stages of mean layers. (pipeline, stage)"""

    layer_s: Floats  # of a micro-batch, there and back, with its share of waiting for others
    ends_s: Floats  # likewise embedding and head
    max_chunk: Ints  # layers of each chunk that fit
    counts: Ints  # of such stages
    can_lack: Ints  # layers that one chunk of them may lack, if it keeps one

    def chunk_sizes(self, pace_s: Floats, vpp: Ints) -> tuple[Ints, Ints]:
        """Layers of every chunk of a stage that takes no longer than its pipeline's pace, and how
        many are to spare beyond whole chunks. (pipeline, stage)
        """
        left_s = np.maximum(pace_s[:, np.newaxis] - self.ends_s, 0.0)
        layers = (left_s / self.layer_s + ROUNDING_LAYERS).astype(np.int64)
        sizes = np.minimum(layers // vpp[:, np.newaxis], self.max_chunk)
        return sizes, layers - sizes * vpp[:, np.newaxis]

    def least_pace_s(self, vpp: Ints, layers: Ints | Floats) -> Floats:
        """Least seconds of the slowest stage in which whole chunks, one of them in part, hold so
        many layers; infinite where there is not the memory. (pipeline,)
        """
        used = self.counts > 0

        def holds(pace_s: Floats) -> Flags:
            sizes, spare = self.chunk_sizes(pace_s, vpp)
            spare = np.minimum(spare, vpp[:, np.newaxis] - 1)
            lacks = vpp[:, np.newaxis] - spare
            part = np.where(lacks <= np.minimum(sizes, self.can_lack), spare, 0)
            total = (self.counts * sizes).sum(axis=1) * vpp + part.sum(axis=1)
            found: Flags = (total >= layers) & ((sizes > 0) | ~used).all(axis=1)
            return found

        all_s = self.ends_s + (np.max(layers, initial=0) + 1) * self.layer_s
        low, high = np.zeros(len(vpp)), all_s.max(axis=1, initial=0.0)
        never = ~holds(high)
        for _ in range(PACE_HALVINGS):
            middle = (low + high) / 2
            enough = holds(middle)
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(never, np.inf, high)


class ChunkEstimates:
    """Lines of the stages of some configs with some recompute settings."""

    def __init__(
        self,
        pricer: StagePricer,
        configs: Sequence[ParallelConfig],
        recomputes: Sequence[Recompute],
    ) -> None:
        self.configs, self.recomputes = configs, recomputes
        self.pairs = [(each.setting, option) for each in configs for option in each.options]
        self.first_option = np.cumsum([0, *(len(each.options) for each in configs)])[:-1]
        is_block = [each.mode == "full:block" for each in recomputes]
        self.block = np.array([each.layers for each in recomputes]) * is_block
        whole = [NO_RECOMPUTE if b else r for r, b in zip(recomputes, is_block, strict=True)]
        lines = pricer.lines(self.pairs, [*whole, ALL_LAYERS])
        self.layers = pricer.layers.layers
        self.mean_layer = pricer.layers.counts[pricer.layers.at[-1, -1]] / self.layers
        self.mean_layer[0] = 0.0
        self.fixed, self.again, self.working = lines.fixed, lines.recomputed, lines.working_bytes
        settings = [each.setting for each in configs]
        self.micro_batches = np.array([each.micro_batches for each in settings])
        self.hides = np.array([each.overlap_ep for each in settings]).astype(np.int64)
        self.stage_gpus = np.array([each.options[0].stage_gpus for each in configs])
        both = self.fixed["forward_s"] + self.fixed["backward_s"]
        self.ends_s, self.layer_s = both[..., 0], both @ self.mean_layer + self._gather_s()

    def groups(self, config: Ints, depth: Ints) -> Ints:
        """Micro-batches in a row on one chunk; 0 where there are too few. (pipeline,)"""
        pairs = zip(depth.tolist(), self.micro_batches[config].tolist(), strict=True)
        return np.array([least_microbatch_group(*pair) or 0 for pair in pairs], np.int64)

    def _gather_s(self) -> Floats:
        """What shows of the traffic of sharded parameters, for a mean layer. (place, option)"""
        sharded = np.array([setting.sharding == "parameters" for setting, _ in self.pairs])
        names = "gather_s", "reduce_s", "forward_compute_s", "backward_compute_s"
        gather, reduce, forward, backward = (self.fixed[n] @ self.mean_layer for n in names)
        slow = self.fixed["slowdown"][..., 0]
        found = exposed_data_parallel_s(gather, forward, sharded, slow)
        found = found + exposed_data_parallel_s(gather + reduce, backward, sharded, slow)
        return np.where(sharded, found, 0.0)

    def stages(
        self, shapes: ChunkShapes, place: Ints | int, below: Ints, can_lack: Ints
    ) -> MeanStages:
        """A stage of each segment with so many `below` it. (shape, segment)

        The chunks of a stage fit where

            (s_0 / v + s n) A + w <= free_0 - r v n

        with s bytes saved of a layer, r kept of it for training, A chunks in flight. Of chunks of
        which some layers are recomputed as much of every layer is.
        """
        columns = shapes.config, shapes.recompute, shapes.vpp, shapes.depth
        config, recompute, vpp, depth = (each[:, np.newaxis] for each in columns)
        options = shapes.options
        share = np.minimum(self.block[recompute] * vpp * depth / self.layers, 1.0)

        def fixed(name: str) -> tuple[Floats, Floats]:
            """(end, layer) of a stage."""
            lines = self.fixed[name]
            return lines[place, options, 0], (lines @ self.mean_layer)[place, options]

        def again(name: str) -> tuple[Floats, Floats]:
            ends, layers = self.again[name][..., 0], self.again[name] @ self.mean_layer
            end, layer = ends[recompute, place, options], layers[recompute, place, options]
            if share.any():
                layer = layer + share * (layers[-1, place, options] - layer)
            return end, layer

        doublings = np.log2(self.stage_gpus[config] * depth)
        waits, again_s = fixed("straggler_s"), again("recompute_s")
        ends_s = self.ends_s[place, options] + again_s[0] + doublings * waits[0]
        layer_s = self.layer_s[place, options] + again_s[1] + doublings * waits[1]
        free, kept = fixed("free_bytes")
        saved_end, saved = again("saved_bytes")
        working = self.working[np.where(share > 0, -1, recompute), options].max(axis=-1)
        working = np.maximum(working, self.fixed["logits_bytes"][place, options, 0])
        group = self.groups(shapes.config, shapes.depth)[:, np.newaxis]
        in_flight = np.minimum(
            self.micro_batches[config] * vpp,
            2 * below + (vpp - 1) * group + 1 + self.hides[config],
        )
        room = free - working - saved_end * in_flight / vpp
        most = room / (saved * in_flight - kept * vpp)
        most = np.clip(np.nan_to_num(most) + ROUNDING_LAYERS, 1, self.layers).astype(np.int64)
        return MeanStages(layer_s, np.maximum(ends_s, 0.0), most, shapes.counts, can_lack)

    def balanced_s(self, shapes: ChunkShapes) -> Floats:
        """The step if every stage did as much as it can, in as many chunks as there are layers for.

            T = (K + (p - 1) p / L) L / sum over stages of 1 / t

        Memory and whole layers are left out. (shape,)
        """
        depth, speed = shapes.depth, (shapes.counts / self.layer_s[INSIDE][shapes.options]).sum(axis=1)
        turns = self.micro_batches[shapes.config] + (depth - 1) * depth / self.layers
        found: Floats = turns * self.layers / speed
        return found

    def estimated_s(self, shapes: ChunkShapes) -> Floats:
        """About the least step, with the slowest types in front or behind. (shape,)

            T = (K - 1) B + S / v

        B the least pace at which whole chunks hold the model, S the seconds of all its layers.
        """
        options, counts = shapes.options, shapes.counts
        found = np.full(len(shapes), np.inf)
        last_s = self.ends_s[LAST][options]
        for slow_first in (True, False):
            below = _stages_below(self.layer_s[INSIDE][options], counts, slow_first)
            stages = self.stages(shapes, INSIDE, below, (counts > 0) * self.layers)
            head_layers = np.where(counts > 0, (last_s - stages.ends_s) / stages.layer_s, np.inf)
            layers = self.layers + head_layers.min(axis=1, initial=self.layers)
            pace_s = stages.least_pace_s(shapes.vpp, layers)
            sizes, _ = stages.chunk_sizes(np.where(np.isfinite(pace_s), pace_s, 0.0), shapes.vpp)
            held = np.maximum((sizes * counts).sum(axis=1), 1)
            work_s = (sizes * counts * stages.layer_s).sum(axis=1) * self.layers / held
            step_s = (self.micro_batches[shapes.config] - 1) * pace_s + work_s / shapes.vpp
            found = np.minimum(found, step_s)
        shows = np.array([_shows_experts(each) for each in self.recomputes])
        hides = self.hides[shapes.config] > 0
        return np.where(hides & shows[shapes.recompute], np.inf, found)


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


def stage_counts(space: Space, estimates: ChunkEstimates, least_vpp: int) -> ChunkShapes:
    """Every config with numbers of stages of two types or more, nothing recomputed."""
    workload, tables = space.workload, []
    known: dict[object, tuple[Ints, Ints]] = {}
    for row, config in enumerate(estimates.configs):
        key = tuple((option.pool, option.stages) for option in config.options)
        if key not in known:
            known[key] = _counts_of(space, config.options)
        options, counts = known[key]
        tables.append((np.full(len(counts), row), options + estimates.first_option[row], counts))
    config, options, counts = (np.concatenate(each) for each in zip(*tables, strict=True))
    none = np.zeros(len(config), np.int64)
    found = ChunkShapes(config, none, none + least_vpp, options, counts)
    depth, deepest = found.depth, workload.task.model.layers // least_vpp
    good = ((counts > 0).sum(axis=1) > 1) & (depth <= deepest)
    good &= np.array([space.allows("pp", each) for each in range(deepest + 1)])[
        np.minimum(depth, deepest)
    ]
    if workload.task.cluster.max_gpus is not None:
        good &= depth * estimates.stage_gpus[config] <= workload.task.cluster.max_gpus
    found = found.take(good)
    return found.take(estimates.groups(found.config, found.depth) > 0)


def _counts_of(space: Space, options: Sequence[SegmentOption]) -> tuple[Ints, Ints]:
    """Options and numbers of stages of every type. (row, type)"""
    workload = space.workload
    choices: list[list[tuple[int, int]]] = []
    for pool in range(len(workload.task.cluster.pools)):
        own = [] if workload.use_all else [(0, 0)]
        for row, option in enumerate(options):
            counts = option.stages[::-1] if option.pool == pool else ()
            if len(counts) > STAGE_COUNTS and workload.task.cluster.max_gpus is None:
                counts = counts[: STAGE_COUNTS // 2]
            stride = -(-len(counts) // (2 * STAGE_COUNTS)) or 1
            own += [(row, count) for count in counts[::stride]]
        choices.append(own)
    table = np.array(list(product(*choices)), np.int64).reshape(-1, len(choices), 2)
    return table[..., 0], table[..., 1]
