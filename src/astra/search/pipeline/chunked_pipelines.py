"""Interleaved pipelines stage by stage: types in an order, chunks by speed, and whole plans."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice, permutations, product

import numpy as np

from astra.search.pipeline.chunk_estimates import ChunkEstimates, ChunkShapes, MeanStages
from astra.search.pipeline.constants import ORDERS, SIZED
from astra.search.pipeline.plan_columns import DEGREES, option_columns, plans_from_stages
from astra.search.pipeline.stage_lines import FIRST, INSIDE, LAST
from astra.strategy.plans import Floats, Ints, Plans, code
from astra.strategy.space import Workload


@dataclass(frozen=True, slots=True)
class ChunkedPipelines(ChunkShapes):
    """Pipelines of which every segment is one stage, or none: those stand behind. (pipeline,)

    The chunks of a stage are equal; the first of all may lack a layer, and the last of all some.
    """

    sizes: Ints  # (pipeline, stage) layers of a chunk
    short_first: Ints  # layers that the first chunk of all lacks
    short_last: Ints  # and the last one

    def identities(self) -> list[bytes]:
        """One for each distinct pipeline."""
        columns = [getattr(self, each.name) for each in fields(self)]
        return [row.tobytes() for row in np.column_stack(columns).astype(np.int32)]

    def shape_keys(self) -> Ints:
        return np.column_stack([getattr(self, each.name) for each in fields(ChunkShapes)])

    @property
    def layers(self) -> Ints:
        """Of every stage. (pipeline, stage)"""
        found = self.vpp[:, np.newaxis] * self.sizes
        found[:, 0] -= self.short_first
        found[np.arange(len(self)), self.depth - 1] -= self.short_last
        return found

    def estimated_s(self, estimates: ChunkEstimates) -> Floats:
        """About the step, as `ChunkEstimates.estimated_s` has it. (pipeline,)"""
        stages = mean_stages(self, estimates)
        stage_s = self.counts * (stages.ends_s + self.layers * stages.layer_s)
        turns = estimates.micro_batches[self.config] - 1
        found: Floats = turns * stage_s.max(axis=1) + stage_s.sum(axis=1) / self.vpp
        return found

    def chunk_layers(self) -> Ints:
        """Layers of every chunk; 0 beyond a pipeline's own. (pipeline, chunk, stage)"""
        rows, chunk = np.arange(len(self)), np.arange(self.vpp.max(initial=1))
        here = chunk[:, np.newaxis] < self.vpp[:, np.newaxis, np.newaxis]
        found = np.where(here, self.sizes[:, np.newaxis], 0)
        found[:, 0, 0] -= self.short_first
        found[rows, self.vpp - 1, self.depth - 1] -= self.short_last
        return found

    def plans(self, workload: Workload, estimates: ChunkEstimates) -> Plans:
        """A slot for every stage."""
        width, depth = int(self.depth.max()), self.depth
        used = self.counts[:, :width].T > 0
        degrees = option_columns([option for _, option in estimates.pairs])
        slots = {name: column[self.options[:, :width].T] for name, column in degrees.items()}
        slots |= {name: np.where(used, slots[name], 1) for name in DEGREES}
        again = [estimates.recomputes[row] for row in self.recompute.tolist()]
        chunks = self.chunk_layers()
        slots |= {
            "stages": used.astype(np.int64),
            "layers": self.layers.T[:width],
            "recompute": used * np.array([code("recompute", each.mode) for each in again]),
            "recompute_layers": used * np.array([each.layers for each in again]),
            "recompute_modules": used * np.array([each.module_bits for each in again]),
        }
        lists: dict[tuple[int, ...], int] = {}
        listed = np.full(len(self), -1, np.int64)
        for row in np.flatnonzero(self.short_first + self.short_last).tolist():
            flat = tuple(chunks[row, : self.vpp[row], : depth[row]].reshape(-1).tolist())
            listed[row] = lists.setdefault(flat, len(lists))
        other = {
            "vpp": self.vpp,
            "microbatch_group": estimates.groups(self.config, depth),
            "chunking": listed,
            "overlap_p2p": np.array(True),
            "schedule": np.array(code("schedule", "interleaved")),
        }
        settings = [config.setting for config in estimates.configs]
        return plans_from_stages(workload, settings, self.config, slots, other, tuple(lists))


def joined(some: Sequence[ChunkedPipelines]) -> ChunkedPipelines:
    """As one table."""
    columns = (
        np.concatenate([getattr(table, each.name) for table in some])
        for each in fields(ChunkedPipelines)
    )
    return ChunkedPipelines(*columns)


def by_stages(shapes: ChunkShapes, layer_s: Ints, width: int) -> ChunkShapes:
    """Shapes of a segment for each type with their types in some orders, stage by stage.

    Slow types in front, then behind, then others. `layer_s`: seconds of a layer by option.
    """
    rows: list[int] = []
    lines: list[Ints] = []
    for row, (options, counts) in enumerate(zip(shapes.options, shapes.counts, strict=True)):
        used = np.flatnonzero(counts)
        by_speed = used[np.argsort(-layer_s[options[used]], kind="stable")].tolist()
        orders = dict.fromkeys((tuple(by_speed), tuple(by_speed[::-1])))
        orders |= dict.fromkeys(permutations(by_speed))
        for order in islice(orders, ORDERS):
            rows.append(row)
            lines.append(np.repeat(options[list(order)], counts[list(order)]))
    table = np.zeros((len(rows), width), np.int64)
    for line, options in zip(lines, table, strict=True):
        options[: len(line)] = line
    found = shapes.take(np.array(rows, np.int64))
    return replace(found, options=table, counts=(np.arange(width) < found.depth[:, None]) * 1)


def mean_stages(shapes: ChunkShapes, estimates: ChunkEstimates) -> MeanStages:
    """Each of the stages that shapes are made of."""
    stage = np.arange(shapes.options.shape[1])
    below = np.maximum(shapes.depth[:, np.newaxis] - 1 - stage, 0)
    place = np.where(below > 0, INSIDE, LAST)
    place[:, 0] = FIRST
    can_lack = np.where(below == 0, estimates.layers, 0) * shapes.counts
    can_lack[:, 0] = 1
    return estimates.stages(shapes, place, below, can_lack)


def sized(shapes: ChunkShapes, estimates: ChunkEstimates) -> ChunkedPipelines:
    """Pipelines with chunks by speed, at the least pace at which they hold the model."""
    rows, stages = np.arange(len(shapes)), mean_stages(shapes, estimates)
    pace_s = stages.least_pace_s(shapes.vpp, np.full(len(shapes), estimates.layers))
    good = np.isfinite(pace_s)
    sizes, _ = stages.chunk_sizes(np.where(good, pace_s, 0.0), shapes.vpp)
    sizes = sizes * shapes.counts
    slowest = np.argsort(np.where(shapes.counts > 0, -stages.layer_s, 1.0), axis=1, kind="stable")
    found = []
    for more_first, more_last, fewest in product((0, 1), (0, 1), (False, True)):
        larger = sizes.copy()
        larger[:, 0] += more_first
        larger[rows, shapes.depth - 1] += more_last
        smaller = _smaller(larger, slowest, shapes, estimates.layers, fewest)
        found.append(with_ends(shapes.take(good), smaller[good], estimates.layers))
    table = joined(found)
    order = np.argsort(table.estimated_s(estimates), kind="stable")
    return table.take(order[:SIZED])


def _smaller(sizes: Ints, order: Ints, shapes: ChunkShapes, layers: int, fewest: bool) -> Ints:
    """Chunks of some stages smaller by a layer, in this order of stages, until what is too much
    is less than a layer of all chunks of a stage; `fewest`: until the last chunk can lack it.
    """
    found, rows, vpp = sizes.copy(), np.arange(len(sizes)), shapes.vpp
    for stage in order.T:
        extra = vpp * found.sum(axis=1) - layers
        enough = np.maximum(found[rows, shapes.depth - 1], vpp) if fewest else vpp
        found[rows, stage] -= (extra >= enough) & (found[rows, stage] > 1)
    return found


def with_ends(shapes: ChunkShapes, sizes: Ints, layers: int) -> ChunkedPipelines:
    """Those whose first and last chunk can lack what is too much, the first a layer or none."""
    columns = [getattr(shapes, each.name) for each in fields(ChunkShapes)]
    last = sizes[np.arange(len(shapes)), shapes.depth - 1]
    found = []
    for first in (0, 1):
        short_last = shapes.vpp * sizes.sum(axis=1) - layers - first
        good = (short_last >= 0) & (short_last < last) & (sizes[:, 0] > first)
        table = ChunkedPipelines(*columns, sizes, np.full(len(shapes), first), short_last)
        found.append(table.take(good))
    return joined(found)


def neighbours(table: ChunkedPipelines, layers: int) -> ChunkedPipelines:
    """Chunks a layer larger on one stage, smaller on another, or both; the first short or not."""
    found = [table.take(slice(0))]
    for row, depth in enumerate(table.depth.tolist()):
        step = np.concatenate([np.zeros((1, depth), int), np.eye(depth, dtype=int)])
        moves = (step[:, np.newaxis] - step).reshape(-1, depth)
        moves = np.unique(np.concatenate([moves, moves + step[-1]]), axis=0)
        copies = table.take(np.full(len(moves), row))
        sizes = copies.sizes.copy()
        sizes[:, :depth] += moves
        good = (sizes[:, :depth] > 0).all(axis=1)
        found.append(with_ends(copies.take(good), sizes[good], layers))
    return joined(found)
