"""Plans of one cut over several GPU types: ranks in blocks by type, one ordinary job."""

from typing import Any

from msgspec.structs import replace

from astra.hardware.cluster import Cluster, Pool
from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan, Runtime


def uniform_plan(
    gpus: str | Cluster, model: str = "llama-3-8b", runtime: Runtime = "megatron", **said: Any
) -> Plan:
    """All GPUs of these pools, the first ranks on the first of them."""
    cluster = parse_gpus(gpus)[0] if isinstance(gpus, str) else gpus
    common: dict[str, Any] = {"global_batch": 256, "seq_len": 2048, "recompute": "full"}
    return complete(PlanSettings(**common | said), find_model(model), cluster, runtime).plan


def unlike_networks(first: int, second: int) -> Cluster:
    """H100 of one make, so many behind a network that is four times slower."""
    (pool,) = parse_gpus(f"h100:{first}")[0].pools
    node = pool.gpu.node
    slow = replace(node, nic_bytes_per_s=node.nic_bytes_per_s / 4)
    gpu = replace(pool.gpu, name="H100-slow-network", node=slow, aliases=())
    return Cluster(name="two networks", pools=(pool, Pool(gpu=gpu, count=second)))


def type_of_rank(plan: Plan) -> list[str]:
    """The GPU type that every rank lies on."""
    return [gpu for gpu, count in plan.rank_blocks for _ in range(count)]


def types_of_replicas(plan: Plan) -> list[tuple[str, ...]]:
    """The GPU type of every stage of every replica, as the plan's pipelines say."""
    return [
        tuple(each.segment_at(stage).gpu for stage in range(each.stages))
        for each in plan.pipelines
        for _ in range(each.replicas)
    ]
