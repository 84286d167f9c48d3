"""Which predictions behind an answer contradict the hardware, as notes."""

from collections.abc import Iterable
from dataclasses import replace

from astra.cost.result import PricedPlan
from astra.hardware.cluster import Cluster
from astra.notes import Note, NoteCode, note
from astra.search.result import Result
from astra.timing.contradictions import Contradiction, contradictions, relatives_of

LEAST_FRACTION = 0.01  # of the step, that must be at stake
MOST_NOTES = 2
PARTS = {
    "kernels": ("forward", "backward", "recompute"),
    "tensor": ("tensor_comm",),
    "expert": ("expert_comm",),
    "data": ("data_comm",),
}


def with_contradictions(found: Result, clusters: Iterable[Cluster] = ()) -> Result:
    """A result that says which of its predictions the hardware does not explain.

    Those that the best plan uses are compared with all others of the question and of `clusters`;
    one alone with its relatives in the catalogue, where it is the one that is too slow. One link
    at two speeds is told without any traffic too: that may be why there is none.
    """
    best = found.best
    if best is None:
        return found
    pools = (pool for cluster in (found.query.cluster, *clusters) for pool in cluster.pools)
    compared = {pool.gpu.name: pool.gpu for pool in pools}
    used = [compared[name] for name in best.gpus]
    alone = len(compared) == 1
    others = relatives_of(used[0]) if alone else compared.values()
    said: dict[tuple[str, str], tuple[float, Note]] = {}
    for each in contradictions(best.plan, found.query.stack, used, others):
        gpu = each.slower if each.slower in best.gpus else each.faster
        stake = _at_stake(each, best, gpu)
        if _is_told(each, alone, gpu, stake) and stake >= said.get((each.work, gpu), (0.0,))[0]:
            said[each.work, gpu] = stake, _note(each, best)
    worst = sorted(said.values(), key=lambda pair: -pair[0])[:MOST_NOTES]
    return replace(found, notes=(*found.notes, *(text for _, text in worst)))


def _is_told(each: Contradiction, alone: bool, gpu: str, stake: float) -> bool:
    too_slow = gpu == each.slower
    if each.same_link and too_slow:
        return True
    return stake >= LEAST_FRACTION and (each.same_link or too_slow or not alone)


def _at_stake(each: Contradiction, best: PricedPlan, gpu: str) -> float:
    """What of the step would go, or come, if its work took as long as on the other GPU."""
    change = 1 - 1 / each.ratio if gpu == each.slower else each.ratio - 1
    return change * _share(each, best)


def _share(each: Contradiction, best: PricedPlan) -> float:
    return sum(best.step_parts_s.get(name, 0.0) for name in PARTS[each.work]) / best.step_s


def _note(each: Contradiction, best: PricedPlan) -> Note:
    return note(
        NoteCode.CONTRADICTS_HARDWARE,
        work=each.work,
        slower=each.slower,
        faster=each.faster,
        ratio=each.ratio,
        same_link=each.same_link,
        step_fraction=_share(each, best),
    )
