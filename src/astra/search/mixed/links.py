"""Seconds between the stages of a pipeline, by the product's own functions."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from astra.hardware.stack import Stack
from astra.search.mixed.cells import Cell, Kind
from astra.search.mixed.columns import DEGREES, Columns, kind_columns, plans_table
from astra.strategy.plans import Floats, Ints
from astra.strategy.space import Space
from astra.strategy.view import view_of
from astra.timing.layer import LayerBook
from astra.timing.stage import stage_base, stage_times

Item = tuple[Cell, list[Kind], Ints]


def link_seconds(space: Space, stack: Stack, book: LayerBook, items: list[Item]) -> list[Floats]:
    """From a stage of each kind to the next one of each. (kind, kind) per cell; 0 where none is."""
    cells = [cell for cell, _, _ in items]
    inside = _inside_s(space, stack, book, cells, [kinds for _, kinds, _ in items])
    across = _across_s(space, stack, book, cells, [kinds for _, kinds, _ in items])
    found = []
    for own, (_, kinds, _), cell in zip(inside, items, cells, strict=True):
        columns = kind_columns(kinds)
        pool, part = columns["gpu"], columns["segment_micro_batch"] / columns["tp"]
        larger = np.maximum(part[:, np.newaxis], part)
        table = np.zeros(larger.shape)
        for value in np.unique(part).tolist():
            for one, other in permutations(np.unique(pool).tolist(), 2):
                here = (pool[:, np.newaxis] == one) & (pool == other) & (larger == value)
                table[here] = across[cell.cp, one, other, value]
        np.fill_diagonal(table, own)
        found.append(table)
    return found


def _seconds(
    space: Space, stack: Stack, book: LayerBook, cells: Sequence[Cell], which: Ints, slots: Columns
) -> Floats:
    """The link of the first stage of every plan."""
    zeros = np.zeros_like(slots["stages"])
    for name in ("recompute", "recompute_layers", "recompute_modules"):
        slots[name] = zeros
    plans = plans_table(space.question, cells, which, slots, np.ones(len(which), np.bool_))
    view = view_of(plans, space.question.task)
    return stage_times(view, stack, stage_base(view, stack, book)).part("link_s")[0, 0]


def _inside_s(
    space: Space,
    stack: Stack,
    book: LayerBook,
    cells: Sequence[Cell],
    kinds: Sequence[Sequence[Kind]],
) -> list[Floats]:
    """Between two stages of every kind. (kind,) per cell"""
    which = np.repeat(np.arange(len(cells)), [len(each) for each in kinds])
    flat = [kind for each in kinds for kind in each]
    cut = kind_columns(flat)
    most, one = np.array([kind.most for kind in flat]), np.ones(len(flat), np.int64)
    pools = len(space.question.task.cluster.pools)
    slots = {name: np.stack([cut[name]] * 2) for name in DEGREES}
    slots["gpu"] = np.stack([cut["gpu"], (cut["gpu"] + 1) % pools])
    slots["stages"] = np.stack([np.maximum(most, 2), one])
    slots["layers"] = np.stack([one, one])
    seconds = _seconds(space, stack, book, cells, which, slots)
    return np.split(seconds, np.cumsum([len(each) for each in kinds])[:-1])


def _across_s(
    space: Space,
    stack: Stack,
    book: LayerBook,
    cells: Sequence[Cell],
    kinds: Sequence[Sequence[Kind]],
) -> dict[tuple[int, int, int, float], float]:
    """Between two types: by context parallelism, types and the larger of two GPUs' parts.

    The part of a GPU is its micro-batch over its tp.
    """
    rows: dict[tuple[int, int, int, float], tuple[int, Kind]] = {}
    pools = range(len(space.question.task.cluster.pools))
    for row, (cell, own) in enumerate(zip(cells, kinds, strict=True)):
        parts = {kind.micro_batch / kind.tp: kind for kind in own}
        for part, kind in parts.items():
            for one in pools:
                for other in pools:
                    if one != other:
                        rows.setdefault((cell.cp, one, other, part), (row, kind))
    if not rows:
        return {}
    cut = kind_columns([kind for _, kind in rows.values()])
    slots = {name: np.stack([cut[name]] * 2) for name in DEGREES}
    slots["gpu"] = np.array([(one, other) for _, one, other, _ in rows]).T
    slots["stages"] = slots["layers"] = np.ones_like(slots["gpu"])
    which = np.array([row for row, _ in rows.values()])
    seconds = _seconds(space, stack, book, cells, which, slots)
    return dict(zip(rows, seconds.tolist(), strict=True))
