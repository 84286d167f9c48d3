"""Plans to launch: one kind of node, and two."""

from typing import Any

import msgspec

from astra.export.launchers import LaunchJob
from astra.export.targets import TARGETS
from astra.export.torchrun import nodes_of
from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Pipeline, Plan, Segment


def plain_plan(gpus: str = "h100:16", model: str = "llama-3-8b", **said: Any) -> Plan:
    cluster, _ = parse_gpus(gpus)
    settings = PlanSettings(**{"global_batch": 64, "seq_len": 2048} | said)
    return complete(settings, find_model(model), cluster).plan


def mixed_plan() -> Plan:
    """Two nodes of H100, then one of A100: alike but for their layers."""
    cluster, _ = parse_gpus("h100:16,a100-80g:8")
    plan = plain_plan("h100:16", tp=8, pp=2)
    first, second = "H100-80GB-SXM", "A100-80GB-SXM"
    segments = (
        Segment(gpu=first, stages=2, layers=(12, 12), tp=8),
        Segment(gpu=second, stages=1, layers=(8,), tp=8),
    )
    pipeline = Pipeline(replicas=1, micro_batches=64, segments=segments)
    return msgspec.structs.replace(
        plan, cluster=cluster, pipelines=(pipeline,), sharding="optimizer", shard_group=1
    )


def job_of(plan: Plan) -> LaunchJob:
    own = TARGETS["megatron"]
    return LaunchJob(plan, nodes_of(plan), own.set_up, own.first_try)
