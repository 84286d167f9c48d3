"""Which makes can be part of a plan that does the whole batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astra.hardware.cluster import Cluster
from astra.strategy.plans import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Amount:
    """What makes of one type can do, each beside a common choice. (make,)"""

    pool: int
    common: Ints
    samples: Ints
    gpus: Ints
    best: Ints  # as many samples as others with this cut do, or more


def required(
    amounts: Sequence[Amount], commons: int, needed: int, cluster: Cluster
) -> list[Floats]:
    """By type, samples that a make must do so that the best of the other types do the rest, on no
    more GPUs than there may be; 1 at least. (make,)
    """
    highest = np.zeros((len(amounts), max(commons, 1)))
    rates = np.zeros(highest.shape)
    for row, own in enumerate(amounts):
        np.maximum.at(highest[row], own.common, own.best)
        np.maximum.at(rates[row], own.common, own.best / own.gpus)
    found = []
    for row, own in enumerate(amounts):
        others = np.array([at for at in range(len(amounts)) if at != row], np.int64)
        rest = highest[others].sum(axis=0)[own.common]
        if cluster.max_gpus is not None:
            caps = [cluster.pools[amounts[at].pool].count for at in others]
            left = cluster.max_gpus - own.gpus
            rest = np.minimum(rest, under_cap(rates[others][:, own.common], caps, left))
            rest = np.where(left < 0, -np.inf, rest)
        found.append(np.maximum(needed - rest, 1.0))
    return found


def under_cap(rates: Floats, caps: Sequence[int], cap: Ints) -> Floats:
    """Most samples of so many GPUs in all, the best types first. (column,)

    `rates` (type, column) of one GPU; `caps` of each type; `cap` (column,).
    """
    total, left = np.zeros(rates.shape[1]), np.maximum(cap, 0).astype(np.float64)
    every = np.arange(rates.shape[1])
    for row in np.argsort(-rates, axis=0, kind="stable"):
        share = np.minimum(left, np.array(caps, np.float64)[row])
        total, left = total + share * rates[row, every], left - share
    return total
