"""What no pipeline of a global setting can beat, whatever it recomputes: told as the gap.

No stage takes longer than B. The d-th stage from the end of a segment has at least d micro-batches
in flight, so an option holds so many layers at most, recompute and traffic between replicas taken
to cost nothing. For every joint choice of how finely each type is cut, p stages together, the types
must hold the model; with S the least seconds of all layers then, K micro-batches, and f <= phi t on
every stage:

    T >= K B,    T >= S + (K - 1 - (min(p, K) - 1) phi) B,    T >= 2 S + (K - 1 - p) B   (K > p)

The second is the way down to the slowest stage and back, the third that of a stage which waits for
those below it in either pass. S falls as B grows, so the least over all B is told.

Of interleaved pipelines only the first is true, and too weak to be worth telling.
"""

from itertools import product

import numpy as np

from astra.cost.stage_lines import AGAIN, INSIDE, StagePricer
from astra.search.pipeline.first_look import best_of_types
from astra.strategy.plans import Floats, Ints
from astra.strategy.segment_columns import GlobalSetting, SegmentOption

BOUND_PACES = 48  # between the least pace there can be and that of the best step known
CHOICES_PER_BLOCK = 1 << 12  # joint choices of finenesses looked at together
ROUNDING_LAYERS = 1e-6  # against rounding


class SettingBound:
    """What the options of a global setting can hold at best, in layers of mean weight."""

    def __init__(
        self, pricer: StagePricer, setting: GlobalSetting, options: list[SegmentOption], group: int
    ) -> None:
        """`group`: layers that may be recomputed as one, at most."""
        self.micro_batches, self.layers = setting.micro_batches, pricer.layers
        self.pool = np.array([option.pool for option in options])
        self.most = np.array([option.most for option in options])
        lines = pricer.lines([(setting, option) for option in options])
        fixed = lines.fixed
        both = (fixed["forward_s"] + fixed["backward_s"])[INSIDE, :, 1:]  # (option, kind)
        mean_s, layers = both.mean(axis=0), pricer.layers
        weight = mean_s * layers.layers / float(layers.whole @ mean_s)
        self.layer_s = (both / weight).min(axis=1)
        saved = np.maximum(lines.recomputed["saved_bytes"][:, INSIDE, :, 1:] / weight, 0.0)
        saved[AGAIN] /= group  # one checkpoint for a group
        self.saved_bytes = saved.min(axis=(0, 2))  # a micro-batch in flight
        self.states_bytes = (-fixed["free_bytes"][INSIDE, :, 1:] / weight).min(axis=1)
        free = fixed["free_bytes"][..., 0].max(axis=0)
        self.free_bytes = free - lines.working_bytes.min(axis=(0, 2))
        held = layers.counts[layers.sizes > 0].T  # (1 + kind, set)
        forward = (fixed["forward_s"] + fixed["gather_s"]) @ held  # if nothing hides what is sent
        self.phi = float((forward / (forward + fixed["backward_s"] @ held)).max())

    def least_s(self, best_s: float) -> float:
        """No 1F1B pipeline is faster; `best_s` where that is all that is known. [s]"""
        low_s = self.layers.layers / float(best_of_types(self.most / self.layer_s, self.pool).sum())
        top_s = best_s / self.micro_batches
        if low_s >= top_s:
            return best_s
        pace_s: Floats = low_s * (top_s / low_s) ** np.linspace(0.0, 1.0, BOUND_PACES)
        depth = np.arange(1, int(self.most.max()) + 1)
        stage = self._stage_holds(pace_s, np.minimum(depth, self.micro_batches))
        held = np.where(depth <= self.most[:, np.newaxis], stage, 0.0).sum(axis=2)
        classes = [self._classes(row) for row in np.unique(self.pool)]
        every = np.array(list(product(*(range(len(own)) for own in classes))))
        every = every[(every > 0).sum(axis=1) > 1]
        for start in range(0, len(every), CHOICES_PER_BLOCK):
            some = every[start : start + CHOICES_PER_BLOCK]
            best_s = min(best_s, self._joint_s(classes, some, held, pace_s))
        return best_s

    def _stage_holds(self, pace_s: Floats, in_flight: Ints) -> Floats:
        """Layers of a stage at a pace, at most, with so many micro-batches in flight.
        (pace, option, in flight)
        """
        kept_bytes = self.states_bytes[:, np.newaxis] + self.saved_bytes[:, np.newaxis] * in_flight
        with np.errstate(divide="ignore"):
            roomy = np.maximum(self.free_bytes[:, np.newaxis] / kept_bytes, 0.0)
        timely = pace_s[:, np.newaxis, np.newaxis] / self.layer_s[:, np.newaxis]
        held = np.minimum(timely, roomy)
        return np.floor(held + ROUNDING_LAYERS) if self.layers.has_one_kind else held

    def _classes(self, pool: int) -> list[tuple[int, Ints]]:
        """The options of a type by how many stages they have; the first: the type is left out."""
        own, found = self.pool == pool, [(0, np.zeros(0, np.int64))]
        for stages in np.unique(self.most[own]).tolist():
            found.append((stages, np.flatnonzero(own & (self.most == stages))))
        return found

    def _joint_s(
        self, classes: list[list[tuple[int, Ints]]], choices: Ints, held: Floats, pace_s: Floats
    ) -> float:
        """The least of these joint choices of a class for each type. `choices`: (choice, type);
        `held`: (pace, option), layers of all its stages.
        """
        count, number = self.micro_batches, self.layers.layers
        stages, layer_s, held_of = np.zeros(len(choices), np.int64), list[Floats](), list[Floats]()
        for own, column in zip(classes, choices.T, strict=True):
            stages = stages + np.array([n for n, _ in own])[column]
            layer_s.append(np.array([self.layer_s[rows].min(initial=np.inf) for _, rows in own]))
            layer_s[-1] = layer_s[-1][column]
            most = np.stack([held[:, rows].max(axis=1, initial=0.0) for _, rows in own])
            held_of.append(most[column])
        can = np.sum(held_of, axis=0) >= number - ROUNDING_LAYERS  # (choice, pace)
        below_s = np.append(0.0, pace_s[:-1])  # B lies between this pace and the next
        through_s = _through_s(np.stack(layer_s), np.stack(held_of), number)
        depth = np.minimum(stages, number)[:, np.newaxis]
        queue = count - 1 - (np.minimum(depth, count) - 1) * self.phi
        down = through_s + np.maximum(queue, 0.0) * below_s
        twice = np.where(count > depth, 2 * through_s + (count - 1 - depth) * below_s, 0.0)
        steps = np.where(can, np.maximum(np.maximum(down, twice), count * below_s), np.inf)
        return float(steps.min())


def _through_s(layer_s: Floats, held: Floats, number: int) -> Floats:
    """All layers, as many as can be on the fastest types. (choice, pace) [s]"""
    order = np.argsort(layer_s, axis=0)
    layer_s = np.take_along_axis(layer_s, order, axis=0)[..., np.newaxis]
    held = np.take_along_axis(held, order[..., np.newaxis], axis=0)
    taken = np.diff(np.minimum(np.cumsum(held, axis=0), number), axis=0, prepend=0.0)
    total: Floats = np.where(taken > 0, taken * np.where(np.isfinite(layer_s), layer_s, 0.0), 0.0)
    return total.sum(axis=0)
