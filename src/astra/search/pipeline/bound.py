"""What no pipeline of a global setting can beat, whatever it recomputes: told as the gap.

No stage takes longer than B. The d-th stage from the end of a segment has at least d micro-batches
in flight, so an option holds so many layers at most, recompute taken to cost nothing. For every
joint choice of how finely each type is cut, p stages together, the types must hold the model;
with S the least seconds of all layers then, K micro-batches, and f <= phi t on every stage:

    T >= K B,    T >= S + (K - 1 - (min(p, K) - 1) phi) B,    T >= 2 S + (K - 1 - p) B   (K > p)

The second is the way down to the slowest stage and back, the third that of a stage which waits for
those below it in either pass. S falls as B grows, so the least over all B is told. What a stage
does behind its last backward counts in the first alone: it need not end last.

Interleaved stages obey the first. With v chunks and groups of p micro-batches or more, a stage has
(v - 1) p + 1 chunks in flight or more, so (p + 1) / 2 micro-batches at least.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from astra.search.pipeline.plan_columns import GlobalSetting, SegmentOption
from astra.search.pipeline.stage_lines import INSIDE, LAST, StageLayers, StageLines
from astra.strategy.plans import Floats, Ints
from astra.timing.constants import timing_constants
from astra.timing.stage import exposed_data_parallel_s

BOUND_PACES = 48  # between the least pace there can be and that of the best step known
CHOICES_PER_BLOCK = 1 << 12  # joint choices of finenesses looked at together
ROUNDING_LAYERS = 1e-6  # against rounding


@dataclass(frozen=True, slots=True, eq=False)
class _LayerBounds:
    """At least, of a layer of any kind, in layers of mean weight. (option,)"""

    layer_s: Floats
    once_s: Floats  # behind the last backward, once a step
    states_bytes: Floats
    saved_bytes: Floats  # a micro-batch, whatever is recomputed
    free_bytes: Floats  # at most, of a stage
    head_layers: Floats  # the seconds of the last stage's head, in layers
    phi: float  # share of the forward pass in a stage's seconds, at most


def setting_bound_s(
    setting: GlobalSetting,
    options: list[SegmentOption],
    lines: StageLines,
    layers: StageLayers,
    best_s: float,
    group: int,
) -> float:
    """No pipeline of the setting is faster; `best_s` where that is all that is known. [s]

    `lines`: with nothing and with all layers recomputed. `group`: layers that may be recomputed as
    one, at most.
    """
    pool, most = np.array([each.pool for each in options]), np.array([o.most for o in options])
    gpus = np.array([option.stage_gpus for option in options])
    count, number = setting.micro_batches, layers.layers
    each = _layer_bounds(setting, lines, layers, gpus, best_s, group)
    types = np.unique(pool)
    fastest = [float((most / each.layer_s)[pool == row].max()) for row in types]
    low_s, top_s = number / sum(fastest), best_s / count
    if low_s >= top_s:
        return best_s
    pace_s = low_s * (top_s / low_s) ** np.linspace(0.0, 1.0, BOUND_PACES)
    plain = _held(each, each.layer_s, pace_s, most, count, layers.has_one_kind)
    ended = _held(each, each.layer_s + each.once_s / count, pace_s, most, count, False)
    least_s, classes = best_s, [_classes(pool == row, most) for row in types]
    every = np.array(list(product(*(range(len(own)) for own in classes))))
    for start in range(0, len(every), CHOICES_PER_BLOCK):
        some = every[start : start + CHOICES_PER_BLOCK]
        used = (some > 0).sum(axis=1) > 1
        found = _least_s(classes, some[used], plain, ended, each, pace_s, count, number)
        least_s = min(least_s, found)
    return least_s


def interleaved_bound_s(
    setting: GlobalSetting,
    options: list[SegmentOption],
    lines: StageLines,
    layers: StageLayers,
    best_s: float,
    group: int,
) -> float:
    """The same for pipelines whose stages have several chunks each. [s]"""
    pool, most = np.array([each.pool for each in options]), np.array([o.most for o in options])
    gpus = np.array([option.stage_gpus for option in options])
    count, number = setting.micro_batches, layers.layers
    each = _layer_bounds(setting, lines, layers, gpus, best_s, group)
    layer_s, types = each.layer_s + each.once_s / count, np.unique(pool)
    fastest = [float((most / layer_s)[pool == row].max()) for row in types]
    low_s, top_s = number / sum(fastest), best_s / count
    if low_s >= top_s:
        return best_s
    pace_s = low_s * (top_s / low_s) ** np.linspace(0.0, 1.0, BOUND_PACES)
    deepest = min(sum(int(most[pool == row].max()) for row in types), number // 2)
    depth = np.arange(2, deepest + 1)  # a stage has two layers or more
    in_flight = np.minimum((depth + 1) / 2, count)
    held = _stage_holds(each, layer_s, pace_s, in_flight)  # (pace, option, depth)
    if layers.has_one_kind:
        held = np.floor(held + ROUNDING_LAYERS)
    best = np.stack([held[:, pool == row].max(axis=1) for row in types])  # (type, pace, depth)
    stages = np.array([most[pool == row].max() for row in types])
    order = np.argsort(-best, axis=0)  # as many stages as can be where they hold most
    used = np.minimum(np.cumsum(stages[order], axis=0), depth)
    used = np.diff(used, axis=0, prepend=0)
    can = ((np.take_along_axis(best, order, axis=0) * used).sum(axis=0) >= number).any(axis=1)
    return count * float(pace_s[max(int(can.argmax()) - 1, 0)]) if can.any() else best_s


def _gathered_s(fixed: dict[str, Floats]) -> Floats:
    """At least, of sharded parameters in both passes of a micro-batch. (place, option, 1 + kind)"""
    total = np.zeros_like(fixed["gather_s"])
    hides = 1 - fixed["slowdown"][INSIDE, :, 0][:, np.newaxis]
    both_s = fixed["gather_s"] + fixed["reduce_s"]
    for traffic_s, compute_s in (
        (fixed["gather_s"], fixed["forward_compute_s"]),
        (both_s, fixed["backward_compute_s"]),
    ):
        behind_all = traffic_s * (1 - hides * (1 - timing_constants().shows.data))
        behind_compute = traffic_s - hides * compute_s
        apart = (behind_compute - behind_all)[INSIDE, :, 1:].min(axis=1)[:, np.newaxis]
        total += np.where(apart > 0, behind_compute, behind_all)  # one for layers of all kinds
    return total


def _layer_bounds(
    setting: GlobalSetting,
    lines: StageLines,
    layers: StageLayers,
    gpus: Ints,
    best_s: float,
    group: int,
) -> _LayerBounds:
    fixed, again, count = lines.fixed, lines.recomputed, setting.micro_batches
    both = fixed["forward_s"] + fixed["backward_s"]  # (place, option, 1 + kind)
    number = layers.counts[layers.at[layers.layers, layers.layers], 1:]
    mean = both[INSIDE, :, 1:].mean(axis=0)
    weight = mean * layers.layers / float(number @ mean)  # of a layer of each kind
    forward, head_s = fixed["forward_s"], both[LAST, :, 0] - both[INSIDE, :, 0]
    if setting.sharding == "parameters":
        # Of what is gathered one part shows at least, linear in layers; a head hides some.
        both, head_s = both + _gathered_s(fixed), np.zeros_like(head_s)
        slow, overlaps = fixed["slowdown"][:, :, :1], np.ones(1, np.bool_)
        shown = exposed_data_parallel_s(
            fixed["gather_s"], fixed["forward_compute_s"], overlaps, slow
        )
        forward = forward + np.maximum(shown, 0.0)  # of all layers no more than of each
    layer_s = (both[INSIDE, :, 1:] / weight).min(axis=1)
    held = layers.counts[layers.sizes > 0].T  # (1 + kind, set)
    forward, backward = forward @ held, fixed["backward_s"] @ held
    # All GPUs together have that many seconds for the work of a step that is no slower.
    fewest = max(layers.layers * count * float((layer_s * gpus).min()) / best_s, 2.0)
    once = fixed["optimizer_s"] + fixed["straggler_s"] * count * np.log2(fewest)
    once_s = np.maximum((once[..., 1:] / weight).min(axis=(0, 2)), 0.0)
    saved = np.maximum(again["saved_bytes"][:, INSIDE, :, 1:] / weight, 0.0)
    saved[1] /= group  # one checkpoint for a group
    free = fixed["free_bytes"][..., 0].max(axis=0)
    return _LayerBounds(
        layer_s=layer_s,
        once_s=once_s,
        states_bytes=(-fixed["free_bytes"][INSIDE, :, 1:] / weight).min(axis=1),
        saved_bytes=saved.min(axis=(0, 2)),
        free_bytes=free - lines.working_bytes.min(axis=(0, 2)),
        head_layers=np.maximum(head_s / layer_s, 0.0),
        phi=min(float((forward / (forward + backward)).max()), 1.0),
    )


def _held(
    each: _LayerBounds, layer_s: Floats, pace_s: Floats, most: Ints, count: int, whole: bool
) -> tuple[Floats, Floats]:
    """Layers that all stages of an option hold at a pace, at most; and how many fewer at least if
    its last stage has the head. (pace, option)
    """
    depth = np.arange(1, int(most.max()) + 1)
    timely = _stage_holds(each, layer_s, pace_s, np.minimum(depth, count))
    second, head = layer_s[:, np.newaxis], each.head_layers[:, np.newaxis]
    headed = np.minimum(pace_s[:, np.newaxis, np.newaxis] / second - head, timely)[..., :1]
    if whole:
        timely, headed = np.floor(timely + ROUNDING_LAYERS), np.floor(headed + ROUNDING_LAYERS)
    lacking = timely[..., 0] - np.maximum(headed[..., 0], 0.0)
    return np.where(depth <= most[:, np.newaxis], timely, 0.0).sum(axis=2), lacking


def _stage_holds(each: _LayerBounds, layer_s: Floats, pace_s: Floats, in_flight: Floats) -> Floats:
    """Layers of a stage at a pace, at most, with so many micro-batches in flight.
    (pace, option, in flight)
    """
    kept_bytes = each.states_bytes[:, np.newaxis] + each.saved_bytes[:, np.newaxis] * in_flight
    with np.errstate(divide="ignore"):
        roomy = np.maximum(each.free_bytes[:, np.newaxis] / kept_bytes, 0.0)
    return np.minimum(pace_s[:, np.newaxis, np.newaxis] / layer_s[:, np.newaxis], roomy)


def _classes(own: Ints, most: Ints) -> list[tuple[int, Ints]]:
    """The options of a type by how many stages they have; the first: the type is left out."""
    found: list[tuple[int, Ints]] = [(0, np.zeros(0, np.int64))]
    for stages in np.unique(most[own]).tolist():
        found.append((stages, np.flatnonzero(own & (most == stages))))
    return found


def _least_s(
    classes: list[list[tuple[int, Ints]]],
    choices: Ints,
    plain: tuple[Floats, Floats],
    ended: tuple[Floats, Floats],
    each: _LayerBounds,
    pace_s: Floats,
    count: int,
    number: int,
) -> float:
    """The least of these joint choices of a class for each type. (choice, type) in, seconds out."""
    if not len(choices):
        return np.inf
    shape = len(choices), len(pace_s)
    stages, layer_s, held_of = np.zeros(len(choices), np.int64), list[Floats](), list[Floats]()
    total, last_lacks = np.zeros((2, *shape)), np.full((2, *shape), np.inf)
    for own, column in zip(classes, choices.T, strict=True):
        stages = stages + np.array([n for n, _ in own])[column]
        second = [each.layer_s[rows].min() if len(rows) else np.inf for _, rows in own]
        layer_s.append(np.array(second)[column])
        for row, (held, lacking) in enumerate((plain, ended)):
            most = [held[:, r].max(axis=1) if len(r) else np.zeros(len(held)) for _, r in own]
            least = [
                lacking[:, r].min(axis=1) if len(r) else np.full(len(held), np.inf) for _, r in own
            ]
            total[row] += np.stack(most)[column]
            last_lacks[row] = np.minimum(last_lacks[row], np.stack(least)[column])
            if row == 0:
                held_of.append(np.stack(most)[column])
    can = total - last_lacks >= number - ROUNDING_LAYERS  # (formula, choice, pace)
    below_s = np.concatenate([pace_s[:1] * 0, pace_s[:-1]])  # B lies between this pace and the next
    first = np.where(can[1].any(axis=1), below_s[can[1].argmax(axis=1)], np.inf)
    through_s = _through_s(np.stack(layer_s), np.stack(held_of), number)
    depth = np.minimum(stages, number)[:, np.newaxis]
    queue = count - 1 - (np.minimum(depth, count) - 1) * each.phi
    down = through_s + np.maximum(queue, 0.0) * below_s
    twice = np.where(count > depth, 2 * through_s + (count - 1 - depth) * below_s, 0.0)
    steps = np.where(can[0], np.maximum(np.maximum(down, twice), count * below_s), np.inf)
    # Above the last pace a step is slower than the best known.
    slower = count * pace_s[-1]
    return float(np.maximum(np.minimum(steps.min(axis=1), slower), first * count).min())


def _through_s(layer_s: Floats, held: Floats, number: int) -> Floats:
    """All layers, as many as can be on the fastest types. (choice, pace) [s]"""
    order = np.argsort(layer_s, axis=0)
    layer_s = np.take_along_axis(layer_s, order, axis=0)[..., np.newaxis]
    held = np.take_along_axis(held, order[..., np.newaxis], axis=0)
    taken = np.diff(np.minimum(np.cumsum(held, axis=0), number), axis=0, prepend=0.0)
    total: Floats = np.where(taken > 0, taken * np.where(np.isfinite(layer_s), layer_s, 0.0), 0.0)
    return total.sum(axis=0)
