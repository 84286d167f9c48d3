"""A first look at a global setting: about the least step, and the options worth a closer one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astra.search.pipeline.constants import (
    OPTIONS_PER_FINENESS,
    PACE_RATIO,
    ROOMIEST,
    WORTHWHILE,
)
from astra.search.pipeline.stage_lines import INSIDE, StageLayers, StageLines, StagePricer
from astra.strategy.plans import Floats, Ints
from astra.strategy.recompute import Recompute
from astra.strategy.segment_columns import GlobalSetting, SegmentOption
from astra.timing.stage import exposed_data_parallel_s

LOOKED_PACES = 600  # upwards, where no limit is known
MORE_PACES = 8  # above the least that is enough, at which options are chosen too


def balanced_steps_s(
    pricer: StagePricer, options: Mapping[GlobalSetting, Sequence[SegmentOption]]
) -> dict[GlobalSetting, float]:
    """By setting: the step if every GPU did as much as it can of a mean layer, and none waited. [s]

    T = K layers / sum over types of the most stages / seconds of a layer
    """
    pairs = [(setting, option) for setting, own in options.items() for option in own]
    if not pairs:
        return {}
    fixed, layers = pricer.lines(pairs).fixed, pricer.layers
    number = layers.counts[layers.at[layers.layers, layers.layers], 1:]
    layer_s = (fixed["forward_s"] + fixed["backward_s"])[INSIDE, :, 1:] @ number
    speed = iter((np.array([option.most for _, option in pairs]) / layer_s).tolist())
    found = {}
    for setting, own in options.items():
        fastest: dict[int, float] = {}
        for option, each in zip(own, speed, strict=False):
            fastest[option.pool] = max(fastest.get(option.pool, 0.0), each)
        found[setting] = setting.micro_batches / sum(fastest.values())
    return found


@dataclass(frozen=True, slots=True, eq=False)
class FirstLook:
    """What mean layers say of a setting."""

    setting: GlobalSetting
    recompute: Recompute | None
    options: list[SegmentOption]  # those worth a closer look
    step_s: float  # about the least in which the types together hold the model; may be infinite
    recompute_s: float  # of a mean layer, over all options
    saved_bytes: float  # likewise
    pace_s: float  # of the slowest stage, at least


@dataclass(frozen=True, slots=True, eq=False)
class _MeanLayer:
    """A layer of the mean kind on a stage of every option. (option,)"""

    layer_s: Floats
    first_recompute_s: Floats  # a part of it
    recompute_s: Floats  # of recomputing all of it, on top
    states_bytes: Floats
    saved_bytes: Floats  # a micro-batch in flight
    checkpoint_bytes: Floats  # likewise, where it is recomputed
    free_bytes: Floats  # of a stage, for all of these

    def held(self, pace_s: Floats, in_flight: Floats) -> Floats:
        """Layers of a stage that takes no longer, as few recomputed as must be. (pace, option)"""
        plain_bytes = self.states_bytes + self.saved_bytes * in_flight
        freed_bytes = (self.saved_bytes - self.checkpoint_bytes) * in_flight
        with np.errstate(all="ignore"):
            plain = np.maximum(self.free_bytes / plain_bytes, 0.0)
            most = self.most_held(in_flight)
            more_s = self.layer_s + np.nan_to_num(
                self.recompute_s * plain_bytes / freed_bytes, nan=np.inf, posinf=np.inf
            )
            beyond = np.maximum((pace_s - plain * self.layer_s) / more_s, 0.0)
        fast = pace_s < plain * self.layer_s
        return np.where(fast, pace_s / self.layer_s, np.minimum(plain + beyond, most))

    def most_held(self, in_flight: Floats) -> Floats:
        """Layers that a stage has memory for, all recomputed."""
        kept = np.minimum(self.saved_bytes, self.checkpoint_bytes) * in_flight
        with np.errstate(all="ignore"):
            return np.maximum(self.free_bytes / (self.states_bytes + kept), 0.0)


def _mean_layer(setting: GlobalSetting, lines: StageLines, layers: StageLayers) -> _MeanLayer:
    mean = layers.counts[layers.at[layers.layers, layers.layers]] / layers.layers
    mean[0] = 0.0
    fixed = {name: column[INSIDE] @ mean for name, column in lines.fixed.items()}
    again = {name: column[:, INSIDE] @ mean for name, column in lines.recomputed.items()}
    free = lines.fixed["free_bytes"][INSIDE, :, 0] - lines.working_bytes[-1].max(axis=1)
    layer_s = fixed["forward_s"] + fixed["backward_s"] + again["recompute_s"][0]
    if setting.sharding == "parameters":
        slow, always = lines.fixed["slowdown"][INSIDE, :, 0], np.ones(len(layer_s), np.bool_)
        gather_s, compute_s = fixed["gather_s"], fixed["forward_compute_s"]
        layer_s = layer_s + exposed_data_parallel_s(gather_s, compute_s, always, slow)
        both_s, compute_s = gather_s + fixed["reduce_s"], fixed["backward_compute_s"]
        layer_s = layer_s + exposed_data_parallel_s(both_s, compute_s, always, slow)
    return _MeanLayer(
        layer_s=layer_s,
        first_recompute_s=again["recompute_s"][0],
        recompute_s=again["recompute_s"][-1] - again["recompute_s"][0],
        states_bytes=-fixed["free_bytes"],
        saved_bytes=again["saved_bytes"][0],
        checkpoint_bytes=again["saved_bytes"][-1],
        free_bytes=free,
    )


def first_look(
    setting: GlobalSetting,
    options: list[SegmentOption],
    lines: StageLines,
    layers: StageLayers,
    recompute: Recompute | None,
    limit_s: float,
    breadth: int,
) -> FirstLook:
    """With mean layers, and half of a segment's stages in flight. Where that holds too few layers,
    with one micro-batch in flight.

    Of each type, and each number of stages, the options that hold most at that step; and its
    roomiest, whatever they hold in time.
    """
    pool, most = np.array([each.pool for each in options]), np.array([o.most for o in options])
    count, number = setting.micro_batches, layers.layers
    layer, types = _mean_layer(setting, lines, layers), np.unique(pool)
    again = float(layer.first_recompute_s.mean()), float(layer.saved_bytes.mean())
    pace_s = _paces_s(layer, pool, most, number, limit_s / count)[:, np.newaxis]
    for in_flight, least in ((np.minimum((most + 1) / 2, count), 1.0), (np.ones(len(most)), 0.0)):

        def total(limit_s: Floats, in_flight: Floats = in_flight, least: float = least) -> Floats:
            held = np.minimum(layer.held(limit_s, in_flight), number)
            return np.where(held < least, 0.0, held) * most

        paced, timely = total(pace_s), total(pace_s * (count + 1) / (count + most))
        levels = [_enough(table, pool, types, number) for table in (paced, timely)]
        if None not in levels:
            break
    else:
        return FirstLook(setting, recompute, [], np.inf, *again, np.inf)
    low, at = levels[0] or 0, levels[1] or 0
    rows: set[int] = set()
    for each in types:
        for level in (at, min(at + MORE_PACES, len(pace_s) - 1)):
            rows |= _holding_most(np.where(pool == each, timely[level], 0.0), most, breadth)
        own = np.flatnonzero(pool == each)
        roomy = layer.most_held(np.ones(len(most)))[own]
        rows |= set(own[np.argsort(-roomy, kind="stable")[:ROOMIEST]].tolist())
    kept = [options[row] for row in sorted(rows) if layer.free_bytes[row] > 0]
    step_s = float(pace_s[at, 0]) * (count + 1)
    return FirstLook(setting, recompute, kept, step_s, *again, float(pace_s[low, 0]))


def _paces_s(layer: _MeanLayer, pool: Ints, most: Ints, number: int, limit_s: float) -> Floats:
    """From the one at which all stages hold the model if memory does not bind, past the limit."""
    speed = [float((most / layer.layer_s)[pool == each].max()) for each in np.unique(pool)]
    least_s, paces = min(number / sum(speed), limit_s), LOOKED_PACES
    if np.isfinite(limit_s):
        paces = int(np.log(limit_s / least_s) / np.log(PACE_RATIO)) + 2 * MORE_PACES
    found: Floats = np.float64(least_s) * PACE_RATIO ** np.arange(min(paces, LOOKED_PACES))
    return found


def _enough(held: Floats, pool: Ints, types: Ints, layers: int) -> int | None:
    """The first row in which the best options of all types hold the model."""
    total = sum((held[:, pool == each].max(axis=1) for each in types), np.zeros(len(held)))
    return int((total >= layers).argmax()) if total[-1] >= layers else None


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
