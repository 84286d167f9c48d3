"""Timelines worked out by hand, published bubbles, and what must never happen."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.random_pipelines import random_pipelines, schedule_of, shapes, times_of

from astra.simulate.events import pipeline_times, simulate
from astra.simulate.schedule import interleaved, one_f_one_b


def test_two_stages_of_1f1b_with_links_run_as_drawn_by_hand() -> None:
    """
    stage 0  F0 0-1  F1 1-2                              B0 6.75-8.75  B1 11.75-13.75
    stage 1  F0 1.5-3.5  B0 3.5-6.5  F1 6.5-8.5  B1 8.5-11.5

    0.5 s down, 0.25 s up.
    """
    seconds = pipeline_times(
        np.array([1.0, 2.0]),
        np.array([2.0, 3.0]),
        forward_link_s=0.5,
        backward_link_s=0.25,
    )
    timeline = simulate(seconds, one_f_one_b(2, 2))
    assert timeline.start_s.tolist() == [[0, 1, 6.75, 11.75], [1.5, 3.5, 6.5, 8.5]]
    assert timeline.end_s.tolist() == [[1, 2, 8.75, 13.75], [3.5, 6.5, 8.5, 11.5]]
    assert timeline.step_s == 13.75
    assert timeline.busy_s.tolist() == [6, 10]
    assert timeline.idle_s.tolist() == [7.75, 3.75]
    assert timeline.in_flight.tolist() == [2, 1]


def test_three_uneven_stages_of_1f1b_run_as_drawn_by_hand() -> None:
    """
    stage 0  F0 0  F1 1  F2 2                      B0 8-10      B1 13-15      B2 18-20
    stage 1        F0 1  F1 2           B0 7  F2 8        B1 12          B2 17
    stage 2              F0 2-4  B0 4-7  F1 7-9  B1 9-12  F2 12-14  B2 14-17
    """
    seconds = pipeline_times(np.array([1.0, 1.0, 2.0]), np.array([2.0, 1.0, 3.0]))
    timeline = simulate(seconds, one_f_one_b(3, 3))
    assert timeline.start_s.tolist() == [
        [0, 1, 2, 8, 13, 18],
        [1, 2, 7, 8, 12, 17],
        [2, 4, 7, 9, 12, 14],
    ]
    assert timeline.step_s == 20


def test_two_interleaved_stages_with_a_slow_way_around_run_as_drawn_by_hand() -> None:
    """Chunks a, b; 0.5 s between the stages, 1 s around.

    stage 0  F0a 0-1  F1a 1-2  F0b 3.5-5.5  F1b 5.5-7.5  B0b 10.5-12.5  B1b 14.5-16.5
             B0a 16.5-18.5  B1a 19-21
    stage 1  F0a 1.5-2.5  F1a 2.5-3.5  F0b 6-7  B0b 7-10  F1b 10-11  B1b 11-14
             B0a 14-15  B1a 17.5-18.5
    """
    seconds = pipeline_times(
        np.array([[1.0, 2.0], [1.0, 1.0]]),
        np.array([[2.0, 2.0], [1.0, 3.0]]),
        forward_link_s=np.array([0.5, 1.0]),
    )
    timeline = simulate(seconds, interleaved(2, 2, 2, 2))
    assert timeline.start_s.tolist() == [
        [0, 1, 3.5, 5.5, 10.5, 14.5, 16.5, 19],
        [1.5, 2.5, 6, 7, 10, 11, 14, 17.5],
    ]
    assert timeline.step_s == 21
    assert timeline.in_flight.tolist() == [4, 3]


def test_three_interleaved_stages_run_as_drawn_by_hand() -> None:
    """Every operation takes 1 s.

    stage 0  F0a 0  F1a 1  F2a 2  F0b 3  F1b 4  F2b 5  B0b 8  B1b 10  B2b 12  B0a 13 ..
    stage 1  F0a 1  F1a 2  F2a 3  F0b 4  F1b 5  F2b 6  B0b 7  B1b 9  B2b 11  B0a 12 ..
    stage 2  F0a 2  F1a 3  F2a 4  F0b 5  B0b 6  F1b 7  B1b 8  F2b 9  B2b 10  B0a 11 ..
    """
    timeline = simulate(pipeline_times(np.ones((3, 2)), np.ones((3, 2))), interleaved(3, 2, 3, 3))
    assert timeline.start_s.tolist() == [
        [0, 1, 2, 3, 4, 5, 8, 10, 12, 13, 14, 15],
        [1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14],
        [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
    ]
    assert timeline.step_s == 16


def test_first_and_last_micro_batch_carry_their_extra_seconds() -> None:
    """One stage: 3 x (1 + 2) + 0.5 + 0.25. Two stages: both gathers delay the first forward."""
    one, two = np.ones(1), np.ones(2)
    alone = simulate(
        pipeline_times(one, 2 * one, first_gather_s=0.5, last_reduce_s=0.25), one_f_one_b(1, 3)
    )
    assert alone.step_s == 9.75
    pair = simulate(pipeline_times(two, 2 * two, first_gather_s=0.5), one_f_one_b(2, 1))
    assert pair.start_s.tolist() == [[0, 5], [1.5, 3]]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 5), (2, 2), (4, 16), (8, 3), (8, 64)])
def test_equal_stages_of_1f1b_idle_p_minus_1_micro_batches(stages: int, micro_batches: int) -> None:
    """Narayanan et al. 2021, sec. 2.2.1: the bubble is (p - 1) (f + b)."""
    seconds = pipeline_times(np.ones(stages), np.full(stages, 2.0))
    timeline = simulate(seconds, one_f_one_b(stages, micro_batches))
    assert timeline.idle_s.tolist() == [3 * (stages - 1)] * stages


@pytest.mark.parametrize(
    ("stages", "chunks", "micro_batches"), [(2, 2, 2), (4, 2, 8), (4, 4, 16), (8, 3, 16)]
)
def test_equal_interleaved_stages_idle_v_times_less(
    stages: int, chunks: int, micro_batches: int
) -> None:
    """Narayanan et al. 2021, sec. 2.2.2: the bubble is (p - 1) (f + b) / v."""
    seconds = pipeline_times(
        np.ones((stages, chunks)) / chunks, np.full((stages, chunks), 2.0) / chunks
    )
    timeline = simulate(seconds, interleaved(stages, chunks, micro_batches, stages))
    assert timeline.idle_s == pytest.approx(np.full(stages, 3 * (stages - 1) / chunks))


def test_the_sender_goes_on_computing_while_a_transfer_is_under_way() -> None:
    seconds = pipeline_times(np.ones(2), np.ones(2), forward_link_s=10.0)
    assert simulate(seconds, one_f_one_b(2, 4)).start_s[0, :2].tolist() == [0, 1]


def test_a_schedule_that_waits_for_itself_is_our_mistake() -> None:
    schedule = one_f_one_b(2, 2)
    backward = schedule.backward.copy()
    backward[1, :2] = [True, False]
    with pytest.raises(AssertionError, match="waits for itself"):
        simulate(pipeline_times(np.ones(2), np.ones(2)), replace(schedule, backward=backward))


def test_a_schedule_that_forgets_an_operation_is_our_mistake() -> None:
    schedule = one_f_one_b(2, 2)
    twice = schedule.micro_batch.copy()
    twice[0] = 0
    with pytest.raises(AssertionError, match="missing or done twice"):
        simulate(pipeline_times(np.ones(2), np.ones(2)), replace(schedule, micro_batch=twice))


@settings(max_examples=150, deadline=None)
@given(shapes(), st.integers(0, 10_000), st.data())
def test_a_longer_stage_or_link_never_shortens_the_step(
    shape: dict[str, int], seed: int, data: st.DataObject
) -> None:
    pipelines = random_pipelines(seed, 1, **shape)
    before, schedule = times_of(pipelines, 0), schedule_of(pipelines, 0)
    name = data.draw(st.sampled_from(before.__slots__))
    column = getattr(before, name).copy()
    column.flat[data.draw(st.integers(0, column.size - 1))] += data.draw(st.floats(0, 5))
    after = replace(before, **{name: column})
    assert simulate(after, schedule).step_s >= simulate(before, schedule).step_s


@settings(max_examples=100, deadline=None)
@given(shapes(), st.integers(0, 10_000))
def test_no_operation_starts_before_its_stage_is_free(shape: dict[str, int], seed: int) -> None:
    pipelines = random_pipelines(seed, 1, **shape)
    timeline = simulate(times_of(pipelines, 0), schedule_of(pipelines, 0))
    assert (timeline.start_s[:, 1:] >= timeline.end_s[:, :-1]).all()
    assert np.allclose(timeline.busy_s + timeline.idle_s, timeline.step_s)
