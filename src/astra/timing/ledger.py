"""What groups of ranks exchange and how often: seconds and bytes are both counted from it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astra.hardware.cluster import Gpu
from astra.hardware.topology import ranks_per_domain
from astra.timing.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    p2p_s,
    reduce_scatter_s,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
COLLECTIVES = {
    "all-gather": all_gather_s,
    "reduce-scatter": reduce_scatter_s,
    "all-reduce": all_reduce_s,
    "all-to-all": all_to_all_s,
}
# How often (n - 1) / n of a payload leaves one of n ranks, by a ring or directly.
RING_PASSES = {"all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "all-reduce": 2}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RankGroup:
    """One kind of group: its ranks, those that share a link domain, and those that share a node."""

    name: str  # tp, cp, ep, etp, dp, edp (replicas of an expert) or make (of other makes)
    ranks: Ints
    domain: Ints
    node: Ints

    @classmethod
    def of(cls, name: str, ranks: Ints, stride: Ints, domain: Ints, node: Ints) -> "RankGroup":
        """Neighbours are a stride apart; `domain` and `node` GPUs of the job lie in each."""
        near, beside = (ranks_per_domain(ranks, stride, gpus) for gpus in (domain, node))
        return cls(name, ranks, near, beside)

    @property
    def is_near(self) -> Flags:
        """All of its ranks share a link domain or a node."""
        return np.maximum(self.domain, self.node) >= self.ranks


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Collective:
    """A collective of such groups, or a send to a neighbour in them. Columns."""

    group: RankGroup
    operation: str  # all-gather, reduce-scatter, all-reduce, all-to-all or send
    what: str
    payload_bytes: Floats  # the whole tensor of one exchange
    forward: Floats | float = 0.0  # times in the forward pass of a micro-batch
    backward: Floats | float = 0.0  # and in its backward pass
    once: Floats | float = 0.0  # times in a step, beside those

    @property
    def sent_fraction(self) -> Floats | float:
        """Of a payload, what one rank sends."""
        if self.operation == "send":
            return 1.0
        return RING_PASSES[self.operation] * (self.group.ranks - 1) / self.group.ranks

    def one_s(self, gpu: Gpu) -> Floats:
        """One of them, as if nothing else ran. [s]"""
        group = self.group
        if self.operation == "send":
            return p2p_s(self.payload_bytes, group.is_near, gpu)
        collective = COLLECTIVES[self.operation]
        return collective(self.payload_bytes, group.ranks, group.domain, gpu, group.node)
