"""The constraint that costs most."""

from collections.abc import Sequence

from astra.explain.explained_plan import ExplainedPlan
from astra.explain.plan_detail import CLASSES
from astra.explain.result import Binding, Exchange, WhatIf
from astra.notes import NoteCode

LEAST_SHARE = 0.1  # of the step: what costs less than this holds nothing up
FEW_MICRO_BATCHES = 4  # for each stage of a pipeline; with fewer, filling it shows
TRAFFIC = {  # parts of the step, and the groups that exchange something in them
    "tensor_comm": ("tp",),
    "context_comm": ("cp",),
    "expert_comm": ("ep", "etp"),
    "pipeline_comm": ("pp",),
    "data_comm": ("dp", "edp"),
}


def binding(
    explained: ExplainedPlan, changes: Sequence[WhatIf], exchanges: Sequence[Exchange]
) -> Binding:
    """The dearest of memory, traffic and waiting where it costs a tenth of the step; else compute.

    Memory costs what is recomputed, or what more of it would save by a search. Before all of them
    comes the plan itself, where a search finds one that saves more than any of them costs.
    """
    priced, parts = explained.priced, explained.detail.parts_s
    pipeline = explained.detail.pipeline
    few = pipeline.stages > 1 and pipeline.micro_batches < FEW_MICRO_BATCHES * pipeline.stages
    far_groups = {exchange.group for exchange in exchanges if exchange.over == "network"}
    far = [name for name, groups in TRAFFIC.items() if far_groups & set(groups)]
    near = [name for name in TRAFFIC if name not in far]
    better_s = priced.step_s * _saved_fraction(changes, NoteCode.AS_IS)
    roomier_s = priced.step_s * _saved_fraction(changes, NoteCode.MORE_MEMORY)
    cost = {
        "plan": better_s,
        "memory": max(parts["recompute"], roomier_s - better_s),
        "network": sum(parts[name] for name in far),
        "link": sum(parts[name] for name in near),
        "batch" if few else "bubble": parts["bubble"],
    }
    memory, dearest = priced.memory, max(cost, key=lambda name: cost[name])
    if not priced.runs:
        dearest = "memory"
    elif cost[dearest] < LEAST_SHARE * priced.step_s:
        dearest = "compute"
    cost["compute"] = sum(parts[name] for name in CLASSES)
    kinds = {"network": far, "link": near}.get(dearest)
    return Binding(
        constraint=dearest,
        cost_s=cost,
        filled_fraction=memory.reserved_bytes
        / (memory.usable_bytes * (1 - explained.query.margin)),
        fullest_stage=memory.worst_stage,
        micro_batches=pipeline.micro_batches,
        stages=pipeline.stages,
        fits=memory.fits,
        fits_ram=priced.fits_host,
        needed_bytes=memory.reserved_bytes,
        usable_bytes=memory.usable_bytes,
        traffic=max(kinds, key=lambda name: parts[name]) if kinds else None,
    )


def _saved_fraction(changes: Sequence[WhatIf], code: NoteCode) -> float:
    """What a change would save of the step, or of what else plans are ordered by."""
    found = [each.plan for each in changes if each.change.code is code]
    return max([0.0, *(-plan.more_fraction for plan in found if plan)])
