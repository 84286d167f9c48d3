"""What would be with a faster network, more memory, another micro-batch or other GPUs."""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from astra.hardware.cluster import Gpu
from astra.hardware.topology import allowed_counts
from astra.search.again import search_again
from astra.search.against import space_of
from astra.search.explained import (
    Change,
    Subject,
    loss_of,
)
from astra.strategy.plan import Plan
from astra.strategy.space import Space

MORE_MEMORY = "1.25 x the memory"
AS_IS = "the best plan as things are"
RATES = ("bf16", "fp16", "tf32", "fp8", "fp4", "fp32")


def repriced(subject: Subject) -> list[Change]:
    """The same plan on other hardware."""
    kinds: dict[str, Callable[[Gpu], Gpu]] = {
        "2 x the network": lambda gpu: _faster_nic(gpu, 2.0),
        "2 x the link between GPUs": lambda gpu: _faster_link(gpu, 2.0),
        "1.5 x the memory bandwidth": lambda gpu: msgspec.structs.replace(
            gpu, memory_bytes_per_s=1.5 * gpu.memory_bytes_per_s
        ),
        "1.5 x the compute": lambda gpu: _faster_compute(gpu, 1.5),
    }
    if len(subject.plan.gpus) > 1:
        kinds |= {f"2 x the network of {name}": _nic_of(name) for name in subject.plan.gpus}
    found = []
    for what, change in kinds.items():
        changed = _on(subject.plan, change)
        found.append(
            Change(what=what, how="repriced", plan=loss_of(changed, subject), same_plan=True)
        )
    return found


def _nic_of(name: str) -> Callable[[Gpu], Gpu]:
    """A faster network on one type: the slower of two ends rules what passes between types."""
    return lambda gpu: _faster_nic(gpu, 2.0) if gpu.name == name else gpu


def _faster_nic(gpu: Gpu, times: float) -> Gpu:
    node = msgspec.structs.replace(gpu.node, nic_bytes_per_s=times * gpu.node.nic_bytes_per_s)
    return msgspec.structs.replace(gpu, node=node)


def _faster_link(gpu: Gpu, times: float) -> Gpu:
    link = msgspec.structs.replace(
        gpu.link,
        bytes_per_s=times * gpu.link.bytes_per_s,
        peer_bytes_per_s=times * gpu.link.peer_bytes_per_s,
    )
    return msgspec.structs.replace(gpu, link=link)


def _faster_compute(gpu: Gpu, times: float) -> Gpu:
    rates = {f"{name}_flops_per_s": getattr(gpu, f"{name}_flops_per_s") for name in RATES}
    faster = {name: times * rate for name, rate in rates.items() if rate}
    return msgspec.structs.replace(gpu, **faster)


def _larger(gpu: Gpu, times: float) -> Gpu:
    return msgspec.structs.replace(
        gpu, memory_bytes=times * gpu.memory_bytes, usable_bytes=times * gpu.usable_bytes
    )


def _on(plan: Plan, change: Callable[[Gpu], Gpu]) -> Plan:
    """The plan on changed GPUs."""
    pools = [msgspec.structs.replace(pool, gpu=change(pool.gpu)) for pool in plan.cluster.pools]
    cluster = msgspec.structs.replace(plan.cluster, pools=tuple(pools))
    return msgspec.structs.replace(plan, cluster=cluster)


def searched(subject: Subject) -> list[Change]:
    """The best plans of the same question with something different."""
    plan = subject.plan
    spaces: dict[str, Space] = {}
    if not subject.asked.searched:
        spaces[AS_IS] = space_of(subject)
    spaces[MORE_MEMORY] = space_of(replace(subject, plan=_on(plan, lambda gpu: _larger(gpu, 1.25))))
    if len(plan.cluster.pools) > 1:
        spaces |= _other_counts(subject)
        return [_best_of(what, space, subject) for what, space in spaces.items()]
    for size in (plan.micro_batch // 2, plan.micro_batch * 2):
        if size and plan.global_batch % size == 0:
            spaces[f"micro-batch {size}"] = space_of(subject, [f"micro_batch={size}"])
    count = _fewer(plan)
    if count:
        spaces[f"{count} GPUs"] = space_of(replace(subject, plan=_with_count(plan, count)))
    return [_best_of(what, space, subject) for what, space in spaces.items()]


def _other_counts(subject: Subject) -> dict[str, Space]:
    """Of every type twice as many, and none."""
    plan, found = subject.plan, {}
    cluster = msgspec.structs.replace(plan.cluster, max_gpus=None)
    for row, pool in enumerate(cluster.pools):
        twice = msgspec.structs.replace(pool, count=2 * pool.count)
        before, behind = cluster.pools[:row], cluster.pools[row + 1 :]
        ways = {
            f"{twice.count} {pool.gpu.name}": (*before, twice, *behind),
            f"no {pool.gpu.name}": (*before, *behind),
        }
        for what, pools in ways.items():
            changed = msgspec.structs.replace(cluster, pools=pools)
            other = msgspec.structs.replace(plan, cluster=changed)
            found[what] = space_of(replace(subject, plan=other))
    return found


def _fewer(plan: Plan) -> int:
    """A tenth fewer GPUs than the plan runs on, in whole nodes; 0 where there are none."""
    (pool,), used = plan.cluster.pools, sum(plan.gpus.values())
    counts = [count for count in allowed_counts(pool) if count <= 0.9 * used]
    return max(counts, default=0)


def _with_count(plan: Plan, count: int) -> Plan:
    (pool,) = plan.cluster.pools
    pools = (msgspec.structs.replace(pool, count=count),)
    cluster = msgspec.structs.replace(plan.cluster, pools=pools, max_gpus=None)
    return msgspec.structs.replace(plan, cluster=cluster)


def _best_of(what: str, space: Space, subject: Subject) -> Change:
    subject.say(f"the best plan with {what}")
    plan = search_again(subject, space).plan
    if plan is None:
        return Change(what=what, how="searched", plan=None, same_plan=False)
    same = msgspec.structs.replace(plan, cluster=subject.plan.cluster) == subject.plan
    return Change(what=what, how="searched", plan=loss_of(plan, subject), same_plan=same)
