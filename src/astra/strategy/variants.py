"""Plans out of layouts: how much of them is recomputed and offloaded."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.columns import REL_EPS
from astra.strategy.enumerate import ROWS_PER_TABLE, Layouts, enumerate_layouts, recompute_settings
from astra.strategy.layer_splits import repeat_rows
from astra.strategy.plans import Floats, Ints, Plans, code, column_dtype
from astra.strategy.rules.our_rules import largest_chunk
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space

Rows = NDArray[np.intp]
OFFLOAD = "offload_optimizer_fraction"
# What variants of a layout differ in, as rules call it.
VARIANT_SETTINGS = {"recompute", OFFLOAD, "offload_layers"}


def enumerate_plans(space: Space) -> Iterator[Plans]:
    """Every plan of the space once. The order is fixed: the same question, the same rows."""
    for layouts in enumerate_layouts(space):
        counts = variant_counts(layouts, space)
        edges = np.cumsum(counts)
        start = 0
        while start < len(layouts):
            done = int(edges[start - 1]) if start else 0
            stop = int(np.searchsorted(edges, done + ROWS_PER_TABLE, side="right"))
            stop = max(stop, start + 1)
            yield variants_of(layouts.take(slice(start, stop)), space)
            start = stop


def variant_counts(layouts: Plans, space: Space) -> Ints:
    """How many plans of the space share each layout."""
    largest = _largest_chunk(layouts)
    _, lengths = _settings_by_chunk(largest, space)
    return lengths[largest] * len(_offloads(space))


def plan_count(layouts: Layouts, degrees: Ints) -> int:
    """How many plans these degrees have, without laying them out."""
    chunk, interleaved, stages = layouts.splits()
    space = layouts.space
    _, lengths = _settings_by_chunk(chunk, space)
    each = lengths[chunk] * len(_offloads(space))
    every = np.bincount(stages, each, layouts.max_stages + 1)
    overlapping = np.bincount(stages, each * interleaved, layouts.max_stages + 1)
    pp, options = layouts.stages[degrees], layouts.counts[degrees]
    overlap_ep = layouts.overlap_ep_counts[degrees]
    return int(((options - overlap_ep) * every[pp] + overlap_ep * overlapping[pp]).sum())


def depends_on_variant(rule: Rule) -> bool:
    """Whether a rule may hold for one variant of a layout and not for another."""
    return not VARIANT_SETTINGS.isdisjoint(rule.settings)


def variants_of(layouts: Plans, space: Space, least_offload: bool = False) -> Plans:
    """Each layout with every recompute setting that its largest chunk allows, and every part of the
    optimizer offloaded, or the least alone.
    """
    every = _offloads(space)
    offloads = np.array([min(every)] if least_offload else every, np.float64)
    largest = _largest_chunk(layouts)
    settings, lengths = _settings_by_chunk(largest, space)
    rows, within = repeat_rows(lengths[largest] * len(offloads))
    starts = np.cumsum(lengths) - lengths
    chosen = settings[starts[largest[rows]] + within // len(offloads)].T
    table = layouts.take(rows)
    columns: dict[str, Any] = {"offload_optimizer_fraction": offloads[within % len(offloads)]}
    columns["offload_layers"] = chosen[3]
    names = ("recompute", "recompute_layers", "recompute_modules")
    for name, column in zip(names, chosen[:3], strict=True):
        values = column.astype(column_dtype(name))
        columns[name] = np.where(table.used, values, np.zeros_like(values))
    return replace(table, **columns)


def offloading_more(plans: Plans, least: Floats, space: Space) -> Plans:
    """Those that can offload more of the optimizer: with the next part that is at least so large,
    or all that may be.
    """
    every = np.array(sorted(_offloads(space)))
    place = np.searchsorted(every[:-1], least * (1 - REL_EPS))
    own = np.searchsorted(every, plans.offload_optimizer_fraction)
    rows = np.flatnonzero(own < len(every) - 1)
    more = every[np.maximum(place, np.minimum(own + 1, len(every) - 1))]
    return replace(plans.take(rows), offload_optimizer_fraction=more[rows])


def _offloads(space: Space) -> tuple[float, ...]:
    return tuple(space.values(OFFLOAD) or (0.0,))


def _largest_chunk(layouts: Plans) -> Ints:
    most: Ints = largest_chunk(layouts).max(axis=(0, 1))
    return most


def _settings_by_chunk(chunks: Ints, space: Space) -> tuple[Ints, Ints]:
    """Their settings for every size of the largest chunk, one after the other."""
    largest = int(chunks.max(initial=0))
    known = space.memo.get(largest)
    if known is None:
        found = [_saver_settings(space, size) for size in range(largest + 1)]
        known = np.concatenate(found), np.array([len(rows) for rows in found], np.int64)
        space.memo[largest] = known
    return known


def _saver_settings(space: Space, size: int) -> Ints:
    """Codes of recompute and offloaded layers worth trying for chunks of this size. (setting, 4)

    Layers are offloaded where one stage holds them all and nothing is recomputed, as the runtime
    has it; where numbers were asked for, with everything, and rules say what cannot be.
    """
    recompute = recompute_settings(space, size)
    asked = space.settings.get("offload_layers")
    numbers = np.array(asked or (0,), np.int64)
    settings = np.repeat(recompute, len(numbers), axis=0)
    settings = np.column_stack([settings, np.tile(numbers, len(recompute))])
    if asked is None and size == space.workload.task.model.layers:
        nothing = recompute[recompute[:, 0] == code("recompute", "none")]
        more = np.array((space.values("offload_layers") or ())[1:], np.int64)[:, np.newaxis]
        offloading = [np.column_stack([np.repeat(nothing[:1], len(more), axis=0), more])]
        settings = np.concatenate([settings, *(offloading if len(nothing) else [])])
    return settings
