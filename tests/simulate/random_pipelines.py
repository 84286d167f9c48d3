"""Random pipelines, as columns and one by one."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from astra.simulate.events import PipelineTimes, Timeline, simulate
from astra.simulate.pipeline_columns import Floats, PipelineColumns
from astra.simulate.schedule import Schedule, interleaved, one_f_one_b


def random_pipelines(
    seed: int,
    plans: int,
    *,
    stages: int,
    chunks: int,
    micro_batches: int,
    group: int,
    extra_warmup: int = 0,
    extras: int = 1,
) -> PipelineColumns:
    """Pipelines of one shape: from alike to very uneven stages, from no to slow links."""
    dice = np.random.default_rng(seed)
    spread = dice.choice([0.0, 0.1, 0.5, 1.0], plans)
    spread_chunks = spread * dice.choice([0.0, 0.3, 1.0], plans)
    link = dice.choice([0.0, 0.05, 0.3, 2.0], plans)

    def uneven(spread: Floats, *shape: int) -> Floats:
        return np.exp(spread * dice.normal(size=(*shape, plans)))

    size = (chunks, stages)
    stage_s = uneven(spread, 1, stages) * uneven(spread_chunks, *size)
    extra_s = extras * dice.choice([0.0, 0.5], plans)
    return PipelineColumns(
        stages=np.full(plans, stages),
        chunks=np.full(plans, chunks),
        micro_batches=np.full(plans, micro_batches),
        group=np.full(plans, group),
        extra_warmup=np.full(plans, extra_warmup),
        forward_s=stage_s * uneven(spread / 3, *size),
        backward_s=2 * stage_s * uneven(spread / 3, *size),
        forward_link_s=link * uneven(spread, stages),
        backward_link_s=link * uneven(spread, stages),
        first_gather_s=extra_s * uneven(spread, *size),
        last_reduce_s=extra_s * uneven(spread, *size),
    )


def joined(tables: list[PipelineColumns]) -> PipelineColumns:
    """Tables of different shapes as one, zeros (never read) in front of the shallow ones."""
    chunks = max(len(table.forward_s) for table in tables)
    stages = max(len(table.forward_link_s) for table in tables)

    def column(name: str) -> Any:
        parts = [getattr(table, name) for table in tables]
        if parts[0].ndim > 1:
            parts = [np.pad(x, [*_room(x, chunks, stages), (0, 0)]) for x in parts]
        return np.concatenate(parts, axis=-1)

    return PipelineColumns(**{name: column(name) for name in PipelineColumns.__slots__})


def _room(column: Floats, chunks: int, stages: int) -> list[tuple[int, int]]:
    deeper = (stages - column.shape[-2], 0)
    return [deeper] if column.ndim == 2 else [(0, chunks - len(column)), deeper]


def schedule_of(pipelines: PipelineColumns, plan: int) -> Schedule:
    """The order in which one of the pipelines runs."""
    stages, chunks = int(pipelines.stages[plan]), int(pipelines.chunks[plan])
    micro_batches = int(pipelines.micro_batches[plan])
    if chunks == 1:
        return one_f_one_b(stages, micro_batches)
    extra = int(pipelines.extra_warmup[plan])
    return interleaved(
        stages, chunks, micro_batches, int(pipelines.group[plan]), extra_warmup=extra
    )


def times_of(pipelines: PipelineColumns, plan: int) -> PipelineTimes:
    """One of the pipelines by itself."""
    stages, chunks = int(pipelines.stages[plan]), int(pipelines.chunks[plan])
    return PipelineTimes(
        forward_s=pipelines.forward_s[:chunks, -stages:, plan].T,
        backward_s=pipelines.backward_s[:chunks, -stages:, plan].T,
        forward_link_s=pipelines.forward_link_s[-stages:, plan],
        backward_link_s=pipelines.backward_link_s[-stages:, plan],
        first_gather_s=pipelines.first_gather_s[:chunks, -stages:, plan].T,
        last_reduce_s=pipelines.last_reduce_s[:chunks, -stages:, plan].T,
    )


def one_by_one(pipelines: PipelineColumns) -> list[Timeline]:
    """Every pipeline, event by event."""
    plans = range(len(pipelines.stages))
    return [simulate(times_of(pipelines, plan), schedule_of(pipelines, plan)) for plan in plans]


@st.composite
def shapes(draw: st.DrawFn, *, chunks: int = 4) -> dict[str, int]:
    """Stages, chunks, micro-batches and group of a pipeline that Megatron-LM would run."""
    stages = draw(st.integers(1, 12))
    pieces = draw(st.integers(1, chunks))
    if pieces == 1:
        many = draw(st.integers(1, 40))
        return {"stages": stages, "chunks": 1, "micro_batches": many, "group": stages}
    group = draw(st.integers(stages, stages + 3))
    rest = draw(st.sampled_from([0, *range(stages, group)]))
    whole = draw(st.integers(0 if rest else 1, max(1, (40 - rest) // group)))
    micro_batches = whole * group + rest
    return {
        "stages": stages,
        "chunks": pieces,
        "micro_batches": micro_batches,
        "group": group,
        "extra_warmup": draw(st.integers(0, 1)),
    }
