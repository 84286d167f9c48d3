"""A first look at a global setting: about the least step, and the options worth a closer one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astra.cost.stage_lines import AGAIN, ALL_LAYERS, INSIDE, NO_RECOMPUTE, PLAIN, Pair, StagePricer
from astra.strategy.plans import Floats, Ints
from astra.strategy.recompute import Recompute
from astra.strategy.segment_columns import GlobalSetting, SegmentOption

LOOK_RATIO = 1.02  # of two neighbouring paces
LOOKED_PACES = 600  # upwards, where no limit is known
MORE_PACES = 8  # above the least that is enough, at which options are chosen too
OPTIONS_PER_FINENESS = 3  # of a type, with as many stages, that hold most
WORTHWHILE = 0.7  # of what the best option of its type holds
FEW_OPTIONS = 8  # are kept all
ROOMIEST = 2  # options of a type that are kept whatever they hold in time


def best_of_types(values: Floats | Ints, pool: Ints) -> Floats:
    """The most of any option of each type. (..., option) to (..., type)"""
    return np.stack([values[..., pool == row].max(axis=-1) for row in np.unique(pool)], axis=-1)


def balanced_steps_s(
    pricer: StagePricer, options: Mapping[GlobalSetting, Sequence[SegmentOption]]
) -> dict[GlobalSetting, float]:
    """By setting: the step if every GPU did as much as it can of a mean layer, and none waited. [s]

    T = K layers / sum over types of the most stages / seconds of a layer

    with its part of what a stage does once a step.
    """
    pairs = [(setting, option) for setting, own in options.items() for option in own]
    if not pairs:
        return {}
    lines = pricer.lines(pairs)
    pass_s = (lines.fixed["forward_s"] + lines.fixed["backward_s"])[INSIDE] @ pricer.layers.mean
    model_s = (pass_s + pricer.mean_exchange_s(pairs, lines)[INSIDE]) * pricer.layers.layers
    models_per_s = _over_types(1 / model_s, pairs)
    return {setting: setting.micro_batches / rate for setting, rate in models_per_s.items()}


def _over_types(of_stage: Floats, pairs: Sequence[Pair]) -> dict[GlobalSetting, float]:
    """By setting: what the best option of every type does with all its stages, together."""
    row_of = {setting: row for row, setting in enumerate(dict.fromkeys(own for own, _ in pairs))}
    row, pool, most = np.array([(row_of[own], each.pool, each.most) for own, each in pairs]).T
    best = np.zeros((len(row_of), pool.max() + 1))
    np.maximum.at(best, (row, pool), of_stage * most)
    return dict(zip(row_of, best.sum(axis=1).tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class FirstLook:
    """What mean layers say of a setting."""

    setting: GlobalSetting
    recompute: Recompute | None
    options: list[SegmentOption]  # those worth a closer look
    step_s: float  # about the least in which the types together hold the model; may be infinite
    pace_s: float  # of the slowest stage, at least


class _MeanLayer:
    """A layer of the mean kind on a stage of every option. (option,)"""

    def __init__(
        self, pricer: StagePricer, pairs: Sequence[Pair], recomputes: Sequence[Recompute]
    ) -> None:
        lines = pricer.lines(pairs, recomputes)
        self.layers, mean = pricer.layers.layers, pricer.layers.mean
        fixed = {name: column[INSIDE] @ mean for name, column in lines.fixed.items()}
        again = {name: column[:, INSIDE] @ mean for name, column in lines.recomputed.items()}
        self.layer_s = fixed["forward_s"] + fixed["backward_s"] + again["recompute_s"][PLAIN]
        self.layer_s += pricer.mean_exchange_s(pairs, lines)[INSIDE]
        # Of a layer that is recomputed whole, on top.
        self.recompute_s = again["recompute_s"][AGAIN] - again["recompute_s"][PLAIN]
        self.states_bytes = -fixed["free_bytes"]
        self.saved_bytes = again["saved_bytes"][PLAIN]  # a micro-batch in flight
        self.checkpoint_bytes = again["saved_bytes"][AGAIN]  # likewise, where it is recomputed
        free = lines.fixed["free_bytes"][INSIDE, :, 0]
        self.free_bytes = free - lines.working_bytes[AGAIN].max(axis=1)  # of a stage, for layers

    def most_held(self, in_flight: Floats) -> Floats:
        """Layers that a stage has memory for, all recomputed."""
        kept = np.minimum(self.saved_bytes, self.checkpoint_bytes) * in_flight
        with np.errstate(all="ignore"):
            return np.maximum(self.free_bytes / (self.states_bytes + kept), 0.0)


class _Held:
    """Layers of a stage of every option with so many micro-batches in flight. (option,)"""

    def __init__(self, layer: _MeanLayer, in_flight: Floats, least: float) -> None:
        """`least`: a stage that holds less holds none."""
        self.least, self.layer_s = least, layer.layer_s
        plain_bytes = layer.states_bytes + layer.saved_bytes * in_flight
        freed_bytes = (layer.saved_bytes - layer.checkpoint_bytes) * in_flight
        with np.errstate(all="ignore"):
            self.plain = np.maximum(layer.free_bytes / plain_bytes, 0.0)
            more_s = layer.recompute_s * plain_bytes / freed_bytes
        self.beyond_s = layer.layer_s + np.nan_to_num(more_s, nan=np.inf, posinf=np.inf)
        self.most = np.minimum(layer.most_held(in_flight), layer.layers)

    def within(self, stage_s: Floats, rows: Ints | slice = slice(None)) -> Floats:
        """Of stages that take no longer, as few layers recomputed as must be. (pace, option)"""
        plain, layer_s = self.plain[rows], self.layer_s[rows]
        with np.errstate(invalid="ignore"):
            beyond = np.fmax((stage_s - plain * layer_s) / self.beyond_s[rows], 0.0)  # inf / inf: 0
        held = np.minimum(np.minimum(stage_s / layer_s, plain + beyond), self.most[rows])
        return np.where(held < self.least, 0.0, held)


def settings_in_time(
    pricer: StagePricer,
    options: Mapping[GlobalSetting, list[SegmentOption]],
    recompute: Recompute | None,
    limit_s: float,
) -> set[GlobalSetting]:
    """Those whose types hold the model in a step of the limit, if filling took no time and there
    were one micro-batch in flight.
    """
    pairs = [(setting, option) for setting, own in options.items() for option in own]
    if not pairs:
        return set()
    layer = _MeanLayer(pricer, pairs, _told_apart(recompute))
    stage_s = limit_s / np.array([setting.micro_batches for setting, _ in pairs])
    layers = _over_types(_Held(layer, np.ones(len(pairs)), 0.0).within(stage_s), pairs)
    return {setting for setting, held in layers.items() if held >= pricer.layers.layers}


def _told_apart(recompute: Recompute | None) -> list[Recompute]:
    """Nothing and all, of which each stage has what it must; or the same for every stage."""
    if recompute is None or recompute.mode == "full:block":
        return [NO_RECOMPUTE, ALL_LAYERS]
    return [recompute]


def first_look(
    pricer: StagePricer,
    setting: GlobalSetting,
    options: list[SegmentOption],
    recompute: Recompute | None,
    limit_s: float,
    breadth: int,
) -> FirstLook:
    """With mean layers, and half of a segment's stages in flight. Where that holds too few layers,
    with one micro-batch in flight.

    In 1F1B a stage waits for those above it once with the first micro-batch and once with the last,
    so in a step of T = K B the first may take B with one, and any other (T - all above) / K: each
    (1 - 1 / K) of the one above it, s stages together T (1 - (1 - 1 / K)^s). The least step is told
    in which the best options of the types hold the model together, the fastest on top; and the
    least pace, if filling took no time.

    Of each type, and each number of stages, the options that hold most in that step; and its
    roomiest, whatever they hold in time.
    """
    pool, most = np.array([each.pool for each in options]), np.array([o.most for o in options])
    pairs = [(setting, option) for option in options]
    layer = _MeanLayer(pricer, pairs, _told_apart(recompute))
    count, number = setting.micro_batches, pricer.layers.layers
    with_one = _Held(layer, np.ones(len(most)), 0.0)
    pace_s = _paces_s(layer, pool, most, number, limit_s / count)
    share = (1 - (1 - 1 / count) ** most) / most  # of the step, for every stage of a segment on top
    for held in (_Held(layer, np.minimum((most + 1) / 2, count), 1.0), with_one):
        enough = _held_in_row(held, pace_s * count, share, pool, most) >= number
        if enough.any():
            break
    else:
        return FirstLook(setting, recompute, [], np.inf, np.inf)
    at_pace = held.within(pace_s[:, np.newaxis]) * most
    in_step = held.within((pace_s * count)[:, np.newaxis] * share) * most
    at, rows = int(enough.argmax()), set(range(len(options) if len(options) <= FEW_OPTIONS else 0))
    low = int((best_of_types(at_pace, pool).sum(axis=-1) >= number).argmax())
    roomy = layer.most_held(np.ones(len(most)))
    for each in np.unique(pool):
        for level in (at, min(at + MORE_PACES, len(pace_s) - 1)):
            rows |= _holding_most(np.where(pool == each, in_step[level], 0.0), most, breadth)
        own = np.flatnonzero(pool == each)
        rows |= set(own[np.argsort(-roomy[own], kind="stable")[:ROOMIEST]].tolist())
    kept = [options[row] for row in sorted(rows) if layer.free_bytes[row] > 0]
    step_s, least_pace_s = float(pace_s[at]) * count, float(pace_s[low])
    return FirstLook(setting, recompute, kept, step_s, least_pace_s)


def _held_in_row(held: _Held, step_s: Floats, share: Floats, pool: Ints, most: Ints) -> Floats:
    """By the best options of the types together, below them those of slower ones. (step,)"""
    types = [np.flatnonzero(pool == each) for each in np.unique(pool)]
    total, left_s, every = np.zeros(len(step_s)), step_s, np.arange(len(step_s))
    for own in sorted(types, key=lambda own: held.layer_s[own].min()):
        layers = held.within(left_s[:, np.newaxis] * share[own], own) * most[own]
        best = layers.argmax(axis=1)
        total = total + layers[every, best]
        left_s = np.maximum(left_s - layers[every, best] * held.layer_s[own][best], 0.0)
    return total


def _paces_s(layer: _MeanLayer, pool: Ints, most: Ints, number: int, limit_s: float) -> Floats:
    """From the one at which all stages hold the model if memory does not bind, past the limit."""
    speed = best_of_types(most / layer.layer_s, pool).sum()
    least_s, paces = min(number / speed, limit_s), LOOKED_PACES
    if np.isfinite(limit_s):
        paces = int(np.log(limit_s / least_s) / np.log(LOOK_RATIO)) + 2 * MORE_PACES
    found: Floats = np.float64(least_s) * LOOK_RATIO ** np.arange(min(paces, LOOKED_PACES))
    return found


def _holding_most(held: Floats, most: Ints, breadth: int) -> set[int]:
    """The best options of one type, for each number of stages: one at least, more if they hold
    about as much as the best of all.
    """
    worth, rows = WORTHWHILE * held.max(), set[int]()
    for stages in np.unique(most[held > 0]):
        own = np.where(most == stages, held, 0.0)
        best = np.argsort(-own, kind="stable")[: OPTIONS_PER_FINENESS * breadth]
        rows |= {int(best[0]), *best[own[best] > worth].tolist()}
    return rows
