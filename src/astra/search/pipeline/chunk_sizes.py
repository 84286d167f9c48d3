"""Layers of a chunk on every stage of an interleaved pipeline: by speed, then moved by a layer."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from astra.search.pipeline.chunked_stages import (
    ChunkedPipelines,
    ChunkedStages,
    StagePaces,
    joined,
    places_of,
)
from astra.strategy.plans import Flags, Floats, Ints

HALVINGS = 24  # of the pace at which a pipeline holds the model
MAX_LISTED = 4000  # chunk sizes of a depth and vpp of which all near the pace are tried
FEW_LISTED = 48  # that are all tried, of small models
SMALL_MODEL_LAYERS = 16
LISTED_PACE = 1.12  # times the least: chunk sizes of slower stages are not tried


def least_pace_s(paces: StagePaces, most: Ints, vpp: Ints, layers: int) -> Floats:
    """The least seconds of the busiest stage at which stages hold the model. (pipeline,)

    `most`: the largest chunks that fit, (pipeline, stage). Infinite where there is no such pace.
    """
    low, high = np.zeros(len(vpp)), paces.stage_s(np.array(layers + 1)).max(axis=1)
    never = ~_holds(high, paces, most, vpp, layers)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = _holds(middle, paces, most, vpp, layers)
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    return np.where(never, np.inf, high)


def _holds(pace_s: Floats, paces: StagePaces, most: Ints, vpp: Ints, layers: int) -> Flags:
    held, sizes = _held_at(pace_s, paces, most, vpp)
    found: Flags = (held.sum(axis=1) >= layers) & (sizes > 0).all(axis=1)
    return found


def _held_at(pace_s: Floats, paces: StagePaces, most: Ints, vpp: Ints) -> tuple[Ints, Ints]:
    """Layers of every stage that it can do at this pace, and of its chunks. (pipeline, stage)

    Only on the last stage they need not be a multiple of vpp, and on the first by one.
    """
    v = vpp[:, np.newaxis]
    can = np.minimum(paces.layers_at(pace_s), most * v)
    sizes = can // v
    held = sizes * v
    more = sizes[:, -1] + 1
    fills = (can[:, -1] > held[:, -1]) & (more * vpp - can[:, -1] < more) & (more <= most[:, -1])
    sizes[:, -1] = np.where(fills, more, sizes[:, -1])
    held[:, -1] = np.where(fills, can[:, -1], held[:, -1])
    more = sizes[:, 0] + 1
    fills = (can[:, 0] + 1 == more * vpp) & (more > 1) & (more <= most[:, 0])
    sizes[:, 0] = np.where(fills, more, sizes[:, 0])
    held[:, 0] = np.where(fills, can[:, 0], held[:, 0])
    return held, sizes


def sized(
    stages: ChunkedStages, rows: ChunkedPipelines, *, every: bool
) -> tuple[ChunkedPipelines, Ints]:
    """Pipelines with chunk sizes near the least pace, and the row that each is of.

    `rows`: pipelines whose sizes do not count yet. `every`: all sizes worth a try, else a few.
    """
    small = stages.layers <= SMALL_MODEL_LAYERS
    vpps = set(rows.vpp.tolist()) if every or small else set()
    lists = {vpp: listed_sizes(rows.stages, vpp, stages.layers) for vpp in vpps}
    few = np.array([small and _length(lists[vpp]) <= FEW_LISTED for vpp in rows.vpp.tolist()])
    found = [rows.take(slice(0))]
    origin = [np.zeros(0, np.int64)]
    for row in np.flatnonzero(few).tolist():
        found.append(_with_sizes(rows, row, lists[int(rows.vpp[row])]))
        origin.append(np.full(len(found[-1]), row))
    rest = np.flatnonzero(~few)
    if len(rest):
        for table, own in _near_pace(stages, rows.take(rest), lists if every else {}):
            found.append(table)
            origin.append(rest[own])
    return joined(found), np.concatenate(origin)


def _length(listed: Ints | None) -> float:
    return np.inf if listed is None else len(listed)


def _with_sizes(rows: ChunkedPipelines, row: int, listed: Ints | None) -> ChunkedPipelines:
    """A pipeline with each of the listed sizes."""
    assert listed is not None
    copies = rows.take(np.full(len(listed), row))
    sizes, short_first, short_last = listed[:, :-2], listed[:, -2], listed[:, -1]
    return replace(copies, sizes=sizes, short_first=short_first, short_last=short_last)


def _near_pace(
    stages: ChunkedStages, rows: ChunkedPipelines, lists: Mapping[int, Ints | None]
) -> list[tuple[ChunkedPipelines, Ints]]:
    """Pipelines whose stages are about as slow as they must be, and the row that each is of.

    With `lists`: all of the sizes listed by vpp, or many variants where there is no list.
    """
    group, below = stages.groups(rows.stages, rows.config), np.arange(rows.stages)[::-1]
    held = stages.in_flight(rows.config, rows.vpp, group, below)
    place, depth = places_of(rows.stages), np.full(len(rows), rows.stages)
    most = stages.max_sizes(rows.recompute, rows.vpp, rows.options, place, held)
    paces = stages.paces(rows.config, rows.recompute, rows.vpp, rows.options, place, depth)
    found = []
    for more in (0, 1):  # a stage with a short chunk may fit where one of whole chunks does not
        most[:, [0, -1]] += more
        pace_s = least_pace_s(paces, most, rows.vpp, stages.layers)
        row = np.flatnonzero(np.isfinite(pace_s))
        has_list = [lists.get(vpp) is not None for vpp in rows.vpp[row].tolist()]
        for here in row[np.array(has_list, np.bool_)].tolist():
            table = _with_sizes(rows, here, lists[int(rows.vpp[here])])
            layers = table.chunk_layers.sum(axis=1)
            stage_s = paces.take(slice(here, here + 1)).stage_s(layers)
            table = table.take(stage_s.max(axis=1) <= LISTED_PACE * pace_s[here])
            found.append((table, np.full(len(table), here)))
        rest = row[~np.array(has_list, np.bool_)]
        if len(rest):
            _, sizes = _held_at(pace_s[rest], paces.take(rest), most[rest], rows.vpp[rest])
            base = replace(rows.take(rest), sizes=sizes)
            for table, own in _trimmed(base, paces.layer_s[rest], stages.layers, bool(lists)):
                found.append((table, rest[own]))
    return found


@lru_cache(maxsize=256)
def listed_sizes(stages: int, vpp: int, layers: int) -> Ints | None:
    """Every way to cut the layers, (sizes of the stages, short first, short last); None: many."""
    upper = np.zeros((1, 0), np.int64)  # all stages but the last
    for place in range(stages - 1):
        left = stages - 2 - place
        size = np.arange(1, layers // vpp + 1)
        copies, tiled = np.repeat(upper, len(size), axis=0), np.tile(size, len(upper))
        upper = np.concatenate([copies, tiled[:, np.newaxis]], axis=1)
        upper = upper[vpp * (upper.sum(axis=1) + left) < layers]
        if len(upper) > MAX_LISTED:
            return None
    tables = []
    for short_first in (0, 1):
        some = upper[upper[:, 0] > short_first]
        rest = layers + short_first - vpp * some.sum(axis=1)  # for the last stage
        least, most = np.maximum(-(-rest // vpp), 1), (rest - 1) // (vpp - 1)  # lacks < a chunk
        number = np.maximum(most - least + 1, 0)
        row = np.repeat(np.arange(len(some)), number)
        size = least[row] + np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number)
        ends = np.stack([size, np.full(len(row), short_first), vpp * size - rest[row]], axis=1)
        tables.append(np.concatenate([some[row], ends], axis=1))
    table = np.concatenate(tables)
    return table if len(table) <= MAX_LISTED else None


def _trimmed(
    base: ChunkedPipelines, layer_s: Floats, layers: int, every: bool
) -> list[tuple[ChunkedPipelines, Ints]]:
    """Pipelines with layers that are too many taken off: chunks of some stages a layer smaller, the
    last and the first chunk shorter. With the last and the first stage a little larger, too.
    """
    found = []
    by_speed = np.argsort(-layer_s, axis=1, kind="stable")
    front = np.broadcast_to(np.arange(base.stages), by_speed.shape)
    orders = (by_speed, front, front[:, ::-1]) if every else (by_speed,)
    for more_last in (-1, 0, 1, 2) if every else (0, 1):
        for more_first in (0, 1) if every else (0,):
            sizes = base.sizes.copy()
            sizes[:, -1] += more_last
            sizes[:, 0] += more_first
            good = np.flatnonzero((sizes > 0).all(axis=1))
            for order in orders:
                for fewest in (False, True) if every else (False,):
                    table = replace(base.take(good), sizes=sizes[good])
                    table = _smaller(table, order[good], layers, fewest)
                    for short_first in (0, 1):
                        found.append(_with_ends(table, good, short_first, layers))
    return found


def _smaller(table: ChunkedPipelines, order: Ints, layers: int, fewest: bool) -> ChunkedPipelines:
    """Chunks of some stages smaller by a layer, in this order of stages, until what is too much
    is less than a layer of all chunks of a stage; `fewest`: until the last chunk can lack it.
    """
    sizes, rows = table.sizes.copy(), np.arange(len(table))
    for place in np.tile(np.arange(table.stages), 2):
        stage = order[:, place]
        extra = table.vpp * sizes.sum(axis=1) - layers
        enough = extra < (np.maximum(sizes[:, -1], table.vpp) if fewest else table.vpp)
        smaller = ~enough & (sizes[rows, stage] > 1) & (extra >= table.vpp)
        sizes[rows, stage] -= smaller
    return replace(table, sizes=sizes)


def _with_ends(
    table: ChunkedPipelines, origin: Ints, short_first: int, layers: int
) -> tuple[ChunkedPipelines, Ints]:
    """Those whose ends can lack what is too much."""
    short_last = table.vpp * table.sizes.sum(axis=1) - layers - short_first
    good = (short_last >= 0) & (short_last < table.sizes[:, -1])
    good &= table.sizes[:, 0] > short_first
    lacking = np.full(len(table), short_first)
    found = replace(table, short_first=lacking, short_last=short_last).take(good)
    return found, origin[good]


def neighbours(table: ChunkedPipelines, layers: int) -> ChunkedPipelines:
    """Chunks a layer larger on one stage, smaller on another, or both; the first short or not."""
    stages = table.stages
    step = np.concatenate([np.zeros((1, stages), int), np.eye(stages, dtype=int)])
    moves = (step[:, np.newaxis] - step).reshape(-1, stages)
    moves = np.unique(moves, axis=0)
    row, move = (axis.reshape(-1) for axis in np.indices((len(table), len(moves))))
    changed = table.take(row)
    sizes = changed.sizes + moves[move]
    good = (sizes > 0).all(axis=1)
    changed = replace(changed.take(good), sizes=sizes[good])
    none = np.arange(len(changed))
    return joined([_with_ends(changed, none, first, layers)[0] for first in (0, 1)])
