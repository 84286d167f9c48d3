"""How many micro-batches an interleaved pipeline takes in turn on one chunk."""

from functools import lru_cache


@lru_cache(maxsize=1 << 14)
def least_group(stages: int, micro_batches: int) -> int | None:
    """The smallest group that Megatron-LM accepts; None where there are too few micro-batches.

    A group has one micro-batch for every stage at least, and what is left after whole groups is
    none or as many. A larger group only adds activations in flight.

    >>> least_group(4, 32), least_group(3, 32), least_group(5, 4)
    (4, 4, None)
    """
    for group in range(stages, micro_batches + 1):
        rest = micro_batches % group
        if rest == 0 or rest >= stages:
            return group
    return None
