"""Columns of pipelines give the times that each pipeline gives by itself."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simulate.random_pipelines import joined, one_by_one, random_pipelines, shapes

from astra.simulate import interleaved_columns, one_f_one_b_columns
from astra.simulate.pipeline_columns import stage_end_s, step_s


@pytest.fixture(params=[0, 1000], ids=["in columns", "in plain numbers"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interleaved pipelines run as columns or one by one, by how many there are."""
    monkeypatch.setattr(interleaved_columns, "MAX_STAGES_ONE_BY_ONE", request.param)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(shapes(), min_size=1, max_size=4), st.integers(0, 10_000))
@pytest.mark.usefixtures("either_way")
def test_columns_and_events_agree_on_random_pipelines(
    mixture: list[dict[str, int]], seed: int
) -> None:
    pipelines = joined([random_pipelines(seed + i, 3, **shape) for i, shape in enumerate(mixture)])
    timelines = one_by_one(pipelines)
    expected = np.array([timeline.step_s for timeline in timelines])
    assert np.allclose(step_s(pipelines), expected, rtol=1e-12, atol=0)
    end_s = stage_end_s(pipelines)
    for plan, timeline in enumerate(timelines):
        stages = len(timeline.busy_s)
        last = timeline.end_s.max(axis=1)
        assert np.allclose(end_s[-stages:, plan], last, rtol=1e-12, atol=0)
        assert (end_s[:-stages, plan] == 0).all()


@pytest.mark.parametrize(
    ("stages", "chunks", "micro_batches", "group"),
    [
        (1, 1, 200, 1),
        (4, 1, 300, 4),
        (7, 1, 257, 7),
        (16, 1, 512, 16),
        (1, 2, 120, 3),
        (4, 2, 256, 4),
        (4, 3, 130, 7),
        (8, 2, 200, 8),
    ],
)
@pytest.mark.usefixtures("either_way")
def test_a_run_that_jumps_ends_where_the_full_run_ends(
    stages: int, chunks: int, micro_batches: int, group: int
) -> None:
    pipelines = random_pipelines(
        stages, 60, stages=stages, chunks=chunks, micro_batches=micro_batches, group=group
    )
    full = stage_end_s(pipelines, skip=False)
    assert np.allclose(stage_end_s(pipelines), full, rtol=1e-12, atol=0)
    events = [timeline.step_s for timeline in one_by_one(pipelines.take(np.arange(5)))]
    assert np.allclose(full.max(axis=0)[:5], events, rtol=1e-12, atol=0)


def test_pipelines_of_all_depths_share_a_table() -> None:
    tables = [
        random_pipelines(depth, 5, stages=depth, chunks=1, micro_batches=20, group=depth)
        for depth in range(1, 14)
    ]
    pipelines = joined(tables)
    alone = np.concatenate([step_s(table) for table in tables])
    assert np.allclose(step_s(pipelines), alone, rtol=1e-12, atol=0)


def test_a_pipeline_takes_the_same_time_alone_as_in_a_table() -> None:
    pipelines = random_pipelines(3, 50, stages=6, chunks=1, micro_batches=100, group=6)
    alone = [step_s(pipelines.take(np.array([plan])))[0] for plan in range(50)]
    assert np.allclose(step_s(pipelines), alone, rtol=1e-12, atol=0)


def test_a_group_smaller_than_the_pipeline_is_our_mistake() -> None:
    pipelines = random_pipelines(0, 1, stages=4, chunks=2, micro_batches=8, group=3)
    with pytest.raises(AssertionError, match="fewer micro-batches than stages"):
        step_s(pipelines)


@pytest.mark.slow
def test_a_plateau_of_equal_stages_jumps_however_long_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slowest way round is the plateau's: a run repeats itself after as many micro-batches."""
    depth, micro_batches, slots = 13, 2000, []
    run = one_f_one_b_columns._run

    def counted(columns, end, slot, stop, *rest):  # type: ignore[no-untyped-def]
        slots.append(stop - slot)
        run(columns, end, slot, stop, *rest)

    monkeypatch.setattr(one_f_one_b_columns, "_run", counted)
    for plateau in range(2, depth + 1):
        pace = np.where(np.arange(depth) < plateau, 1.0, 0.9)[:, np.newaxis]
        link = np.full((depth, 1), 0.01)
        none = np.zeros((depth, 1))
        columns = one_f_one_b_columns.OneF1BColumns(
            forward_s=pace,
            backward_s=2 * pace,
            from_above_s=np.where(np.arange(depth)[:, np.newaxis] > 0, link, 0.0),
            from_below_s=np.where(np.arange(depth)[:, np.newaxis] < depth - 1, link, 0.0),
            first_gather_s=none,
            last_reduce_s=none,
        )
        full = one_f_one_b_columns.stage_end_s(columns, micro_batches, skip=False)
        slots.clear()
        jumped = one_f_one_b_columns.stage_end_s(columns, micro_batches, skip=True)
        assert np.allclose(jumped, full, rtol=1e-12, atol=0)
        assert sum(slots) < 400, plateau  # of 4,024
