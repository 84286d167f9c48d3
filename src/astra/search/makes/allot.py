"""Micro-batches shared out among makes, and the plan that comes of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import msgspec

from astra.strategy.plan import Pipeline, Plan
from astra.strategy.plans import WORDS, code

NEVER_MORE = 64  # ways to share out what is too much that are looked at


@dataclass(frozen=True, slots=True)
class ReplicaShare:
    """One make of a plan: its replicas, and the most micro-batches that each has time for."""

    replicas: int
    micro_batches: int
    unit: int  # micro-batches come in so many
    block: int  # replicas that take the same number, as experts lie on several

    @property
    def takes(self) -> int:
        return self.replicas * self.micro_batches

    @property
    def size(self) -> int:
        """Micro-batches that can be taken off it at least."""
        return self.unit * self.block


Share = tuple[tuple[int, int], ...]  # replicas and their micro-batches


def block_of(tp: int, cp: int, ep: int, etp: int) -> int:
    """Replicas that one set of experts lies on: they exchange tokens in every micro-batch."""
    return ep * etp // gcd(tp * cp, ep * etp)


def shared_out(parts: Sequence[ReplicaShare], needed: int) -> list[tuple[Share, ...]]:
    """Micro-batches of every make that add up to what is needed, in a few ways, or in none.

    What they have time for beyond that is taken off some replicas, in whole units: as much as can
    be of one make, of each in turn.
    """
    left = sum(part.takes for part in parts) - needed
    found: dict[tuple[Share, ...], None] = {}
    for first in range(len(parts)) if left >= 0 else ():
        rest = sorted(set(range(len(parts))) - {first}, key=lambda row: -parts[row].size)
        order = [first, *rest]
        for taken in _amounts([parts[row] for row in order], left):
            amounts = dict(zip(order, taken, strict=True))
            found[tuple(_share(part, amounts[row]) for row, part in enumerate(parts))] = None
            break
    return list(found)


def _amounts(parts: Sequence[ReplicaShare], left: int) -> Iterator[tuple[int, ...]]:
    """Blocks of replicas of each part that do a unit less, in all ways that take off `left`."""
    if not parts:
        if left == 0:
            yield ()
        return
    part, rest = parts[0], parts[1:]
    rounds = part.micro_batches // part.unit - 1  # every replica keeps one at least
    most = min(left // part.size, rounds * part.replicas // part.block)
    for number in range(most, max(most - NEVER_MORE, -1), -1):
        for others in _amounts(rest, left - number * part.size):
            yield (number, *others)


def _share(part: ReplicaShare, blocks: int) -> Share:
    """Replicas that do all, and those that do a unit less."""
    rounds, some = divmod(blocks * part.block, part.replicas)
    count = part.micro_batches - rounds * part.unit
    if not some:
        return ((part.replicas, count),)
    return ((part.replicas - some, count), (some, count - part.unit))


def joined(makes: Sequence[Plan], shares: Sequence[Share]) -> Plan:
    """Plans of one make each as one plan, with these replicas and micro-batches."""
    first = makes[0]
    pipelines = []
    for make, share in zip(makes, shares, strict=True):
        (own,) = make.pipelines
        segments = tuple(
            msgspec.structs.replace(
                segment,
                ep=None if make.ep == first.ep else make.ep,
                etp=None if make.etp == first.etp else make.etp,
            )
            for segment in own.segments
        )
        pipelines += [
            Pipeline(replicas=replicas, micro_batches=count, segments=segments)
            for replicas, count in share
        ]
    sharded = code("sharding", first.sharding) != WORDS["sharding"].index("none")
    copies = sum(replicas for replicas, _ in shares[0]) * first.cp
    every = sum(pipeline.replicas for pipeline in pipelines) * first.cp
    return msgspec.structs.replace(
        first,
        pipelines=tuple(pipelines),
        shard_group=copies if sharded else 1,
        microbatch_group=first.microbatch_group if len(pipelines) == 1 else None,
        sequence_parallel=any(make.sequence_parallel for make in makes),
        overlap_grad_reduce=every > 1,
        overlap_param_gather=sharded and every > 1,
    )
