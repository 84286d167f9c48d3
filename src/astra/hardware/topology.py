"""Where the ranks of a group lie: how many share a link domain or a node. Columns in and out.

Rank r sits on GPU r: domains and nodes are filled in order. In Megatron's rank order
tp-cp-ep-dp-pp a group of n ranks with stride s is  b + s i,  i = 0 .. n - 1, and the groups of
one kind tile the world in blocks of n s ranks.
"""

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from astra.columns import factorized
from astra.hardware.cluster import Gpu, Pool

Ints: TypeAlias = npt.NDArray[np.int64]
IntsLike: TypeAlias = int | npt.NDArray[np.integer[Any]]

USUAL_NODE_GPUS = 8  # of HGX boards, and the widest tensor parallelism that is common


def _columns(*values: IntsLike) -> tuple[Ints, ...]:
    return tuple(np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for value in values)))


def widest_tensor_group(gpu: Gpu) -> int:
    """GPUs that a tensor-parallel group may have: those of a link domain or a node. Where these are
    few, as many as elsewhere, over the network.
    """
    return max(gpu.link.domain_gpus, gpu.node.gpus, USUAL_NODE_GPUS)


def ranks_per_domain(
    size: IntsLike, stride: IntsLike, domain_gpus: IntsLike, world: IntsLike | None = None
) -> Ints:
    """Fewest ranks that a group has in a domain it touches, over all groups. [ranks]

    `size` where every group lies inside one domain. The fewest rule: they bring the fewest
    NICs. `world` is the number of ranks; without it, every position that can occur counts.
    """
    return placement(size, stride, domain_gpus, world)[0]


def domains_per_group(
    size: IntsLike, stride: IntsLike, domain_gpus: IntsLike, world: IntsLike | None = None
) -> Ints:
    """Most domains that one group touches, over all groups; 1 where none crosses. [domains]"""
    return placement(size, stride, domain_gpus, world)[1]


def placement(
    size: IntsLike, stride: IntsLike, domain_gpus: IntsLike, world: IntsLike | None = None
) -> tuple[Ints, Ints]:
    """Fewest ranks per touched domain, and most domains per group. Also serves for nodes."""
    unbounded = np.iinfo(np.int64).max
    n, s, d, w = _columns(size, stride, domain_gpus, unbounded if world is None else world)
    block = n * s
    inside = (n == 1) | (w <= d) | (d % block == 0)
    apart = ~inside & (s >= d)
    even = ~inside & ~apart & (d % s == 0) & (block % d == 0)
    ranks = np.select([inside, apart, even], [n, np.ones_like(n), d // s], default=0)
    domains = np.select([inside, apart, even], [np.ones_like(n), n, block // d], default=0)
    odd = ranks == 0
    if odd.any():
        keys = np.stack([n[odd], s[odd], d[odd], np.minimum(w // block, d)[odd]], axis=1)
        distinct, back = np.unique(keys, axis=0, return_inverse=True)
        found = np.array([_odd_placement(*map(int, key)) for key in distinct], dtype=np.int64)
        ranks[odd], domains[odd] = found[back.reshape(-1)].T
    return ranks, domains


def _odd_placement(n: int, s: int, d: int, blocks: int) -> tuple[int, int]:
    """The same for one kind of group that does not tile its domains evenly; s < d.

    A block of n s GPUs is cut by domain boundaries. Its s groups take turns, so of a piece of
    L GPUs the least that a group has, if any, is  max(1, floor(L / s)).  The end pieces are the
    shortest. Block after block starts at another place in its domain, until that repeats.
    """
    block = n * s
    places = min(blocks, d // math.gcd(block, d))
    start = np.arange(places, dtype=np.int64) * (block % d) % d
    head = np.minimum(d - start, block)
    tail = (start + block - 1) % d + 1
    fewest = np.maximum(1, np.minimum(head, tail) // s)
    # Of the groups that begin in the block's first domain, the last one reaches farthest.
    first = start + np.minimum(s, d - start) - 1
    crossed = (first + block - s) // d
    return int(fewest.min()), int(crossed.max()) + 1


def allowed_counts(pool: Pool) -> tuple[int, ...]:
    """GPU counts that a plan may take of a pool: 1, 2, 4 ... inside a node, then whole nodes."""
    node = min(pool.gpu.node.gpus, pool.count)
    inside = (2**power for power in range(node.bit_length()) if 2**power < node)
    return (*inside, *range(node, pool.count + 1, node))


def even_share(count: IntsLike, most: int) -> Ints:
    """GPUs of a job in each link domain (or node): the most that share it out evenly. [GPUs]

    A job of 256 GPUs takes 64 of each 72-GPU domain, so that groups do not straddle two.
    """
    (counts,) = _columns(count)
    distinct, back = factorized(counts)
    shares = [max(n for n in range(1, min(most, c) + 1) if c % n == 0) for c in distinct.tolist()]
    return np.array(shares, dtype=np.int64)[back]
