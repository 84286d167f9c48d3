"""Interleaved pipelines stage by stage: types in an order, chunks by speed, and whole plans."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import islice, permutations, product

import numpy as np

from astra.cost.stage_lines import FIRST, INSIDE, LAST
from astra.search.pipeline.chunk_estimates import ChunkedPipelines, ChunkEstimates
from astra.strategy.plans import Ints, Plans, code
from astra.strategy.segment_columns import DEGREES, option_columns, plans_from_stages
from astra.strategy.space import Workload

TYPE_ORDERS = 24  # of the types of a pipeline


def joined(some: Sequence[ChunkedPipelines]) -> ChunkedPipelines:
    """As one table."""
    columns = (
        np.concatenate([getattr(table, each.name) for table in some])
        for each in fields(ChunkedPipelines)
    )
    return ChunkedPipelines(*columns)


def unseen(table: ChunkedPipelines, seen: set[bytes]) -> ChunkedPipelines:
    """Those that are not among the seen ones, each once; from now on they are."""
    columns = np.column_stack([getattr(table, each.name) for each in fields(table)])
    new = []
    for row, key in enumerate(columns):
        if key.tobytes() not in seen:
            seen.add(key.tobytes())
            new.append(row)
    return table.take(np.array(new, np.int64))


def by_stages(table: ChunkedPipelines, estimates: ChunkEstimates) -> ChunkedPipelines:
    """Pipelines of a segment for each type with their types in some orders, stage by stage: slow
    types in front, then behind, then others.
    """
    width, layer_s = int(table.depth.max(initial=2)), estimates.layer_s[INSIDE]
    rows: list[int] = []
    lines: list[Ints] = []
    for row, (options, counts) in enumerate(zip(table.options, table.counts, strict=True)):
        used = np.flatnonzero(counts)
        by_speed = used[np.argsort(-layer_s[options[used]], kind="stable")].tolist()
        orders = dict.fromkeys((tuple(by_speed), tuple(by_speed[::-1])))
        orders |= dict.fromkeys(permutations(by_speed))
        for order in islice(orders, TYPE_ORDERS):
            line = np.repeat(options[list(order)], counts[list(order)])
            rows.append(row)
            lines.append(np.pad(line, (0, width - len(line))))
    found = table.take(np.array(rows, np.int64))
    counts = (np.arange(width) < found.depth[:, np.newaxis]).astype(np.int64)
    options = np.array(lines, np.int64).reshape(-1, width)
    return replace(found, options=options, counts=counts, sizes=np.zeros_like(counts))


def sized(table: ChunkedPipelines, estimates: ChunkEstimates, most: int) -> ChunkedPipelines:
    """With chunks by speed, at the least pace at which stages hold the model: so many pipelines
    of the least steps. The first and the last stage a little larger too: their short chunks lack
    some of it.
    """
    layers, stage = estimates.layers, np.arange(table.counts.shape[1])
    below = np.maximum(table.depth[:, np.newaxis] - 1 - stage, 0)
    place = np.where(stage == 0, FIRST, np.where(below > 0, INSIDE, LAST))
    can_lack = np.where(stage == 0, 1, np.where(below > 0, 0, layers))
    stages = estimates.stages(table, place, below, can_lack)
    pace_s = stages.least_pace_s(table.vpp, layers)
    best = np.argsort(estimates.steps_s(table, stages, pace_s), kind="stable")[:most]
    best = best[np.isfinite(pace_s[best])]
    sizes, _ = stages.chunk_sizes(np.where(np.isfinite(pace_s), pace_s, 0.0), table.vpp)
    by_speed = np.argsort(np.where(below > 0, -stages.layer_s, 0.0), axis=1, kind="stable")
    sizes, by_speed, table = (sizes * table.counts)[best], by_speed[best], table.take(best)
    found = []
    for more_first, more_last in product((0, 1), (0, 1)):
        larger = sizes.copy()
        larger[:, 0] += more_first
        larger[np.arange(len(table)), table.depth - 1] += more_last
        found.append(_with_last_stage(table, _smaller(table, larger, by_speed, layers), layers))
    return joined(found)


def _smaller(table: ChunkedPipelines, sizes: Ints, order: Ints, layers: int) -> Ints:
    """Chunks of stage after stage smaller by a layer, in this order, until a layer of every chunk
    of a stage is no longer too much.
    """
    rows, before = np.arange(len(table)), -1
    while sizes.sum() != before:
        before = sizes.sum()
        for stage in order.T:
            is_too_large = table.vpp * (sizes.sum(axis=1) - 1) > layers  # the first may lack one
            is_inside = stage < table.depth - 1
            sizes[rows, stage] -= is_too_large & is_inside & (sizes[rows, stage] > 1)
    return sizes


def _with_last_stage(table: ChunkedPipelines, sizes: Ints, layers: int) -> ChunkedPipelines:
    """With these sizes. The last stage holds what is left: in chunks as small as may be, of its
    size, or a layer larger than either; its last chunk lacks what is too much. The first of all
    is whole or lacks a layer.
    """
    last, vpp, found = table.depth - 1, table.vpp, []
    given = sizes[np.arange(len(table)), last]
    for short_first in (0, 1):
        left = layers + short_first - vpp * (sizes.sum(axis=1) - given)
        least = -(-left // vpp)
        for size in (least, least + 1, given, given + 1):
            short_last = vpp * size - left
            good = (sizes[:, 0] > short_first) & (short_last >= 0) & (short_last < size)
            rows = np.flatnonzero(good & (left > 0))
            own = sizes[rows]
            own[np.arange(len(rows)), last[rows]] = size[rows]
            short = {"short_first": 0 * rows + short_first, "short_last": short_last[rows]}
            found.append(replace(table.take(rows), sizes=own, **short))
    return joined(found)


def neighbours(table: ChunkedPipelines, layers: int) -> ChunkedPipelines:
    """Chunks a layer larger on one stage, smaller on another, or both; the last stage holds what
    is left.
    """
    found = [table.take(np.zeros(0, np.int64))]
    for row, depth in enumerate(table.depth.tolist()):
        step = np.eye(depth, depth - 1, dtype=np.int64)  # of each stage but the last, and of none
        moves = np.unique((step[:, np.newaxis] - step).reshape(-1, depth - 1), axis=0)
        copies = table.take(np.full(len(moves), row))
        sizes = copies.sizes.copy()
        sizes[:, : depth - 1] += moves
        good = np.all(sizes[:, : depth - 1] > 0, axis=1)
        found.append(_with_last_stage(copies.take(good), sizes[good], layers))
    return joined(found)


def to_plans(workload: Workload, estimates: ChunkEstimates, table: ChunkedPipelines) -> Plans:
    """A slot for every stage."""
    stages = slice(int(table.depth.max()))
    used = table.counts.T[stages] > 0  # (stage, pipeline)
    degrees = option_columns([option for _, option in estimates.pairs])
    slots = {name: column[table.options.T[stages]] for name, column in degrees.items()}
    slots |= {name: np.where(used, slots[name], 1) for name in DEGREES}
    layers = table.vpp[:, np.newaxis] * table.sizes
    layers[:, 0] -= table.short_first
    layers[np.arange(len(table)), table.depth - 1] -= table.short_last
    again = [estimates.recomputes[row] for row in table.recompute.tolist()]
    slots |= {
        "stages": used.astype(np.int64),
        "layers": layers.T[stages],
        "recompute": used * np.array([code("recompute", each.mode) for each in again]),
        "recompute_layers": used * np.array([each.layers for each in again]),
        "recompute_modules": used * np.array([each.module_bits for each in again]),
    }
    lists: dict[tuple[int, ...], int] = {}
    listed = np.full(len(table), -1, np.int64)
    for row in np.flatnonzero(table.short_first + table.short_last).tolist():
        chunks = table.sizes[row, stages][used[:, row]].tolist() * int(table.vpp[row])
        chunks[0] -= int(table.short_first[row])
        chunks[-1] -= int(table.short_last[row])
        listed[row] = lists.setdefault(tuple(chunks), len(lists))
    other = {
        "vpp": table.vpp,
        "microbatch_group": estimates.groups(table.config, table.depth),
        "chunking": listed,
        "overlap_p2p": np.array(True),
        "schedule": np.array(code("schedule", "interleaved")),
    }
    settings = [setting for setting, _ in estimates.configs]
    return plans_from_stages(workload, settings, table.config, slots, other, tuple(lists))
