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

BLOCK = 12  # micro-batches over which a run may repeat itself: many cycles divide 12
WORTH = 0.25  # share of the plans that must have settled for the jump to pay
SAME = 1e-13  # relative; rounding alone makes two shifts differ by about 1e-15


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Columns:
    """Seconds of pipelines of equal depth, all (stage, plan)."""

    forward_s: Floats
    backward_s: Floats
    from_above_s: Floats  # of the link over which a stage gets its input; 0 for the first
    from_below_s: Floats  # of the link over which a stage gets its gradient; 0 for the last
    first_extra_s: Floats
    last_extra_s: Floats

    def take(self, rows: Rows) -> "Columns":
        """The pipelines of these rows."""
        return Columns(**{f.name: getattr(self, f.name)[:, rows] for f in fields(self)})


def stage_end_s(columns: Columns, micro_batches: int, skip: bool) -> Floats:
    """(stage, plan) When each stage has done its last backward. [s]

    From slot 2 p to slot 2 m - 2 every stage is busy in every slot. If there the ends of all
    stages of a plan grow by one and the same amount over a block, they will in every further
    block, and the run jumps. Blocks are 12 and p micro-batches by turns: exposed links make
    cycles as long as the pipeline.
    """
    stages, plans = columns.forward_s.shape
    slots, full = 2 * (micro_batches + stages - 1), 2 * micro_batches - 2
    rows = np.arange(plans)
    result = np.zeros((stages, plans))
    end = np.zeros((stages + 2, plans))
    slot, block, other = min(2 * stages, slots), 2 * BLOCK, 2 * stages
    _run(columns, end, 0, slot, micro_batches)
    while skip and len(rows) and full - slot >= 4 * block:
        before = end.copy()
        _run(columns, end, slot, slot + block, micro_batches)
        slot += block
        shift = end - before
        steady = np.ptp(shift[1:-1], axis=0) <= SAME * end.max(axis=0)
        if steady.mean() >= WORTH:
            done, left = np.flatnonzero(steady), np.flatnonzero(~steady)
            jumps = (full - slot) // block
            ahead = end[:, done] + jumps * shift[:, done]
            _run(columns.take(done), ahead, slot + jumps * block, slots, micro_batches)
            result[:, rows[done]] = ahead[1:-1]
            rows, end, columns = rows[left], end[:, left], columns.take(left)
        block, other = other, block
    if len(rows):
        _run(columns, end, slot, slots, micro_batches)
        result[:, rows] = end[1:-1]
    return result


def _run(columns: Columns, end: Floats, slot: int, stop: int, micro_batches: int) -> None:
    """Move the ends of all stages from one slot to another, in place.

    `end` has a row more at either end, which stays 0: the data and the loss are always there.
    """
    stages = len(end) - 2
    last = 2 * (micro_batches - 1)
    down_s, up_s = np.empty_like(end), np.empty_like(end)
    for now in range(slot, stop):
        # The stages with a forward: 0 <= now - i <= last, of the slot's parity.
        low, high = max(0, now - last), min(stages, now + 1)
        down = slice(low + (now - low) % 2, high, 2)
        # The stages with a backward: 0 <= i - first <= last, of the other parity.
        first = 2 * stages - 1 - now
        low, high = max(0, first), min(stages, first + last + 1)
        up = slice(low + (low - first) % 2, high, 2)
        start_down, start_up = down_s[down], up_s[up]
        np.add(end[down], columns.from_above_s[down], out=start_down)
        np.maximum(start_down, end[_rows_on(down, 1)], out=start_down)
        np.add(end[_rows_on(up, 2)], columns.from_below_s[up], out=start_up)
        np.maximum(start_up, end[_rows_on(up, 1)], out=start_up)
        np.add(start_down, columns.forward_s[down], out=end[_rows_on(down, 1)])
        np.add(start_up, columns.backward_s[up], out=end[_rows_on(up, 1)])
        if now < stages:
            end[now + 1] += columns.first_extra_s[now]
        if first + last < stages:
            end[first + last + 1] += columns.last_extra_s[first + last]


def _rows_on(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by, 2)
