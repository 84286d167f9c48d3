"""Seconds and bytes of every stage a mixed pipeline may have, as the search looks them up."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.search.mixed.cells import Cell, Kind
from astra.search.mixed.loads import FIRST, INSIDE, LAST, Loads
from astra.strategy.plans import Flags, Floats, Ints, code

__all__ = ["FIRST", "INSIDE", "LAST", "Chosen", "Tables"]

NONE, UNIFORM, BLOCK = (code("recompute", word) for word in ("none", "full:uniform", "full:block"))
SLIP = 1e-9  # of a layer, against rounding
OF_KINDS = (
    "forward_s",
    "backward_s",
    "again_s",
    "opening_s",
    "after_s",
    "wait_s",
    "room_bytes",
    "logits_bytes",
    "kept_bytes",
    "working_bytes",
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Stages at one place and depth with the least recompute that fits. (kind, load)"""

    forward_s: Floats  # inf where nothing fits
    backward_s: Floats
    mode: Ints
    layers: Ints  # of the recompute setting


@dataclass(frozen=True, slots=True)
class Tables:
    """Candidate stages of one cell. (place, kind, load); option axis in front.

    Options: no recompute, all layers one by one, all layers as one group. Where the whole plan
    has one setting it is the only option.
    """

    cell: Cell
    kinds: list[Kind]
    loads: Loads
    weights: tuple[Floats, Floats]  # of loads, and of the layers left, in mean layers
    forward_s: Floats
    backward_s: Floats  # (option, place, kind, load)
    again_s: Floats  # what recomputing every layer takes
    opening_s: Floats  # of the first stage: the gather that its first forward waits for
    after_s: Floats  # behind the last backward, at least; without
    wait_s: Floats  # for the slowest GPU, for every doubling of the GPUs
    room_bytes: Floats  # left for activations
    logits_bytes: Floats
    kept_bytes: Floats  # (option, place, kind, load)
    working_bytes: Floats  # (option, place, kind, load)
    link_s: Floats  # (kind, kind of the next stage)
    known: dict[tuple[int, int], Chosen] = field(default_factory=dict)

    @property
    def fixed(self) -> bool:
        return len(self.backward_s) == 1

    def of_kinds(self, rows: NDArray[np.intp]) -> "Tables":
        """The same with some of the kinds only."""
        parts = {name: getattr(self, name)[..., rows, :] for name in OF_KINDS}
        links = self.link_s[np.ix_(rows, rows)]
        kinds = [self.kinds[row] for row in rows]
        return replace(self, kinds=kinds, link_s=links, known={}, **parts)

    def at(self, place: int, flying: int) -> Chosen:
        """The fastest setting that fits with so many micro-batches in flight."""
        key = (place, flying)
        if key not in self.known:
            self.known[key] = self._choose(place, flying)
        return self.known[key]

    def _choose(self, place: int, flying: int) -> Chosen:
        kept, working = self.kept_bytes[0, place] * flying, self.working_bytes[0, place]
        peak = np.maximum(working, self.logits_bytes[place])
        forward, backward = self.forward_s[place], self.backward_s[0, place]
        fits = kept + peak <= self.room_bytes[place]
        mode, layers = np.full(fits.shape, NONE), np.zeros(fits.shape, np.int64)
        there = np.isfinite(forward)
        if self.fixed:
            setting = self.cell.recompute
            mode += code("recompute", setting.mode)
            layers += setting.layers
        elif not fits[there].all():
            backward = backward.copy()
            rows = np.nonzero(~fits & there)
            some = self._recompute(place, flying, rows)
            for whole, part in zip((fits, mode, layers, backward), some, strict=True):
                whole[rows] = part
        return Chosen(np.where(fits, forward, np.inf), backward, mode, layers)

    def _recompute(
        self, place: int, flying: int, rows: tuple[Any, ...]
    ) -> tuple[Flags, Ints, Ints, Floats]:
        """Whole layers of stages that do not fit without: as few as do, then in groups. (row,)"""
        size = self.loads.sizes[rows[1]]
        kept = self.kept_bytes[(slice(None), place, *rows)] * flying
        work = self.working_bytes[(slice(None), place, *rows)]
        full_s = self.backward_s[(1, place, *rows)]
        plain_s, again_s = self.backward_s[(0, place, *rows)], self.again_s[(place, *rows)]
        logits, room = self.logits_bytes[(place, *rows)], self.room_bytes[(place, *rows)]
        peak = np.maximum(work, logits)
        with np.errstate(divide="ignore", invalid="ignore"):
            fewest = np.ceil((kept[0] + peak[1] - room) * size / (kept[0] - kept[1]) - SLIP)
        some = np.isfinite(fewest) & (fewest < size)
        count = np.where(some, np.maximum(fewest, 1), 0).astype(np.int64)
        some &= count < size
        partly = np.maximum(plain_s, full_s - (1 - count / size) * again_s)
        mode, layers = np.where(some, BLOCK, UNIFORM), np.where(some, count, 1)
        fits = some | (kept[1] + peak[1] <= room)
        left = ~fits & (size > 1)
        share = 1 / np.maximum(size - 1, 1)
        for group in range(2, int(size[left].max(initial=1)) + 1):
            held = kept[2] + (-(-size // group) - 1) * (kept[1] - kept[2]) * share
            high = np.maximum(work[1] + (group - 1) * (work[2] - work[1]) * share, logits)
            now = left & ~fits & (group <= size) & (held + high <= room)
            layers[now] = group
            fits |= now
        return fits, mode, layers, np.where(some, partly, full_s)
