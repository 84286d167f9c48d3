"""Seconds and memory of interleaved pipelines, from the lines of their stages.

One parallel config holds for all types, so a pipeline is a row of segment options with a chunk size
for every stage. The chunks of a stage are equal; the first of all may lack a layer, and the last of
all some.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from astra.model.layer_kinds import layer_kinds
from astra.search.pipeline.stage_lines import (
    ALL_LAYERS,
    FIRST,
    INSIDE,
    LAST,
    NO_RECOMPUTE,
    StagePricer,
)
from astra.simulate.pipeline_columns import PipelineColumns, stage_end_s
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plans import Flags, Floats, Ints
from astra.strategy.recompute import Recompute
from astra.strategy.segment_columns import GlobalSetting, SegmentOption
from astra.timing.stage import exposed_data_parallel_s

ROUNDING_LAYERS = 1e-9


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """One parallel config with the options that the types have in it."""

    setting: GlobalSetting
    options: tuple[SegmentOption, ...]


@dataclass(frozen=True, slots=True)
class ChunkedPipelines:
    """Interleaved pipelines of as many stages each. (pipeline,)"""

    config: Ints  # rows of the stages' configs
    recompute: Ints  # rows of their recompute settings
    vpp: Ints
    options: Ints  # (pipeline, stage) of all options of the configs
    sizes: Ints  # (pipeline, stage) layers of a chunk
    short_first: Ints  # layers that the first chunk of all lacks
    short_last: Ints  # and the last one

    def __len__(self) -> int:
        return len(self.config)

    @property
    def stages(self) -> int:
        return self.options.shape[1]

    def take(self, rows: Ints | Flags | slice) -> "ChunkedPipelines":
        return ChunkedPipelines(*(getattr(self, each.name)[rows] for each in fields(self)))

    def identities(self) -> list[bytes]:
        """One for each distinct pipeline."""
        columns = [self.config, self.recompute, self.vpp, self.short_first, self.short_last]
        table = np.column_stack([*columns, self.options, self.sizes]).astype(np.int32)
        return [row.tobytes() for row in table]

    @property
    def chunk_layers(self) -> Ints:
        """Layers of every chunk; 0 beyond a plan's own. (pipeline, chunk, stage)"""
        most, rows = int(self.vpp.max(initial=1)), np.arange(len(self))
        here = np.arange(most)[:, np.newaxis] < self.vpp[:, np.newaxis, np.newaxis]
        found = np.where(here, self.sizes[:, np.newaxis], 0)
        found[:, 0, 0] -= self.short_first
        found[rows, self.vpp - 1, -1] -= self.short_last
        return found


def joined(some: Sequence[ChunkedPipelines]) -> ChunkedPipelines:
    """Pipelines of as many stages as one table."""
    columns = (
        np.concatenate([getattr(table, each.name) for table in some])
        for each in fields(ChunkedPipelines)
    )
    return ChunkedPipelines(*columns)


@dataclass(frozen=True, slots=True)
class _StageColumns:
    """What the stages of some pipelines hold and take. (pipeline, stage)"""

    layers: Ints
    kinds: Floats  # (pipeline, stage, kind)
    whole_share: Floats  # of the layers, recomputed whole beside the lines' own recompute
    chunks: Ints  # (pipeline, chunk, stage)


@dataclass(frozen=True, slots=True)
class StagePaces:
    """Seconds of stages for one micro-batch, there and back, with their share of the waiting for
    the slowest GPU. (pipeline, stage)
    """

    layer_s: Floats  # a mean layer
    ends_s: Floats  # embedding, head
    whole_s: Floats  # a layer recomputed beyond that
    whole_layers: Ints  # that are, at most

    def stage_s(self, layers: Ints | Floats) -> Floats:
        """Stages with so many layers."""
        found: Floats = self.ends_s + layers * self.layer_s
        return found + np.minimum(layers, self.whole_layers) * self.whole_s

    def layers_at(self, pace_s: Floats) -> Ints:
        """Most layers of a stage that takes no longer. `pace_s`: (pipeline,)"""
        left_s = np.maximum(pace_s[:, np.newaxis] - self.ends_s, 0.0)
        every = left_s / (self.layer_s + self.whole_s)
        some = (left_s - self.whole_layers * self.whole_s) / self.layer_s
        return (np.maximum(every, some) + ROUNDING_LAYERS).astype(np.int64)

    def take(self, rows: Ints | slice) -> "StagePaces":
        return StagePaces(*(getattr(self, each.name)[rows] for each in fields(self)))


class ChunkedStages:
    """Stages of some configs with some recompute settings."""

    def __init__(
        self,
        pricer: StagePricer,
        configs: Sequence[ParallelConfig],
        recomputes: Sequence[Recompute],
    ) -> None:
        self.pricer, self.configs, self.recomputes = pricer, configs, list(recomputes)
        self.pairs = [(each.setting, option) for each in configs for option in each.options]
        count = [len(each.options) for each in configs]
        self.first_option = np.cumsum([0, *count])[:-1]
        priced = [each for each in recomputes if not is_block(each)]
        self.priced = list(dict.fromkeys([NO_RECOMPUTE, ALL_LAYERS, *priced]))
        found = pricer.lines(self.pairs, self.priced)
        self.fixed, self.again, self.working = found.fixed, found.recomputed, found.working_bytes
        lines = [0 if is_block(each) else self.priced.index(each) for each in recomputes]
        self.line = np.array(lines)  # (recompute setting,) of the priced ones
        self.block = np.array([each.layers * is_block(each) for each in recomputes])
        settings = [each.setting for each in configs]
        self.micro_batches = np.array([each.micro_batches for each in settings])
        self.hides = np.array([each.overlap_ep for each in settings]).astype(np.int64)
        self.gathers = np.array([each.sharding == "parameters" for each in settings])
        copies = [each.options[0].dp * each.setting.cp for each in configs]
        self.has_copies = np.array(copies) > 1
        self.is_sharded = np.array([each.sharding != "none" for each in settings])
        self.stage_gpus = np.array([each.options[0].stage_gpus for each in configs])
        kinds = layer_kinds(pricer.model)
        each_kind = np.array(kinds.of_layer)[:, np.newaxis] == np.arange(len(kinds.kinds))
        self.layers = len(each_kind)
        self.before = np.zeros((self.layers + 1, each_kind.shape[1]))
        self.before[1:] = np.cumsum(each_kind, axis=0)
        self.mean_kinds = self.before[-1] / self.layers
        self._links: dict[int, Floats] = {}  # of a config, (option, next)

    def _slope(self, lines: Floats) -> Floats:
        """Of a mean layer. (..., 1 + kind) to (...)"""
        found: Floats = lines[..., 1:] @ self.mean_kinds
        return found

    def paces(
        self, config: Ints, recompute: Ints, vpp: Ints, options: Ints, place: Ints, depth: Ints
    ) -> StagePaces:
        """How long stages take, of pipelines so deep. (pipeline, stage) options and places."""
        doublings = np.log2(self.stage_gpus[config] * depth)[:, np.newaxis]
        both = self.fixed["forward_s"] + self.fixed["backward_s"]
        waits, again = self.fixed["straggler_s"], self.again["recompute_s"]
        line = self.line[recompute][:, np.newaxis]
        layer_s = self._slope(both)[place, options] + self._slope(again)[line, place, options]
        ends_s = both[place, options, 0] + again[line, place, options, 0]
        return StagePaces(
            layer_s=layer_s + doublings * self._slope(waits)[place, options],
            ends_s=np.maximum(ends_s + doublings * waits[place, options, 0], 0.0),
            whole_s=self._slope(again)[1, place, options],
            whole_layers=(self.block[recompute] * vpp)[:, np.newaxis],
        )

    def groups(self, stages: int, config: Ints) -> Ints:
        """Micro-batches in a row on one chunk; 0 where there are too few. (pipeline,)"""
        known = {
            count: least_microbatch_group(stages, count) or 0
            for count in set(self.micro_batches[config].tolist())
        }
        return np.array([known[count] for count in self.micro_batches[config].tolist()], np.int64)

    def in_flight(self, config: Ints, vpp: Ints, group: Ints, below: Ints) -> Ints:
        """Chunks whose activations stages with so many below them hold. (pipeline, stage)"""
        v = vpp[:, np.newaxis]
        ahead = 2 * below + (v - 1) * group[:, np.newaxis] + 1 + self.hides[config, np.newaxis]
        return np.minimum(self.micro_batches[config, np.newaxis] * v, ahead)

    def max_sizes(
        self, recompute: Ints, vpp: Ints, options: Ints, place: Ints, in_flight: Ints
    ) -> Ints:
        """Most layers of a chunk that fit on every stage, as if all its chunks had as many.

            (s_0 / v + s n) A + w <= free_0 - r v n

        with s bytes saved of a layer, r kept of it for training, A chunks in flight.
        (pipeline, stage)
        """
        v, line = vpp[:, np.newaxis], self.line[recompute][:, np.newaxis]
        block = self.block[recompute][:, np.newaxis]
        free, saved_bytes = self.fixed["free_bytes"], self.again["saved_bytes"]
        kept = -self._slope(free)[place, options]
        slopes = self._slope(saved_bytes)
        saved, least = slopes[line, place, options], slopes[1, place, options]
        working = self.working[np.where(block > 0, 1, line), options].max(axis=-1)
        working = np.maximum(working, self.fixed["logits_bytes"][place, options, 0])
        room = free[place, options, 0] - working
        room = room - saved_bytes[line, place, options, 0] * in_flight / v
        with np.errstate(divide="ignore", invalid="ignore"):
            most = (room + block * in_flight * (saved - least)) / (saved * in_flight + kept * v)
            whole = np.minimum(room / (least * in_flight + kept * v), block)
        found = np.where(most >= block, most, whole)
        return np.clip(np.nan_to_num(found) + ROUNDING_LAYERS, 0, self.layers).astype(np.int64)

    def _columns(self, pipelines: ChunkedPipelines) -> _StageColumns:
        chunks = pipelines.chunk_layers
        layers = chunks.sum(axis=1)
        if self.before.shape[1] == 1:
            kinds = layers[..., np.newaxis].astype(np.float64)
        else:
            ends = np.cumsum(chunks.reshape(len(chunks), -1), axis=1).reshape(chunks.shape)
            kinds = (self.before[ends] - self.before[ends - chunks]).sum(axis=1)
        block = self.block[pipelines.recompute][:, np.newaxis, np.newaxis]
        whole = np.minimum(chunks, block).sum(axis=1) / np.maximum(layers, 1)
        return _StageColumns(layers, kinds, whole, chunks)

    def steps_s(self, pipelines: ChunkedPipelines) -> Floats:
        """The simulated step of every pipeline; infinite where a stage does not fit. [s]"""
        found = np.full(len(pipelines), np.inf)
        if not len(pipelines):
            return found
        columns = self._columns(pipelines)
        once = self.block[pipelines.recompute] <= pipelines.sizes.max(axis=1)
        fits = np.flatnonzero(self._fits(pipelines, columns).all(axis=1) & once)
        if len(fits):
            some = pipelines.take(fits)
            found[fits] = self._simulated_s(some, self._columns(some))
        return found

    def _line(self, lines: Floats, pipelines: ChunkedPipelines, columns: _StageColumns) -> Floats:
        """A fixed field of every stage."""
        line = lines[places_of(pipelines.stages), pipelines.options]
        found: Floats = line[..., 0] + (line[..., 1:] * columns.kinds).sum(axis=-1)
        return found

    def _recomputed(self, name: str, pipelines: ChunkedPipelines, columns: _StageColumns) -> Floats:
        """A field that depends on recompute, of every stage."""
        lines, own = self.again[name], self.line[pipelines.recompute][:, np.newaxis]
        place = places_of(pipelines.stages)

        def of(row: Ints | int) -> Floats:
            line = lines[row, place, pipelines.options]
            found: Floats = line[..., 0] + (line[..., 1:] * columns.kinds).sum(axis=-1)
            return found

        if not columns.whole_share.any():
            return of(own)
        return of(own) * (1 - columns.whole_share) + of(1) * columns.whole_share

    def _fits(self, pipelines: ChunkedPipelines, columns: _StageColumns) -> Flags:
        """Which stages fit. (pipeline, stage)

        The chunk that is short is held less often: the first one a group and what is ahead of the
        chunks of a group, the last one once when the loss is computed, twice with hidden traffic.
        """
        stages, vpp = pipelines.stages, pipelines.vpp
        below = np.arange(stages)[::-1]
        group = self.groups(stages, pipelines.config)
        held = self.in_flight(pipelines.config, vpp, group, below)
        layers = held * pipelines.sizes
        ahead = held[:, 0]
        light = np.minimum(group + np.maximum(ahead - vpp * group, 0), ahead)
        layers[:, 0] -= light * pipelines.short_first
        layers[:, -1] -= (1 + self.hides[pipelines.config]) * pipelines.short_last
        micro_batches = layers / np.maximum(columns.layers, 1)
        present = columns.kinds > 0
        line = self.line[pipelines.recompute][:, np.newaxis]
        own = np.where(columns.whole_share > 0, 1, line)
        working = np.where(present, self.working[own, pipelines.options], 0.0).max(axis=-1)
        logits = self._line(self.fixed["logits_bytes"], pipelines, columns)
        saved = self._recomputed("saved_bytes", pipelines, columns)
        needed = saved * micro_batches + np.maximum(working, logits)
        fits: Flags = needed <= self._line(self.fixed["free_bytes"], pipelines, columns)
        return fits

    def _simulated_s(self, pipelines: ChunkedPipelines, columns: _StageColumns) -> Floats:
        config, rows = pipelines.config, np.arange(len(pipelines))
        fixed = {name: self._line(lines, pipelines, columns) for name, lines in self.fixed.items()}
        again = self._recomputed("recompute_s", pipelines, columns)
        forward, backward = fixed["forward_s"], fixed["backward_s"] + again
        copies = self.has_copies[config][:, np.newaxis]
        overlaps = copies & self.is_sharded[config][:, np.newaxis]
        behind = fixed["backward_compute_s"] + again
        slow = fixed["slowdown"]
        gather = exposed_data_parallel_s(
            fixed["gather_s"], fixed["forward_compute_s"], overlaps, slow
        )
        reduce = exposed_data_parallel_s(fixed["reduce_s"], behind, copies, slow)
        by_layer = self.gathers[config][:, np.newaxis]
        if by_layer.any():
            both = exposed_data_parallel_s(
                fixed["gather_s"] + fixed["reduce_s"], behind, overlaps, slow
            )
            forward = forward + np.where(by_layer, gather, 0.0)
            backward = backward + np.where(by_layer, both, 0.0)
            gather, reduce = (np.where(by_layer, 0.0, each) for each in (gather, reduce))
        share = columns.chunks / np.maximum(columns.layers, 1)[:, np.newaxis]  # (row, chunk, stage)
        opening = np.zeros_like(share)
        opening[:, 0, 0] = share[:, 0, 0] * gather[:, 0]
        link = self._link_s(pipelines)
        ends = stage_end_s(
            PipelineColumns(
                stages=np.full(len(rows), pipelines.stages),
                chunks=pipelines.vpp,
                micro_batches=self.micro_batches[config],
                group=self.groups(pipelines.stages, config),
                extra_warmup=self.hides[config],
                forward_s=self._by_chunk(forward, "forward_s", share, pipelines),
                backward_s=self._by_chunk(backward, "backward_s", share, pipelines),
                forward_link_s=link.T,
                backward_link_s=link.T,
                first_gather_s=np.moveaxis(opening, 0, -1),
                last_reduce_s=np.zeros((share.shape[1], share.shape[2], len(rows))),
            )
        ).T
        gpus = self.stage_gpus[config] * pipelines.stages
        waits = (np.log2(gpus) * self.micro_batches[config])[:, np.newaxis] * fixed["straggler_s"]
        after = reduce + fixed["optimizer_s"] + waits + self.pricer.stack.step_s
        found: Floats = (ends + after).max(axis=1)
        return found

    def _by_chunk(
        self, stage_s: Floats, way: str, share: Floats, pipelines: ChunkedPipelines
    ) -> Floats:
        """A stage's seconds by its chunks: embedding on the first, head on the last of all."""
        constants = self.fixed[way][..., 0]
        first = (constants[FIRST] - constants[INSIDE])[pipelines.options[:, 0]]
        last = (constants[LAST] - constants[INSIDE])[pipelines.options[:, -1]]
        ends = np.zeros_like(stage_s)
        ends[:, 0] += first
        ends[:, -1] += last
        found = share * (stage_s - ends)[:, np.newaxis]
        rows = np.arange(len(pipelines))
        found[:, 0, 0] += first
        found[rows, pipelines.vpp - 1, -1] += last
        return np.ascontiguousarray(np.moveaxis(found, 0, -1))

    def _link_s(self, pipelines: ChunkedPipelines) -> Floats:
        """From every stage to the next, from the last to the first. (pipeline, stage)"""
        found = np.zeros(pipelines.options.shape)
        used = np.unique(pipelines.config).tolist()
        new = [config for config in used if config not in self._links]
        if new:
            groups = [(self.configs[each].setting, self.configs[each].options) for each in new]
            links = self.pricer.links_s(groups)
            self._links |= {config: each for config, (each, _) in zip(new, links, strict=True)}
        for config in used:
            rows = np.flatnonzero(pipelines.config == config)
            own = pipelines.options[rows] - self.first_option[config]
            found[rows] = self._links[config][own, np.roll(own, -1, axis=1)]
        return found


def is_block(recompute: Recompute) -> bool:
    """Whether so many layers of every chunk are recomputed: no line in the layers of a stage."""
    return recompute.mode == "full:block"


def places_of(stages: int) -> Ints:
    """The place of every stage."""
    found = np.full(stages, INSIDE)
    found[0], found[-1] = FIRST, LAST
    return found
