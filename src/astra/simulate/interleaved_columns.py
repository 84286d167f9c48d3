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
from astra.simulate.steady_state import MIN_STEADY_FRACTION, REL_EPS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]

MAX_STAGES_ONE_BY_ONE = 16  # stages of all plans together that are quicker one by one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class InterleavedColumns:
    """Seconds of pipelines of equal depth and chunks; the last link wraps around."""

    forward_s: Floats  # (chunk, stage, plan)
    backward_s: Floats  # (chunk, stage, plan)
    forward_link_s: Floats  # (stage, plan)
    backward_link_s: Floats  # (stage, plan)
    first_gather_s: Floats  # (chunk, stage, plan)
    last_reduce_s: Floats  # (chunk, stage, plan)

    def take(self, rows: Rows) -> "InterleavedColumns":
        """The pipelines of these rows."""
        return InterleavedColumns(
            **{f.name: getattr(self, f.name)[..., rows] for f in fields(self)}
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Order:
    """The order of operations that all the pipelines share."""

    stages: int
    chunks: int
    micro_batches: int
    group: int
    extra_warmup: int
    chunk: Ints  # (virtual,), of the k-th forward; the k-th backward counts from the other end
    down: Ints  # (virtual,), row of the k-th forward in a flat (chunk, stage) table, less its stage
    up: Ints  # (virtual,), the same of the k-th backward
    index: Ints  # (stage,)
    opens: Flags  # (virtual,), of the first micro-batch: with extra seconds
    ends: Flags  # (virtual,), of the last
    opened: list[int]  # how many of the first so many operations open; plain numbers are quick
    ended: list[int]

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


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
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
    columns: InterleavedColumns, micro_batches: int, group: int, extra_warmup: int, skip: bool
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
        steady = np.ptp(shift, axis=0) <= REL_EPS * after.max(axis=0)
        if steady.mean() < MIN_STEADY_FRACTION:
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


def _order(columns: InterleavedColumns, micro_batches: int, group: int, extra_warmup: int) -> Order:
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
        down=chunk * stages,
        up=(chunks - 1 - chunk) * stages,
        index=np.arange(stages),
        opens=micro_batch == 0,
        ends=micro_batch == micro_batches - 1,
        opened=_counted(micro_batch == 0),
        ended=_counted(micro_batch == micro_batches - 1),
    )


def _counted(flags: Flags) -> list[int]:
    return [0, *np.cumsum(flags).tolist()]


def _start(order: Order, plans: int) -> State:
    return State(
        free=np.zeros((order.stages, plans)),
        down=np.zeros((order.stages, plans)),
        up=np.zeros((order.stages, plans)),
        wrap_down=np.zeros((order.group, plans)),
        wrap_up=np.zeros((order.group, plans)),
    )


def _run(columns: InterleavedColumns, order: Order, state: State, start: int, stop: int) -> None:
    """Move the state from one round to another, in place."""
    chunks, stages, plans = columns.forward_s.shape
    if stages * plans <= MAX_STAGES_ONE_BY_ONE:
        for plan in range(plans):
            _run_one(columns, order, state, start, stop, plan)
        return
    flat = [
        seconds.reshape(chunks * stages, plans)
        for seconds in (
            columns.forward_s,
            columns.first_gather_s,
            columns.backward_s,
            columns.last_reduce_s,
        )
    ]
    for now in range(start, stop):
        _forwards(columns, order, state, now, *flat[:2])
        _backwards(columns, order, state, now, *flat[2:])


def _run_one(
    columns: InterleavedColumns, order: Order, state: State, start: int, stop: int, plan: int
) -> None:
    """The same for one plan in plain numbers: calls on short columns would cost more."""
    stages, group, lag, count = order.stages, order.group, order.lag, len(order.chunk)
    forward, opening = (
        column[..., plan].ravel().tolist() for column in (columns.forward_s, columns.first_gather_s)
    )
    backward, ending = (
        column[..., plan].ravel().tolist() for column in (columns.backward_s, columns.last_reduce_s)
    )
    down_link, up_link = (
        column[:, plan].tolist() for column in (columns.forward_link_s, columns.backward_link_s)
    )
    parts = (state.free, state.down, state.up, state.wrap_down, state.wrap_up)
    free, down, up, wrap_down, wrap_up = lists = [part[:, plan].tolist() for part in parts]
    chunk, downs, ups, opens, ends = (
        part.tolist() for part in (order.chunk, order.down, order.up, order.opens, order.ends)
    )
    for now in range(start, stop):
        high = min(stages, now + 1)
        for stage in range(high - 1, max(0, now - count + 1) - 1, -1):  # from below: each needs
            virtual, begin = now - stage, free[stage]  # what the one above did a round before
            if stage:
                begin = max(begin, down[stage - 1] + down_link[stage - 1])
            elif chunk[virtual]:
                begin = max(begin, wrap_down[(now - _apart(order, now)) % group] + down_link[-1])
            row = downs[virtual] + stage
            begin += forward[row] + opening[row] if opens[virtual] else forward[row]
            free[stage] = down[stage] = begin
        if high == stages and now - high + 1 < count:
            wrap_down[(now - high + 1) % group] = down[-1]
        ahead = lag - now
        low, high = max(0, ahead), min(stages, ahead + count)
        for stage in range(low, high):  # from above, likewise
            virtual, begin = stage - ahead, free[stage]
            if stage < stages - 1:
                begin = max(begin, up[stage + 1] + up_link[stage])
            elif chunk[virtual]:
                begin = max(
                    begin, wrap_up[(virtual - _apart(order, virtual)) % group] + up_link[-1]
                )
            row = ups[virtual] + stage
            begin += backward[row] + ending[row] if ends[virtual] else backward[row]
            free[stage] = up[stage] = begin
        if low == 0 and high > 0:
            wrap_up[-ahead % group] = up[0]
    for part, values in zip(parts, lists, strict=True):
        part[:, plan] = values


def _forwards(
    columns: InterleavedColumns,
    order: Order,
    state: State,
    now: int,
    seconds: Floats,
    extra_s: Floats,
) -> None:
    """Stage i does forward now - i; `seconds` and `extra_s` are (chunk and stage, plan)."""
    low, high = max(0, now - len(order.chunk) + 1), min(order.stages, now + 1)
    if low >= high:
        return
    virtual = slice(now - high + 1, now - low + 1)  # of the last stage first
    start = state.free[low:high]
    if low == 0 and order.chunk[now] > 0:
        came = (now - _apart(order, now)) % order.group
        np.maximum(start[0], state.wrap_down[came] + columns.forward_link_s[-1], out=start[0])
    top = max(low, 1)  # of the stages that wait for the one above
    arrival = state.down[top - 1 : high - 1] + columns.forward_link_s[top - 1 : high - 1]
    below = start[top - low :]
    np.maximum(below, arrival, out=below)
    rows = order.down[virtual][::-1] + order.index[low:high]
    start += seconds.take(rows, axis=0)
    if order.opened[virtual.stop] > order.opened[virtual.start]:
        first = order.opens[virtual][::-1]
        start[first] += extra_s[rows[first]]
    state.down[low:high] = start
    if high == order.stages:
        state.wrap_down[virtual.start % order.group] = start[-1]


def _backwards(
    columns: InterleavedColumns,
    order: Order,
    state: State,
    now: int,
    seconds: Floats,
    extra_s: Floats,
) -> None:
    """Stage i does backward now - lag + i."""
    ahead = order.lag - now
    low, high = max(0, ahead), min(order.stages, ahead + len(order.chunk))
    if low >= high:
        return
    virtual = slice(low - ahead, high - ahead)
    last = virtual.stop - 1
    start = state.free[low:high]
    if high == order.stages and order.chunk[last] > 0:
        came = (last - _apart(order, last)) % order.group
        np.maximum(start[-1], state.wrap_up[came] + columns.backward_link_s[-1], out=start[-1])
    end = min(high, order.stages - 1)  # of the stages that wait for the one below
    arrival = state.up[low + 1 : end + 1] + columns.backward_link_s[low:end]
    above = start[: end - low]
    np.maximum(above, arrival, out=above)
    rows = order.up[virtual] + order.index[low:high]
    start += seconds.take(rows, axis=0)
    if order.ended[virtual.stop] > order.ended[virtual.start]:
        final = order.ends[virtual]
        start[final] += extra_s[rows[final]]
    state.up[low:high] = start
    if low == 0:
        state.wrap_up[virtual.start % order.group] = start[0]


def _apart(order: Order, virtual: int) -> int:
    """Operations from a micro-batch on one chunk to the same on the next: its group's size."""
    whole = order.micro_batches // order.group * order.group
    return order.group if virtual < whole * order.chunks else order.micro_batches - whole
