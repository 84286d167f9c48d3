"""What the groups of a plan's busiest stage exchange, as its seconds are counted.

Bytes are those that the seconds are counted from: `timing` keeps the ledger, with the payload of
every exchange and how often a step has it; here it is picked for one stage.
"""

import numpy as np

from astra.explain.plan_detail import PlanDetail
from astra.explain.result import Exchange
from astra.timing.data_parallel import data_parallel_collectives
from astra.timing.ledger import Collective, RankGroup
from astra.timing.stage_work import StageSends, arrival_gather, stage_sends, tied_sends


def exchanges_of(detail: PlanDetail) -> tuple[Exchange, ...]:
    """All traffic of one GPU of the busiest stage in one step, as its seconds are counted."""
    replicas = data_parallel_collectives(detail.view, detail.stack)
    found = [*_layers(detail), *_pipeline(detail)]
    found += [_exchange(detail, each, _count(detail, each)) for each in replicas]
    return tuple(exchange for exchange in found if exchange.ranks > 1 and exchange.count > 0)


def _count(detail: PlanDetail, each: Collective, layers: int = 1, forward: float = 1.0) -> float:
    """How often a step has it, of so many layers that run forward so often."""
    passes = detail.at(forward * each.forward + each.backward)
    return float(detail.pipeline.micro_batches * layers * passes + detail.at(each.once))


def _exchange(detail: PlanDetail, each: Collective, count: float) -> Exchange:
    group, payload = each.group, float(detail.at(each.payload_bytes))
    return Exchange(
        group=group.name,
        operation=each.operation,
        what=each.what,
        ranks=int(detail.at(group.ranks)),
        payload_bytes=payload,
        count=count,
        total_bytes=payload * count,
        sent_bytes=payload * count * float(detail.at(each.sent_fraction)),
        crosses_nodes=bool(detail.at(group.node < group.ranks)),
        over="link" if detail.at(group.is_near) else "network",
    )


def _layers(detail: PlanDetail) -> list[Exchange]:
    """Of all layers; those that are recomputed whole run forward twice. What layers of several
    kinds exchange alike is told once.
    """
    forward = 1 + float(detail.at(detail.view.recomputed[0]))
    found: dict[tuple[str, str, str], Exchange] = {}
    for layers, ledger in detail.ledgers:
        for each in ledger.collectives:
            key = (each.group.name, each.operation, each.what)
            before = found[key].count if key in found else 0.0
            count = _count(detail, each, layers, forward)
            found[key] = _exchange(detail, each, count + before)
    return list(found.values())


def _pipeline(detail: PlanDetail) -> list[Exchange]:
    """Activations to the next stage and gradients to the one before, chunk by chunk."""
    view, stack, vpp = detail.view, detail.stack, detail.plan.vpp
    sends, tied = stage_sends(view, stack), tied_sends(view, stack)
    before = (detail.stage - 1) % detail.pipeline.stages
    down = detail.pipeline.micro_batches * (vpp - detail.last)
    back = detail.pipeline.micro_batches * (vpp - (detail.stage == 0))
    found = [
        _send(detail, sends, detail.stage, "activations to the next stage", down),
        _send(detail, sends, before, "gradients to the stage before", back),
        _send(detail, tied, detail.stage, "tied embedding gradients", 1),
        _exchange(detail, arrival_gather(view, stack), down + back),
    ]
    return [exchange for exchange in found if exchange.payload_bytes]


def _send(detail: PlanDetail, sends: StageSends, stage: int, what: str, count: int) -> Exchange:
    """Over the link that leads on from a stage: from this one, or from the one before it."""
    there = detail.plan.cluster.pools[int(detail.at(sends.there, stage))].gpu.name
    same_type = detail.pipeline.segment_at(stage).gpu == there
    stages = np.array(detail.pipeline.stages)
    near, node = (
        np.where(same_type and detail.at(beside, stage), stages, 1)
        for beside in (sends.near, sends.node)
    )
    payload = np.array(detail.at(sends.payload_bytes, stage))
    group = RankGroup("pp", stages, near, node)
    return _exchange(detail, Collective(group, "send", what, payload), count)
