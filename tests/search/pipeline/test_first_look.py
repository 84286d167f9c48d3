"""What the first look takes for granted of 1F1B, held against the simulator."""

import numpy as np

from astra.simulate.events import pipeline_times, simulate
from astra.simulate.schedule import one_f_one_b


def step_s(stage_s: np.ndarray, micro_batches: int) -> float:
    """Of stages whose backwards take twice their forwards, without links."""
    seconds = pipeline_times(stage_s / 3, stage_s * 2 / 3)
    return simulate(seconds, one_f_one_b(len(stage_s), micro_batches)).step_s


def test_a_stage_waits_for_all_above_it_once_with_the_first_and_once_with_the_last() -> None:
    dice = np.random.default_rng(1)
    for _ in range(50):
        stages, micro_batches = dice.integers(2, 9), int(dice.integers(1, 33))
        stage_s = dice.uniform(0.1, 1.0, stages)
        above_s = np.cumsum(stage_s) - stage_s
        assert step_s(stage_s, micro_batches) >= (above_s + micro_batches * stage_s).max() - 1e-9


def test_that_is_the_whole_step_where_the_last_stage_is_much_the_slowest() -> None:
    stage_s = np.array([0.2, 0.1, 0.3, 1.0])
    assert np.isclose(step_s(stage_s, 12), 0.6 + 12 * 1.0)


def test_stages_that_each_leave_time_for_those_above_share_the_step_as_the_first_look_says() -> (
    None
):
    """Each (1 - 1 / K) of the one above it: s of them T (1 - (1 - 1 / K)^s) together, and by the
    rule above each of them alone may end in a step of T = K B; waiting for each other comes on top.
    """
    for micro_batches, stages in ((8, 4), (16, 16), (100, 60)):
        stage_s = (1 - 1 / micro_batches) ** np.arange(stages)
        together_s = micro_batches * (1 - (1 - 1 / micro_batches) ** stages)
        assert np.isclose(stage_s.sum(), together_s)
        above_s = np.cumsum(stage_s) - stage_s
        np.testing.assert_allclose(above_s + micro_batches * stage_s, micro_batches)
        assert step_s(stage_s, micro_batches) > micro_batches
