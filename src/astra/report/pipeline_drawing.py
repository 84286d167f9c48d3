"""Pipelines of a plan, drawn stage by stage: GPU, layers, work and memory of each."""

from itertools import groupby
from typing import TYPE_CHECKING

from astra.cost.result import MixedStage
from astra.report.priced_plan import seconds
from astra.strategy.plan import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR_WIDTH = 10  # characters of the busiest stage


def draw_pipelines(
    plan: Plan, stages: tuple[MixedStage, ...], step_s: float, what: str = ""
) -> list["RenderableType"]:
    """Every pipeline of a plan under its own title."""
    if len(plan.pipelines) == 1:
        return [
            f"The pipeline from the first stage to the last{what}",
            draw_pipeline(stages, step_s),
        ]
    lines: list[RenderableType] = [f"Pipelines from the first stage to the last{what}"]
    if plan.is_one_job:
        ranks = ", then ".join(f"{count} {gpu}" for gpu, count in plan.rank_blocks)
        lines = [f"One job of {plan.dp} equal replicas, ranks on {ranks}{what}"]
    for row, each in enumerate(plan.pipelines):
        replicas = f"{each.replicas} {'replica' if each.replicas == 1 else 'replicas'}"
        lines.append(
            f"{row + 1}: {replicas}"
            if plan.is_one_job
            else f"{row + 1}: {replicas} with {each.micro_batches} micro-batches of "
            f"{plan.micro_batch} each, {each.replicas * each.micro_batches * plan.micro_batch:,} "
            f"of {plan.global_batch:,} samples"
        )
        lines.append(
            draw_pipeline(tuple(stage for stage in stages if stage.pipeline == row), step_s)
        )
    return lines


def draw_pipeline(stages: tuple[MixedStage, ...], step_s: float) -> "RenderableType":
    """A pipeline, one line for consecutive equal stages."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    interleaved = any(stage.chunks for stage in stages)
    names = ["stage", "GPU", "tp", "lay", "work", "of step", "mem", "", "recompute"]
    if interleaved:  # in place of the bars: lines stay short
        names[7:8], names[4:4] = [], ["chunks"]
    for name in names:
        right = name in ("tp", "lay", "work", "of step", "mem")
        bar, words = name == "", name == "recompute"
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=not (bar or words),
            overflow="crop" if bar else "fold",
        )
    busiest = max(stage.busy_s for stage in stages)
    for first, last, stage in _merge_equal_stages(stages):
        table.add_row(
            f"{first}" if first == last else f"{first}-{last}",
            stage.gpu,
            str(stage.tp),
            str(stage.layers),
            *((_chunks(stage.chunks),) if interleaved else ()),
            seconds(stage.busy_s),
            f"{stage.busy_s / step_s:.0%}",
            f"{stage.filled_fraction:.0%}",
            *(() if interleaved else ("#" * round(BAR_WIDTH * stage.busy_s / busiest),)),
            stage.recompute,
        )
    return table


def _chunks(layers: tuple[int, ...]) -> str:
    """Layers of every chunk, equal ones in a row as one.

    >>> _chunks((2, 3, 3, 3)), _chunks((4, 4))
    ('2 3x3', '2x4')
    """
    groups = [(size, len(list(chunks))) for size, chunks in groupby(layers)]
    return " ".join(f"{count}x{size}" if count > 1 else str(size) for size, count in groups)


def _merge_equal_stages(stages: tuple[MixedStage, ...]) -> list[tuple[int, int, MixedStage]]:
    """Consecutive stages with equal settings as one: first, last, and the fullest of them."""
    merged: list[tuple[int, int, MixedStage]] = []
    for place, stage in enumerate(stages):
        if merged and _settings_of(merged[-1][2]) == _settings_of(stage):
            first, _, known = merged[-1]
            fuller = max(known, stage, key=lambda each: each.filled_fraction)
            merged[-1] = (first, place, fuller)
        else:
            merged.append((place, place, stage))
    return merged


def _settings_of(stage: MixedStage) -> tuple[object, ...]:
    settings = (stage.gpu, stage.tp, stage.layers, stage.chunks, stage.recompute)
    return (*settings, round(stage.busy_s, 6))
