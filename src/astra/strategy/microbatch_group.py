"""How many micro-batches in a row an interleaved pipeline works on with one chunk."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@lru_cache(maxsize=1 << 14)
def least_microbatch_group(stages: int, micro_batches: int) -> int | None:
    """The smallest group that Megatron-LM accepts; None where there are too few micro-batches.

    A group has one micro-batch for every stage at least, and what is left after whole groups is
    none or as many. A larger group holds more activations; it may gain where links are slow.

    >>> [least_microbatch_group(*pair) for pair in ((4, 32), (3, 32), (5, 4))]
    [4, 4, None]
    """
    for group in range(stages, micro_batches + 1):
        rest = micro_batches % group
        if rest == 0 or rest >= stages:
            return group
    return None


def microbatch_group_for(stages: int, micro_batches: int) -> int:
    """The smallest group that Megatron-LM accepts, or one per stage: what it then says no to."""
    return least_microbatch_group(stages, micro_batches) or stages


def microbatch_groups_for(stages: Ints, micro_batches: Ints) -> Ints:
    """The same of many pipelines, each pair of numbers looked at once. (plan,)"""
    found = np.array(stages, np.int64)
    rows = np.flatnonzero(micro_batches % np.maximum(stages, 1))
    pairs, at = np.unique(
        np.stack([stages[rows], micro_batches[rows]]), axis=1, return_inverse=True
    )
    each = [microbatch_group_for(depth, count) for depth, count in pairs.T.tolist()]
    found[rows] = np.array(each, np.int64)[at.reshape(-1)]  # NumPy 2.0 keeps the axis
    return found
