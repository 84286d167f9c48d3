"""Who does what in a plan."""

from astra.cost.result import MixedStage, PricedPlan
from astra.hardware.stack import Stack
from astra.memory.stage import activation_bytes
from astra.strategy.plans import plans_of, task_of
from astra.strategy.stage_view import StageView, stage_view
from astra.timing.stage import SharedWork, StageTime, stage_times


def times_of(view: StageView, stack: Stack, shared: SharedWork | None = None) -> StageTime:
    """Seconds of every slot, with what copying layers to the host and back adds to them."""
    copies = view.plans.offload_layers.any()
    moved = activation_bytes(view, stack).offloaded_bytes if copies else None
    return stage_times(view, stack, shared, moved)


def stage_summaries(best: PricedPlan, stack: Stack) -> tuple[MixedStage, ...]:
    """A plan stage by stage, pipeline after pipeline: how long each works, and how full it is."""
    plan = best.plan
    view = stage_view(plans_of([plan]), task_of(plan), every_stage=True)
    times = times_of(view, stack)
    seconds = (times.whole_forward_s + times.whole_backward_s)[..., 0]
    segments = [
        [segment for segment in pipeline.segments for _ in range(segment.stages)]
        for pipeline in plan.pipelines
    ]
    per_node = {pool.gpu.name: pool.gpu.node.gpus for pool in plan.cluster.pools}
    found = []
    for held in best.memory.stages:
        segment = segments[held.pipeline][held.stage]
        busy = float(seconds[held.pipeline, held.stage])
        gpus = plan.pipelines[held.pipeline].replicas * plan.cp * segment.tp
        found.append(
            MixedStage(
                pipeline=held.pipeline,
                gpu=segment.gpu,
                gpus=gpus,
                nodes=-(-gpus // per_node[segment.gpu]),
                layers=held.layers,
                tp=segment.tp,
                recompute=segment.recompute,
                busy_s=busy * plan.pipelines[held.pipeline].micro_batches,
                filled_fraction=held.reserved_bytes / held.usable_bytes,
                chunks=plan.chunks(held.stage) if plan.vpp > 1 and plan.is_one_job else (),
            )
        )
    return tuple(found)
