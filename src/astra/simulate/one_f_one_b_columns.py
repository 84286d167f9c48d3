"""1F1B pipelines with equal micro-batches, slot by slot, a column per plan.

Number slots s = 0, 1, ...: stage i of p does forward j in slot 2 j + i and backward j in slot
2 p - 1 - i + 2 j. That is the 1F1B order, and all an operation waits for (its stage, its
neighbour) happened in slot s - 1. So one slot is two maxima over (stage, plan), and the ends of
one slot are all that the future depends on.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from astra.simulate.steady_state import MIN_STEADY_FRACTION, REL_EPS

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.intp]

MIN_MICRO_BATCHES_PER_CHECK = 12  # between two looks at whether a run repeats itself


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OneF1BColumns:
    """Seconds of pipelines of equal depth, all (stage, plan)."""

    forward_s: Floats
    backward_s: Floats
    from_above_s: Floats  # of the link over which a stage gets its input; 0 for the first
    from_below_s: Floats  # of the link over which a stage gets its gradient; 0 for the last
    first_gather_s: Floats  # on top of the first micro-batch's forward
    last_reduce_s: Floats  # on top of the last micro-batch's backward

    def take(self, rows: Rows) -> "OneF1BColumns":
        """The pipelines of these rows."""
        return OneF1BColumns(**{f.name: getattr(self, f.name)[:, rows] for f in fields(self)})


def stage_end_s(columns: OneF1BColumns, micro_batches: int, skip: bool) -> Floats:
    """(stage, plan) When each stage has done its last backward. [s]

    From slot 2 p to slot 2 m - 2 every stage is busy in every slot. If there the ends of all
    stages of a plan are those of d micro-batches ago plus one and the same amount, they will be
    after every further d, and the run jumps. Down to stage j and back up to stage i is a way
    round of d = j - i + 1 micro-batches: the slowest one is what a run settles to.
    """
    stages, plans = columns.forward_s.shape
    slots, full = 2 * (micro_batches + stages - 1), 2 * micro_batches - 2
    rows = np.arange(plans)
    result = np.zeros((stages, plans))
    end = np.zeros((stages + 2, plans))
    slot, block = min(2 * stages, slots), 2 * max(MIN_MICRO_BATCHES_PER_CHECK, stages)
    _run(columns, end, 0, slot, micro_batches)
    while skip and len(rows) and full - slot >= 2 * block:
        past: list[Floats] = []
        _run(columns, end, slot, slot + block, micro_batches, past)
        slot += block
        period = _periods(end, past)
        if np.count_nonzero(period) < MIN_STEADY_FRACTION * len(rows):
            continue
        for way in sorted(set(period[period > 0].tolist())):
            done = np.flatnonzero(period == way)
            jumps = (full - slot) // (2 * way)
            ahead = end[:, done] + jumps * (end - past[-way])[:, done]
            _run(columns.take(done), ahead, slot + 2 * jumps * way, slots, micro_batches)
            result[:, rows[done]] = ahead[1:-1]
        left = np.flatnonzero(period == 0)
        rows, end, columns = rows[left], end[:, left], columns.take(left)
    if len(rows):
        _run(columns, end, slot, slots, micro_batches)
        result[:, rows] = end[1:-1]
    return result


def _periods(end: Floats, past: list[Floats]) -> Ints:
    """After how many micro-batches each plan's stages repeat themselves; 0 where none do. (plan,)

    `past`: the ends one micro-batch apart, the last one micro-batch ago.
    """
    found = np.zeros(end.shape[1], np.int64)
    near = REL_EPS * end.max(axis=0)
    for way, before in enumerate(reversed(past), 1):
        same_shift = np.abs((end[1] - before[1]) - (end[-2] - before[-2])) <= near
        rows = np.flatnonzero(same_shift & (found == 0))
        if len(rows):
            shift = end[1:-1, rows] - before[1:-1, rows]
            found[rows[np.ptp(shift, axis=0) <= near[rows]]] = way
    return found


def _run(
    columns: OneF1BColumns,
    end: Floats,
    slot: int,
    stop: int,
    micro_batches: int,
    past: list[Floats] | None = None,
) -> None:
    """Move the ends of all stages from one slot to another, in place.

    `end` has a row more at either end, which stays 0: the data and the loss are always there.
    `past` gets the ends before every second slot.
    """
    stages = len(end) - 2
    last = 2 * (micro_batches - 1)
    down_s, up_s = np.empty_like(end), np.empty_like(end)
    for now in range(slot, stop):
        if past is not None and (now - slot) % 2 == 0:
            past.append(end.copy())
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
            end[now + 1] += columns.first_gather_s[now]
        if first + last < stages:
            end[first + last + 1] += columns.last_reduce_s[first + last]


def _rows_on(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by, 2)
