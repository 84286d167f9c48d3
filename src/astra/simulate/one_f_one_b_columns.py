"""1F1B pipelines with equal micro-batches, slot by slot, a column per plan.

Number slots s = 0, 1, ...: stage i of p does forward j in slot 2 j + i and backward j in slot
2 p - 1 - i + 2 j. That is the 1F1B order, and all an operation waits for (its stage, its
neighbour) happened in slot s - 1. So one slot is two maxima over (stage, plan), and the ends of
one slot are all that the future depends on.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

BLOCK = 12  # micro-batches after which a run is checked for repetition: many cycles divide 12
SAME = 1e-13  # relative; rounding alone makes two shifts differ by about 1e-15


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Seconds of pipelines of equal depth; link i is between stages i and i + 1."""

    forward_s: Floats  # (stage, plan)
    backward_s: Floats  # (stage, plan)
    forward_link_s: Floats  # (stage - 1, plan)
    backward_link_s: Floats  # (stage - 1, plan)
    first_extra_s: Floats  # (stage, plan)
    last_extra_s: Floats  # (stage, plan)

    def take(self, rows: Rows) -> "Columns":
        """The pipelines of these rows."""
        return Columns(**{f.name: getattr(self, f.name)[:, rows] for f in fields(self)})


def stage_end_s(columns: Columns, micro_batches: int, skip: bool) -> Floats:
    """(stage, plan) When each stage has done its last backward. [s]

    From slot 2 p to slot 2 m - 2 every stage is busy in every slot. If there the ends of all
    stages of a plan grow by one and the same amount over a block, they will in every further
    block, and the run jumps.
    """
    stages, plans = columns.forward_s.shape
    slots = 2 * (micro_batches + stages - 1)
    rows = np.arange(plans)
    result = np.zeros((stages, plans))
    end = np.zeros((stages, plans))
    slot = min(2 * stages, slots)
    _run(columns, end, 0, slot, micro_batches)
    while skip and len(rows) and (blocks := (2 * micro_batches - 2 - slot) // (2 * BLOCK)) > 1:
        before = end.copy()
        _run(columns, end, slot, slot + 2 * BLOCK, micro_batches)
        slot += 2 * BLOCK
        shift = end - before
        steady = np.ptp(shift, axis=0) <= SAME * end.max(axis=0)
        if not steady.any():
            continue
        done, left = np.flatnonzero(steady), np.flatnonzero(~steady)
        ahead = end[:, done] + (blocks - 1) * shift[:, done]
        _run(columns.take(done), ahead, slot + 2 * BLOCK * (blocks - 1), slots, micro_batches)
        result[:, rows[done]] = ahead
        rows, end, columns = rows[left], end[:, left], columns.take(left)
    if len(rows):
        _run(columns, end, slot, slots, micro_batches)
        result[:, rows] = end
    return result


def _run(columns: Columns, end: Floats, slot: int, stop: int, micro_batches: int) -> None:
    """Move the ends of all stages from one slot to another, in place."""
    stages = len(end)
    last = 2 * (micro_batches - 1)
    forward_in, backward_out = np.empty_like(end), np.empty_like(end)
    for now in range(slot, stop):
        # The stages with a forward: 0 <= now - i <= last, of the slot's parity.
        low, high = max(0, now - last), min(stages - 1, now)
        low += (now - low) % 2
        down = slice(low, high + 1, 2)
        # The stages with a backward: 0 <= now - (2 p - 1 - i) <= last, of the other parity.
        first = 2 * stages - 1 - now
        low, high = max(0, first), min(stages - 1, first + last)
        low += (low - first) % 2
        up = slice(low, high + 1, 2)
        start_down = _after_above(columns, end, down, forward_in)
        start_up = _after_below(columns, end, up, backward_out)
        np.add(start_down, columns.forward_s[down], out=end[down])
        np.add(start_up, columns.backward_s[up], out=end[up])
        if now < stages:
            end[now] += columns.first_extra_s[now]
        if 0 <= (stage := first + last) < stages:
            end[stage] += columns.last_extra_s[stage]


def _after_above(columns: Columns, end: Floats, down: slice, room: Floats) -> Floats:
    """Starts of the forwards: when the stage is free and the stage above has delivered."""
    start = room[down]
    skipped = 1 if down.start == 0 else 0  # stage 0 takes the data itself
    rows = slice(down.start + 2 * skipped, down.stop, 2)
    above = slice(rows.start - 1, max(rows.start, down.stop) - 1, 2)
    start[:skipped] = end[down][:skipped]
    np.add(end[above], columns.forward_link_s[above], out=start[skipped:])
    np.maximum(start[skipped:], end[rows], out=start[skipped:])
    return start


def _after_below(columns: Columns, end: Floats, up: slice, room: Floats) -> Floats:
    """Starts of the backwards: when the stage is free and the stage below has delivered."""
    start = room[up]
    stages = len(end)
    inner = slice(up.start, min(up.stop, stages - 1), 2)  # the last stage waits for itself only
    count = len(range(inner.start, inner.stop, 2))
    below = slice(inner.start + 1, inner.start + 1 + 2 * count, 2)
    start[count:] = end[up][count:]
    np.add(end[below], columns.backward_link_s[inner], out=start[:count])
    np.maximum(start[:count], end[inner], out=start[:count])
    return start
