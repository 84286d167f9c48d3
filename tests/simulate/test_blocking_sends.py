"""Sends that block both ends, against a plain recursion over what each stage waits for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.random_pipelines import random_pipelines

from astra.simulate.blocking_sends import with_blocking_sends
from astra.simulate.pipeline_columns import Floats, PipelineColumns, step_s
from astra.simulate.schedule import one_f_one_b


def plain_step_s(pipelines: PipelineColumns, blocking_send_s: Floats, plan: int) -> float:
    """One pipeline, operation by operation.

    A stage takes its input in for as long as that blocks it, works when that is over and all of the
    input is there, and passes its result on for as long as that does.
    """
    stages, count = int(pipelines.stages[plan]), int(pipelines.micro_batches[plan])
    forward, backward = pipelines.forward_s[0, :, plan], pipelines.backward_s[0, :, plan]
    first, last = pipelines.first_gather_s[0, :, plan], pipelines.last_reduce_s[0, :, plan]
    down, up, wait = (
        c[:, plan] for c in (pipelines.forward_link_s, pipelines.backward_link_s, blocking_send_s)
    )
    order = one_f_one_b(stages, count)
    done: dict[tuple[bool, int, int], float] = {}  # when the work itself was over
    free, at = [0.0] * stages, [0] * stages
    while any(place < 2 * count for place in at):
        for stage in range(stages):
            if at[stage] == 2 * count:
                continue
            back = bool(order.backward[stage, at[stage]])
            batch = int(order.micro_batch[stage, at[stage]])
            source = stage + 1 if back else stage - 1
            end = not 0 <= source < stages
            if not end and (back, source, batch) not in done:
                continue
            link = 0.0 if end else (up[stage] if back else down[source])
            into = 0.0 if end else wait[stage if back else source]
            there = 0.0 if end else done[back, source, batch] + link
            target = stage - 1 if back else stage + 1
            out = wait[target if back else stage] if 0 <= target < stages else 0.0
            seconds = backward[stage] if back else forward[stage]
            seconds += last[stage] * (back and batch == count - 1)
            seconds += first[stage] * (not back and batch == 0)
            done[back, stage, batch] = max(free[stage] + into, there) + seconds
            free[stage] = done[back, stage, batch] + out
            at[stage] += 1
    return max(free)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.integers(1, 40),
    st.floats(0, 1),
)
def test_blocking_sends_end_when_a_plain_recursion_ends(
    seed: int, stages: int, micro_batches: int, share: float
) -> None:
    pipelines = random_pipelines(
        seed, 4, stages=stages, chunks=1, micro_batches=micro_batches, group=stages
    )
    waits = share * np.minimum(pipelines.forward_link_s, pipelines.backward_link_s)
    found = step_s(with_blocking_sends(pipelines, waits))
    expected = [plain_step_s(pipelines, waits, plan) for plan in range(4)]
    assert found == pytest.approx(expected, rel=1e-9)
    assert (found >= step_s(pipelines) * (1 - 1e-12)).all(), "waiting never helps"


def test_two_stages_that_wait_for_each_other_pay_every_transfer_twice() -> None:
    """m micro-batches on the slower stage, each with its input and its gradient, and the ends."""
    pipelines = PipelineColumns(
        stages=np.array([2]),
        chunks=np.array([1]),
        micro_batches=np.array([50]),
        group=np.array([2]),
        extra_warmup=np.array([0]),
        forward_s=np.array([[[1.0], [3.0]]]),
        backward_s=np.array([[[2.0], [6.0]]]),
        forward_link_s=np.array([[0.5], [0.0]]),
        backward_link_s=np.array([[0.5], [0.0]]),
        first_gather_s=np.zeros((1, 2, 1)),
        last_reduce_s=np.zeros((1, 2, 1)),
    )
    waits = np.array([[0.5], [0.0]])
    assert step_s(with_blocking_sends(pipelines, waits)).item() == pytest.approx(
        1 + 50 * (9 + 2 * 0.5) + 2
    )
    assert step_s(pipelines).item() == pytest.approx(1 + 0.5 + 50 * 9 + 0.5 + 2)


def test_chunks_send_beside_each_other_and_block_nobody() -> None:
    pipelines = random_pipelines(1, 3, stages=3, chunks=2, micro_batches=6, group=3)
    assert (
        step_s(with_blocking_sends(pipelines, pipelines.forward_link_s)) == step_s(pipelines)
    ).all()
