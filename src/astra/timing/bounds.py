"""Least times of a pipeline step, for many plans at once.

No plan runs faster than its bound, so whatever is bounded above the best plan known can go
unsimulated. Plans are columns (slot, plan); a slot is a run of `stages` equal stages, an unused
one has stages 0. Times are of one micro-batch. Links are seconds each way, the mean where the two
ways differ: `inner_link_s` between two stages of a slot, `outer_link_s` from its last stage to the
next slot; an outer link that leads nowhere is ignored.

Every bound is the length of a path through the operations of a step.
"""

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


def _spare(fill_s: Floats, drain_s: Floats) -> NDArray[np.bool_]:
    """One more turn for round trips, the one that a wait at either end would have taken."""
    return np.minimum(fill_s, drain_s) <= 0


def _rounds(turns: Floats, stages: Floats) -> Floats:
    """M - ceil(M / r)."""
    return turns - np.ceil(turns / np.maximum(stages, 1))


def _links(stages: Floats, outer_link_s: Floats) -> Floats:
    """(slot, plan) Outer links that lead from a used slot to a used slot; else 0."""
    behind = np.cumsum(stages[::-1], axis=0)[::-1] - stages
    return np.where((stages > 0) & (behind > 0), outer_link_s, 0.0)
