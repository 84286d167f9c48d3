"""Seconds and bytes of every stage that a pipeline may have, with the least recompute that fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from astra.cost.stage_lines import (
    AGAIN,
    FIRST,
    INSIDE,
    LAST,
    PLACES,
    PLAIN,
    Exchanges,
    StageLines,
    StagePricer,
)
from astra.strategy.plans import Flags, Floats, Ints, code
from astra.strategy.recompute import Recompute
from astra.strategy.segment_columns import GlobalSetting, SegmentOption, option_columns

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
        recompute: Recompute | None,
    ) -> None:
        self.pricer, self.setting, self.options = pricer, setting, list(options)
        self.recompute, self.layers = recompute, pricer.layers
        self.degrees = option_columns(options)
        self.pool, self.most = self.degrees["gpu"], np.array([each.most for each in options])
        self.stage_gpus = np.array([each.stage_gpus for each in options])
        pairs = [(setting, option) for option in options]
        modules = [recompute] if recompute and recompute.mode == "selective" else None
        lines = pricer.lines(pairs, modules) if modules else pricer.lines(pairs)
        held = self.layers.counts.T
        self.fixed = {name: line @ held for name, line in lines.fixed.items()}
        self.again = {name: line @ held for name, line in lines.recomputed.items()}
        self.checkpoint_bytes = lines.recomputed["saved_bytes"][AGAIN, ..., 1:2]  # of a layer
        self.working = self._working_bytes(lines)
        self.exchanges = Exchanges(pairs, pricer.stack)
        self._known: dict[tuple[int, int], StageChoice] = {}

    def _working_bytes(self, lines: StageLines) -> Floats:
        """The largest kind of layer that a stage holds. (recompute, place, option, set)"""
        held = np.stack([self.layers.counts[:, 1:] > 0] * len(PLACES))  # (place, set, kind)
        if self.pricer.workload.mtp_layers:
            held[LAST, :, self.pricer.last_kind] = True
        each = lines.working_bytes[:, np.newaxis, :, np.newaxis, :]
        return np.where(held[:, np.newaxis], each, 0.0).max(axis=-1)

    @cached_property
    def links_s(self) -> tuple[Floats, Floats]:
        """One way from a stage of an option to the next of another, (option, next); and of tied
        embeddings once a step, on the first stage and the last, (2, first option, last option).
        """
        return self.pricer.links_s(self.setting, self.options)

    def of_stage(self, stage: int, depth: int) -> StageChoice:
        """All that a stage can be, of a pipeline of so many."""
        place = FIRST if stage == 0 else LAST if stage == depth - 1 else INSIDE
        return self.at(place, min(self.setting.micro_batches, depth - stage))

    def at(self, place: int, in_flight: int) -> StageChoice:
        """All stages at a place that holds so many micro-batches."""
        if (place, in_flight) not in self._known:
            self._known[place, in_flight] = self._choose(place, in_flight)
        return self._known[place, in_flight]

    def _choose(self, place: int, in_flight: int) -> StageChoice:
        fits, fraction, mode, number = self._recomputed(place, in_flight)
        recompute_s = fraction * self.again["recompute_s"][AGAIN, place]
        v = {name: column[place] for name, column in self.fixed.items()}
        forward_s, backward_s = v["forward_s"], v["backward_s"] + recompute_s
        shown = self.exchanges.shown_s(
            {name: column.T for name, column in v.items()}, recompute_s.T
        )
        gather_s, reduce_s = (each.T for each in shown)
        if self.setting.sharding == "parameters":  # with every micro-batch, not once a step
            forward_s, gather_s = forward_s + gather_s, np.zeros_like(gather_s)
        if self.setting.sharding in ("gradients", "parameters"):
            backward_s, reduce_s = backward_s + reduce_s, np.zeros_like(reduce_s)
        return StageChoice(
            forward_s=forward_s,
            backward_s=np.where(fits, backward_s, np.inf),
            step_end_s=reduce_s + v["optimizer_s"] + self.pricer.stack.step_s,
            straggler_s=v["straggler_s"] * self.setting.micro_batches,
            first_gather_s=gather_s,
            mode=mode,
            number=number,
        )

    def _recomputed(self, place: int, in_flight: int) -> tuple[Flags, Floats, Ints, Ints]:
        """Which stages fit; the fraction of their layers that is recomputed; and the setting, mode
        and number. (option, set)
        """
        free, logits = self.fixed["free_bytes"][place], self.fixed["logits_bytes"][place]
        saved, working = self.again["saved_bytes"][:, place] * in_flight, self.working[:, place]
        peak = np.maximum(working, logits)
        size = np.broadcast_to(np.maximum(self.layers.sizes, 1), free.shape)

        def fits_in_groups(number: Ints) -> Flags:
            """One checkpoint for each group of so many layers, and a whole group at work."""
            fewer = size - -(-size // number)
            kept = saved[AGAIN] - fewer * self.checkpoint_bytes[place] * in_flight
            group = working[PLAIN] + number * (working[AGAIN] - working[PLAIN])
            fits: Flags = kept + np.maximum(group, logits) <= free
            return fits

        plain, zeros = saved[PLAIN] + peak[PLAIN] <= free, np.zeros(free.shape, np.int64)
        if self.recompute is not None:
            word, number = self.recompute.mode, np.minimum(self.recompute.layers, size)
            mode, all_layers = zeros + code("recompute", word), np.ones(free.shape)
            if word == "full:uniform":
                return fits_in_groups(number), all_layers, mode, number
            if word == "full:block":
                part = number / size
                kept = (1 - part) * saved[PLAIN] + part * saved[AGAIN]
                return kept + peak[AGAIN] <= free, part, mode, number
            return plain, all_layers * (word == "selective"), mode, zeros
        with np.errstate(divide="ignore", invalid="ignore"):
            more = saved[PLAIN] - saved[AGAIN]
            need = (saved[PLAIN] + peak[AGAIN] - free) * size / more
            fewest = np.maximum(np.ceil(need - ROUNDING_LAYERS), 1)
        some = ~plain & (fewest < size)
        fits, mode = plain | some, np.where(plain, NONE, np.where(some, BLOCK, UNIFORM))
        number = np.where(some, fewest, zeros).astype(np.int64)
        for group in range(1, MAX_GROUP_LAYERS + 1):
            now = ~fits & (size >= group) & fits_in_groups(np.minimum(group, size))
            number, fits = np.where(now, group, number), fits | now
            if fits.all():
                break
        return fits, np.where(mode == UNIFORM, 1.0, number / size), mode, number
