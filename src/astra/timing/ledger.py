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
COLLECTIVES = {
    "all-gather": all_gather_s,
    "reduce-scatter": reduce_scatter_s,
    "all-reduce": all_reduce_s,
    "all-to-all": all_to_all_s,
}


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

    def one_s(self, gpu: Gpu) -> Floats:
        """One of them, as if nothing else ran. [s]"""
        group = self.group
        if self.operation == "send":
            inside = np.maximum(group.domain, group.node) >= group.ranks
            return p2p_s(self.payload_bytes, inside, gpu)
        collective = COLLECTIVES[self.operation]
        return collective(self.payload_bytes, group.ranks, group.domain, gpu, group.node)
