"""The paper's pipeline formula: its own words, and where the simulator agrees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.pipeline_models import pipes_of

from astra.cost.paper import paper_end_s
from astra.simulate.pipeline_columns import stage_end_s
from astra.timing.paper import paper_pipeline_s


def test_the_formula_by_hand() -> None:
    """Two stages of 2 and 3 s, a link of 0.5 s, 4 micro-batches: 2.5 + 3 + 3 x 3."""
    seconds = paper_pipeline_s(np.array([[2.0], [3.0]]), np.array([[0.5], [0.0]]), np.array([4]))
    assert seconds.tolist() == [14.5]


@given(st.floats(1e-4, 10.0), st.integers(1, 64))
def test_equal_stages_without_traffic_are_simulated_alike(stage_s: float, count: int) -> None:
    pipes = pipes_of([stage_s] * 8, 0.0, count, 1)
    assert paper_end_s(pipes).max() == pytest.approx((count + 7) * stage_s)
    assert stage_end_s(pipes).max() == pytest.approx((count + 7) * stage_s)


def test_the_last_stage_sends_to_nobody_and_short_pipelines_have_no_stages_in_front() -> None:
    pipes = pipes_of([1.0] * 8, 0.25, 4, 1)
    short = replace(pipes, stages=np.array([2]))
    assert paper_end_s(pipes).max() == pytest.approx(7 * 1.5 + 1 + 3 * 1.5)
    ends = paper_end_s(short)
    assert ends[:6].max() == 0 and ends[6:].min() == pytest.approx(1.5 + 1 + 3 * 1.5)


def test_interleaving_is_not_credited() -> None:
    plain, cut = (pipes_of([1.0] * 8, 0.0, 16, chunks) for chunks in (1, 4))
    assert paper_end_s(plain).max() == pytest.approx(paper_end_s(cut).max())
    assert stage_end_s(cut).max() < 0.9 * stage_end_s(plain).max()
