"""How fast a cell can be at best, before any of its stages is priced."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astra.hardware.stack import Stack
from astra.search.mixed.cells import Cell, Kind, cuts_in
from astra.search.mixed.columns import one_stage
from astra.strategy.plans import Floats, Ints
from astra.strategy.space import Space
from astra.strategy.stage_view import without_layers
from astra.timing.layer import LayerCache, layers_of

MANY = 1 << 11  # kinds that are priced together

Legal = tuple[Cell, list[Kind]]


@dataclass(frozen=True, slots=True)
class LayerSeconds:
    """Of the kinds of one cell, for one micro-batch; recompute of modules is part of them."""

    whole_s: Floats  # (layer kind, kind) both ways
    forward_s: Floats
    head_s: Floats  # (kind,) of the last stage, both ways
    compute_s: Floats  # (layer kind, kind) part of `whole_s`, but for recompute


def layer_seconds(
    space: Space, cells: Sequence[Legal], stack: Stack, book: LayerCache
) -> list[LayerSeconds]:
    """What every kind takes at least; some at a time, as their operators take memory."""
    found: list[LayerSeconds] = []
    cuts = cuts_in([cell for cell, _ in cells])
    new = [row == 0 or cut is not cuts[row - 1] for row, cut in enumerate(cuts)]
    ends = np.cumsum([len(kinds) * own for (_, kinds), own in zip(cells, new, strict=True)])
    while len(found) < len(cells):
        done = ends[len(found) - 1] if found else 0
        some = slice(len(found), max(int(np.searchsorted(ends, done + MANY)), len(found) + 1))
        found += _layer_seconds(space, cells[some], cuts[some], stack, book)
    return found


def _layer_seconds(
    space: Space, cells: Sequence[Legal], each: Sequence[Cell], stack: Stack, book: LayerCache
) -> list[LayerSeconds]:
    workload = space.workload
    cuts = {cut: kinds for cut, (_, kinds) in zip(each, cells, strict=True)}
    sizes = [len(kinds) for kinds in cuts.values()]
    which = np.repeat(np.arange(len(cuts)), sizes)
    flat = [kind for kinds in cuts.values() for kind in kinds]
    table = one_stage(workload, list(cuts), which, flat)
    layers = layers_of(without_layers(table, workload.task), stack, book)
    ends = np.cumsum(sizes)
    places = {cut: slice(end - size, end) for cut, size, end in zip(cuts, sizes, ends, strict=True)}
    found = []
    for cut, (cell, _) in zip(each, cells, strict=True):
        here, whole, forward, compute = places[cut], [], [], []
        for time in layers.kinds:
            down = time.whole_forward_s[0, 0, here]
            parts = [time.backward_s, time.tensor_backward_s, time.context_backward_s]
            parts += [time.expert_backward_s, *(time.module_s[m] for m in cell.recompute.modules)]
            whole.append(down + sum(part[0, 0, here] for part in parts))
            forward.append(down)
            compute.append((time.forward_s + time.backward_s)[0, 0, here])
        head = (layers.head.forward_s + layers.head.backward_s)[0, 0, here]
        found.append(LayerSeconds(np.array(whole), np.array(forward), head, np.array(compute)))
    return found


def speed_bounds_s(
    cells: Sequence[Legal], layer_s: Sequence[LayerSeconds], counts: tuple[int, ...]
) -> Floats:
    """No plan of a cell is faster. (cell,) [s]

    `counts`: layers of each kind. With S the seconds of all stages, q micro-batches queued at a
    stage and f of its t seconds forward, the view from it is

        T >= S + (K - 1) t - q f,   so   t <= (T - S) / D,   D = K - 1 - q max(f / t).

    Of p stages m are as slow as that and the others have a layer at least; the head counts as
    layers:

        T >= (D + m) (L - (p - m)) / (sum of the m fastest paces) + (p - m) (least seconds)

    and the slowest kind among p stages has a layer too. Also, a stage does K t <= T - A with A the
    seconds of those above it:  T >= L / sum over k of  (1 / K) (1 - 1 / K)^k / (seconds of a layer)
    """
    found = np.zeros(len(cells))
    for row, ((cell, kinds), seconds) in enumerate(zip(cells, layer_s, strict=True)):
        found[row] = _bound_s(cell, kinds, seconds, np.array(counts))
    return found


def _bound_s(cell: Cell, kinds: list[Kind], times: LayerSeconds, counts: Ints) -> float:
    seconds, forward = times.whole_s, times.forward_s
    mean = seconds.mean(axis=1)
    weight = mean * counts.sum() / (mean * counts).sum()
    pace = (seconds / weight[:, np.newaxis]).min(axis=0)  # of a mean layer, (kind,)
    stages = _fastest(kinds, pace, int(counts.sum()))
    if not len(stages):
        return np.inf
    head = float((times.head_s / pace).min())  # as so many layers
    total, count = float(counts.sum()) + head, cell.micro_batches
    share = float((forward / seconds).max())
    speeds, least = np.cumsum(stages), float(weight.min())
    most = len(stages)
    p = np.arange(1, most + 1)[:, np.newaxis]
    m = np.arange(1, most + 1)[np.newaxis]
    slow = count - 1 - (np.minimum(count, p) - 1) * share
    small = np.maximum(p - m, 0) * least  # one layer each, of the lightest kind
    work = (slow + m) * np.maximum(total - small, 0.0) / speeds[np.newaxis] + small * pace.min()
    found = np.where(m <= p, work, np.inf).min(axis=1)
    every = slow[:, 0] * _slowest(kinds, pace, most) * least + total * pace.min()
    stays = (1 - 1 / count) ** np.arange(most)
    return max(float(np.maximum(found, every).min()), total / float((stays * stages).sum() / count))


def _slowest(kinds: list[Kind], pace: Floats, most: int) -> Floats:
    """Of so many stages, the slowest has this pace at least. (stages,)"""
    found, reached = np.full(most, np.inf), 0
    of_pool: dict[int, int] = {}
    for row in np.argsort(pace, kind="stable").tolist():
        kind = kinds[row]
        of_pool[kind.pool] = max(of_pool.get(kind.pool, 0), kind.most)
        now = min(sum(of_pool.values()), most)
        found[reached:now] = pace[row]
        reached = max(reached, now)
    return found


def _fastest(kinds: list[Kind], pace: Floats, layers: int) -> Floats:
    """Speeds of stages, the fastest first: of each type the concave hull over its kinds."""
    speeds: list[float] = []
    for pool in {kind.pool for kind in kinds}:
        best: dict[int, float] = {}
        for kind, second in zip(kinds, pace.tolist(), strict=True):
            if kind.pool == pool:
                best[kind.most] = max(best.get(kind.most, 0.0), kind.most / second)
        at, total = 0, 0.0
        while best:
            slopes = {most: (speed - total) / (most - at) for most, speed in best.items()}
            to = max(slopes, key=lambda most: (slopes[most], most))
            if slopes[to] <= 0:
                break
            speeds += [slopes[to]] * (to - at)
            at, total = to, best[to]
            best = {most: speed for most, speed in best.items() if most > at}
    return np.array(sorted(speeds, reverse=True)[:layers])
