"""What the groups of a plan's busiest stage exchange, as its seconds are counted.

Bytes are those that the seconds are counted from: `timing` keeps the ledger, with the payload of
every exchange and how often a step has it; here it is picked for one stage.
"""

import numpy as np

from astra.explain.plan_detail import PlanDetail
from astra.explain.result import Exchange
from astra.model.layer_kinds import layer_kinds
from astra.timing import ledger as timed
from astra.timing.data_parallel import data_parallel_collectives
from astra.timing.layer import layer_collectives
from astra.timing.stage_work import StageSends, arrival_gather, stage_sends, tied_sends

# By a ring or directly, one of n ranks sends so many times (n - 1) / n of a payload.
RING_PASSES = {"all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "all-reduce": 2}


def exchanges_of(detail: PlanDetail) -> tuple[Exchange, ...]:
    """All traffic of one GPU of the busiest stage in one step, as its seconds are counted."""
    found = [*_layers(detail), *_pipeline(detail), *_copies(detail)]
    return tuple(exchange for exchange in found if exchange.ranks > 1 and exchange.count > 0)


def _exchange(detail: PlanDetail, each: timed.Collective, count: float) -> Exchange:
    group = each.group
    ranks, domain, node = (int(detail.at(c)) for c in (group.ranks, group.domain, group.node))
    payload = float(detail.at(each.payload_bytes))
    sent = 1.0 if each.operation == "send" else RING_PASSES[each.operation] * (ranks - 1) / ranks
    return Exchange(
        group=group.name,
        operation=each.operation,
        what=each.what,
        ranks=ranks,
        payload_bytes=payload,
        count=count,
        total_bytes=payload * count,
        sent_bytes=payload * count * sent,
        crosses_nodes=node < ranks,
        over="link" if max(domain, node) >= ranks else "network",
    )


def _layers(detail: PlanDetail) -> list[Exchange]:
    """Of all layers; those that are recomputed whole run forward twice. What layers of several
    kinds exchange alike is told once.
    """
    plan, (shape, device) = detail.plan, detail.layer_shape
    forward = 1 + float(detail.at(detail.view.recomputed[0]))
    found: dict[tuple[str, str, str], Exchange] = {}
    for row, kind in enumerate(layer_kinds(plan.model).kinds):
        layers = detail.micro_batches * detail.layers[row]
        for each in layer_collectives(
            plan.model, kind, shape, device, plan.cp_comm_type, str(plan.dispatcher)
        ):
            count = layers * np.asarray(forward * each.forward + each.backward).item()
            known = found.get((each.group.name, each.operation, each.what))
            one = _exchange(detail, each, count + (known.count if known else 0))
            found[one.group, one.operation, one.what] = one
    return list(found.values())


def _pipeline(detail: PlanDetail) -> list[Exchange]:
    """Activations to the next stage and gradients to the one before, chunk by chunk."""
    plan, view, stack = detail.plan, detail.view, detail.stack
    stages, first = plan.pipelines[detail.pipeline].stages, detail.stage == 0
    if stages == 1:
        return []
    sends, tied = stage_sends(view, stack), tied_sends(view, stack)
    before = (detail.stage - 1) % stages
    down = detail.micro_batches * (plan.vpp - detail.last)
    back = detail.micro_batches * (plan.vpp - first)
    found = [
        _send(detail, sends, detail.stage, "activations to the next stage", down),
        _send(detail, sends, before, "gradients to the stage before", back),
        _send(detail, tied, detail.stage, "tied embedding gradients", 1),
        _exchange(detail, arrival_gather(view, stack), down + back),
    ]
    return [exchange for exchange in found if exchange.payload_bytes]


def _send(detail: PlanDetail, sends: StageSends, stage: int, what: str, count: int) -> Exchange:
    """Over the link that leads on from a stage: from this one, or from the one before it."""
    ends = (detail.view.stages.of(detail.view.plans.gpu), sends.there)
    here, there = (detail.plan.cluster.pools[int(detail.at(end, stage))].gpu for end in ends)
    payload = float(detail.at(sends.payload_bytes, stage))
    return Exchange(
        group="pp",
        operation="send",
        what=what,
        ranks=detail.plan.pipelines[detail.pipeline].stages,
        payload_bytes=payload,
        count=count,
        total_bytes=payload * count,
        sent_bytes=payload * count,
        crosses_nodes=here != there or not detail.at(sends.node, stage),
        over="link" if here == there and detail.at(sends.near, stage) else "network",
    )


def _copies(detail: PlanDetail) -> list[Exchange]:
    """Gradients and parameters among the copies of dense weights, and of experts."""
    found = []
    for each in data_parallel_collectives(detail.view, detail.stack):
        forward, backward, once = (detail.at(c) for c in (each.forward, each.backward, each.once))
        count = detail.micro_batches * float(forward + backward) + float(once)
        found.append(_exchange(detail, each, count))
    return found
