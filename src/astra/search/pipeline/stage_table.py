"""Seconds and bytes of every stage that a pipeline may have, with the least recompute that fits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astra.search.pipeline.stage_lines import (
    FIRST,
    INSIDE,
    LAST,
    PLACES,
    StageLines,
    StagePricer,
)
from astra.strategy.plans import Flags, Floats, Ints, code
from astra.strategy.recompute import Recompute
from astra.strategy.segment_columns import GlobalSetting, SegmentOption, option_columns
from astra.timing.stage import exposed_data_parallel_s

__all__ = ["FIRST", "INSIDE", "LAST", "StageChoice", "StageTable"]

NONE, UNIFORM, BLOCK = (code("recompute", word) for word in ("none", "full:uniform", "full:block"))
ROUNDING_LAYERS = 1e-9  # of a layer, against rounding
MAX_GROUP_LAYERS = 8  # layers that a stage may recompute as one group


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Stages at one place with so many micro-batches in flight. (option, set of layers)"""

    forward_s: Floats
    backward_s: Floats  # with what is recomputed; infinite where the stage does not fit
    step_end_s: Floats  # behind its last backward, once a step; tied embeddings left out
    straggler_s: Floats  # a step, for every doubling of the GPUs
    first_gather_s: Floats  # what its first forward waits for, once a step
    mode: Ints  # of recompute, as a code
    number: Ints  # of layers in the recompute setting

    @property
    def stage_s(self) -> Floats:
        """Of one micro-batch, there and back."""
        return self.forward_s + self.backward_s


class StageTable:
    """Stages of some options of one global setting, with one recompute setting for all of them, or
    each with as few whole layers as it must (None).
    """

    def __init__(
        self,
        pricer: StagePricer,
        setting: GlobalSetting,
        options: Sequence[SegmentOption],
        lines: StageLines,
        recompute: Recompute | None,
    ) -> None:
        """`lines`: with nothing and with all layers recomputed, or of one set of modules."""
        self.pricer, self.setting, self.options = pricer, setting, list(options)
        self.recompute, self.layers = recompute, pricer.layers
        self.degrees = option_columns(options)
        self.pool, self.most = self.degrees["gpu"], np.array([each.most for each in options])
        self.stage_gpus = np.array([each.stage_gpus for each in options])
        held = self.layers.counts.T
        self.fixed = {name: lines.fixed[name] @ held for name in lines.fixed}
        self.again = {name: lines.recomputed[name] @ held for name in lines.recomputed}
        self.per_checkpoint = lines.recomputed["saved_bytes"][-1, ..., 1][..., np.newaxis]
        self.working = self._working_bytes(lines)
        copies = [option.dp * setting.cp > 1 for option in options]
        self.has_copies = np.array(copies)[:, np.newaxis]
        self._links: tuple[Floats, Floats] | None = None
        self._known: dict[tuple[int, int], StageChoice] = {}

    def _working_bytes(self, lines: StageLines) -> Floats:
        """The largest kind of layer that a stage holds. (recompute, place, option, set)"""
        held = np.stack([self.layers.present] * len(PLACES))  # (place, set, kind)
        if self.pricer.workload.mtp_layers:
            held[LAST, :, self.pricer.last_kind] = True
        each = lines.working_bytes[:, np.newaxis, :, np.newaxis, :]
        return np.where(held[:, np.newaxis], each, 0.0).max(axis=-1)

    @property
    def is_tied(self) -> bool:
        """Whether the first stage and the last hold the same embedding."""
        return self.pricer.model.tied_embeddings

    @property
    def link_s(self) -> Floats:
        """One way from a stage of an option to the next of another. (option, next) [s]"""
        if self._links is None:
            (self._links,) = self.pricer.links_s([(self.setting, self.options)])
        return self._links[0]

    @property
    def tied_s(self) -> Floats:
        """Once a step, of the first and the last stage. (2, first option, last option) [s]"""
        if self._links is None:
            (self._links,) = self.pricer.links_s([(self.setting, self.options)])
        return self._links[1]

    def at(self, place: int, in_flight: int) -> StageChoice:
        """All stages at a place that holds so many micro-batches."""
        if (place, in_flight) not in self._known:
            self._known[place, in_flight] = self._choose(place, in_flight)
        return self._known[place, in_flight]

    def in_flight(self, below: int) -> int:
        """Micro-batches that a stage with so many stages below it holds."""
        return min(self.setting.micro_batches, below + 1)

    def _choose(self, place: int, in_flight: int) -> StageChoice:
        fits, fraction, mode, number = self._recomputed(place, in_flight)
        again_s = self.again["recompute_s"][:, place]
        recompute_s = again_s[0] if fraction is None else fraction * again_s[-1]
        v = {name: column[place] for name, column in self.fixed.items()}
        backward_compute_s = v["backward_compute_s"] + recompute_s
        forward_s, backward_s = v["forward_s"], v["backward_s"] + recompute_s
        slow, copies = v["slowdown"], self.has_copies
        sharded = self.setting.sharding != "none"
        if self.setting.sharding == "parameters":
            both_s = v["gather_s"] + v["reduce_s"]
            gather_s, reduce_s = np.zeros_like(both_s), np.zeros_like(both_s)
            forward_s = forward_s + exposed_data_parallel_s(
                v["gather_s"], v["forward_compute_s"], copies, slow
            )
            backward_s = backward_s + exposed_data_parallel_s(
                both_s, backward_compute_s, copies, slow
            )
        else:
            overlaps = copies & (sharded and not self.pricer.stack.owned_tensors)
            gather_s = exposed_data_parallel_s(
                v["gather_s"], v["forward_compute_s"], overlaps, slow
            )
            reduce_s = exposed_data_parallel_s(v["reduce_s"], backward_compute_s, copies, slow)
        return StageChoice(
            forward_s=forward_s,
            backward_s=np.where(fits, backward_s, np.inf),
            step_end_s=reduce_s + v["optimizer_s"] + self.pricer.stack.step_s,
            straggler_s=v["straggler_s"] * self.setting.micro_batches,
            first_gather_s=gather_s,
            mode=mode,
            number=number,
        )

    def _recomputed(self, place: int, in_flight: int) -> tuple[Flags, Floats | None, Ints, Ints]:
        """Which stages fit; the fraction of their layers that is recomputed (None: modules); and
        the setting, mode and number. (option, set)
        """
        free, logits = self.fixed["free_bytes"][place], self.fixed["logits_bytes"][place]
        saved = self.again["saved_bytes"][:, place] * in_flight
        peak = np.maximum(self.working[:, place], logits)
        size = np.broadcast_to(np.maximum(self.layers.sizes, 1), free.shape)
        asked, zeros = self.recompute, np.zeros(free.shape, np.int64)
        if asked is None:
            return self._as_few_as_fit(place, in_flight, saved, peak, free, size)
        mode = zeros + code("recompute", asked.mode)
        if asked.mode in ("none", "selective"):
            fraction = np.zeros(free.shape) if asked.mode == "none" else None
            return saved[0] + peak[0] <= free, fraction, mode, zeros
        number = np.minimum(asked.layers, size)
        if asked.mode == "full:block":
            part = number / size
            fits = (1 - part) * saved[0] + part * saved[1] + peak[1] <= free
            return fits, part, mode, number
        fits = self._grouped_bytes(place, in_flight, saved, number, size) <= free
        return fits, np.ones(free.shape), mode, number

    def _as_few_as_fit(
        self, place: int, in_flight: int, saved: Floats, peak: Floats, free: Floats, size: Ints
    ) -> tuple[Flags, Floats, Ints, Ints]:
        """Whole layers of stages that do not fit without: as few as do, then in groups."""
        plain = saved[0] + peak[0] <= free
        with np.errstate(divide="ignore", invalid="ignore"):
            need = (saved[0] + peak[1] - free) * size / (saved[0] - saved[1])
            fewest = np.ceil(need - ROUNDING_LAYERS)
        fewest = np.where(np.isfinite(fewest) & (fewest <= size), np.maximum(fewest, 1), np.inf)
        fits = plain | np.isfinite(fewest)
        number = np.where(plain, 0, np.where(fits, fewest, size)).astype(np.int64)
        mode = np.where(plain, NONE, np.where(number < size, BLOCK, UNIFORM))
        fraction = number / size
        number = np.where(mode == UNIFORM, 1, number)
        for group in range(2, min(MAX_GROUP_LAYERS, self.layers.layers) + 1):
            left = ~fits & (size >= group)
            if not left.any():
                break
            whole = self._grouped_bytes(place, in_flight, saved, np.minimum(group, size), size)
            now = left & (whole <= free)
            number, fits = np.where(now, group, number), fits | now
        return fits, fraction, mode, number

    def _grouped_bytes(
        self, place: int, in_flight: int, saved: Floats, number: Ints, size: Ints
    ) -> Floats:
        """Of stages that recompute all layers in groups of so many: one checkpoint for each, and
        the layers of a group at work.
        """
        fewer = size - -(-size // number)
        kept = saved[-1] - fewer * self.per_checkpoint[place] * in_flight
        inside, one = self.working[0, place], self.working[-1, place]
        work = inside + number * (one - inside)
        return kept + np.maximum(work, self.fixed["logits_bytes"][place])
