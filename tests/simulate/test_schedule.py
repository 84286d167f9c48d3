"""Orders of operations, against orders written by hand and against published counts."""

import numpy as np
import pytest

from astra.simulate.schedule import Schedule, interleaved, one_f_one_b, virtual_order


def written(schedule: Schedule, stage: int) -> str:
    """One stage's order: F0 B0 with one chunk, F0a B0a with chunks a, b, ..."""
    words = zip(
        schedule.backward[stage], schedule.micro_batch[stage], schedule.chunk[stage], strict=True
    )
    name = "abcdefgh" if schedule.chunks > 1 else [""]
    return " ".join(f"{'FB'[int(back)]}{batch}{name[chunk]}" for back, batch, chunk in words)


def test_1f1b_of_three_stages_is_the_order_drawn_by_hand() -> None:
    schedule = one_f_one_b(3, 4)
    assert written(schedule, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert written(schedule, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert written(schedule, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_interleaved_of_two_stages_and_chunks_is_the_order_drawn_by_hand() -> None:
    schedule = interleaved(2, 2, 4, 2)
    assert written(schedule, 0) == (
        "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"
    )
    assert written(schedule, 1) == (
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"
    )


def test_overlapped_expert_communication_does_one_more_forward_first() -> None:
    usual, early = interleaved(2, 2, 4, 2), interleaved(2, 2, 4, 2, extra_warmup=1)
    first = np.argmax(usual.backward, axis=1)
    assert np.array_equal(np.argmax(early.backward, axis=1), first + 1)


def test_a_last_group_may_be_short() -> None:
    chunk, micro_batch = virtual_order(2, 5, 3)
    assert micro_batch.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert chunk.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (4, 2), (4, 9), (16, 512)])
def test_1f1b_holds_one_micro_batch_for_every_stage_from_here_to_the_last(
    stages: int, micro_batches: int
) -> None:
    held = one_f_one_b(stages, micro_batches).in_flight()
    assert held.tolist() == [min(micro_batches, stages - i) for i in range(stages)]


@pytest.mark.parametrize(
    ("stages", "chunks", "micro_batches", "group"),
    [(2, 2, 2, 2), (4, 3, 8, 4), (4, 2, 11, 6), (8, 3, 16, 8), (3, 2, 30, 5)],
)
def test_interleaving_holds_the_warm_up_and_one_more_chunk(
    stages: int, chunks: int, micro_batches: int, group: int
) -> None:
    held = interleaved(stages, chunks, micro_batches, group).in_flight()
    warmup = [2 * (stages - i - 1) + (chunks - 1) * group for i in range(stages)]
    assert held.tolist() == [min(micro_batches * chunks, w + 1) for w in warmup]


def test_the_first_of_eight_stages_with_three_chunks_holds_31_chunks() -> None:
    assert interleaved(8, 3, 64, 8).in_flight()[0] == 31


def test_a_schedule_of_half_a_million_operations_stays_small() -> None:
    schedule = interleaved(64, 8, 512, 64)
    arrays = (schedule.backward, schedule.chunk, schedule.micro_batch)
    assert schedule.backward.shape == (64, 2 * 8 * 512)
    assert sum(array.nbytes for array in arrays) < 4_000_000
