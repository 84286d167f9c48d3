"""One plan or many through memory, time and the simulator: where the rooms meet."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from astra.cost.checkpoint import checkpoint_bytes
from astra.cost.host import (
    is_ram_unknown,
    offload_bytes_per_node,
    pool_usable_ram_bytes,
    ram_too_small,
)
from astra.cost.result import PlanMemory, PricedPlan, Provenance, StageMemory, StageParts
from astra.cost.stages import times_of
from astra.cost.step import Step, simulated_step
from astra.cost.step import step_s as simulated_s
from astra.hardware.stack import Stack, find_stack, release_note
from astra.memory.fit_probability import fit_probability
from astra.memory.stage import MemoryColumns, memory_of
from astra.model.flops import step_flops
from astra.notes import Note, NoteCode, note
from astra.strategy.plan import Plan
from astra.strategy.plans import Floats, plans_of, task_of
from astra.strategy.stage_view import stage_view
from astra.timing.device import SourceUse, dense_peak
from astra.timing.link_curves import link_source

MARGIN = 0.05  # of the usable memory, kept free
STATES = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
CAUSES = (*STATES, "activations_bytes", "logits_bytes", "buffers_bytes", "runtime_bytes")
KERNELS = ("forward", "backward", "recompute")
# Traffic whose hidden share is a guess where this setting hides it.
HIDDEN_BY = {"tensor": "overlap_tp", "expert": "overlap_ep", "data": "overlap_grad_reduce"}


def price_plan(
    plan: Plan,
    assumed: Sequence[str] = (),
    notes: Sequence[Note] = (),
    margin: float = MARGIN,
    stack: Stack | None = None,
) -> PricedPlan:
    """What one plan needs and takes. No rule is asked, but its schedule must be one that runs."""
    (priced,) = _price_table([plan], margin, stack or find_stack(plan.stack))
    origin = priced.provenance
    origin = msgspec.structs.replace(origin, sources=(*notes, *origin.sources))
    return msgspec.structs.replace(priced, assumed=(*assumed, *priced.assumed), provenance=origin)


def price_plans(
    plans: Sequence[Plan], margin: float = MARGIN, stacks: Mapping[str, Stack] | None = None
) -> list[PricedPlan]:
    """Many plans, those of one model on one kind of cluster as one table.

    `stacks` replaces stacks of these names, for fitting them.
    """
    own = stacks or {}
    found: dict[int, PricedPlan] = {}
    for rows, group in _tables(plans):
        name = group[0].stack
        priced = _price_table(group, margin, own.get(name) or find_stack(name))
        found.update(zip(rows, priced, strict=True))
    return [found[row] for row in range(len(plans))]


def steps_s(plans: Sequence[Plan], stacks: Mapping[str, Stack]) -> Floats:
    """The seconds of many plans' steps alone."""
    found = np.zeros(len(plans))
    for rows, group in _tables(plans):
        view = stage_view(plans_of(group), task_of(group[0]), every_stage=True)
        times = times_of(view, stacks[group[0].stack])
        found[rows] = simulated_s(view.plans, view.stages, times)
    return found


def _tables(plans: Sequence[Plan]) -> list[tuple[list[int], list[Plan]]]:
    """Plans that make one table, and their places."""
    tables: dict[object, list[int]] = {}
    for row, plan in enumerate(plans):
        gpus = tuple(pool.gpu for pool in plan.cluster.pools)
        tables.setdefault((plan.model, gpus, plan.runtime, plan.stack), []).append(row)
    return [(rows, [plans[row] for row in rows]) for rows in tables.values()]


def _price_table(plans: Sequence[Plan], margin: float, stack: Stack) -> list[PricedPlan]:
    """Plans of one task as one table."""
    table, task = plans_of(plans), task_of(plans[0])
    view = stage_view(table, task, every_stage=True)
    times = times_of(view, stack)
    step = simulated_step(table, view.stages, times)
    memory = memory_of(view, stack)
    return [
        _priced(plan, row, step, memory, times.used, margin, stack)
        for row, plan in enumerate(plans)
    ]


def _priced(
    plan: Plan,
    row: int,
    step: Step,
    columns: MemoryColumns,
    used: SourceUse,
    margin: float,
    stack: Stack,
) -> PricedPlan:
    memory = _memory(plan, row, columns, margin, stack)
    parts_s = {name: float(part[row]) for name, part in step.parts_s.items()}
    origin = _provenance(plan, used, stack, parts_s)
    typical = stack.spread_fraction if plan.model.moe is None else stack.moe_spread_fraction
    seen = all(stack.applied(pool.gpu, None) for pool in plan.cluster.pools)
    spread = typical if seen else typical * (1 + origin.guessed_fraction)  # wider for a stranger
    step_s = float(step.step_s[row])
    tokens_per_s = plan.global_batch * plan.seq_len / step_s
    host = _host_bytes(plan, columns, row)
    return PricedPlan(
        rank=1,
        summary=plan.summary(),
        plan=plan,
        assumed=plan.model.assumed,
        gpus=plan.gpus,
        step_s=step_s,
        step_s_low=step_s / (1 + spread),
        step_s_high=step_s * (1 + spread),
        step_parts_s=parts_s,
        parts_stage=int(step.parts_stage[row]),
        stage_parts_s=stage_parts(memory.stages, row, step),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / sum(plan.gpus.values()),
        mfu_fraction=_mfu(plan, step_s),
        memory=memory,
        host_memory_bytes=host,
        checkpoint_bytes=checkpoint_bytes(plan),
        provenance=origin,
        notes=_notes(plan, memory, margin, host, stack),
    )


def _mfu(plan: Plan, step_s: float) -> float:
    """Model FLOPs over what the GPUs' dense peak would do in the same time."""
    flops = step_flops(plan.model, plan.seq_len, plan.global_batch)
    gpus = {pool.gpu.name: pool.gpu for pool in plan.cluster.pools}
    peak = sum(dense_peak(gpus[name], plan.precision) * n for name, n in plan.gpus.items())
    return flops / (step_s * peak)


def _memory(plan: Plan, row: int, memory: MemoryColumns, margin: float, stack: Stack) -> PlanMemory:
    """Every stage; the one that fills its GPU most decides, and all of them must fit."""
    usable = {pool.gpu.name: pool.gpu.usable_bytes for pool in plan.cluster.pools}
    rows = []
    for p, pipeline in enumerate(plan.pipelines):
        gpus = [segment.gpu for segment in pipeline.segments for _ in range(segment.stages)]
        for stage, layers in enumerate(pipeline.layers):
            place, gpu = (p, stage, row), gpus[stage]
            causes = {name: float(getattr(memory, name)[place]) for name in CAUSES}
            slack = (sum(causes.values()) - causes["runtime_bytes"]) * stack.slack_fraction
            need = sum(causes.values()) + slack
            rows.append(
                StageMemory(
                    pipeline=p,
                    stage=stage,
                    gpu=gpu,
                    layers=layers,
                    **causes,
                    slack_bytes=slack,
                    reserved_bytes=need,
                    usable_bytes=usable[gpu],
                    fits=need <= usable[gpu] * (1 - margin),
                    fit_probability=fit_probability(need, usable[gpu]),
                )
            )
    worst = max(rows, key=lambda each: each.reserved_bytes / each.usable_bytes)
    return PlanMemory(
        fits=all(each.fits for each in rows),
        fit_probability=worst.fit_probability,
        allocated_bytes=worst.allocated_bytes,
        reserved_bytes=worst.reserved_bytes,
        usable_bytes=worst.usable_bytes,
        worst_pipeline=worst.pipeline,
        worst_stage=worst.stage,
        stages=tuple(rows),
    )


def stage_parts(stages: Sequence[StageMemory], row: int, step: Step) -> tuple[StageParts, ...]:
    """Where the step of each of these stages goes."""
    parts = step.stage_parts_s.items()
    return tuple(
        StageParts(
            pipeline=at.pipeline,
            stage=at.stage,
            parts_s={name: float(part[at.pipeline, at.stage, row]) for name, part in parts},
        )
        for at in stages
    )


def _host_bytes(plan: Plan, memory: MemoryColumns, row: int) -> float:
    """What is offloaded, of the fullest node."""
    per_node = max(pool.gpu.node.gpus for pool in plan.cluster.pools)
    own = memory.host_bytes[..., row : row + 1]
    return float(offload_bytes_per_node(own, sum(plan.gpus.values()), per_node)[0])


def _provenance(
    plan: Plan, used: SourceUse, stack: Stack, parts_s: Mapping[str, float]
) -> Provenance:
    """The busy seconds of a step by the kind of their source: kernels, traffic and the rest."""
    kernels = _kernel_kinds(used)
    busy = sum(seconds for name, seconds in parts_s.items() if name != "bubble") or 1.0
    share = sum(parts_s[name] for name in KERNELS) / busy
    kinds = {kind: fraction * share for kind, fraction in kernels.items()}
    for name, seconds in parts_s.items():
        if name.endswith("_comm"):
            kinds[_traffic_kind(plan, name.removesuffix("_comm"))] += seconds / busy
    kinds["guessed"] = max(1.0 - kinds["measured"] - kinds["fitted"], 0.0)  # with host, optimizer
    total = sum(used.seconds.values()) or 1.0
    sources = [
        note(NoteCode.KERNEL_SOURCE, source=source, fraction=seconds / total)
        for source, seconds in used.seconds.items()
    ]
    if used.outside_s > 0.01 * total:
        sources.append(note(NoteCode.OUTSIDE_MEASURED, fraction=used.outside_s / total))
    sources += _stack_sources(plan, stack)
    sources += [
        note(NoteCode.GPU_ASSUMED, gpu=pool.gpu.name, what=each)
        for pool in plan.cluster.pools
        for each in pool.gpu.assumed
    ]
    return Provenance(
        measured_fraction=kinds["measured"],
        fitted_fraction=kinds["fitted"],
        guessed_fraction=kinds["guessed"],
        sources=tuple(sources),
    )


def _stack_sources(plan: Plan, stack: Stack) -> list[Note]:
    """Where the factors come from, and which settings of the stack they hold."""
    own = note(
        NoteCode.STACK_SOURCE,
        stack=stack.full_name,
        kind=stack.source.kind,
        where=stack.source.where,
    )
    rows = [
        note(
            NoteCode.STACK_FACTORS,
            stack=stack.name,
            setting=row.description(),
            factors=row.factors(),
            runs=row.runs,
        )
        for pool in plan.cluster.pools
        for row in stack.applied(pool.gpu, plan.fp8_recipe or plan.precision)
    ]
    return [own, *rows]


def _kernel_kinds(used: SourceUse) -> dict[str, float]:
    total = sum(used.seconds.values()) or 1.0
    kinds = {"measured": 0.0, "fitted": 0.0, "guessed": 0.0}
    for source, seconds in used.seconds.items():
        kinds[used.kinds[source]] += seconds / total
    beyond = min(used.outside_s / total, kinds["measured"])  # the prior speaks there, no table
    return kinds | {"measured": kinds["measured"] - beyond, "fitted": kinds["fitted"] + beyond}


def _traffic_kind(plan: Plan, which: str) -> str:
    """Curves are fitted to measured collectives; a borrowed one, or a hidden share, is a guess."""
    hides = HIDDEN_BY.get(which)
    borrowed = any(link_source(pool.gpu).borrowed for pool in plan.cluster.pools)
    return "guessed" if borrowed or (hides and getattr(plan, hides)) else "fitted"


def _host_notes(plan: Plan, host_bytes: float) -> list[Note]:
    """Where the RAM of a node does not hold what is offloaded, or nobody knows whether it does."""
    pools = [pool for pool in plan.cluster.pools if pool.gpu.name in plan.gpus]
    usable_bytes = pool_usable_ram_bytes(pools)
    if host_bytes > usable_bytes:
        return [ram_too_small(host_bytes, usable_bytes)]
    if any(is_ram_unknown(pool, host_bytes) for pool in pools):
        return [note(NoteCode.RAM_UNKNOWN, needed_bytes=host_bytes)]
    return []


def _tensor_notes(plan: Plan) -> list[Note]:
    """Tensor-parallel groups that cross the network, with every layer."""
    near = {
        pool.gpu.name: max(pool.gpu.link.domain_gpus, pool.gpu.node.gpus)
        for pool in plan.cluster.pools
    }
    wide = {
        (segment.gpu, segment.tp)
        for pipeline in plan.pipelines
        for segment in pipeline.segments
        if segment.tp > near[segment.gpu]
    }
    return [
        note(NoteCode.TENSOR_OVER_NETWORK, gpu=gpu, tp=tp, near=near[gpu])
        for gpu, tp in sorted(wide)
    ]


def _notes(
    plan: Plan, memory: PlanMemory, margin: float, host_bytes: float, stack: Stack
) -> tuple[Note, ...]:
    unknown = release_note(stack)
    found = [unknown] if unknown else []
    if not memory.fits:
        found.append(
            note(
                NoteCode.DOES_NOT_FIT,
                stage=memory.worst_stage,
                needed_bytes=memory.reserved_bytes,
                usable_bytes=memory.usable_bytes * (1 - margin),
            )
        )
    found += _host_notes(plan, host_bytes)
    found += _tensor_notes(plan)
    if not plan.is_one_job:
        found.append(note(NoteCode.NOT_LAUNCHABLE))
    limit = plan.model.max_positions
    if limit is not None and plan.seq_len > limit:
        found.append(
            note(
                NoteCode.BEYOND_POSITIONS,
                seq_len=plan.seq_len,
                positions=limit,
                model=plan.model.name,
            )
        )
    return (*found, note(NoteCode.NO_MONEY))
