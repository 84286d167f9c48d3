"""Plans that their runtimes accept, of models of every kind, on one GPU type and on two."""

import random
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.support.random_plans import random_plan

from astra.cost.result import PricedPlan
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.stack import Stack, find_stack
from astra.model.shape import Model
from astra.model.zoo import find_model
from astra.strategy.complete import split_layers
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.plans import plans_of, task_of
from astra.strategy.rules.registry import broken_rules
from astra.strategy.stage_view import StageView, stage_view

# Dense with biases, grouped queries, tied with windows, experts, latent attention with both.
MODELS = ("gpt3-6.7b", "llama-3-8b", "gemma-2-2b", "mixtral-8x7b", "deepseek-v3")
ONE_TYPE = ("h100", "a100-80g")


@cache
def legal_plans(model: str, count: int = 24) -> tuple[Plan, ...]:
    """Random plans of one GPU type each, as Megatron-LM accepts them."""
    found: list[Plan] = []
    seed = 0
    while len(found) < count:
        plan = random_plan(seed, find_model(model), ONE_TYPE)
        seed += 1
        if sum(plan.gpus.values()) <= 2048 and not broken_rules(plan):
            found.append(plan)
    return tuple(found)


@cache
def mixed_plans(model: str, count: int = 12) -> tuple[Plan, ...]:
    """Random pipelines over H100 and A100: tensor parallelism and recompute by segment."""
    found: list[Plan] = []
    seed = 0
    while len(found) < count:
        plan = _mixed_plan(random.Random(seed), find_model(model))
        seed += 1
        if not broken_rules(plan):
            found.append(plan)
    return tuple(found)


def _mixed_plan(dice: random.Random, model: Model) -> Plan:
    """One pipeline as FlagScale runs it, or two of different make, which nobody launches."""
    groups = dice.choice((1, 1, 2))
    cp, width = dice.choice((1, 1, 2)), dice.choice((1, 2, 4))
    tps = [dice.choice((1, 2, 4)) for _ in range(2)]
    pipelines = tuple(_pipeline(dice, model, width, tps) for _ in range(groups))
    micro_batch = dice.choice((1, 2))
    batch = sum(each.replicas * each.micro_batches * micro_batch for each in pipelines)
    pools = tuple(Pool(gpu=find_gpu(name)[0], count=4096) for name in ONE_TYPE)
    return Plan(
        model=model,
        cluster=Cluster(name="two types", pools=pools),
        runtime="flagscale" if groups == 1 else "any",
        pipelines=pipelines,
        micro_batch=micro_batch,
        global_batch=batch,
        seq_len=min(dice.choice((2048, 4096)), model.max_positions or 4096),
        cp=cp,
        ep=dice.choice((1, 2)) if model.moe and groups == 1 else 1,
        sharding="optimizer",
        shard_group=width * cp,
        sequence_parallel=max(tps) > 1,
        overlap_grad_reduce=dice.random() < 0.5,
        dispatcher="alltoall" if model.moe else None,
    )


def _pipeline(dice: random.Random, model: Model, width: int, tps: list[int]) -> Pipeline:
    stages = [dice.choice((1, 2, 3)) for _ in range(2)]
    layers = split_layers(model.layers, sum(stages))
    recomputes = ("none", "full:uniform:1", "full:block:2")
    gpus = [find_gpu(name)[0].name for name in dice.sample(ONE_TYPE, 2)]
    segments = tuple(
        Segment(
            gpu=gpu,
            stages=count,
            layers=layers[:count] if row == 0 else layers[-count:],
            tp=tp,
            recompute=dice.choice(recomputes),
        )
        for row, (gpu, count, tp) in enumerate(zip(gpus, stages, tps, strict=True))
    )
    return Pipeline(replicas=width, micro_batches=dice.choice((1, 4, 12)), segments=segments)


def _groups() -> list[tuple[Plan, ...]]:
    return [*(legal_plans(model) for model in MODELS), *(mixed_plans(model) for model in MODELS)]


def every_plan() -> tuple[Plan, ...]:
    """All of them."""
    return tuple(plan for group in _groups() for plan in group)


def any_plan() -> st.SearchStrategy[Plan]:
    return st.deferred(lambda: st.sampled_from(every_plan()))


def tables(most: int = 12) -> st.SearchStrategy[list[Plan]]:
    """Plans of one task, as a table would hold them; some are there twice."""
    return st.deferred(lambda: st.sampled_from(_groups())).flatmap(
        lambda group: st.lists(st.sampled_from(_alike(group)), min_size=2, max_size=most)
    )


@cache
def _alike(plans: tuple[Plan, ...]) -> list[Plan]:
    """Those that share the task of the first."""
    return [plan for plan in plans if key(plan) == key(plans[0])]


def key(plan: Plan) -> tuple[object, ...]:
    return plan.model.name, tuple(p.gpu for p in plan.cluster.pools), plan.runtime, plan.stack


def changed(plan: Plan, **fields: Any) -> Plan:
    return msgspec.structs.replace(plan, **fields)


def with_segments(plan: Plan, **fields: Any) -> Plan:
    """The plan with these fields in every segment of every pipeline."""
    pipelines = tuple(
        msgspec.structs.replace(
            pipeline,
            segments=tuple(msgspec.structs.replace(each, **fields) for each in pipeline.segments),
        )
        for pipeline in plan.pipelines
    )
    return changed(plan, pipelines=pipelines)


def with_gpus(plan: Plan, change: Any) -> Plan:
    """The plan on GPUs that `change` made of the ones it has."""
    pools = tuple(
        msgspec.structs.replace(pool, gpu=change(pool.gpu)) for pool in plan.cluster.pools
    )
    return changed(plan, cluster=msgspec.structs.replace(plan.cluster, pools=pools))


def faster(gpu: Gpu, factor: float, *parts: str) -> Gpu:
    """The GPU with some of its rates scaled: compute, memory, link, nic or pcie."""
    fields: dict[str, Any] = {}
    if "compute" in parts:
        for name in ("bf16", "fp16", "tf32", "fp8", "fp4", "fp32"):
            rate = getattr(gpu, f"{name}_flops_per_s")
            fields[f"{name}_flops_per_s"] = None if rate is None else rate * factor
    if "memory" in parts:
        fields["memory_bytes_per_s"] = gpu.memory_bytes_per_s * factor
    if "link" in parts:
        fields["link"] = msgspec.structs.replace(
            gpu.link,
            bytes_per_s=gpu.link.bytes_per_s * factor,
            peer_bytes_per_s=gpu.link.peer_bytes_per_s * factor,
        )
    node = {
        f"{part}_bytes_per_s": getattr(gpu.node, f"{part}_bytes_per_s") * factor
        for part in ("nic", "pcie")
        if part in parts
    }
    return msgspec.structs.replace(gpu, **fields, node=msgspec.structs.replace(gpu.node, **node))


def view(*plans: Plan, every_stage: bool = True) -> StageView:
    return stage_view(plans_of(plans), task_of(plans[0]), every_stage)


def stack(**fields: Any) -> Stack:
    """Megatron-LM's stack, with some of its figures changed."""
    return msgspec.structs.replace(find_stack("megatron"), **fields)


def numbers(priced: PricedPlan) -> dict[str, float]:
    """Everything that was worked out about a plan, by name."""
    found = {
        "step_s": priced.step_s,
        "tokens_per_s": priced.tokens_per_s,
        "mfu_fraction": priced.mfu_fraction,
        "host_memory_bytes": priced.host_memory_bytes,
        "allocated_bytes": priced.memory.allocated_bytes,
        "reserved_bytes": priced.memory.reserved_bytes,
        "fit_probability": priced.memory.fit_probability,
        "fits": float(priced.memory.fits),
        "worst_stage": float(priced.memory.worst_stage),
        "parts_stage": float(priced.parts_stage),
    }
    found |= {f"part {name}": value for name, value in priced.step_parts_s.items()}
    for row in priced.memory.stages:
        for name in row.__struct_fields__:
            if name.endswith("_bytes"):
                found[f"stage {row.pipeline}.{row.stage} {name}"] = getattr(row, name)
    return found
