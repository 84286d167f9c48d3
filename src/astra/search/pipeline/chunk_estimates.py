"""About how long interleaved pipelines take, from the lines of their stages.

Every layer counts as the mean of all. What is chosen by these estimates is priced as whole plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np

from astra.cost.stage_lines import ALL_LAYERS, INSIDE, NO_RECOMPUTE, StagePricer
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plans import Flags, Floats, Ints
from astra.strategy.recompute import Recompute
from astra.strategy.segment_columns import GlobalSetting, SegmentOption
from astra.strategy.space import Space

ROUNDING_LAYERS = 1e-9
STAGE_COUNTS = 2  # of a type that are tried, the largest
CAPPED_COUNTS = 8  # of all, where GPUs are capped
PACE_HALVINGS = 20  # of the pace at which stages hold the model
# One setting for all stages, with the options that the types have in it.
ParallelConfig = tuple[GlobalSetting, Sequence[SegmentOption]]


@dataclass(frozen=True, slots=True)
class ChunkedPipelines:
    """Interleaved pipelines of segments, some stages of one option in a row. (pipeline,)

    The chunks of a stage are equal; the first of all may lack a layer, and the last of all some.
    Sizes are 0 while they are open; where they are known, every segment is one stage, or none.
    """

    config: Ints  # row of the configs
    recompute: Ints  # row of the recompute settings
    vpp: Ints
    options: Ints  # (pipeline, segment) row of the options of all configs; any without stages
    counts: Ints  # (pipeline, segment) stages
    sizes: Ints  # (pipeline, segment) layers of a chunk
    short_first: Ints  # layers that the first chunk of all lacks
    short_last: Ints  # and the last one

    def __len__(self) -> int:
        return len(self.config)

    @property
    def depth(self) -> Ints:
        found: Ints = self.counts.sum(axis=1)
        return found

    def skeleton_keys(self) -> list[bytes]:
        """Equal for pipelines of one config and vpp with as many stages of each type."""
        used = np.sort(np.where(self.counts > 0, self.options, -1), axis=1)
        return [row.tobytes() for row in np.column_stack([self.config, self.vpp, used])]

    def take(self, rows: Ints | Flags) -> "ChunkedPipelines":
        return ChunkedPipelines(*(getattr(self, each.name)[rows] for each in fields(self)))

    def with_every(
        self, recomputes: int, vpps: Ints, layers: int
    ) -> tuple["ChunkedPipelines", Ints]:
        """Each with every recompute setting and every vpp that there are layers for, and the row
        that it is of.
        """
        axes = np.indices((len(self), recomputes, len(vpps)))
        row, recompute, vpp = (axis.reshape(-1) for axis in axes)
        good = self.depth[row] * vpps[vpp] <= layers
        row, recompute, vpp = row[good], recompute[good], vpps[vpp[good]]
        return replace(self.take(row), recompute=recompute, vpp=vpp), row


@dataclass(frozen=True, slots=True)
class MeanStages:
    """Stages of mean layers. (shape, segment)"""

    layer_s: Floats  # of a micro-batch, there and back, with its part of what is done once a step
    ends_s: Floats  # likewise embedding and head
    max_chunk: Ints  # layers of each chunk that fit
    counts: Ints  # of such stages
    can_lack: Ints  # layers that one chunk of them may lack, if it keeps one

    def chunk_sizes(self, pace_s: Floats, vpp: Ints) -> tuple[Ints, Ints]:
        """Layers of every chunk of a stage that takes no longer than its pipeline's pace, and how
        many more it could do. (shape, segment)
        """
        left_s = np.maximum(pace_s[:, np.newaxis] - self.ends_s, 0.0)
        layers = (left_s / self.layer_s + ROUNDING_LAYERS).astype(np.int64)
        sizes = np.minimum(layers // vpp[:, np.newaxis], self.max_chunk)
        return sizes, layers - sizes * vpp[:, np.newaxis]

    def least_pace_s(self, vpp: Ints, layers: int) -> Floats:
        """Least seconds of the slowest stage in which stages of equal chunks, the first and the
        last of all in part, hold so many layers; infinite where they never do. (shape,)
        """
        chunks, used = vpp[:, np.newaxis], self.counts > 0

        def hold_all(pace_s: Floats) -> Flags:
            sizes, more = self.chunk_sizes(pace_s, vpp)
            part = np.minimum(more, chunks - 1)  # of chunks that are larger by a layer
            can_lack = np.minimum(sizes, self.can_lack)
            part = np.where(used & (chunks - part <= can_lack), part, 0)
            total = (self.counts * sizes).sum(axis=1) * vpp + part.sum(axis=1)
            found: Flags = (total >= layers) & ((sizes > 0) | ~used).all(axis=1)
            return found

        all_s = self.ends_s + (layers + 1) * self.layer_s
        low, high = np.zeros(len(vpp)), all_s.max(axis=1, initial=0.0)
        never = ~hold_all(high)
        for _ in range(PACE_HALVINGS):
            middle = (low + high) / 2
            enough = hold_all(middle)
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
        self.pricer, self.configs, self.recomputes = pricer, configs, recomputes
        self.pairs = [(setting, option) for setting, options in configs for option in options]
        self.first_option = np.cumsum([0, *(len(options) for _, options in configs)])[:-1]
        is_block = [each.mode == "full:block" for each in recomputes]
        self.block = np.array([each.layers for each in recomputes]) * is_block
        own = [NO_RECOMPUTE if b else r for r, b in zip(recomputes, is_block, strict=True)]
        lines = pricer.lines(self.pairs, [*own, ALL_LAYERS])
        self.fixed, self.again, self.working = lines.fixed, lines.recomputed, lines.working_bytes
        self.layers = pricer.layers.layers
        self.mean_layer = pricer.layers.mean
        both = self.fixed["forward_s"] + self.fixed["backward_s"]
        exchange_s = pricer.mean_exchange_s(self.pairs, lines)
        self.ends_s, self.layer_s = both[..., 0], both @ self.mean_layer + exchange_s
        self.micro_batches = np.array([setting.micro_batches for setting, _ in configs])
        self.hides = np.array([setting.overlap_ep for setting, _ in configs]).astype(np.int64)
        self.stage_gpus = np.array([options[0].stage_gpus for _, options in configs])

    def of_configs_in(
        self, shapes: ChunkedPipelines, recomputes: Sequence[Recompute]
    ) -> tuple["ChunkEstimates", ChunkedPipelines]:
        """Of the configs of some shapes alone, with other recompute settings; and these shapes."""
        rows, config = np.unique(shapes.config, return_inverse=True)
        found = ChunkEstimates(self.pricer, [self.configs[row] for row in rows], recomputes)
        config = config.reshape(-1)  # NumPy 2.0 keeps the axis
        moved = found.first_option[config] - self.first_option[shapes.config]
        return found, replace(shapes, config=config, options=shapes.options + moved[:, np.newaxis])

    def groups(self, config: Ints, depth: Ints) -> Ints:
        """Micro-batches in a row on one chunk; 0 where there are too few. (shape,)"""
        pairs = zip(depth.tolist(), self.micro_batches[config].tolist(), strict=True)
        return np.array([least_microbatch_group(*pair) or 0 for pair in pairs], np.int64)

    def stages(
        self, shapes: ChunkedPipelines, place: Ints | int, below: Ints, can_lack: Ints
    ) -> MeanStages:
        """A stage of each segment with so many `below` it. (shape, segment)

        Chunks of n layers fit where

            (s_0 / v + s n) A + w <= free_0 - r v n

        with s bytes saved of a layer, r kept of it for training, w while one is worked on, and A
        chunks in flight. Where some layers of a chunk are recomputed, a part of each is.
        """
        columns = shapes.config, shapes.recompute, shapes.vpp, shapes.depth
        config, recompute, vpp, depth = (each[:, np.newaxis] for each in columns)
        options, part = shapes.options, self.block[recompute] * vpp * depth / self.layers

        def recomputed(name: str) -> tuple[Floats, Floats]:
            """Of the ends, and of a layer."""
            ends, layers = self.again[name][..., 0], self.again[name] @ self.mean_layer
            own, whole = layers[recompute, place, options], layers[-1, place, options]
            return ends[recompute, place, options], own + np.minimum(part, 1.0) * (whole - own)

        again_end_s, again_layer_s = recomputed("recompute_s")
        saved_end, saved = recomputed("saved_bytes")
        free = self.fixed["free_bytes"]
        working = self.working[np.where(part > 0, -1, recompute), options].max(axis=-1)
        working = np.maximum(working, self.fixed["logits_bytes"][place, options, 0])
        group = self.groups(shapes.config, shapes.depth)[:, np.newaxis]
        ahead = 2 * below + (vpp - 1) * group + 1 + self.hides[config]
        in_flight = np.minimum(self.micro_batches[config] * vpp, ahead)
        room = free[place, options, 0] - working - saved_end * in_flight / vpp
        layer = saved * in_flight - (free @ self.mean_layer)[place, options] * vpp
        most = np.clip(np.nan_to_num(room / layer) + ROUNDING_LAYERS, 1, self.layers)
        return MeanStages(
            layer_s=self.layer_s[place, options] + again_layer_s,
            ends_s=np.maximum(self.ends_s[place, options] + again_end_s, 0.0),
            max_chunk=most.astype(np.int64),  # one at least: a light layer may fit
            counts=shapes.counts,
            can_lack=can_lack,
        )

    def balanced_s(self, shapes: ChunkedPipelines) -> Floats:
        """The step if every stage did as much as it can, in as many chunks as there are layers for.

            T = (K + (p - 1) p / L) L / sum over stages of 1 / t

        Memory and whole layers are left out. (shape,)
        """
        depth, layer_s = shapes.depth, self.layer_s[INSIDE][shapes.options]
        turns = self.micro_batches[shapes.config] + (depth - 1) * depth / self.layers
        found: Floats = turns * self.layers / (shapes.counts / layer_s).sum(axis=1)
        return found

    def steps_s(self, shapes: ChunkedPipelines, stages: MeanStages, pace_s: Floats) -> Floats:
        """About the steps at which stages take no longer than these paces. (shape,)

            T = K B + (S - B) / v

        with B the pace and S what all stages take, of which one chunk fills the pipeline.

        Infinite where Megatron-LM cannot hide the traffic of experts beside what is recomputed.
        """
        bounded_s = np.where(np.isfinite(pace_s), pace_s, 0.0)
        sizes, _ = stages.chunk_sizes(bounded_s, shapes.vpp)
        each_s = stages.ends_s + stages.layer_s * sizes * shapes.vpp[:, np.newaxis]
        others_s = np.maximum((stages.counts * each_s).sum(axis=1) - bounded_s, 0.0)
        step_s = self.micro_batches[shapes.config] * pace_s + others_s / shapes.vpp
        shows = [each.mode.startswith("full") or "moe" in each.modules for each in self.recomputes]
        is_shown = np.array(shows)[shapes.recompute] & (self.hides[shapes.config] > 0)
        return np.where(is_shown, np.inf, step_s)

    def estimated_s(self, shapes: ChunkedPipelines) -> Floats:
        """About the least steps, all stages as the middle one of their type, and as if no other
        type were below it: types may stand in any order. (shape,)
        """
        below = shapes.counts // 2
        can_lack = np.full_like(below, self.layers)
        stages = self.stages(shapes, INSIDE, below, can_lack)
        return self.steps_s(shapes, stages, stages.least_pace_s(shapes.vpp, self.layers))


def stage_counts(space: Space, estimates: ChunkEstimates, vpp: int, types: int) -> ChunkedPipelines:
    """Every config with numbers of stages of so many types or more, a segment for each type."""
    known: dict[object, tuple[Ints, Ints]] = {}
    tables = []
    for row, (_, own) in enumerate(estimates.configs):
        key = tuple((option.pool, option.stages) for option in own)
        if key not in known:
            known[key] = _counts_of(space, own)
        options, counts = known[key]
        tables.append((np.full(len(counts), row), options + estimates.first_option[row], counts))
    config, options, counts = (np.concatenate(column) for column in zip(*tables, strict=True))
    none, task = np.zeros(len(config), np.int64), space.workload.task
    found = ChunkedPipelines(config, none, none + vpp, options, counts, 0 * counts, none, none)
    good = ((counts > 0).sum(axis=1) >= types) & (found.depth > 1)
    good &= vpp * found.depth <= task.model.layers
    if task.cluster.max_gpus is not None:
        good &= found.depth * estimates.stage_gpus[config] <= task.cluster.max_gpus
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
            stride = -(-len(counts) // CAPPED_COUNTS) or 1
            is_capped = workload.task.cluster.max_gpus is not None
            counts = counts[::stride] if is_capped else counts[:STAGE_COUNTS]
            own += [(row, count) for count in counts]
        choices.append(own)
    table = np.array(list(product(*choices)), np.int64).reshape(-1, len(choices), 2)
    return table[..., 0], table[..., 1]
