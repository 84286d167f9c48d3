"""What a cut may recompute and into how many chunks it may be cut, by its layers alone.

Stage i of p holds n layers in v chunks only if it has the time and the room for them:

    n (K c + d) <= T - i c',      n (w + a F_i / v) <= C

with c the seconds of a layer and what is done again of it, d what it waits for the slowest GPU, c'
those of a first chunk above, w and a the bytes of its states and activations, F_i the chunks in
flight and C the bytes of a GPU. Stages of the types that there are must hold the model, wherever
they lie. This is asked of all settings of recompute at once, before any table is made for them.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from astra.search.mixed.cells import Kind
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plans import Flags, Floats, Ints

SLIP = 1e-9  # relative, against rounding


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes at one place of the pipeline."""

    free: Floats  # (cell, kind) of nothing, with what is at work
    states: Floats  # (kind,) of a layer
    kept: Floats  # (cell, kind) of a layer in flight
    ends: Floats  # (cell, kind) of a micro-batch in flight, whatever its layers


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one layer more on a stage of a cut, at least; all behind the first few are alike."""

    layer_s: Floats  # (cell, kind) both ways, with what is done again
    wait_s: Floats  # (kind,) for every doubling of the GPUs
    head_s: Floats  # (kind,) of the last stage
    head_wait_s: Floats  # (kind,)
    down_s: float  # of a first chunk, one way
    inside: Bytes
    last: Bytes


@dataclass(frozen=True, slots=True)
class WholeStages:
    """What all pipelines of a cut have in common."""

    kinds: list[Kind]
    micro_batches: int
    stage_gpus: int
    layers: int
    lead: int  # first layers that may take less
    hides: bool


@dataclass(frozen=True, slots=True)
class _Places:
    """Stages of pipelines of so many stages and chunks. (place,)"""

    chunks: Ints
    stages: Ints
    index: Ints
    flying: Ints
    first: Ints  # chunks in flight that may be the first of the stage
    pipeline: Ints


def open_rows(costs: Costs, whole: WholeStages, vpps: Ints, limit_s: float) -> Flags:
    """Which settings and numbers of chunks may make a plan below the limit. (cell, vpp)

    First the best of all settings in one: mostly nothing is left then.
    """
    found = np.zeros((len(costs.layer_s), len(vpps)), np.bool_)
    some = np.flatnonzero(_open(_best(costs), whole, vpps, limit_s)[0])
    if len(some):
        found[:, some] = _open(costs, whole, vpps[some], limit_s)
    return found


def _best(costs: Costs) -> Costs:
    """One setting that takes no more than any, and keeps no more than any."""

    def least(column: Floats) -> Floats:
        return column.min(axis=0, keepdims=True)

    def best(room: Bytes) -> Bytes:
        most = -least(-room.free)
        return replace(room, free=most, kept=least(room.kept), ends=least(room.ends))

    whole = least(costs.layer_s)
    return replace(costs, layer_s=whole, inside=best(costs.inside), last=best(costs.last))


def _open(costs: Costs, whole: WholeStages, vpps: Ints, limit_s: float) -> Flags:
    """The same of every setting by itself: what the stages hold at most, seen in two ways."""
    found = np.zeros((len(costs.layer_s), len(vpps)), np.bool_)
    most: dict[int, int] = {}
    for kind in whole.kinds:
        most[kind.pool] = max(most.get(kind.pool, 0), kind.most)
    longest = min(sum(most.values()), whole.micro_batches, whole.layers)
    own = whole.micro_batches, whole.layers, whole.lead, whole.hides
    places, pipes = _places(longest, *own, tuple(vpps.tolist()))
    if not len(pipes):
        return found
    held = _held(costs, whole, places, limit_s)
    pools = np.array([kind.pool for kind in whole.kinds])
    shape = (len(found), len(most), len(pipes), int(pipes[:, 1].max()))
    table = np.full(shape, -np.inf)
    for row, pool in enumerate(most):
        table[:, row, places.pipeline, places.index] = held[:, pools == pool].max(axis=1)
    # Every place with the type that holds most there, however many stages that takes of it.
    best = table.max(axis=1)
    together = np.where(np.isfinite(best), best, 0.0).sum(axis=-1)
    bare = np.isfinite(best).sum(axis=-1) < pipes[:, 1]
    # No more stages of a type than there are, each at the best places, whoever else lies there.
    table = -np.sort(-table, axis=-1)
    for row, count in enumerate(most.values()):
        table[:, row, :, count:] = -np.inf
    flat = -np.sort(-table.transpose(0, 2, 1, 3).reshape(shape[0], shape[2], -1), axis=-1)
    flat = flat[..., : shape[-1]]
    used = np.arange(shape[-1]) < pipes[:, 1:]
    total = np.where(used, flat, 0.0).sum(axis=-1)
    can = (np.minimum(total, together) >= whole.layers) & ~bare
    for row in range(len(vpps)):
        found[:, row] = can[:, pipes[:, 0] == row].any(axis=1)
    return found


@lru_cache(maxsize=256)
def _places(
    longest: int, count: int, layers: int, lead: int, hides: bool, vpps: tuple[int, ...]
) -> tuple[_Places, Ints]:
    """Every stage of every pipeline there may be, and (vpp row, stages) of these pipelines.

    `count`: micro-batches.
    """
    known = {p: least_microbatch_group(p, count) for p in range(2, longest + 1)}
    groups = {p: group for p, group in known.items() if group is not None}
    pipes = [(row, p) for row, v in enumerate(vpps) for p in groups if p * v <= layers]
    table = np.array(pipes, np.int64).reshape(-1, 2)
    pipeline = np.repeat(np.arange(len(table)), table[:, 1])
    starts = np.cumsum(table[:, 1]) - table[:, 1]
    index = np.arange(len(pipeline)) - starts[pipeline]
    row, stages = table[pipeline].T
    group = np.array([groups[p] for p in table[:, 1].tolist()], np.int64)[pipeline]
    chunks = np.array(vpps, np.int64)[row]
    flying = 2 * (stages - 1 - index) + (chunks - 1) * group + 1 + hides
    flying = np.minimum(count * chunks, flying)
    first = np.minimum(group + np.maximum(flying - chunks * group, 0), flying)
    first = np.where(stages < lead, flying, first)  # so early may other chunks begin
    return _Places(chunks, stages, index, flying, first, pipeline), table


def _held(costs: Costs, whole: WholeStages, places: _Places, limit_s: float) -> Floats:
    """Most layers of a stage of every kind at every place; -inf: none. (cell, kind, place)

    Layers that may take less lie in the first chunks of the first stages. The first chunk of all
    may lack a layer, the last one any number.
    """
    lead = np.where(places.index < whole.lead, whole.lead, 0)
    last = places.index == places.stages - 1
    found = _whole_chunks(costs, whole, places, limit_s, lead, last)
    start = places.index == 0
    if start.any():
        lighter = _whole_chunks(costs, whole, places, limit_s, lead + 1, last) - 1
        found = np.where(start, np.maximum(found, lighter), found)
    return np.where(found < places.chunks, -np.inf, found)


def _whole_chunks(
    costs: Costs, whole: WholeStages, places: _Places, limit_s: float, fewer: Ints, last: Flags
) -> Floats:
    """Layers of chunks of one size, of which so many of the first chunk count for nothing."""
    count, v = whole.micro_batches, places.chunks
    doublings = np.log2(places.stages * whole.stage_gpus)
    wait, head, more = (
        column[:, np.newaxis] for column in (costs.wait_s, costs.head_s, costs.head_wait_s)
    )
    layer = count * costs.layer_s[..., np.newaxis] + doublings * wait
    time = limit_s - places.index * costs.down_s - last * (count * head + doublings * more)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        size = (time / layer + fewer) / v
        for room, here in ((costs.inside, ~last), (costs.last, last)):
            size = np.where(here, np.minimum(size, _roomy(room, places, fewer)), size)
    size = np.nan_to_num(size * (1 + SLIP) + SLIP, nan=np.inf, posinf=1e9, neginf=-1.0)
    whole_chunks: Floats = np.minimum(np.where(last, np.floor(v * size), v * np.floor(size)), 1e9)
    return whole_chunks


def _roomy(room: Bytes, places: _Places, fewer: Ints) -> Floats:
    """Layers of a chunk that a stage has room for. (cell, kind, place)

    With o layers of the first chunk that count for nothing, in flight F_0 times:

        w [v s - o]+  +  a [F s - F_0 o]+  <=  C
    """
    v, flying = places.chunks, places.flying
    kept, ends = room.kept[..., np.newaxis], room.ends[..., np.newaxis]
    free = room.free[..., np.newaxis] - ends * flying / v
    states = room.states[:, np.newaxis] * np.ones_like(kept)
    knee = places.first * fewer / flying  # where activations begin to count
    both = (free + (states + kept * places.first) * fewer) / (states * v + kept * flying)
    alone = (free + states * fewer) / (states * v)
    size = np.where(both >= knee, both, np.minimum(alone, knee))
    return np.where(free < 0, -1.0, np.where(np.isnan(size), np.inf, size))
