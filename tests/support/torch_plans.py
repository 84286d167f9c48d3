"""Random plans for plain PyTorch and DeepSpeed: what these cannot say is left out, so that what
remains to quarrel about is what their own code checks."""

import random
from typing import Any

import msgspec
from tests.support.random_plans import random_plan

from astra.model.shape import Model
from astra.strategy.complete import deepspeed_split
from astra.strategy.plan import Plan, Runtime

GPUS = ("a100-80g", "h100")
PLAIN: dict[str, Any] = {
    "main_grads_dtype": "fp32",
    "master_dtype": "fp32",
    "moment_dtypes": ("fp32", "fp32"),
    "grad_reduce_dtype": "fp32",
    "precision": "bf16",
    "fp8_recipe": None,
    "cuda_graph": "none",
    "mtp_layers": 0,
    "capacity_factor": None,
    "overlap_tp": False,
    "overlap_ep": False,
    "offload_activations": (),
    "attention": "flash",
    "rank_order": "tp-cp-ep-dp-pp",
}


def random_torch_plan(seed: int, model: Model, runtime: Runtime) -> Plan:
    """One plan; the same seed, the same plan."""
    dice = random.Random(seed)
    plan = random_plan(seed, model, GPUS)
    changes = dict(PLAIN) | {"runtime": runtime}
    segment = plan.pipelines[0].segments[0]
    group = plan.dp * plan.cp
    changes["sharding"] = dice.choice(("gradients", "parameters", "parameters", "none"))
    if runtime == "deepspeed":
        changes["sharding"] = dice.choice(("none", "optimizer", "gradients", "parameters"))
        if plan.pp > 1 and dice.random() < 0.7:
            changes["sharding"] = dice.choice(("none", "optimizer"))
    whole = changes["sharding"] == "none" or dice.random() < 0.7
    divisors = [n for n in range(1, group + 1) if group % n == 0]
    changes["shard_group"] = group if whole else dice.choice((*divisors, 3, 2 * plan.cp))
    if changes["sharding"] == "none":
        changes["shard_group"] = 1
    changes["offload_optimizer_fraction"] = dice.choice((0.0, 0.0, 0.0, 0.0, 1.0))
    recompute = dice.choice(("none", "full:uniform:1"))
    own = {"recompute": recompute}
    if runtime == "fsdp":
        changes |= _fsdp(dice, plan, segment.tp)
    else:
        changes |= _deepspeed(dice, plan, changes)
        own["layers"] = deepspeed_split(model.layers, plan.pp)  # type: ignore[assignment]
        if plan.pp > 1:
            own["tp"] = 1  # type: ignore[assignment]
    pipeline = msgspec.structs.replace(
        plan.pipelines[0], segments=(msgspec.structs.replace(segment, **own),)
    )
    return msgspec.structs.replace(plan, pipelines=(pipeline,), **changes)


def _fsdp(dice: random.Random, plan: Plan, tp: int) -> dict[str, Any]:
    rounds = max(plan.pipelines[0].micro_batches // plan.pp, 1)
    found: dict[str, Any] = {"cp_comm_type": "allgather"}
    if plan.vpp > 1:
        found["microbatch_group"] = max(plan.pipelines[0].micro_batches // rounds, 1)
    if plan.model.moe:
        found["etp"] = 1 if plan.ep > 1 else tp
        found["dispatcher"] = dice.choice(("alltoall", "alltoall", "deepep", "hybridep"))
    return found


def _deepspeed(dice: random.Random, plan: Plan, changes: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "vpp": 1,
        "schedule": "1f1b",
        "chunk_layers": None,
        "microbatch_group": None,
        "sequence_parallel": False,
        "cp_comm_type": "a2a",
        "precision": dice.choice(("bf16", "bf16", "fp16", "fp32")),
    }
    if plan.pp > 1:
        found["cp"] = 1
        found["shard_group"] = 1 if changes["sharding"] == "none" else plan.dp
    if changes["sharding"] != "none" and dice.random() < 0.1:
        found["offload_optimizer_fraction"] = 0.5
    if plan.model.moe:
        found["etp"] = plan.etp if dice.random() < 0.1 else 1
        found["dispatcher"] = dice.choice(("alltoall", "deepep"))
        if plan.cp > 1 and plan.pp == 1 and dice.random() < 0.5:
            found |= {"ep": 2, "etp": 1, "sharding": "parameters"}
            found |= {"shard_group": plan.dp * plan.cp, "offload_optimizer_fraction": 0.0}
    return found
