"""Interleaved pipelines stage by stage: types in an order, chunks by speed, and whole plans."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice, permutations, product

import numpy as np

from astra.search.pipeline.chunk_estimates import ChunkEstimates, ChunkShapes
from astra.search.pipeline.constants import SIZED, TYPE_ORDERS
from astra.search.pipeline.stage_lines import FIRST, INSIDE, LAST
from astra.strategy.plans import Floats, Ints, Plans, code
from astra.strategy.segment_columns import DEGREES, option_columns, plans_from_stages
from astra.strategy.space import Workload


@dataclass(frozen=True, slots=True)
class ChunkedPipelines(ChunkShapes):
    """Pipelines of which every segment is one stage, or none: those stand behind. (pipeline,)

    The chunks of a stage are equal; the first of all may lack a layer, and the last of all some.
    """

    sizes: Ints  # (pipeline, stage) layers of a chunk
    short_first: Ints  # layers that the first chunk of all lacks
    short_last: Ints  # and the last one
    step_s: Floats  # infinite until it is known

    def identities(self) -> list[bytes]:
        """Equal for equal pipelines."""
        columns = [getattr(self, each.name) for each in fields(self) if each.name != "step_s"]
        return [row.tobytes() for row in np.column_stack(columns)]

    @property
    def layers(self) -> Ints:
        """Of every stage. (pipeline, stage)"""
        found = self.vpp[:, np.newaxis] * self.sizes
        found[:, 0] -= self.short_first
        found[np.arange(len(self)), self.depth - 1] -= self.short_last
        return found

    def plans(self, workload: Workload, estimates: ChunkEstimates) -> Plans:
        """A slot for every stage."""
        stages = slice(int(self.depth.max()))
        used = self.counts.T[stages] > 0  # (stage, pipeline)
        degrees = option_columns([option for _, option in estimates.pairs])
        slots = {name: column[self.options.T[stages]] for name, column in degrees.items()}
        slots |= {name: np.where(used, slots[name], 1) for name in DEGREES}
        again = [estimates.recomputes[row] for row in self.recompute.tolist()]
        slots |= {
            "stages": used.astype(np.int64),
            "layers": self.layers.T[stages],
            "recompute": used * np.array([code("recompute", each.mode) for each in again]),
            "recompute_layers": used * np.array([each.layers for each in again]),
            "recompute_modules": used * np.array([each.module_bits for each in again]),
        }
        lists: dict[tuple[int, ...], int] = {}
        listed = np.full(len(self), -1, np.int64)
        for row in np.flatnonzero(self.short_first + self.short_last).tolist():
            chunks = self.sizes[row, stages][used[:, row]].tolist() * int(self.vpp[row])
            chunks[0] -= int(self.short_first[row])
            chunks[-1] -= int(self.short_last[row])
            listed[row] = lists.setdefault(tuple(chunks), len(lists))
        other = {
            "vpp": self.vpp,
            "microbatch_group": estimates.groups(self.config, self.depth),
            "chunking": listed,
            "overlap_p2p": np.array(True),
            "schedule": np.array(code("schedule", "interleaved")),
        }
        settings = [setting for setting, _ in estimates.configs]
        return plans_from_stages(workload, settings, self.config, slots, other, tuple(lists))


def joined(some: Sequence[ChunkedPipelines]) -> ChunkedPipelines:
    """As one table."""
    columns = (
        np.concatenate([getattr(table, each.name) for table in some])
        for each in fields(ChunkedPipelines)
    )
    return ChunkedPipelines(*columns)


def by_stages(shapes: ChunkShapes, estimates: ChunkEstimates) -> ChunkedPipelines:
    """Shapes of a segment for each type with their types in some orders, stage by stage: slow
    types in front, then behind, then others. Their chunks hold nothing yet.
    """
    width, layer_s = int(shapes.depth.max(initial=2)), estimates.layer_s[INSIDE]
    rows: list[int] = []
    lines: list[Ints] = []
    for row, (options, counts) in enumerate(zip(shapes.options, shapes.counts, strict=True)):
        used = np.flatnonzero(counts)
        by_speed = used[np.argsort(-layer_s[options[used]], kind="stable")].tolist()
        orders = dict.fromkeys((tuple(by_speed), tuple(by_speed[::-1])))
        orders |= dict.fromkeys(permutations(by_speed))
        for order in islice(orders, TYPE_ORDERS):
            line = np.repeat(options[list(order)], counts[list(order)])
            rows.append(row)
            lines.append(np.pad(line, (0, width - len(line))))
    found = shapes.take(np.array(rows, np.int64))
    counts = (np.arange(width) < found.depth[:, np.newaxis]).astype(np.int64)
    options, none = np.array(lines, np.int64).reshape(-1, width), np.zeros_like(found.vpp)
    own, unknown = (found.config, found.recompute, found.vpp), np.full(len(found), np.inf)
    return ChunkedPipelines(*own, options, counts, np.zeros_like(counts), none, none, unknown)


def sized(table: ChunkedPipelines, estimates: ChunkEstimates) -> ChunkedPipelines:
    """With chunks by speed, at the least pace at which stages hold the model; the first and the
    last stage a little larger too, so that their short chunks lack more.
    """
    layers, stage = estimates.layers, np.arange(table.counts.shape[1])
    below = np.maximum(table.depth[:, np.newaxis] - 1 - stage, 0)
    place = np.where(stage == 0, FIRST, np.where(below > 0, INSIDE, LAST))
    can_lack = np.where(stage == 0, 1, np.where(below > 0, 0, layers))
    stages = estimates.stages(table, place, below, can_lack)
    pace_s = stages.least_pace_s(table.vpp, layers)
    best = np.argsort(estimates.steps_s(table, pace_s), kind="stable")[:SIZED]
    best = best[np.isfinite(pace_s[best])]
    sizes, _ = stages.chunk_sizes(np.where(np.isfinite(pace_s), pace_s, 0.0), table.vpp)
    slowness = np.where(table.counts > 0, stages.layer_s, 0.0)
    by_speed = np.argsort(-slowness, axis=1, kind="stable")[best]
    sizes, table = (sizes * table.counts)[best], table.take(best)
    found = []
    for more_first, more_last in product((0, 1), (0, 1)):
        larger = sizes.copy()
        larger[:, 0] += more_first
        larger[np.arange(len(table)), table.depth - 1] += more_last
        found.append(_with_sizes(table, _smaller(table, larger, by_speed, layers), layers))
    return joined(found)


def _smaller(table: ChunkedPipelines, sizes: Ints, order: Ints, layers: int) -> Ints:
    """Chunks of stage after stage smaller by a layer, in this order, until the last chunk can lack
    what is too much.
    """
    rows, vpp, last, before = np.arange(len(table)), table.vpp, table.depth - 1, -1
    while sizes.sum() != before:
        before = sizes.sum()
        for stage in order.T:
            extra = vpp * sizes.sum(axis=1) - layers
            is_too_large = extra >= np.maximum(sizes[rows, last], vpp)
            sizes[rows, stage] -= is_too_large & (sizes[rows, stage] > 1)
    return sizes


def _with_sizes(table: ChunkedPipelines, sizes: Ints, layers: int) -> ChunkedPipelines:
    """Those whose first and last chunk can lack what is too much, the first a layer or none."""
    last, found = sizes[np.arange(len(table)), table.depth - 1], []
    for first in (0, 1):
        short_last = table.vpp * sizes.sum(axis=1) - layers - first
        short_first = np.full(len(table), first)
        changed = replace(table, sizes=sizes, short_first=short_first, short_last=short_last)
        good = (short_last >= 0) & (short_last < last) & (sizes[:, 0] > first)
        found.append(changed.take(good))
    return joined(found)


def neighbours(table: ChunkedPipelines, layers: int) -> ChunkedPipelines:
    """Chunks a layer larger on one stage, smaller on another, or both; on the last stage larger
    by one more, for its last chunk lacks what is too much; the first short or not.
    """
    found = [table.take(slice(0))]
    for row, depth in enumerate(table.depth.tolist()):
        step = np.eye(depth + 1, depth, dtype=np.int64)  # of each stage, and of none
        moves = (step[:, np.newaxis] - step).reshape(-1, depth)
        moves = np.unique(np.concatenate([moves, moves + step[depth - 1]]), axis=0)
        copies = table.take(np.full(len(moves), row))
        sizes = copies.sizes.copy()
        sizes[:, :depth] += moves
        good = np.all(sizes[:, :depth] > 0, axis=1)
        found.append(_with_sizes(copies.take(good), sizes[good], layers))
    return joined(found)
