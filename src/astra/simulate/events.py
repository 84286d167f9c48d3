"""One pipeline, event by event: when each stage does what, and where it waits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astra.simulate.schedule import Schedule

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PipelineTimes:
    """Seconds of every stage and link of one pipeline.

    Link i leads from stage i to stage i + 1 and back; the last one leads from the last stage to
    the next chunk on the first. A transfer delays its receiver; the sender goes on computing.
    """

    forward_s: Floats  # (stage, chunk), of one micro-batch
    backward_s: Floats  # (stage, chunk)
    forward_link_s: Floats  # (stage,)
    backward_link_s: Floats  # (stage,)
    first_gather_s: Floats  # (stage, chunk), parameters: on top of the first micro-batch's forward
    last_reduce_s: Floats  # (stage, chunk), gradients: on top of the last micro-batch's backward


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Timeline:
    """What happened: the operations in the order of the schedule."""

    start_s: Floats  # (stage, operation)
    end_s: Floats  # (stage, operation)
    step_s: float
    busy_s: Floats  # (stage,)
    idle_s: Floats  # (stage,), until the step ends
    in_flight: Ints  # (stage,), most forward chunks held at once


def pipeline_times(
    forward_s: Floats,
    backward_s: Floats,
    *,
    forward_link_s: Floats | float = 0.0,
    backward_link_s: Floats | float | None = None,
    first_gather_s: Floats | float = 0.0,
    last_reduce_s: Floats | float = 0.0,
) -> PipelineTimes:
    """A pipeline from plain numbers: one chunk a stage where the chunk axis is missing, no extras,
    and the way back as long as the way there, where nothing else is said.
    """
    shape = (len(forward_s), 1) if forward_s.ndim == 1 else forward_s.shape
    back_s = forward_link_s if backward_link_s is None else backward_link_s
    return PipelineTimes(
        forward_s=forward_s.reshape(shape),
        backward_s=backward_s.reshape(shape),
        forward_link_s=np.zeros(shape[0]) + forward_link_s,
        backward_link_s=np.zeros(shape[0]) + back_s,
        first_gather_s=np.zeros(shape) + first_gather_s,
        last_reduce_s=np.zeros(shape) + last_reduce_s,
    )


def simulate(times: PipelineTimes, schedule: Schedule) -> Timeline:
    """Run a schedule: an operation starts when its stage is free and its input is there."""
    assert times.forward_s.shape == (schedule.stages, schedule.chunks)
    _check_complete(schedule)
    seconds = _seconds(times, schedule)
    start_s = _starts(schedule.micro_batches, seconds, *_wiring(times, schedule))
    end_s = start_s + seconds
    step_s = float(end_s.max())
    busy_s = seconds.sum(axis=1)
    return Timeline(
        start_s=start_s,
        end_s=end_s,
        step_s=step_s,
        busy_s=busy_s,
        idle_s=step_s - busy_s,
        in_flight=schedule.in_flight(),
    )


def _check_complete(schedule: Schedule) -> None:
    """Each stage does each operation once."""
    stages, chunks, count = schedule.stages, schedule.chunks, schedule.micro_batches
    name = (schedule.backward * chunks + schedule.chunk) * count + schedule.micro_batch
    every = np.broadcast_to(np.arange(2 * chunks * count), (stages, 2 * chunks * count))
    assert np.array_equal(np.sort(name, axis=1), every), "an operation is missing or done twice"


def _seconds(times: PipelineTimes, schedule: Schedule) -> Floats:
    """(stage, operation) Seconds of every operation."""
    row = np.arange(schedule.stages)[:, None]
    first = ~schedule.backward & (schedule.micro_batch == 0)
    last = schedule.backward & (schedule.micro_batch == schedule.micro_batches - 1)
    seconds: Floats = np.where(
        schedule.backward,
        times.backward_s[row, schedule.chunk] + last * times.last_reduce_s[row, schedule.chunk],
        times.forward_s[row, schedule.chunk] + first * times.first_gather_s[row, schedule.chunk],
    )
    return seconds


def _wiring(times: PipelineTimes, schedule: Schedule) -> tuple[Ints, Ints, Floats]:
    """For every operation the name of its input, of the input it feeds, and the way there.

    An input is named by (backward, chunk, stage, micro-batch) of the operation it is for. The
    last forward feeds its own backward; the last backward feeds nothing (-1).
    """
    stages, chunks, count = schedule.stages, schedule.chunks, schedule.micro_batches
    back = schedule.backward
    stage = np.broadcast_to(np.arange(stages)[:, None], back.shape)
    chunk = schedule.chunk.astype(np.int64)

    def name(back: Ints | NDArray[np.bool_], chunk: Ints, stage: Ints) -> Ints:
        return ((back * chunks + chunk) * stages + stage) * count + schedule.micro_batch

    place = np.where(back, -1, 1) + chunk * stages + stage  # along the network, chunk by chunk
    turn = ~back & (place == stages * chunks)
    done = back & (place < 0)
    to_chunk, to_stage = np.divmod(np.where(turn, place - 1, place), stages)
    feeds = np.where(done, -1, name(back | turn, to_chunk, to_stage))
    link_s = np.where(
        back,
        np.roll(times.backward_link_s, 1)[:, None],
        times.forward_link_s[:, None],
    )
    return name(back, chunk, stage), feeds, np.where(turn | done, 0.0, link_s)


def _starts(
    micro_batches: int, seconds: Floats, takes: Ints, feeds: Ints, link_s: Floats
) -> Floats:
    """(stage, operation) When every operation starts. An input that never comes is a deadlock."""
    stages, operations = seconds.shape
    takes_of, feeds_of = takes.tolist(), feeds.tolist()
    seconds_of, link_of = seconds.tolist(), link_s.tolist()
    arrival: list[float | None] = [None] * (takes.size + 1)  # the last one is nobody's input
    arrival[:micro_batches] = [0.0] * micro_batches  # the data, for the first chunk of stage 0
    starts: list[list[float]] = [[] for _ in range(stages)]
    free = [0.0] * stages
    awake = list(range(stages))
    while awake:
        stage = awake.pop()
        row, at = starts[stage], len(starts[stage])
        while at < operations and (input_s := arrival[takes_of[stage][at]]) is not None:
            start = max(free[stage], input_s)
            row.append(start)
            free[stage] = start + seconds_of[stage][at]
            feed = feeds_of[stage][at]
            arrival[feed] = free[stage] + link_of[stage][at]
            receiver = feed // micro_batches % stages
            if feed >= 0 and receiver != stage:
                awake.append(receiver)
            at += 1
    assert all(len(row) == operations for row in starts), "the schedule waits for itself"
    return np.array(starts)
