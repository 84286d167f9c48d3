"""When every stage of a plan does what in one step, by the simulator, and how full its GPUs are."""

from typing import Literal

import msgspec
import numpy as np

from astra.cost.stages import times_of
from astra.cost.step import after_backward_s, as_stack_sends, grads_ready_s, pipeline_columns
from astra.cost.step import simulated_step as whole_step
from astra.hardware.stack import Stack, find_stack
from astra.memory.stage import ActivationBytes, MemoryColumns, activation_bytes, memory_of
from astra.simulate.events import PipelineTimes, Timeline, simulate
from astra.simulate.pipeline_columns import PipelineColumns
from astra.simulate.schedule import Schedule, interleaved, one_f_one_b
from astra.strategy.plan import Plan
from astra.strategy.plans import Floats, plans_of, task_of
from astra.strategy.stage_view import StageView, stage_view
from astra.timing.chunks import chunk_parts
from astra.timing.stage import StageTime

PartSeconds = dict[str, tuple[float, ...]]  # by part of an operation, for each chunk


class StageTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage does, operation after operation; between them it waits."""

    stage: int
    gpu: str
    layers: int
    start_s: tuple[float, ...]  # of each operation
    end_s: tuple[float, ...]
    kind: tuple[Literal["forward", "backward"], ...]
    chunk: tuple[int, ...]
    micro_batch: tuple[int, ...]
    transfer_s: tuple[float, ...]  # of the waiting before it, while its input was on its way
    op_parts_s: dict[str, PartSeconds]  # of a forward and of a backward, in the order drawn
    first_gather_s: tuple[float, ...]  # for each chunk: on top of the first micro-batch's forward
    grads_ready_s: float  # when its gradients are summed over all replicas of its layers
    after_parts_s: dict[str, float]  # behind the last backward; "reduce" before, others after that
    memory_at_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]  # allocated on one GPU from then on


class PipelineTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a group of equal ones."""

    replicas: int
    chunks: int
    micro_batches: int
    stages: tuple[StageTimeline, ...]


class StepTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated step of a plan."""

    model: str
    summary: str
    step_s: float
    step_parts_s: dict[str, float]  # of the busiest stage
    parts_pipeline: int
    parts_stage: int
    pipelines: tuple[PipelineTimeline, ...]


def step_timeline(plan: Plan, stack: Stack | None = None) -> StepTimeline:
    """The step of a plan, event by event. Its schedule must be one that runs."""
    stack = stack or find_stack(plan.stack)
    view = stage_view(plans_of([plan]), task_of(plan), every_stage=True)
    times = times_of(view, stack)
    step = whole_step(view.plans, view.stages, times)
    runs = [_run(view, times, row) for row in range(len(plan.pipelines))]
    most = view.stages.count.shape[1]
    ends = [
        np.pad(run.end_s[:, -1:], ((most - len(run.end_s), 0), (0, 0))) for _, _, run, _ in runs
    ]
    ready = grads_ready_s(ends, view.stages, after_backward_s(times)[0])[..., 0]
    memory = memory_of(view, stack), activation_bytes(view, stack)
    return StepTimeline(
        model=plan.model.name,
        summary=plan.summary(),
        step_s=float(step.step_s[0]),
        step_parts_s={name: float(part[0]) for name, part in step.parts_s.items()},
        parts_pipeline=int(step.parts_pipeline[0]),
        parts_stage=int(step.parts_stage[0]),
        pipelines=tuple(
            PipelineTimeline(
                replicas=pipeline.replicas,
                chunks=plan.vpp,
                micro_batches=pipeline.micro_batches,
                stages=tuple(
                    _stage(view, times, memory, plan, (row, stage), runs[row], ready)
                    for stage in range(pipeline.stages)
                ),
            )
            for row, pipeline in enumerate(plan.pipelines)
        ),
    )


Run = tuple[Schedule, PipelineTimes, Timeline, Floats]


def _run(view: StageView, times: StageTime, pipeline: int) -> Run:
    """One pipeline through the simulator, and what each link blocks of a send. (stage,)"""
    free = pipeline_columns(view.plans, view.stages, times, pipeline)
    pipes = as_stack_sends(free, times, pipeline)
    depth, chunks = int(pipes.stages[0]), int(pipes.chunks[0])
    count, group = int(pipes.micro_batches[0]), int(pipes.group[0])
    schedule = one_f_one_b(depth, count)
    if chunks > 1:
        schedule = interleaved(depth, chunks, count, group, extra_warmup=int(pipes.extra_warmup[0]))
    numbers = _pipeline_times(pipes, depth, chunks)
    blocking = (free.forward_link_s - pipes.forward_link_s)[-depth:, 0] / 2
    return schedule, numbers, simulate(numbers, schedule), blocking


def _pipeline_times(pipes: PipelineColumns, depth: int, chunks: int) -> PipelineTimes:
    """The columns of one plan as the simulator of one pipeline takes them."""

    def by_chunk(column: Floats) -> Floats:
        return column[:chunks, -depth:, 0].T

    return PipelineTimes(
        forward_s=by_chunk(pipes.forward_s),
        backward_s=by_chunk(pipes.backward_s),
        forward_link_s=pipes.forward_link_s[-depth:, 0],
        backward_link_s=pipes.backward_link_s[-depth:, 0],
        first_gather_s=by_chunk(pipes.first_gather_s),
        last_reduce_s=by_chunk(pipes.last_reduce_s),
    )


def _stage(
    view: StageView,
    times: StageTime,
    memory: tuple[MemoryColumns, ActivationBytes],
    plan: Plan,
    place: tuple[int, int],
    run: Run,
    ready: Floats,
) -> StageTimeline:
    row, stage = place
    schedule, numbers, timeline, _ = run
    pipeline = plan.pipelines[row]
    held_at, held = _memory(plan, memory, place, schedule, timeline)
    return StageTimeline(
        stage=stage,
        gpu=pipeline.segment_at(stage).gpu,
        layers=pipeline.layers[stage],
        start_s=tuple(timeline.start_s[stage].tolist()),
        end_s=tuple(timeline.end_s[stage].tolist()),
        kind=tuple("backward" if back else "forward" for back in schedule.backward[stage]),
        chunk=tuple(schedule.chunk[stage].tolist()),
        micro_batch=tuple(schedule.micro_batch[stage].tolist()),
        transfer_s=tuple(_transfers_s(run, stage).tolist()),
        op_parts_s=_op_parts_s(view, times, place, run),
        first_gather_s=tuple(numbers.first_gather_s[stage].tolist()),
        grads_ready_s=float(ready[row, stage]),
        after_parts_s=_after_parts_s(view, times, place),
        memory_at_s=tuple(held_at.tolist()),
        memory_bytes=tuple(held.tolist()),
    )


def _transfers_s(run: Run, stage: int) -> Floats:
    """(operation,) How long before each one its input was on its way while the stage was free.

    A stage that is free starts when its input arrives, so the transfer ends with the waiting.
    """
    schedule, numbers, timeline, _ = run
    first, last = stage == 0, stage == schedule.stages - 1
    back, chunk = schedule.backward[stage], schedule.chunk[stage]
    link_s = np.where(back, numbers.backward_link_s[stage], numbers.forward_link_s[stage - 1])
    local = np.where(back, last & (chunk == schedule.chunks - 1), first & (chunk == 0))
    free = np.concatenate([[0.0], timeline.end_s[stage][:-1]])
    waited: Floats = np.minimum(np.where(local, 0.0, link_s), timeline.start_s[stage] - free)
    return waited


def _op_parts_s(
    view: StageView, times: StageTime, place: tuple[int, int], run: Run
) -> dict[str, PartSeconds]:
    """Sends that block a stage lie around what it does, all else as `chunk_parts` has it."""
    row, stage = place
    schedule, _, _, blocking = run
    above, below = (float(blocking[stage - 1]) if stage else 0.0), float(blocking[stage])
    found = {}
    for way, parts, receive, send in zip(
        ("forward", "backward"),
        chunk_parts(view.plans, view.stages, times, row),
        (above, below),
        (below, above),
        strict=True,
    ):
        own = {name: tuple(column[:, stage, 0].tolist()) for name, column in parts.items()}
        found[way] = {
            "receive": (receive,) * schedule.chunks,
            **{name: seconds[: schedule.chunks] for name, seconds in own.items()},
            "send": (send,) * schedule.chunks,
        }
    return found


def _after_parts_s(view: StageView, times: StageTime, place: tuple[int, int]) -> dict[str, float]:
    def of(column: Floats) -> float:
        return float(np.broadcast_to(column, view.stages.count.shape)[(*place, 0)])

    hosted = of(view.plans.offload_optimizer_fraction * times.host_s())
    return {
        "reduce": of(times.last_reduce_s()),
        "between_groups": of(times.inter_group_s()),
        "tied": of(times.tied_s()),
        "optimizer": of(times.optimizer_s()) - hosted,
        "offloaded_optimizer": hosted,
        "other": of(times.other_s()),
    }


def _memory(
    plan: Plan,
    memory: tuple[MemoryColumns, ActivationBytes],
    place: tuple[int, int],
    schedule: Schedule,
    timeline: Timeline,
) -> tuple[Floats, Floats]:
    """Bytes allocated on one GPU of a stage, and since when.

    States and buffers stay; a forward saves its activations, its backward lets go of them. While
    a backward runs, and at the loss forward too, it holds what the peak counts besides.
    """
    columns, per_micro_batch = memory
    stage, at = place[1], (*place, 0)
    back, chunk = schedule.backward[stage], schedule.chunk[stage]
    weight = _chunk_weights(plan, stage)[chunk]
    done = np.cumsum(np.where(back, -weight, weight))
    held, kept = (
        per_micro_batch.held_bytes(micro_batches, at)[0]
        for micro_batches in (done + np.where(back, weight, 0.0), done)
    )
    activations, logits, working = (
        float(column[at])
        for column in (columns.activations_bytes, columns.logits_bytes, columns.working_bytes)
    )
    steady = float(columns.allocated_bytes[at]) - activations - logits - working
    held += np.where(chunk == schedule.chunks - 1, logits, 0.0) + np.where(back, working, 0.0)
    since = np.stack([timeline.start_s[stage], timeline.end_s[stage]], axis=1).ravel()
    found = steady + np.stack([held, kept], axis=1).ravel()
    since, found = np.concatenate([[0.0], since]), np.concatenate([[steady], found])
    last = np.append(np.diff(since) > 0, True)  # of one moment only what holds from then on
    since, found = since[last], found[last]
    new = np.append(True, np.diff(found) != 0)
    return since[new], found[new]


def _chunk_weights(plan: Plan, stage: int) -> Floats:
    """(chunk,) What each chunk of a stage has of the activations of a micro-batch."""
    layers = np.ones(plan.vpp)
    if plan.chunk_layers is not None and plan.vpp > 1:
        layers = np.array(plan.chunks(stage), float)
        layers[-1] += plan.mtp_layers if stage == plan.pp - 1 else 0
        layers = layers if layers.any() else np.ones(plan.vpp)
    weights: Floats = layers / layers.sum()
    return weights
