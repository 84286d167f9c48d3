"""Every interleaved pipeline of some cells whose bound is below a limit, from the first stage on.

Seen from stage i of p, with K micro-batches and t its seconds for one of them, all chunks,

    T >= up_i + K t_i + (what the first stage waits for at the end)
    T >= down_i + K t_i + (what stage i waits for at the end)

up and down: both ways, or the way down only, through the first chunk of the stages before i and
over the links between them. Stage i has nothing to do before the first micro-batch comes down to
it, and the last operation of every stage is the last micro-batch's backward of its first chunk,
which still goes up: Narayanan et al. 2021, arXiv 2104.04473, sec. 2.2.2.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from astra.search.mixed.chunks import Cuts
from astra.search.mixed.shapes import Orders, Shapes
from astra.search.mixed.turning import ends_hold
from astra.strategy.plans import Flags, Floats, Ints

MANY = 1 << 18  # numbers of one table that is worked on at once


class TooManyPipelinesError(Exception):
    """More pipelines than may be listed."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """A row of the cuts, and types along a pipeline. (pair,)"""

    row: Ints
    order: Ints
    stages: Ints
    group: Ints
    doublings: Floats  # of the GPUs of the plan
    room: Ints  # (pair, stage) layers that this stage and those behind it hold at most


@dataclass(frozen=True, slots=True)
class Lines:
    """Upper ends of pipelines, or whole ones. (line,)"""

    pair: Ints
    sizes: Ints  # (line, stage) layers of a chunk
    lighter: Ints  # layers that the first chunk of all lacks
    spare: Ints  # and the last one
    left: Ints  # layers of the stages behind
    up_s: Floats
    down_s: Floats
    wait_s: Floats  # of the first stage at the end
    bound_s: Floats

    def __len__(self) -> int:
        return len(self.pair)

    def take(self, rows: Ints | Flags) -> "Lines":
        return Lines(*(getattr(self, each.name)[rows] for each in fields(self)))


class Lister:
    """Lists the pipelines of one table of cuts below a limit."""

    def __init__(
        self, cuts: Cuts, shapes: Shapes, orders: Orders, layers: int, step_s: float
    ) -> None:
        self.cuts, self.shapes, self.orders = cuts, shapes, orders
        self.layers, self.step_s = layers, step_s
        self.work_s = cuts.micro_batches * cuts.stage_s
        self.pace_s = cuts.down_s[:, :, 1].min(axis=1)  # (row,) of any first chunk, one way

    def pairs(self, row: Ints, order: Ints, stage_gpus: int, limit_s: float) -> Pairs:
        """Those that can hold the model."""
        shape = self.orders.shape[order]
        stages, group = self.shapes.stages[shape], self.shapes.group[shape]
        doublings = np.log2(stages * stage_gpus)
        longest = int(stages.max(initial=0))
        vpp, hold = self.cuts.vpp[row], np.zeros((len(row), longest + 1), np.int64)
        room = np.zeros_like(hold)
        every = np.arange(len(self.cuts.vpp))
        most = self.cuts.most_layers(every, limit_s - self.step_s).astype(np.int64)
        limit = limit_s - self.step_s
        for place in range(longest):
            kind = self.orders.kinds[order, place]
            here = np.flatnonzero(kind >= 0)
            free = limit - place * self.pace_s[row[here]]
            fits = self._fits(row[here], kind[here], stages[here] - 1 - place, group[here])
            time = self.work_s[row[here], kind[here]]
            wait = self.cuts.wait_s[row[here], kind[here]] * self.cuts.vpp[row[here], np.newaxis]
            own = time + doublings[here, np.newaxis] * wait
            last = stages[here] == place + 1  # its last chunk may be as small as fits
            own += last[:, np.newaxis] * self._head_s(row[here], kind[here], doublings[here])
            fits |= last[:, np.newaxis] & fits[:, 1:2]
            fits &= own <= free[:, np.newaxis]
            size = hold[here, place] = _upto(fits)
            first_more, last_more = ends_hold(size, most[row[here], kind[here]], vpp[here])
            more = np.where(last, last_more, first_more if place == 0 else 0)
            room[here, place] = np.where(size > 0, vpp[here] * size + more, 0)
        room = np.cumsum(room[:, ::-1], axis=1)[:, ::-1]
        bare = (hold[:, :-1] == 0) & (np.arange(longest) < stages[:, np.newaxis])
        good = (room[:, 0] >= self.layers) & ~bare.any(axis=1)
        parts = (row, order, stages, group, doublings, room)
        return Pairs(*(part[good] for part in parts))

    def _head_s(self, row: Ints, kind: Ints, doublings: Floats) -> Floats:
        """Of all micro-batches, with what it makes to wait. (pair, 1)"""
        cuts = self.cuts
        head = cuts.micro_batches * cuts.head_s[row, kind]
        return (head + doublings * cuts.head_wait_s[row, kind])[:, np.newaxis]

    def _fits(self, row: Ints, kind: Ints, below: Ints, group: Ints) -> Flags:
        """Chunk sizes whose activations fit with so many stages below. (pair, size)"""
        cuts = self.cuts
        last = (below == 0)[:, np.newaxis]
        table = np.where(last, cuts.last.flying[row, kind], cuts.inside.flying[row, kind])
        return table >= self._flying(row, below, group)[:, np.newaxis]

    def _opens(self, row: Ints, kind: Ints, below: Ints, group: Ints, size: Ints) -> Flags:
        """Whether a first stage fits whose first chunk lacks a layer.

        When the turns begin it holds c chunks, of them g first ones, and those of the next group
        beyond g v.
        """
        vpp, ahead = self.cuts.vpp[row], self._flying(row, below, group)
        light = np.minimum(group + np.maximum(ahead - vpp * group, 0), ahead)
        held, layers = ahead * size - light, vpp * size - 1
        return self.cuts.inside.holds(row, kind, layers, vpp, held, ahead)

    def _closes(self, row: Ints, kind: Ints, group: Ints, size: Ints, spare: Ints) -> Flags:
        """Whether a last stage fits whose last chunk lacks so many layers.

        At the first loss it holds c chunks, of them one last one; two with EP overlap.
        """
        vpp, ahead = self.cuts.vpp[row], self._flying(row, np.zeros_like(row), group)
        held, layers = ahead * size - (1 + self.cuts.hides) * spare, vpp * size - spare
        return self.cuts.last.holds(row, kind, layers, vpp, held, ahead)

    def _flying(self, row: Ints, below: Ints, group: Ints) -> Ints:
        """Chunks in flight: min(m v, 2 (p - i - 1) + (v - 1) g + 1), one more with EP overlap."""
        vpp = self.cuts.vpp[row]
        ahead = 2 * below + (vpp - 1) * group + 1 + self.cuts.hides
        found: Ints = np.minimum(self.cuts.micro_batches * vpp, ahead)
        return found

    def every(self, pairs: Pairs, limit_s: float, most: int) -> Lines:
        """All pipelines of these pairs with a bound below the limit."""
        limit = limit_s - self.step_s
        done: list[Lines] = []
        lines, place, number = self._first(pairs, limit), 1, 0
        while len(lines):
            ends = pairs.stages[lines.pair] == place + 1
            last = self._last(pairs, lines.take(ends), place, limit)
            number += len(last)
            done.append(last)
            lines = self._next(pairs, lines.take(~ends), place, limit)
            if len(lines) + number > most:
                raise TooManyPipelinesError
            place += 1
        done.append(lines)
        widest = max(each.sizes.shape[1] for each in done)
        return joined([_wide(each, widest) for each in done])

    def _first(self, pairs: Pairs, limit: float) -> Lines:
        """The first stage, whose first chunk may lack a layer."""
        count = len(pairs.row)
        zeros, none = np.zeros(count, np.int64), np.zeros(count)
        start = Lines(
            pair=np.arange(count),
            sizes=np.zeros((count, 0), np.int64),
            lighter=zeros,
            spare=zeros,
            left=zeros + self.layers,
            up_s=none,
            down_s=none,
            wait_s=none,
            bound_s=none,
        )
        both = [start, replace(start, lighter=zeros + 1)]
        return joined([self._next(pairs, each, 0, limit) for each in both])

    def _next(self, pairs: Pairs, lines: Lines, place: int, limit: float) -> Lines:
        """One stage more, neither the last, of every size that may be."""
        parts = []
        width = max(1, MANY // self.cuts.chunk_s.shape[2])
        for start in range(0, len(lines), width):
            some = lines.take(np.arange(start, min(start + width, len(lines))))
            parts.append(self._grown(pairs, some, place, limit))
        return joined(parts or [_wide(lines, place + 1)])

    def _grown(self, pairs: Pairs, lines: Lines, place: int, limit: float) -> Lines:
        cuts, pair = self.cuts, lines.pair
        row, kind = pairs.row[pair], self.orders.kinds[pairs.order[pair], place]
        vpp, below = cuts.vpp[row], pairs.stages[pair] - 1 - place
        lacks = lines.lighter if place == 0 else np.zeros_like(lines.lighter)
        size = np.arange(cuts.chunk_s.shape[2])
        count = cuts.micro_batches
        light = np.maximum(size - lacks[:, np.newaxis], 0)  # of the first chunk
        work, wait = self.work_s[row, kind], cuts.wait_s[row, kind]
        chunk = np.take_along_axis(cuts.chunk_s[row, kind], light, axis=1)
        down = np.take_along_axis(cuts.down_s[row, kind], light, axis=1)
        waits = (vpp - 1)[:, np.newaxis] * wait + np.take_along_axis(wait, light, axis=1)
        if place == 0:  # without the layer that the first chunk lacks
            less = (vpp - 1)[:, np.newaxis] * cuts.chunk_s[row, kind] + chunk
            less = count * np.maximum(less, np.take_along_axis(cuts.stage_s[row, kind], light, 1))
            work = np.where(lacks[:, np.newaxis] > 0, less, work)
        waits = waits * pairs.doublings[pair, np.newaxis]
        ends = waits if place == 0 else lines.wait_s[:, np.newaxis]
        view = np.maximum(
            lines.up_s[:, np.newaxis] + work + ends, lines.down_s[:, np.newaxis] + work + waits
        )
        good = (view < limit) & (light > 0)
        if place or not lacks.any():
            good &= self._fits(row, kind, below, pairs.group[pair])
        else:
            at, n = np.nonzero(good)
            good[at, n] = self._opens(row[at], kind[at], below[at], pairs.group[pair[at]], n)
        left = lines.left[:, np.newaxis] - vpp[:, np.newaxis] * size + lacks[:, np.newaxis]
        good &= left <= pairs.room[pair, place + 1][:, np.newaxis]
        good &= left >= (vpp * below)[:, np.newaxis]  # every chunk has a layer
        at, n = np.nonzero(good)
        following = np.maximum(self.orders.kinds[pairs.order[pair[at]], place + 1], 0)
        link = cuts.link_s[kind[at], following]
        return Lines(
            pair=pair[at],
            sizes=np.concatenate([lines.sizes[at], n[:, np.newaxis]], axis=1),
            lighter=lines.lighter[at],
            spare=lines.spare[at],
            left=left[at, n],
            up_s=lines.up_s[at] + chunk[at, n] + 2 * link,
            down_s=lines.down_s[at] + down[at, n] + link,
            wait_s=waits[at, n] if place == 0 else lines.wait_s[at],
            bound_s=np.maximum(lines.bound_s[at], view[at, n] + self.step_s),
        )

    def _last(self, pairs: Pairs, lines: Lines, place: int, limit: float) -> Lines:
        """The last stage holds what is left, its last chunk perhaps less than the others."""
        cuts, parts = self.cuts, []
        row = pairs.row[lines.pair]
        vpp = cuts.vpp[row]
        least, most = -(-lines.left // vpp), (lines.left - 1) // np.maximum(vpp - 1, 1)
        for more in range(int((most - least).max(initial=-1)) + 1):
            some = np.flatnonzero(least + more <= np.minimum(most, cuts.chunk_s.shape[2] - 1))
            parts.append(self._ended(pairs, lines.take(some), least[some] + more, place, limit))
        return joined(parts or [_wide(lines, place + 1)])

    def _ended(self, pairs: Pairs, lines: Lines, size: Ints, place: int, limit: float) -> Lines:
        cuts, pair = self.cuts, lines.pair
        row, kind = pairs.row[pair], self.orders.kinds[pairs.order[pair], place]
        vpp, count = cuts.vpp[row], cuts.micro_batches
        spare = vpp * size - lines.left
        chunk, wait = cuts.chunk_s[row, kind], cuts.wait_s[row, kind]
        at = np.arange(len(pair))
        light = size - spare
        stage = (vpp - 1) * chunk[at, size] + chunk[at, light]
        whole = cuts.stage_s[row, kind, size]
        stage = np.maximum(stage, cuts.stage_s[row, kind, light])
        work = count * (stage + cuts.head_s[row, kind])
        waits = (vpp - 1) * wait[at, size] + wait[at, light] + cuts.head_wait_s[row, kind]
        view = np.maximum(
            lines.up_s + work + lines.wait_s, lines.down_s + work + pairs.doublings[pair] * waits
        )
        good = (view < limit) & np.isfinite(whole)
        some = np.flatnonzero(good)
        parts = (column[some] for column in (row, kind, pairs.group[pair], size, spare))
        good[some] = self._closes(*parts)
        return Lines(
            pair=pair,
            sizes=np.concatenate([lines.sizes, size[:, np.newaxis]], axis=1),
            lighter=lines.lighter,
            spare=spare,
            left=np.zeros_like(size),
            up_s=lines.up_s,
            down_s=lines.down_s,
            wait_s=lines.wait_s,
            bound_s=np.maximum(lines.bound_s, view + self.step_s),
        ).take(good)


def _upto(fits: Flags) -> Ints:
    """The largest size that fits; 0: none. Sizes begin with none."""
    sizes = np.arange(fits.shape[1])
    found: Ints = np.where(fits, sizes, 0).max(axis=1, initial=0)
    return found


def _wide(lines: Lines, stages: int) -> Lines:
    """With columns for so many stages."""
    missing = stages - lines.sizes.shape[1]
    return replace(lines, sizes=np.pad(lines.sizes, ((0, 0), (0, missing))))


def joined(parts: list[Lines]) -> Lines:
    if len(parts) == 1:
        return parts[0]
    return Lines(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Lines)))
