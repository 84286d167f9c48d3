"""Interleaved pipelines with equal p, v, m and g, round by round, a column per plan.

Number rounds n = 0, 1, ... In round n stage i of p does forward n - i and then backward
n - 2 (p - 1) + i - (v - 1) g, where these exist. That is Megatron-LM's order, and what an
operation waits for has happened: on its own stage in the half round before, on the neighbour in
the round before, and, from the last stage to the next chunk on the first (or back), g - p + 1
rounds before. So groups must have at least p micro-batches, the last one too.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from astra.simulate.schedule import virtual_order

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.intp]

WORTH = 0.25  # share of the plans that must have settled for the jump to pay
SAME = 1e-13  # relative; rounding alone makes two shifts differ by about 1e-15


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Seconds of pipelines of equal depth and chunks; the last link wraps around."""

    forward_s: Floats  # (chunk, stage, plan)
    backward_s: Floats  # (chunk, stage, plan)
    forward_link_s: Floats  # (stage, plan)
    backward_link_s: Floats  # (stage, plan)
    first_extra_s: Floats  # (chunk, stage, plan)
    last_extra_s: Floats  # (chunk, stage, plan)

    def take(self, rows: Rows) -> "Columns":
        """The pipelines of these rows."""
        return Columns(**{f.name: getattr(self, f.name)[..., rows] for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of operations that all the pipelines share."""

    stages: int
    chunks: int
    micro_batches: int
    group: int
    extra_warmup: int
    chunk: Ints  # (virtual,), of the k-th forward; the k-th backward counts from the other end
    micro_batch: Ints  # (virtual,)

    @property
    def lag(self) -> int:
        """Backward k of stage i is in round k + lag - i."""
        return 2 * (self.stages - 1) + (self.chunks - 1) * self.group + self.extra_warmup

    @property
    def rounds(self) -> int:
        """Rounds of the whole step."""
        return len(self.chunk) + self.lag

    @property
    def even(self) -> range:
        """Rounds in which every stage does both its operations, inside groups of g, none of them
        with extra seconds.
        """
        period = self.group * self.chunks
        start = max(period + self.stages - 1, self.lag)
        stop = min(
            self.micro_batches // self.group * period,
            (self.micro_batches - 1) // self.group * period + self.lag - self.stages + 1,
        )
        return range(start, stop)


@dataclass(slots=True, kw_only=True)
class State:
    """All that the rounds to come depend on."""

    free: Floats  # (stage, plan), when the stage is done
    down: Floats  # (stage, plan), end of its latest forward
    up: Floats  # (stage, plan), end of its latest backward
    wrap_down: Floats  # (k mod g, plan), ends of the last stage's forwards
    wrap_up: Floats  # (k mod g, plan), ends of the first stage's backwards

    def copy(self, rows: Rows | slice = slice(None)) -> "State":
        """These plans, apart from the others."""
        return State(**{f.name: getattr(self, f.name)[:, rows].copy() for f in fields(self)})

    def stacked(self) -> Floats:
        """All of it as one table."""
        return np.concatenate([getattr(self, f.name) for f in fields(self)])


def stage_end_s(
    columns: Columns, micro_batches: int, group: int, extra_warmup: int, skip: bool
) -> Floats:
    """(stage, plan) When each stage has done its last backward. [s]

    If in the even middle all of a plan's state grows by one and the same amount over a group,
    it will in every further group, and the run jumps.
    """
    order = _order(columns, micro_batches, group, extra_warmup)
    rows = np.arange(columns.forward_s.shape[-1])
    state = _start(order, len(rows))
    result = np.zeros(columns.forward_s.shape[1:])
    period = group * order.chunks
    now = min(order.even.start, order.rounds)
    _run(columns, order, state, 0, now)
    while skip and len(rows) and (groups := (order.even.stop - now) // period) > 1:
        before = state.stacked()
        _run(columns, order, state, now, now + period)
        now += period
        after = state.stacked()
        shift = after - before
        steady = np.ptp(shift, axis=0) <= SAME * after.max(axis=0)
        if steady.mean() < WORTH:
            continue
        done, left = np.flatnonzero(steady), np.flatnonzero(~steady)
        ahead = state.copy(done)
        for name in ("free", "down", "up", "wrap_down", "wrap_up"):
            getattr(ahead, name)[:] += (groups - 1) * shift[0, done]
        _run(columns.take(done), order, ahead, now + (groups - 1) * period, order.rounds)
        result[:, rows[done]] = ahead.free
        rows, state, columns = rows[left], state.copy(left), columns.take(left)
    _run(columns, order, state, now, order.rounds)
    result[:, rows] = state.free
    return result


def _order(columns: Columns, micro_batches: int, group: int, extra_warmup: int) -> Order:
    chunks, stages, _ = columns.forward_s.shape
    rest = micro_batches % group
    assert group >= stages and micro_batches >= stages and (rest == 0 or rest >= stages), (
        "a group of fewer micro-batches than stages"
    )
    chunk, micro_batch = virtual_order(chunks, micro_batches, group)
    return Order(
        stages=stages,
        chunks=chunks,
        micro_batches=micro_batches,
        group=group,
        extra_warmup=extra_warmup,
        chunk=chunk,
        micro_batch=micro_batch,
    )


def _start(order: Order, plans: int) -> State:
    return State(
        free=np.zeros((order.stages, plans)),
        down=np.zeros((order.stages, plans)),
        up=np.zeros((order.stages, plans)),
        wrap_down=np.zeros((order.group, plans)),
        wrap_up=np.zeros((order.group, plans)),
    )


def _run(columns: Columns, order: Order, state: State, start: int, stop: int) -> None:
    """Move the state from one round to another, in place."""
    for now in range(start, stop):
        _forwards(columns, order, state, now)
        _backwards(columns, order, state, now)


def _forwards(columns: Columns, order: Order, state: State, now: int) -> None:
    """Stage i does forward now - i."""
    count = len(order.chunk)
    low, high = max(0, now - count + 1), min(order.stages, now + 1)
    if low >= high:
        return
    stage = np.arange(low, high)
    virtual = now - stage
    chunk = order.chunk[virtual]
    start = state.free[low:high]
    if low == 0:
        if chunk[0] > 0:
            came = (now - _apart(order, now)) % order.group
            arrival = state.wrap_down[came] + columns.forward_link_s[-1]
            np.maximum(start[0], arrival, out=start[0])
        low, start = 1, start[1:]
    arrival = state.down[low - 1 : high - 1] + columns.forward_link_s[low - 1 : high - 1]
    np.maximum(start, arrival, out=start)
    state.free[stage] += columns.forward_s[chunk, stage]
    first = order.micro_batch[virtual] == 0
    if first.any():
        state.free[stage[first]] += columns.first_extra_s[chunk[first], stage[first]]
    state.down[stage] = state.free[stage]
    if high == order.stages:
        state.wrap_down[virtual[-1] % order.group] = state.down[-1]


def _backwards(columns: Columns, order: Order, state: State, now: int) -> None:
    """Stage i does backward now - lag + i."""
    count = len(order.chunk)
    low = max(0, order.lag - now)
    high = min(order.stages, order.lag - now + count)
    if low >= high:
        return
    stage = np.arange(low, high)
    virtual = now - order.lag + stage
    chunk = order.chunks - 1 - order.chunk[virtual]
    start = state.free[low:high]
    if high == order.stages:
        if chunk[-1] < order.chunks - 1:
            came = (virtual[-1] - _apart(order, int(virtual[-1]))) % order.group
            arrival = state.wrap_up[came] + columns.backward_link_s[-1]
            np.maximum(start[-1], arrival, out=start[-1])
        high, start = high - 1, start[:-1]
    arrival = state.up[low + 1 : high + 1] + columns.backward_link_s[low:high]
    np.maximum(start, arrival, out=start)
    state.free[stage] += columns.backward_s[chunk, stage]
    last = order.micro_batch[virtual] == order.micro_batches - 1
    if last.any():
        state.free[stage[last]] += columns.last_extra_s[chunk[last], stage[last]]
    state.up[stage] = state.free[stage]
    if low == 0:
        state.wrap_up[virtual[0] % order.group] = state.up[0]


def _apart(order: Order, virtual: int) -> int:
    """Operations from a micro-batch on one chunk to the same on the next: its group's size."""
    whole = order.micro_batches // order.group * order.group
    return order.group if virtual < whole * order.chunks else order.micro_batches - whole
