"""One plan or many through memory and time: where the rooms meet."""

from collections.abc import Sequence

import numpy as np

from astra.errors import InputError
from astra.hardware.cluster import Gpu
from astra.memory.states import States, states
from astra.model.flops import step_flops
from astra.model.parameters import parameters
from astra.search.priced import PlanMemory, Priced, Provenance, StageMemory
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.stages import Stages, stages_of


def price(plan: Plan, assumed: Sequence[str] = (), notes: Sequence[str] = ()) -> Priced:
    """What one plan needs. It is priced whether or not a runtime would accept it."""
    table, task = plans_of([plan]), task_of(plan)
    stages = stages_of(table, plan.model, every_stage=True)
    held = states(table, stages, task)
    memory = _memory(plan, stages, held)
    flops = step_flops(plan.model, plan.seq_len, plan.global_batch)
    return Priced(
        rank=1,
        summary=plan.summary(),
        plan=plan,
        assumed=tuple(assumed) + plan.model.assumed,
        gpus=plan.gpus,
        step_flops=flops,
        step_s_at_peak=flops / _peak_flops_per_s(plan),
        memory=memory,
        host_memory_bytes=_host_bytes(plan, held),
        checkpoint_bytes=checkpoint_bytes(plan),
        provenance=Provenance(notes=tuple(notes) + _guesses(plan)),
        warnings=_warnings(plan),
    )


def _memory(plan: Plan, stages: Stages, held: States) -> PlanMemory:
    rows = []
    for p, pipeline in enumerate(plan.pipelines):
        gpus = [segment.gpu for segment in pipeline.segments for _ in range(segment.stages)]
        for stage, layers in enumerate(pipeline.layers):
            at = (p, stage, 0)
            assert stages.count[at] == 1
            rows.append(
                StageMemory(
                    pipeline=p,
                    stage=stage,
                    gpu=gpus[stage],
                    layers=layers,
                    weights_bytes=float(held.weights_bytes[at]),
                    gradients_bytes=float(held.gradients_bytes[at]),
                    optimizer_bytes=float(held.optimizer_bytes[at]),
                )
            )
    usable = {pool.gpu.name: pool.gpu.usable_bytes for pool in plan.cluster.pools}
    worst = max(rows, key=lambda row: row.states_bytes / usable[row.gpu])
    return PlanMemory(
        usable_bytes=usable[worst.gpu],
        worst_pipeline=worst.pipeline,
        worst_stage=worst.stage,
        stages=tuple(rows),
    )


def peak_flops_per_s(gpu: Gpu, precision: str) -> float:
    """Dense peak of one GPU for a precision; an InputError where it has no such units."""
    rates = {
        "bf16": gpu.bf16_flops_per_s,
        "fp16": gpu.fp16_flops_per_s,
        "fp8": gpu.fp8_flops_per_s,
        "fp4": gpu.fp4_flops_per_s,
        "fp32": gpu.tf32_flops_per_s or gpu.fp32_flops_per_s,
    }
    rate = rates[precision]
    if rate is None:
        known = ", ".join(name for name, value in rates.items() if value)
        raise InputError(f"{gpu.name} has no {precision} units; it has {known}.")
    return rate


def _peak_flops_per_s(plan: Plan) -> float:
    gpus = {pool.gpu.name: pool.gpu for pool in plan.cluster.pools}
    return sum(
        count * peak_flops_per_s(gpus[name], plan.precision) for name, count in plan.gpus.items()
    )


def _host_bytes(plan: Plan, held: States) -> float:
    """Offloaded optimizer states of the fullest node."""
    per_node = max(pool.gpu.node.gpus for pool in plan.cluster.pools)
    return float(np.max(held.host_bytes)) * per_node


def checkpoint_bytes(plan: Plan) -> float:
    """A checkpoint to resume from: weights, master weights and two moments, each once. [bytes]"""
    held = parameters(plan.model)
    count = held.total + (held.mtp_total if plan.mtp_layers else 0)
    return count * (2.0 + 4.0 + 8.0)


def _guesses(plan: Plan) -> tuple[str, ...]:
    return tuple(
        f"{pool.gpu.name}: {guess}" for pool in plan.cluster.pools for guess in pool.gpu.assumed
    )


def _warnings(plan: Plan) -> tuple[str, ...]:
    found = ["step time and activations are not predicted yet: states and FLOPs only"]
    limit = plan.model.max_positions
    if limit is not None and plan.seq_len > limit:
        found.append(
            f"sequence length {plan.seq_len:,} is beyond the {limit:,} positions "
            f"{plan.model.name} was made for"
        )
    return tuple(found)
