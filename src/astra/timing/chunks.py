"""Seconds of the chunks of interleaved stages, shared out from those of whole stages."""

from collections.abc import Callable
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
    opening = _first(share) * stages.embedding[pipeline] * share
    spread = _spread(plans, times, pipeline, share)
    return ChunkTimes(
        forward_s=spread(times.whole_forward_s, "forward"),
        backward_s=spread(times.whole_backward_s, "backward"),
        first_gather_s=opening * np.asarray(times.first_gather_s()[pipeline]),
    )


def chunk_parts(
    plans: Plans, stages: Stages, times: StageTime, pipeline: int
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """What the forward and the backward seconds of `chunk_times` are made of. (chunk, slot, plan)

    In the order in which an operation is drawn; in truth layers compute and exchange by turns.
    """
    share = chunk_shares(plans, stages)[:, pipeline]
    spread = _spread(plans, times, pipeline, share)

    def host(way: str, copies_s: Floats) -> Floats:
        whole = times.part(f"offload_{way}_s") + copies_s
        return share * whole[pipeline]

    def traffic(way: str) -> dict[str, Floats]:
        names = ("tensor", "context", "expert")
        return {name: share * times.part(f"{name}_{way}_s")[pipeline] for name in names}

    forward = {
        "data": share * times.gather_forward_s[pipeline],
        "compute": spread(times.part("forward_s"), "forward"),
        **traffic("forward"),
        "host": host("forward", times.copies_s[0]),
    }
    backward = {
        "recompute": share * times.recompute_s[pipeline],
        "compute": spread(times.part("backward_s"), "backward"),
        **traffic("backward"),
        "data": share * times.gather_backward_s[pipeline],
        "host": host("backward", times.copies_s[1]),
    }
    return forward, backward


def _spread(
    plans: Plans, times: StageTime, pipeline: int, share: Floats
) -> Callable[[Floats, str], Floats]:
    """Shares out a column that has the ends in it, of one way."""
    first = _first(share)
    place = np.arange(share.shape[0])[:, np.newaxis, np.newaxis]
    last = np.broadcast_to((place == plans.vpp - 1).astype(np.float64), share.shape)

    def spread(whole: Floats, way: str) -> Floats:
        ends = (times.part(f"{end}_{way}_s")[pipeline] for end in ("head", "embedding"))
        head, start = map(np.asarray, ends)
        return share * (np.asarray(whole[pipeline]) - head - start) + last * head + first * start

    return spread


def _first(share: Floats) -> Floats:
    """1 for the first chunk."""
    first = np.zeros_like(share)
    first[0] = 1.0
    return first


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
