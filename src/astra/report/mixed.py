"""A pipeline over several GPU types, drawn: who does what, and what it is worth."""

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from astra.cost.result import MixedStage, PricedPlan
from astra.hardware.topology import allowed_counts
from astra.report.priced import seconds
from astra.search.request import Request
from astra.search.result import Comparison
from astra.strategy.plan import Plan

if TYPE_CHECKING:
    from rich.console import RenderableType

REPLICAS_DIFFER = (
    "Replicas that differ: each GPU type has one kind, with its own tp, ep, stages, layers, "
    "whole-layer recompute, replicas and micro-batches of each; micro-batch, cp, sharding, vpp, "
    "offload and recomputed modules are one for all."
)
LAUNCHERS = {
    "megatron": "Megatron-LM",
    "flagscale": "FlagScale",
    "fsdp": "torchtitan",
    "deepspeed": "DeepSpeed",
}
MIXES = {
    "megatron": "Megatron-LM, one parallel config for all",
    "flagscale": "FlagScale, a config for each type",
}
BAR = 10  # characters of the busiest stage


def pipeline(best: PricedPlan, mixed: Comparison, request: Request) -> list["RenderableType"]:
    """The winner stage by stage, first to last, and what others would take."""
    return [
        *pipelines(best.plan, mixed.stages, best.step_s, ", work of a step and memory of a GPU"),
        "",
        *_worth(best, mixed, request),
        "",
    ]


def pipelines(
    plan: Plan, stages: tuple[MixedStage, ...], step_s: float, what: str = ""
) -> list["RenderableType"]:
    """Every pipeline of a plan under its own title."""
    if len(plan.pipelines) == 1:
        return [f"The pipeline from the first stage to the last{what}", drawn(stages, step_s)]
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
        lines.append(drawn(tuple(stage for stage in stages if stage.pipeline == row), step_s))
    return lines


def drawn(stages: tuple[MixedStage, ...], step_s: float) -> "RenderableType":
    """A pipeline, one line for stages that look alike."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    turns = any(stage.chunks for stage in stages)
    names = ["stage", "GPU", "tp", "lay", "work", "of step", "mem", "", "recompute"]
    if turns:  # in place of the bars: lines stay short
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
    for first, last, stage in _runs(stages):
        table.add_row(
            f"{first}" if first == last else f"{first}-{last}",
            stage.gpu,
            str(stage.tp),
            str(stage.layers),
            *((_chunks(stage.chunks),) if turns else ()),
            seconds(stage.busy_s),
            f"{stage.busy_s / step_s:.0%}",
            f"{stage.filled_fraction:.0%}",
            *(() if turns else ("#" * round(BAR * stage.busy_s / busiest),)),
            stage.recompute,
        )
    return table


def _chunks(layers: tuple[int, ...]) -> str:
    """Layers of every chunk, those in a row that are alike as one.

    >>> _chunks((2, 3, 3, 3)), _chunks((4, 4))
    ('2 3x3', '2x4')
    """
    runs = [(held, len(list(run))) for held, run in groupby(layers)]
    return " ".join(f"{count}x{held}" if count > 1 else str(held) for held, count in runs)


def _runs(stages: tuple[MixedStage, ...]) -> list[tuple[int, int, MixedStage]]:
    """Stages in a row that look alike as one line; that of the fullest."""
    found: list[tuple[int, int, MixedStage]] = []
    for place, stage in enumerate(stages):
        if found and _look(found[-1][2]) == _look(stage):
            first, _, known = found[-1]
            fuller = max(known, stage, key=lambda each: each.filled_fraction)
            found[-1] = (first, place, fuller)
        else:
            found.append((place, place, stage))
    return found


def _look(stage: MixedStage) -> tuple[object, ...]:
    own = (stage.gpu, stage.tp, stage.layers, stage.chunks, stage.recompute)
    return (*own, round(stage.busy_s, 6))


def _worth(best: PricedPlan, mixed: Comparison, request: Request) -> list["RenderableType"]:
    """What others would take, what stays idle, who launches it, and what is proven."""
    lines: list[RenderableType] = []
    for name, step_s in mixed.alone_step_s.items():
        lines.append(_faster(f"{name} alone", step_s, best))
    if mixed.uniform_step_s not in (None, best.step_s):
        words = "The best uniform plan (one config, equal work on all its GPUs)"
        lines.append(_faster(words, mixed.uniform_step_s, best))
    if mixed.even_split_step_s is not None:
        lines.append(_faster("All GPUs, one tp, equal layers", mixed.even_split_step_s, best))
    idle = _idle(mixed)
    if idle:
        said = ", ".join(f"{count} {name}" for name, count in idle.items())
        lines.append(f"Idle: {said}; {_why_idle(best, idle, request)}.")
    lines += [f"{text}." for text in mixed.left_out]
    return [*lines, _launched(best, mixed), *_proven(mixed)]


def _faster(what: str, step_s: float | None, best: PricedPlan) -> str:
    if step_s is None:
        return f"{what}: nothing fits."
    return f"{what}: {seconds(step_s)}; this is {step_s / best.step_s:.2f} x as fast."


def _launched(best: PricedPlan, mixed: Comparison) -> str:
    """Who launches the best, and what the other runtimes that were asked reach."""
    runtime = best.plan.runtime
    if runtime == "any":
        if mixed.launched_step_s is None:
            return "No public runtime launches it, and none launches a plan that fits."
        slower = mixed.launched_step_s / best.step_s - 1
        return (
            "No public runtime launches it: its replicas differ. The fastest that one launches "
            f"takes {seconds(mixed.launched_step_s)}, {slower:.1%} longer."
        )
    others = {name: step for name, step in mixed.runtimes_step_s.items() if name != runtime}
    equal = [LAUNCHERS[name] for name, step_s in others.items() if step_s == best.step_s]
    longer = [
        f"; the best of {LAUNCHERS[name]} takes {seconds(step_s)}, {step_s / best.step_s - 1:.1%} "
        "longer"
        for name, step_s in others.items()
        if step_s is not None and step_s > best.step_s
    ]
    longer += [
        f"; {LAUNCHERS[name]} has none that is at most 30% longer"
        for name, step_s in others.items()
        if step_s is None
    ]
    names = " and ".join((LAUNCHERS[runtime], *equal))
    return f"{names} {'launch' if equal else 'launches'} it{''.join(longer)}."


def _proven(mixed: Comparison) -> list[str]:
    """What is known of the space that was searched, and what that space is."""
    mixes = [words for name, words in MIXES.items() if name in mixed.pipelines_of]
    uniform = "Of uniform plans it is the best found."
    if not mixes:
        return [f"Proven of each type alone: none is faster. {uniform}"]
    space = f"pipelines that mix types ({'; '.join(mixes)})"
    if mixed.gap_fraction <= 0:
        return [f"Proven of each type alone and of {space}: none is faster. {uniform}"]
    more = "" if mixed.launched_step_s is not None else "; --exact looks longer"
    space += ", and plans whose replicas differ," if mixed.launched_step_s is not None else ""
    lines = [
        f"Of {space} none is faster by more than {mixed.gap_fraction:.2%}{more}. Proven of each "
        f"type alone: none is faster. {uniform}"
    ]
    return lines if mixed.launched_step_s is None else [*lines, REPLICAS_DIFFER]


def _idle(mixed: Comparison) -> dict[str, int]:
    """GPUs that the best plan leaves alone, but for types that no plan can use, of which is said
    why."""
    return {
        name: count
        for name, count in mixed.idle.items()
        if all(name != note.facts["gpu"] for note in mixed.types_left_out)
    }


def _why_idle(best: PricedPlan, idle: Mapping[str, int], request: Request) -> str:
    """What was asked for may forbid GPUs that would be of use."""
    cap, used = request.max_gpus, sum(best.gpus.values())
    if request.objective == "gpus":
        return "the fewest GPUs were asked for"
    if cap is not None and used >= cap:
        return f"the cap of {cap} GPUs allows no more"
    if cap is not None and cap - used < sum(idle.values()):
        return f"the cap of {cap} GPUs allows {cap - used} more; no plan that uses them was faster"
    whole = "GPUs are used 1, 2, 4 or whole nodes at a time"
    odd = _odd(best, idle)
    if odd == idle:
        return whole
    if odd:
        rest = ", ".join(f"{count} {name}" for name, count in odd.items())
        return f"{rest} because {whole}; no plan that uses the others was faster"
    return "no plan that uses them was faster"


def _odd(best: PricedPlan, idle: Mapping[str, int]) -> dict[str, int]:
    """Idle GPUs that no plan could use, since they are left over from whole nodes."""
    left = {
        pool.gpu.name: pool.count - allowed_counts(pool)[-1] for pool in best.plan.cluster.pools
    }
    return {name: left[name] for name in idle if left.get(name)}
