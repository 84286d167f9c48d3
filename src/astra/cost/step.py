"""The seconds of a step: stages through the simulator, and where the time goes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from astra.simulate.blocking_sends import with_blocking_sends
from astra.simulate.pipeline_columns import PipelineColumns, stage_end_s
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.replica_groups import layers_shared
from astra.strategy.stages import Stages
from astra.timing.chunks import chunk_shares, chunk_times
from astra.timing.stage import StageTime

PARTS = (
    "forward",
    "backward",
    "recompute",
    "tensor_comm",
    "context_comm",
    "expert_comm",
    "pipeline_comm",
    "data_comm",
    "optimizer",
    "other",
    "bubble",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Step:
    """Seconds of one step of every plan. (plan,)"""

    step_s: Floats
    parts_s: dict[str, Floats]  # of the busiest stage; they sum to the step
    stage_parts_s: dict[str, Floats]  # of every stage; so do they. (pipeline, stage, plan)
    parts_pipeline: Ints
    parts_stage: Ints


StageEndModel = Callable[
    [PipelineColumns], Floats
]  # when each stage has done its last operation, (stage, plan)


def simulated_step(
    plans: Plans, stages: Stages, times: StageTime, stage_end_model: StageEndModel = stage_end_s
) -> Step:
    """The step by the event simulator. `stages` has one slot per stage.

    Pipelines of one plan run side by side; the step ends with the last of them. Another
    `stage_end_model` puts another model of the pipeline in the simulator's place.
    """
    ends, still = [], []
    for pipeline in range(plans.replicas.shape[0]):
        pipes = pipeline_columns(plans, stages, times, pipeline)
        none = np.zeros_like(pipes.forward_link_s)
        without = replace(pipes, forward_link_s=none, backward_link_s=none)
        # side by side: plans in the same order cost little more than one
        both = _stage_ends_s(
            as_stack_sends(pipes, times, pipeline).joined(without), stage_end_model
        )
        ends.append(both[:, : len(plans)])
        still.append(both[:, len(plans) :])
    busy = _busy(plans, stages, times)
    after = after_backward_s(times)
    return _parts(_step(ends, stages, after), _step(still, stages, after), busy, stages)


def step_s(plans: Plans, stages: Stages, times: StageTime) -> Floats:
    """The seconds of the step alone, where nobody asks for its parts. (plan,)"""
    pipelines = range(plans.replicas.shape[0])
    ends = [
        _stage_ends_s(as_stack_sends(pipeline_columns(plans, stages, times, p), times, p))
        for p in pipelines
    ]
    return _step(ends, stages, after_backward_s(times))


def as_stack_sends(pipes: PipelineColumns, times: StageTime, pipeline: int) -> PipelineColumns:
    """The pipelines as the stack runs them: a send may hold up both of its ends."""
    if not times.stack.holds_sends:
        return pipes
    return with_blocking_sends(
        pipes, _to_the_end(np.asarray(times.part("blocking_send_s")[pipeline]), pipes.stages)
    )


def after_backward_s(times: StageTime) -> tuple[Floats, Floats]:
    """What comes behind a stage's last backward pass, by itself and with its copies in other
    pipelines. (pipeline, stage, plan)
    """
    return times.last_reduce_s(), times.after_grads_ready_s()


def _stage_ends_s(pipes: PipelineColumns, stage_end_model: StageEndModel = stage_end_s) -> Floats:
    """When each stage has done its last operation; short pipelines at the end. (stage, plan)"""
    there = np.flatnonzero(pipes.stages > 0)  # a plan may have fewer pipelines than another
    end = np.zeros(pipes.forward_s.shape[1:])
    if len(there):
        end[:, there] = stage_end_model(pipes.take(there))
    return end


def _step(ends: list[Floats], stages: Stages, after: tuple[Floats, Floats]) -> Floats:
    """When the last stage has updated its weights. (plan,)"""
    alone, together = after
    ready = grads_ready_s(ends, stages, alone)
    return np.where(ready > 0, ready + together, 0.0).max(axis=(0, 1))


def grads_ready_s(ends: list[Floats], stages: Stages, alone: Floats) -> Floats:
    """When each stage can update its weights; 0 where there is none. (pipeline, stage, plan)

    A stage whose layers lie in several pipelines first waits until all of them have their
    gradients.
    """
    depth = (stages.count > 0).sum(axis=1)
    front = np.stack([_to_the_front(end, own) for end, own in zip(ends, depth, strict=True)])
    used = front > 0
    reduced = np.where(used, front + alone, 0.0)
    if len(ends) == 1:
        return reduced
    layers = stages.kind_layers.sum(axis=(0, 2)) if stages.kind_layers.size else np.zeros(1)
    met = layers_shared(stages, int(layers.max(initial=0))).slowest_of_layer(reduced)
    return np.where(used, met, 0.0)


def pipeline_columns(
    plans: Plans, stages: Stages, times: StageTime, pipeline: int
) -> PipelineColumns:
    """Stages as the simulator takes them: chunks in front, short pipelines at the end.

    Gradients are reduced behind a stage's last backward pass and hold up no other stage.
    """
    depth = (stages.count[pipeline] > 0).sum(axis=0)
    chunks = chunk_times(plans, stages, times, pipeline)
    link = _to_the_end(np.asarray(times.part("link_s")[pipeline]), depth)
    forward = _to_the_end(chunks.forward_s, depth)
    return PipelineColumns(
        stages=depth,
        chunks=plans.vpp,
        micro_batches=plans.micro_batches[pipeline],
        group=plans.microbatch_groups[pipeline],
        forward_s=forward,
        backward_s=_to_the_end(chunks.backward_s, depth),
        forward_link_s=link,
        backward_link_s=link,
        first_gather_s=_to_the_end(chunks.first_gather_s, depth),
        last_reduce_s=np.zeros_like(forward),  # added behind: it holds up no other stage
        extra_warmup=plans.overlap_ep.astype(np.int64),
    )


def _to_the_end(column: Floats, depth: Ints) -> Floats:
    """Shift each plan's stages to the end of the stage axis (the one before the last)."""
    rows = column.shape[-2]
    if (depth == rows).all():
        return column
    index = np.arange(rows)[:, np.newaxis] - (rows - depth)
    inside = index >= 0
    index = np.broadcast_to(np.maximum(index, 0), column.shape)
    return np.where(inside, np.take_along_axis(column, index, axis=-2), 0.0)


def _to_the_front(column: Floats, depth: Ints) -> Floats:
    """The other way round."""
    rows = column.shape[-2]
    if (depth == rows).all():
        return column
    index = np.arange(rows)[:, np.newaxis] + (rows - depth)
    found = np.take_along_axis(column, np.minimum(index, rows - 1), axis=-2)
    return np.where(index < rows, found, 0.0)


def _busy(plans: Plans, stages: Stages, times: StageTime) -> dict[str, Floats]:
    """Seconds a stage works in one step, by cause. (pipeline, stage, plan)"""
    count = plans.micro_batches[:, np.newaxis]

    def both(name: str) -> Floats:
        return times.part(f"{name}_forward_s") + times.part(f"{name}_backward_s")

    return {
        "forward": count * times.part("forward_s"),
        "backward": count * times.part("backward_s"),
        "recompute": count * times.recompute_s,
        "tensor_comm": count * both("tensor"),
        "context_comm": count * both("context"),
        "expert_comm": count * both("expert"),
        "data_comm": count * (times.gather_forward_s + times.gather_backward_s)
        + np.where(stages.embedding, times.first_gather_s() * chunk_shares(plans, stages)[0], 0.0)
        + times.last_reduce_s()
        + times.inter_group_s(),
        "pipeline_comm": times.tied_s(),
        "optimizer": times.optimizer_s(),
        "other": times.other_s() + count * (both("offload") + sum(times.copies_s)),
    }


def _parts(step: Floats, without_links: Floats, busy: dict[str, Floats], stages: Stages) -> Step:
    """What every stage does, and what is left: links that show, and waiting."""
    total = np.where(stages.count > 0, np.sum(list(busy.values()), axis=0), -1.0)
    pipeline, stage = np.divmod(total.reshape(-1, len(step)).argmax(axis=0), total.shape[1])
    shown = busy["pipeline_comm"] + np.maximum(step - without_links, 0.0)
    parts = {**busy, "pipeline_comm": shown}
    parts["bubble"] = step - sum(parts.values())
    parts = {name: np.broadcast_to(parts[name], total.shape) for name in PARTS}
    rows = np.arange(len(step))
    return Step(
        step_s=step,
        parts_s={name: part[pipeline, stage, rows] for name, part in parts.items()},
        stage_parts_s=parts,
        parts_pipeline=pipeline,
        parts_stage=stage,
    )
