"""A plan over several GPU types beside others: what it gains, who launches it, what is known."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from astra.cost.result import PricedPlan
from astra.hardware.topology import allowed_counts
from astra.report.amounts import gpus_text
from astra.report.pipeline_drawing import draw_pipelines
from astra.report.priced_plan import seconds
from astra.report.request import Request
from astra.search.result import Comparison

if TYPE_CHECKING:
    from rich.console import RenderableType

REPLICAS_DIFFER = (
    "Replicas that differ: each GPU type has one kind, with its own tp, ep, stages, layers, "
    "whole-layer recompute, replicas and micro-batches of each; micro-batch, cp, sharding, vpp, "
    "offload and recomputed modules are one for all."
)
RUNTIME_NAMES = {
    "megatron": "Megatron-LM",
    "flagscale": "FlagScale",
    "fsdp": "torchtitan",
    "deepspeed": "DeepSpeed",
}
MIXED_PIPELINES = {  # of runtimes that launch some
    "megatron": "Megatron-LM, one parallel config for all",
    "flagscale": "FlagScale, a config for each type",
}


def comparison_part(
    plans: Sequence[PricedPlan], comparison: Comparison, request: Request, is_stopped: bool
) -> list["RenderableType"]:
    """The best plan stage by stage, first to last, and what others would take.

    `is_stopped`: whether the search ended before all was looked at.
    """
    best, what = plans[0], ", work of a step and memory of a GPU"
    return [
        *draw_pipelines(best.plan, comparison.stages, best.step_s, what),
        "",
        *_comparison_lines(plans, comparison, request, is_stopped),
        "",
    ]


def _comparison_lines(
    plans: Sequence[PricedPlan], comparison: Comparison, request: Request, is_stopped: bool
) -> list["RenderableType"]:
    """What others would take, what stays idle, who launches it, and how good it is known to be."""
    lines: list[RenderableType] = []
    best = plans[0]
    for name, step_s in comparison.alone_step_s.items():
        lines.append(_speedup_line(f"{name} alone", step_s, best))
    if comparison.uniform_step_s not in (None, best.step_s):
        words = "The best uniform plan (one config, equal work on all its GPUs)"
        lines.append(_speedup_line(words, comparison.uniform_step_s, best))
    if comparison.even_split_step_s is not None:
        lines.append(
            _speedup_line("All GPUs, one tp, equal layers", comparison.even_split_step_s, best)
        )
    idle = _idle(comparison)
    if idle:
        gpus = ", ".join(f"{count} {name}" for name, count in idle.items())
        why = "the search was stopped" if is_stopped else _why_idle(best, idle, request)
        lines.append(f"Idle: {gpus}; {why}.{_with_idle(plans, idle)}")
    lines += [f"{text}." for text in comparison.left_out]
    return [*lines, _launch_line(best, comparison), *_known_lines(comparison, is_stopped)]


def _speedup_line(what: str, step_s: float | None, best: PricedPlan) -> str:
    if step_s is None:
        return f"{what}: nothing fits."
    return f"{what}: {seconds(step_s)}; this is {step_s / best.step_s:.2f} x as fast."


def _launch_line(best: PricedPlan, comparison: Comparison) -> str:
    """Who launches the best, and what the other runtimes that were asked reach."""
    runtime = best.plan.runtime
    if runtime == "any":
        if comparison.launched_step_s is None:
            return "No public runtime launches it, and none launches a plan that fits."
        slower = comparison.launched_step_s / best.step_s - 1
        return (
            "No public runtime launches it: its replicas differ. The fastest that one launches "
            f"takes {seconds(comparison.launched_step_s)}, {slower:.1%} longer."
        )
    others = {name: step for name, step in comparison.runtimes_step_s.items() if name != runtime}
    equal = [RUNTIME_NAMES[name] for name, step_s in others.items() if step_s == best.step_s]
    longer = [
        f"; the best of {RUNTIME_NAMES[name]} takes {seconds(step_s)}, "
        f"{step_s / best.step_s - 1:.1%} longer"
        for name, step_s in others.items()
        if step_s is not None and step_s > best.step_s
    ]
    longer += [
        f"; {RUNTIME_NAMES[name]} has none that is at most 30% longer"
        for name, step_s in others.items()
        if step_s is None
    ]
    names = " and ".join((RUNTIME_NAMES[runtime], *equal))
    return f"{names} {'launch' if equal else 'launches'} it{''.join(longer)}."


def _known_lines(comparison: Comparison, is_stopped: bool) -> list[str]:
    """What is known of the space that was searched, and what that space is."""
    if is_stopped:
        return ["It is the best found before the search was stopped: nothing is proven."]
    mixes = [words for name, words in MIXED_PIPELINES.items() if name in comparison.pipelines_of]
    kinds = ["uniform plans"]
    kinds += [f"pipelines that mix types ({'; '.join(mixes)})"] if mixes else []
    replicas_differ = comparison.launched_step_s is not None
    kinds += ["plans whose replicas differ"] if replicas_differ else []
    gap = comparison.gap_fraction
    limit = ""
    if mixes and gap is not None:
        more = f" by more than {gap:.1%}" if gap >= 0.0005 else ""
        limit = f"; no such pipeline is faster{more}"
    line = f"Of {_listed(kinds)} it is the best found{limit}. Proven of each type alone."
    return [line, REPLICAS_DIFFER] if replicas_differ else [line]


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _idle(comparison: Comparison) -> dict[str, int]:
    """GPUs that the best plan leaves alone; types that no plan can use are left out, for
    `left_out` says why."""
    return {
        name: count
        for name, count in comparison.idle.items()
        if all(name != note.facts["gpu"] for note in comparison.types_left_out)
    }


def _why_idle(best: PricedPlan, idle: Mapping[str, int], request: Request) -> str:
    """What was asked for may forbid GPUs that would be of use."""
    cap, used = request.max_gpus, sum(best.gpus.values())
    too_slow = "was faster" if request.risk == "none" else "saves enough to be worth them"
    if request.objective == "gpus":
        return "the fewest GPUs were asked for"
    if cap is not None and used >= cap:
        return f"the cap of {cap} GPUs allows no more"
    if cap is not None and cap - used < sum(idle.values()):
        return f"the cap of {cap} GPUs allows {cap - used} more; no plan that uses them {too_slow}"
    whole = "GPUs are used 1, 2, 4 or whole nodes at a time"
    left_over = _left_over(best, idle)
    if left_over == idle:
        return whole
    if left_over:
        rest = ", ".join(f"{count} {name}" for name, count in left_over.items())
        return f"{rest} because {whole}; no plan that uses the others {too_slow}"
    return f"no plan that uses them {too_slow}"


def _with_idle(plans: Sequence[PricedPlan], idle: Mapping[str, int]) -> str:
    """What the fastest of the plans that use GPUs which the best leaves idle takes and costs."""
    best = plans[0]
    using = [
        plan
        for plan in plans
        if any(plan.gpus.get(name, 0) > best.gpus.get(name, 0) for name in idle)
        and sum(plan.gpus.values()) > sum(best.gpus.values())
    ]
    if not using:
        return ""
    other = min(using, key=lambda plan: plan.step_s)
    more = f"With {gpus_text(other.gpus)} (plan {other.rank}) a step takes"
    costs = ""
    if other.usd is not None and best.usd:
        costs = f", and the run costs {other.usd / best.usd - 1:+.1%}"
    return f" {more} {other.step_s / best.step_s - 1:+.1%}{costs}."


def _left_over(best: PricedPlan, idle: Mapping[str, int]) -> dict[str, int]:
    """Idle GPUs that no plan could use, since they are left over from whole nodes."""
    remainder = {
        pool.gpu.name: pool.count - allowed_counts(pool)[-1] for pool in best.plan.cluster.pools
    }
    return {name: remainder[name] for name in idle if remainder.get(name)}
