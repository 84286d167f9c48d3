"""Who does what in a pipeline."""

from astra.hardware.stack import Stack
from astra.search.answer import MixedStage
from astra.search.priced import Priced
from astra.strategy.plans import plans_of, task_of
from astra.strategy.view import view_of
from astra.timing.stage import stage_times


def stages_of(best: Priced, stack: Stack) -> tuple[MixedStage, ...]:
    """A plan of one pipeline stage by stage: how long each works, and how full it is."""
    plan = best.plan
    view = view_of(plans_of([plan]), task_of(plan), every_stage=True)
    times = stage_times(view, stack)
    seconds = (times.whole_forward_s + times.whole_backward_s)[0, :, 0]
    (pipeline,) = plan.pipelines
    segments = [segment for segment in pipeline.segments for _ in range(segment.stages)]
    usable = {pool.gpu.name: pool.gpu.usable_bytes for pool in plan.cluster.pools}
    slack = 1 + stack.slack_fraction
    return tuple(
        MixedStage(
            gpu=segment.gpu,
            layers=held.layers,
            tp=segment.tp,
            recompute=segment.recompute,
            busy_s=float(seconds[row]) * pipeline.micro_batches,
            filled_fraction=(held.allocated_bytes * slack + held.runtime_bytes)
            / usable[segment.gpu],
        )
        for row, (segment, held) in enumerate(zip(segments, best.memory.stages, strict=True))
    )
