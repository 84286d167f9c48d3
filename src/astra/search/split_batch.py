"""The micro-batches of a step, split among replica groups."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_SPLITS = 64  # ways to take off what is too much that are looked at for each group

Split = tuple[tuple[int, int], ...]  # replicas of one group and their micro-batches


class GroupShare(NamedTuple):
    """A replica group, and the most micro-batches that each of its replicas has time for."""

    replicas: int
    micro_batches: int
    unit: int  # micro-batches come in so many
    block: int  # replicas that take equally many, since experts lie on all of them

    @property
    def total(self) -> int:
        """Micro-batches of all its replicas."""
        return self.replicas * self.micro_batches


def split_batch(groups: Sequence[GroupShare], needed: int) -> list[tuple[Split, ...]]:
    """Micro-batches of every group that add up to what is needed, in a few ways, or in none.

    What there is time for beyond that is taken off some replicas in whole units: as much as can be
    off one group, each in turn. A group then has replicas of two kinds at most.
    """
    excess = sum(group.total for group in groups) - needed
    found: dict[tuple[Split, ...], None] = {}
    for first in range(len(groups)) if excess >= 0 else ():
        rest = sorted(
            set(range(len(groups))) - {first},
            key=lambda row: -groups[row].unit * groups[row].block,
        )
        order = [first, *rest]
        taken = next(_taken_off([groups[row] for row in order], excess), None)
        if taken is not None:
            blocks = dict(zip(order, taken, strict=True))
            found[tuple(_split(group, blocks[row]) for row, group in enumerate(groups))] = None
    return list(found)


def _taken_off(groups: Sequence[GroupShare], excess: int) -> Iterator[tuple[int, ...]]:
    """Blocks of replicas of each group that do a unit less, in all ways that take off `excess`."""
    if not groups:
        if excess == 0:
            yield ()
        return
    group, size = groups[0], groups[0].unit * groups[0].block
    units = group.micro_batches // group.unit - 1  # every replica keeps one at least
    most = min(excess // size, units * group.replicas // group.block)
    for blocks in range(most, max(most - MAX_SPLITS, -1), -1):
        for others in _taken_off(groups[1:], excess - blocks * size):
            yield (blocks, *others)


def _split(group: GroupShare, blocks: int) -> Split:
    """Replicas that do all, and those that do a unit less."""
    units, fewer = divmod(blocks * group.block, group.replicas)
    count = group.micro_batches - units * group.unit
    if not fewer:
        return ((group.replicas, count),)
    return ((group.replicas - fewer, count), (fewer, count - group.unit))
