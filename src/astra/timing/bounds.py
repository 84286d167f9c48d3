"""Least times of a pipeline step, for many plans at once.

No plan runs faster than its bound, so whatever is bounded above the best plan known can go
unsimulated. Plans are columns (slot, plan); a slot is a run of `stages` equal stages, an unused
one has stages 0. Times are of one micro-batch. Links are seconds each way, the mean where the two
ways differ: `inner_link_s` between two stages of a slot, `outer_link_s` from its last stage to the
next slot; an outer link that leads nowhere is ignored.

Every bound is the length of a path through the operations of a step. The loose ones cost a few
hundred operations a plan, the tight one goes over pairs of slots and over chunks.
"""

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def one_f_one_b_bound_s(
    stages: Ints,
    forward_s: Floats,
    backward_s: Floats,
    micro_batches: Ints,
    inner_link_s: Floats,
    outer_link_s: Floats,
    first_gather_s: Floats | None = None,
    last_reduce_s: Floats | None = None,
) -> Floats:
    """Least time of one 1F1B step, all arguments (slot, plan) but micro_batches (plan,). [s]

    Seen from stage k, with t = f + b, links c each way and q = min(m, p - k) - 1 queued:

        T >= above_k + m t_k + idle_k + rounds_k
        above_k  = sum of t + 2 c of the stages before k
        idle_k   = [below_k - q f_k]+ + [below_k - q b_k]+     (the larger one if m <= p - k)
        rounds_k = (M - ceil(M / r)) 2 c,  M = m - 2 - q, or m - 1 - q if a wait is 0

    `below` is the round trip from k to the last stage. `rounds`: in the steady state F(j) and
    F(j + r) of a stage lie one round trip through r neighbouring stages apart, that is r t and
    r - 1 links there and back; r is the length of k's slot. Or, across an outer link to a stage
    of t', floor(M / 2) (t' + 2 c - t_k). Alike stages without links give (m + p - 1) t, as in
    Narayanan et al. 2021, arXiv 2104.04473, sec. 2.2.1. What the first forward and the last
    backward take on top of the others lies on the way down, on the way up, and on k.
    """
    count = micro_batches.astype(np.float64)
    best_s, behind, fill_s, drain_s, next_s, next_view_s, next_turns = np.zeros((7, len(count)))
    for slot in reversed(range(len(stages))):  # row by row: rows stay in cache
        run, inner_s = stages[slot].astype(np.float64), 2 * inner_link_s[slot]
        forward, backward = forward_s[slot], backward_s[slot]
        first = 0.0 if first_gather_s is None else first_gather_s[slot]
        last = 0.0 if last_reduce_s is None else last_reduce_s[slot]
        used, stage_s, inside = run > 0, forward + backward, np.maximum(run - 1, 0)
        link_s = np.where(used & (behind > 0), 2 * outer_link_s[slot], 0.0)
        inside_s = inside * (stage_s + inner_s)  # from the first to the last stage
        work_s, once_s = count * stage_s + (first + last), inside * (first + last)

        fill_s, drain_s = fill_s + link_s, drain_s + link_s
        waits_s, turns = _idle_s(forward, backward, fill_s, drain_s, behind + 1, count)
        across_s = np.where(link_s > 0, np.maximum(next_s + link_s - stage_s, 0), 0)
        won_s = np.maximum(_rounds(turns, run) * inner_s, np.floor(turns / 2) * across_s)
        last_s = work_s + waits_s + won_s + inside_s + once_s

        if inside.any():  # else the first stage is the last, and sees the same
            fill_s, drain_s = fill_s + inside_s + inside * first, drain_s + inside_s + inside * last
            waits_s, turns = _idle_s(forward, backward, fill_s, drain_s, behind + run, count)
        first_s = work_s + waits_s

        across_s = np.where(link_s > 0, np.maximum(link_s + stage_s - next_s, 0), 0)
        best_s = np.maximum(best_s, next_view_s + np.floor(next_turns / 2) * across_s)
        best_s += link_s + np.where(used, inside_s + once_s + stage_s + (first + last), 0.0)
        view_s = np.maximum(last_s, first_s + _rounds(turns, run) * inner_s)
        best_s = np.where(used, np.maximum(best_s, view_s), best_s)

        fill_s = np.where(used, fill_s + stage_s + first, fill_s)
        drain_s = np.where(used, drain_s + stage_s + last, drain_s)
        behind += run
        next_s, next_view_s = np.where(used, stage_s, next_s), np.where(used, first_s, next_view_s)
        next_turns = np.where(used, turns, next_turns)
    return best_s


def _idle_s(
    forward_s: Floats,
    backward_s: Floats,
    fill_s: Floats,
    drain_s: Floats,
    depth: Floats,
    micro_batches: Floats,
) -> tuple[Floats, Floats]:
    """(plan,) idle_k [s] and M of a stage with `depth` stages from it to the last, `fill_s` and
    `drain_s` below it.
    """
    held = np.minimum(depth, micro_batches)
    fill_s = np.maximum(0, fill_s - (held - 1) * forward_s)
    drain_s = np.maximum(0, drain_s - (held - 1) * backward_s)
    idle_s = np.where(depth < micro_batches, fill_s + drain_s, np.maximum(fill_s, drain_s))
    return idle_s, np.maximum(micro_batches - 1 - held + _spare(fill_s, drain_s), 0)


def interleaved_bound_s(
    stages: Ints,
    forward_s: Floats,
    backward_s: Floats,
    micro_batches: Ints,
    inner_link_s: Floats,
    outer_link_s: Floats,
    first_gather_s: Floats | None = None,
    last_reduce_s: Floats | None = None,
) -> Floats:
    """Least time of one interleaved step. [s]

    Times of stages and extras are (chunk, slot, plan); chunks that a plan does not have take 0 s.
    Whatever the order of a stage's operations,

        T >= sum over the stages before k of (f_0 + b_0 + 2 c) + m sum over chunks of t_k

    since chunk 0 of the first micro-batch comes down to k before k has anything to do, and chunk 0
    of the last one goes up again when k is done. Alike stages without links give
    (m v + p - 1) t_chunk: Narayanan et al. 2021, arXiv 2104.04473, sec. 2.2.2.
    """
    run = stages.astype(np.float64)
    stage_s = forward_s[0] + backward_s[0]
    work_s = micro_batches * (forward_s.sum(axis=0) + backward_s.sum(axis=0))
    for extra_s in (first_gather_s, last_reduce_s):
        if extra_s is not None:
            stage_s = stage_s + extra_s[0]
            work_s = work_s + extra_s.sum(axis=0)
    inside_s = np.maximum(run - 1, 0) * (stage_s + 2 * inner_link_s)
    slot_s = inside_s + np.where(run > 0, stage_s, 0.0) + 2 * _links(run, outer_link_s)
    above_s = np.cumsum(slot_s, axis=0) - slot_s + inside_s  # of the slot's last stage
    bound_s: Floats = np.where(run > 0, above_s + work_s, 0.0).max(axis=0)
    return bound_s


def interleaved_tight_bound_s(
    stages: Ints,
    forward_s: Floats,
    backward_s: Floats,
    micro_batches: Ints,
    inner_link_s: Floats,
    outer_link_s: Floats,
    first_gather_s: Floats | None = None,
    last_reduce_s: Floats | None = None,
    *,
    wrap_link_s: Floats,
    chunks: Ints,
    group: Ints,
    extra_warmup: Ints | int = 0,
) -> Floats:
    """As `interleaved_bound_s`, with what Megatron-LM's order forces; chunks > 1. [s]

    Stage k does w_k = 2 (p - k - 1) + (v - 1) g forwards and one more before its first backward,
    that of micro-batch 0 in the last chunk. From the forward of micro-batch 0 in any chunk c to
    there is a way through the rest of the network and back, and forwards to pass the time with:

        fill_k = max over c of  way(k, c) - seconds of the forwards in between
        T >= loose bound from k + fill_k + drain_k            (the larger one if w_k >= m v - 1)

    Drain is the same, backwards in time, for the last micro-batch. A window of r stages, as in
    1F1B, replaces 2 r - 1 turns of k. wrap_link_s, chunks, group (plan,): the link from the last
    stage to the next chunk on the first, v, and g. Where the two ways of a link differ, give the
    shorter one here.
    """
    run, most = stages.astype(np.float64), len(forward_s)
    count, size, v = (x.astype(np.float64) for x in (micro_batches, group, chunks))
    skip, link_s = _ends(run), _links(run, outer_link_s)
    depth = np.cumsum(run[::-1], axis=0)[::-1] - skip
    warmup = np.minimum(2 * (depth - 1) + (v - 1) * size + extra_warmup, count * v)
    ahead = np.minimum(warmup, count * v - 1) + 1  # forwards before the first backward
    head, tail = np.minimum(size, count), count - (np.ceil(count / size) - 1) * size
    down, up = (
        _Pass(run, skip, seconds, extra_s, inner_link_s, link_s, wrap_link_s, v)
        for seconds, extra_s in ((forward_s, first_gather_s), (backward_s, last_reduce_s))
    )
    fill_s = down.wait_s(up.below_s, head, _counts_down(ahead, size, tail, count, v, most))
    drain_s = up.wait_s(down.below_s, tail, _counts_up(ahead, size, tail, v, most))
    idle_s = np.where(warmup < count * v - 1, fill_s + drain_s, np.maximum(fill_s, drain_s))
    first_s = down.once_s[0] + up.once_s[0]
    above_s, _ = _along(run, skip, first_s, 2 * inner_link_s, 2 * link_s)
    work_s = (count - 1) * (forward_s.sum(axis=0) + backward_s.sum(axis=0))
    work_s += down.once_s.sum(axis=0) + up.once_s.sum(axis=0)
    trip_s = down.least_s + up.least_s
    views = _Views(
        stages=run,
        trip_s=trip_s,
        pace_s=forward_s.max(axis=0) + backward_s.max(axis=0),
        inner_s=2 * inner_link_s,
        start_s=_along(run, skip, trip_s, 2 * inner_link_s, 2 * link_s)[0],
        depth=depth,
        turns=np.maximum(count * v - 2 - warmup + _spare(fill_s, drain_s), 0),
        view_s=above_s + work_s + idle_s,
        stride=2,
    )
    return views.most_s()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Views:
    """A step seen from some stages of every slot, the first, the last, maybe others: (view, slot,
    plan) unless noted.

    A round trip through r neighbouring stages brings each of them `stride` (r - 1) + 1 turns on:
    where turns are left in the steady state, it may take longer than they do.
    """

    stages: Floats  # (slot, plan)
    trip_s: Floats  # (slot, plan), at least, of a stage on a round trip
    pace_s: Floats  # (slot, plan), at most, of one turn of a stage: a forward and a backward
    inner_s: Floats  # (slot, plan), there and back
    start_s: Floats  # round trip of the stages before
    depth: Floats  # stages from here to the last
    turns: Floats  # of the steady state
    view_s: Floats  # the bound without round trips
    stride: int

    def most_s(self) -> Floats:
        """(plan,) The highest bound. [s]"""
        within_s = self.view_s + self._within_s(self.turns, slice(None))
        best_s: Floats = np.where(self.stages > 0, within_s, 0.0).max(axis=(0, 1))
        for high, low in combinations(range(len(self.stages)), 2):
            np.maximum(best_s, self._across_s(high, low), out=best_s)
        return best_s

    def _within_s(self, turns: Floats, slots: int | slice) -> Floats:
        """What round trips inside a slot win: as few as fill the turns, each as wide as can be."""
        inside = np.maximum(self.stages[slots] - 1, 0)
        trips = np.ceil(turns / (self.stride * inside + 1))
        links = np.floor((turns - trips) / self.stride)
        trip_s, pace_s = self.trip_s[slots], self.pace_s[slots]
        wider_s = trip_s + self.inner_s[slots] - self.stride * pace_s
        return np.maximum(links * wider_s - trips * (pace_s - trip_s), 0)

    def _across_s(self, high: int, low: int) -> Floats:
        """(plan,) Round trips from the end of one slot into the start of a later one."""
        used = (self.stages[high] > 0) & (self.stages[low] > 0)
        one = np.ones(used.shape)
        best_s = np.zeros(used.shape)
        apart = np.maximum(self.depth[1, high] - self.depth[0, low] - 1, 0)
        near_s = self.start_s[0, low] + self.trip_s[low] - self.start_s[1, high]
        for above, below in product((one, self.stages[high]), (one, self.stages[low])):
            turns = self.stride * np.maximum(above + apart + below - 1, 0) + 1
            trip_s = near_s + (above - 1) * (self.trip_s[high] + self.inner_s[high])
            trip_s += (below - 1) * (self.trip_s[low] + self.inner_s[low])
            for end, slot in ((1, high), (0, low)):
                trips = np.floor(self.turns[end, slot] / turns)
                won_s = trips * (trip_s - turns * self.pace_s[slot])
                won_s += self._within_s(self.turns[end, slot] - trips * turns, slot)
                np.maximum(best_s, self.view_s[end, slot] + won_s, out=best_s)
        return np.where(used, best_s, 0.0)


def _spare(fill_s: Floats, drain_s: Floats) -> NDArray[np.bool_]:
    """One more turn for round trips, the one that a wait at either end would have taken."""
    return np.minimum(fill_s, drain_s) <= 0


def _rounds(turns: Floats, stages: Floats) -> Floats:
    """M - ceil(M / r)."""
    return turns - np.ceil(turns / np.maximum(stages, 1))


def _ends(stages: Floats) -> Floats:
    """(2, slot, plan) Stages of the slot before its first and before its last stage."""
    return np.stack([np.zeros(stages.shape), np.maximum(stages - 1, 0)])


def _links(stages: Floats, outer_link_s: Floats) -> Floats:
    """(slot, plan) Outer links that lead from a used slot to a used slot; else 0."""
    behind = np.cumsum(stages[::-1], axis=0)[::-1] - stages
    return np.where((stages > 0) & (behind > 0), outer_link_s, 0.0)


def _along(
    stages: Floats, skip: Floats, stage_s: Floats, inner_s: Floats, link_s: Floats
) -> tuple[Floats, Floats]:
    """Seconds before the stages of `skip` (view, slot, plan), and of all (plan,)."""
    slot_s = stages * stage_s + skip[1] * inner_s + link_s
    reached_s = np.cumsum(slot_s, axis=0)
    return reached_s - slot_s + skip * (stage_s + inner_s), reached_s[-1]


class _Pass:
    """One direction of an interleaved pipeline, seen from both ends of every slot."""

    def __init__(
        self,
        stages: Floats,
        skip: Floats,
        seconds: Floats,
        extra_s: Floats | None,
        inner_s: Floats,
        link_s: Floats,
        wrap_s: Floats,
        chunks: Floats,
    ) -> None:
        has = np.arange(len(seconds))[:, None, None] < chunks
        self.chunks = chunks
        self.seconds = seconds  # (chunk, slot, plan)
        self.once_s = seconds if extra_s is None else seconds + extra_s  # with the extras
        self.least_s = np.where(has, seconds, np.inf).min(axis=0)  # (slot, plan)
        self.after_s = []  # (2, slot, plan) per chunk: the rest of the pass behind stage k
        self.wrapped_s = []  # (plan,) per chunk: a whole pass and the wrap before it
        self.below_s = np.zeros(skip.shape)  # of the last chunk, without the extras
        for chunk, stage_s in enumerate(self.once_s):
            start_s, whole_s = _along(stages, skip, stage_s, inner_s, link_s)
            self.after_s.append(whole_s - start_s - stage_s)
            self.wrapped_s.append(np.where(has[chunk, 0], whole_s + wrap_s, 0.0))
            plain_s, whole_s = _along(stages, skip, seconds[chunk], inner_s, link_s)
            below_s = whole_s - plain_s - seconds[chunk]
            self.below_s = np.where(chunk == chunks - 1, below_s, self.below_s)

    def wait_s(self, back_s: Floats, head: Floats, counts: list[Floats]) -> Floats:
        """(2, slot, plan) max over c of the way from chunk c to the turn and back to stage k,
        less the stage's work meanwhile. `counts`: its operations before the turn, by chunk;
        `head`: those of one chunk in the group where the way begins.
        """
        left_s = back_s * 0 + (self.once_s - self.seconds).sum(axis=0)
        for count, own_s in zip(counts, self.seconds, strict=True):
            left_s += count * own_s
        wait_s = np.zeros(back_s.shape)
        behind_s = np.sum(self.wrapped_s, axis=0)
        for chunk, (own_s, once_s) in enumerate(zip(self.seconds, self.once_s, strict=True)):
            behind_s = behind_s - self.wrapped_s[chunk]
            way_s = self.after_s[chunk] + (back_s + (behind_s + once_s) - left_s)
            np.maximum(wait_s, np.where(chunk < self.chunks, way_s, 0.0), out=wait_s)
            left_s -= (head - 1) * own_s + once_s
        return wait_s


def _counts_down(
    first: Floats, group: Floats, tail: Floats, micro_batches: Floats, chunks: Floats, most: int
) -> list[Floats]:
    """Operations of each chunk among a stage's first forwards: groups of g, then the last."""
    groups = np.ceil(micro_batches / group) - 1  # without the last
    whole = np.minimum(np.floor(first / (group * chunks)), groups)
    left = first - whole * (group * chunks)
    size = np.where(whole < groups, group, tail)
    return [whole * group + np.clip(left - chunk * size, 0, size) for chunk in range(most)]


def _counts_up(
    last: Floats, group: Floats, tail: Floats, chunks: Floats, most: int
) -> list[Floats]:
    """Operations of each chunk among a stage's last backwards: the last group, then groups of g."""
    short = np.minimum(last, tail * chunks)
    whole = np.floor((last - short) / (group * chunks))
    left = last - short - whole * (group * chunks)
    return [
        whole * group
        + np.clip(short - chunk * tail, 0, tail)
        + np.clip(left - chunk * group, 0, group)
        for chunk in range(most)
    ]
