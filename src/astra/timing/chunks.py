"""Seconds of the chunks of interleaved stages, shared out from those of whole stages."""

from dataclasses import dataclass

import numpy as np

from astra.strategy.plans import Floats, Plans
from astra.strategy.stages import Stages, chunk_layers
from astra.timing.stage import StageTime


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ChunkTimes:
    """Seconds of each chunk of the stages of one pipeline. (chunk, slot, plan)"""

    forward_s: Floats
    backward_s: Floats
    first_gather_s: Floats  # on top of the first micro-batch's forward


def chunk_times(plans: Plans, stages: Stages, times: StageTime, pipeline: int) -> ChunkTimes:
    """A stage's seconds shared out among its chunks by their layers; the ends lie at the ends.

    All stages gather their parameters at once when the step begins, so only the first stage's
    first chunk waits for it.
    """
    share = chunk_shares(plans, stages)[:, pipeline]
    first = np.zeros_like(share)
    first[0] = 1.0
    place = np.arange(share.shape[0])[:, np.newaxis, np.newaxis]
    last = np.broadcast_to((place == plans.vpp - 1).astype(np.float64), share.shape)

    def of(column: Floats) -> Floats:
        return np.asarray(column[pipeline])

    def spread(whole: Floats, way: str) -> Floats:
        head, start = of(times.part(f"head_{way}_s")), of(times.part(f"embedding_{way}_s"))
        return share * (of(whole) - head - start) + last * head + first * start

    opening = first * stages.embedding[pipeline] * share
    return ChunkTimes(
        forward_s=spread(times.whole_forward_s, "forward"),
        backward_s=spread(times.whole_backward_s, "backward"),
        first_gather_s=opening * of(times.first_gather_s()),
    )


def chunk_shares(plans: Plans, stages: Stages) -> Floats:
    """What each chunk has of its stage's layers; the first has all of none. (chunk, ..., plan)

    Multi-token prediction lies on the last chunk of all, which may hold nothing else.
    """
    chunks = chunk_layers(plans, stages.plan_slot, stages.count > 0)
    if plans.mtp_layers.any():
        place = np.arange(len(chunks))[:, np.newaxis, np.newaxis, np.newaxis]
        behind = stages.head & (place == plans.vpp - 1)
        chunks = chunks + np.where(behind, plans.mtp_layers, 0)
    total = chunks.sum(axis=0)
    share = chunks / np.maximum(total, 1)
    share[0] = np.where(total == 0, 1.0, share[0])
    return share
