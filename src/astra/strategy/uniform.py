"""A uniform plan over several GPU types: equal degrees, recompute and micro-batches on all."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from msgspec.structs import replace

from astra.errors import InputError, either
from astra.strategy.plan import Pipeline, Plan, Segment


def over_types(plan: Plan, counts: Sequence[tuple[str, int]]) -> Plan:
    """The same plan with its ranks in blocks by GPU type, in this order: so many of each.

    `plan` has one pipeline. A stage of a replica (tp x cp ranks) stays on one type; a replica may
    lie on several. Replicas on the same types are one pipeline of the answer: with the default
    order of ranks, stage by stage, there are no more of them than types.

    Ranks i tp cp ... are those of one stage of one replica, block i of p d:  stage i div d of
    replica i mod d  (replica i div p with the other order, whose replicas come one by one).
    """
    (pipeline,) = plan.pipelines
    stage_gpus, replicas, stages = pipeline.segments[0].tp * plan.cp, pipeline.replicas, plan.pp
    _check(plan, counts, stage_gpus)
    names = [name for name, _ in counts]
    ends = list(accumulate(count // stage_gpus for _, count in counts))

    def gpu(block: int) -> str:
        return names[bisect_right(ends, block)]

    if plan.rank_order == "tp-cp-ep-dp-pp":
        edges = {0, replicas, *(end % replicas for end in ends)}
    else:
        edges = {0, replicas}.union(*({end // stages, -(-end // stages)} for end in ends))
    groups = []
    for first, last in pairwise(sorted(edges)):
        if plan.rank_order == "tp-cp-ep-dp-pp":
            types = [gpu(stage * replicas + first) for stage in range(stages)]
        else:
            types = [gpu(first * stages + stage) for stage in range(stages)]
        groups.append(
            replace(pipeline, replicas=last - first, segments=_segments_on(pipeline, types))
        )
    return replace(plan, pipelines=tuple(_merged(groups)))


def _check(plan: Plan, counts: Sequence[tuple[str, int]], stage_gpus: int) -> None:
    total = sum(plan.gpus.values())
    if sum(count for _, count in counts) != total:
        there = " + ".join(f"{count} {name}" for name, count in counts)
        raise InputError(f"a plan of {total} GPUs does not lie on {there}.")
    for name, count in counts:
        if count % stage_gpus:
            tries = [n * stage_gpus for n in (count // stage_gpus, count // stage_gpus + 1) if n]
            raise InputError(
                f"{count} {name} do not divide into stages of {stage_gpus} (tp "
                f"{stage_gpus // plan.cp} x cp {plan.cp}): a stage of a replica lies on one GPU "
                f"type. Try {either(tries)} {name}, or another tp or cp."
            )


def _segments_on(pipeline: Pipeline, types: Sequence[str]) -> tuple[Segment, ...]:
    """The segments of a pipeline whose stages lie on these types."""
    found: list[Segment] = []
    for stage, gpu in enumerate(types):
        segment = replace(
            pipeline.segment_at(stage), gpu=gpu, stages=1, layers=(pipeline.layers[stage],)
        )
        last = found[-1] if found else None
        if last and replace(last, stages=1, layers=segment.layers) == segment:
            found[-1] = replace(
                last, stages=last.stages + 1, layers=(*last.layers, *segment.layers)
            )
        else:
            found.append(segment)
    return tuple(found)


def _merged(groups: Sequence[Pipeline]) -> list[Pipeline]:
    """Neighbours on the same types as one."""
    found: list[Pipeline] = []
    for group in groups:
        if found and found[-1].segments == group.segments:
            found[-1] = replace(group, replicas=found[-1].replicas + group.replicas)
        else:
            found.append(group)
    return found
