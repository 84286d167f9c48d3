"""Who does what in which order: a pipeline schedule as data."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Schedule:
    """The order of operations of every stage, one row per stage.

    Each stage does one forward and one backward for every (chunk, micro-batch).
    """

    backward: Flags  # (stage, operation): False is a forward
    chunk: NDArray[np.int16]  # (stage, operation)
    micro_batch: NDArray[np.int32]  # (stage, operation)
    chunks: int
    micro_batches: int

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return int(self.backward.shape[0])

    def in_flight(self) -> Ints:
        """(stage,) Most forward chunks that wait for their backward at once."""
        waiting = np.where(self.backward, -1, 1).cumsum(axis=1)
        most: Ints = waiting.max(axis=1)
        return most


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """1F1B: stage i of p first does p - i - 1 forwards, then one forward, one backward in turn.

    Narayanan et al. 2019, PipeDream, doi:10.1145/3341301.3359646; with a flush after every step.
    """
    return _weave(np.arange(stages)[::-1], 1, micro_batches, micro_batches)


def interleaved(
    stages: int, chunks: int, micro_batches: int, group: int, *, extra_warmup: int = 0
) -> Schedule:
    """Interleaved 1F1B in Megatron-LM's order: v chunks a stage, micro-batches in groups of g.

    Stage i of p first does 2 (p - i - 1) + (v - 1) g forwards, then one forward, one backward in
    turn. Narayanan et al. 2021, arXiv 2104.04473, sec. 2.2.2, where g = p. Overlapped expert
    communication takes one more forward in the warm-up (`extra_warmup`).
    """
    after = np.arange(stages)[::-1]
    warmup = 2 * after + (chunks - 1) * group + extra_warmup
    return _weave(warmup, chunks, micro_batches, group)


def virtual_order(chunks: int, micro_batches: int, group: int) -> tuple[Ints, Ints]:
    """Chunk and micro-batch of the k-th forward of a stage, each (chunks * micro_batches,).

    Group after group; in a group chunk after chunk; in a chunk micro-batch after micro-batch.
    The last group may be smaller. The k-th backward has the chunks in reverse order.
    """
    chunk, micro_batch = np.divmod(np.arange(chunks * micro_batches), micro_batches)
    order = np.lexsort((micro_batch, chunk, micro_batch // group))
    return chunk[order], micro_batch[order]


def _weave(warmup: Ints, chunks: int, micro_batches: int, group: int) -> Schedule:
    """Forwards alone (`warmup` of them on each stage), then one of each, then backwards alone.

    The k-th forward is operation k + max(0, k - w) of its stage, the k-th backward is operation
    k + min(n, k + w + 1), of n forwards in all.
    """
    assert chunks > 0 and micro_batches > 0 and group > 0 and len(warmup) > 0
    chunk, micro_batch = virtual_order(chunks, micro_batches, group)
    count = len(chunk)
    warmup = np.minimum(warmup, count)[:, None]
    virtual = np.arange(count)
    stage = np.arange(len(warmup))[:, None]
    shape = (len(warmup), 2 * count)
    backward = np.zeros(shape, np.bool_)
    chunk_at = np.zeros(shape, np.int16)
    micro_batch_at = np.zeros(shape, np.int32)
    forward_at = virtual + np.maximum(0, virtual - warmup)
    backward_at = virtual + np.minimum(count, virtual + warmup + 1)
    backward[stage, backward_at] = True
    chunk_at[stage, forward_at] = chunk
    chunk_at[stage, backward_at] = chunks - 1 - chunk
    micro_batch_at[stage, forward_at] = micro_batch
    micro_batch_at[stage, backward_at] = micro_batch
    return Schedule(
        backward=backward,
        chunk=chunk_at,
        micro_batch=micro_batch_at,
        chunks=chunks,
        micro_batches=micro_batches,
    )
