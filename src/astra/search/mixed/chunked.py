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

from astra.search.mixed.chunks import Cuts, Held
from astra.search.mixed.shapes import Orders, Shapes
from astra.search.mixed.turning import ends_hold
from astra.strategy.plans import Flags, Floats, Ints

MANY = 1 << 18  # numbers of one table that is worked on at once

Cut = tuple[Ints, Ints]  # layers of a chunk, and those that the last one lacks


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
    begin: Ints  # layers of the first chunks so far
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
        self.pace_s = cuts.down_s[cuts.any, :, :, 1].min(axis=1)  # (row,) of any chunk, one way

    def _rest(self, stages: Ints) -> Ints:
        """Where chunks but the first of a stage begin: behind one layer of every stage."""
        return np.where(stages >= self.cuts.lead, self.cuts.lead, self.cuts.any)

    def _where(self, stages: Ints, place: int) -> Ints:
        """Where any chunk of a stage begins: behind one layer of every stage before it."""
        behind = place >= self.cuts.lead
        return self._rest(stages) if behind else np.full_like(stages, self.cuts.any)

    def _stage(self, table: Floats, at: tuple[Ints, Ints], rest: Ints, first: Ints) -> Floats:
        """All chunks of a stage of whole ones. (pair, size)"""
        row, kind = at
        vpp = self.cuts.vpp[row, np.newaxis]
        found = (vpp - 1) * table[rest, row, kind] + table[first, row, kind]
        found[vpp * np.arange(table.shape[-1]) > self.layers] = np.inf
        return found

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
            at, p = (row[here], kind[here]), stages[here]
            first = self._where(p, place) if place else np.zeros_like(p)
            time = limit - place * self.pace_s[at[0]]
            own = self.cuts.micro_batches * self._stage(self.cuts.chunk_s, at, self._rest(p), first)
            wait = self._stage(self.cuts.wait_s, at, self._rest(p), first)
            own += doublings[here, np.newaxis] * wait
            last = p == place + 1
            own += last[:, np.newaxis] * self._head_s(*at, doublings[here])
            fits = self._fits(*at, p - 1 - place, group[here], self._where(p, place))
            # Its lighter chunk may have the layers that keep least.
            free = last & ((p <= self.cuts.lead) if self.cuts.alike else True)
            fits |= free[:, np.newaxis] & fits[:, 1:2]
            fits &= own <= time[:, np.newaxis]
            size = hold[here, place] = _upto(fits)
            first_more, last_more = ends_hold(size, most[at], vpp[here])
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

    def _fits(self, row: Ints, kind: Ints, below: Ints, group: Ints, start: Ints) -> Flags:
        """Chunk sizes whose activations fit with so many stages below. (pair, size)"""
        cuts = self.cuts
        last = (below == 0)[:, np.newaxis]
        table = np.where(
            last, cuts.flying(True, start, (row, kind)), cuts.flying(False, start, (row, kind))
        )
        return table >= self._flying(row, below, group)[:, np.newaxis]

    def _opens(self, row: Ints, kind: Ints, below: Ints, group: Ints, size: Ints) -> Flags:
        """Whether a first stage fits whose first chunk lacks a layer.

        When the turns begin it holds c chunks, of them g first ones, and those of the next group
        beyond g v.
        """
        vpp, ahead = self.cuts.vpp[row], self._flying(row, below, group)
        light = np.minimum(group + np.maximum(ahead - vpp * group, 0), ahead)
        held = ahead * size - light
        some = below + 1 >= self.cuts.lead  # others lie in first chunks alone
        other = np.where(some, np.minimum(light * self.cuts.lead, held), held)
        layers = vpp * size - 1
        return self.cuts.inside.holds((row, kind), (layers, vpp), Held(held, other, ahead))

    def _closes(self, at: tuple[Ints, Ints], stages: Ints, group: Ints, cut: Cut) -> Flags:
        """Whether a last stage fits whose last chunk lacks so many layers.

        At the first loss it holds c chunks, of them one last one; two with EP overlap.
        """
        row, (size, spare) = at[0], cut
        vpp, ahead = self.cuts.vpp[row], self._flying(row, np.zeros_like(row), group)
        held = ahead * size - (1 + self.cuts.hides) * spare
        other = np.where(stages > self.cuts.lead, 0, held)
        return self.cuts.last.holds(at, (vpp * size - spare, vpp), Held(held, other, ahead))

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
            begin=zeros,
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
        width = max(1, MANY // self.cuts.chunk_s.shape[-1])
        for start in range(0, len(lines), width):
            some = lines.take(np.arange(start, min(start + width, len(lines))))
            parts.append(self._grown(pairs, some, place, limit))
        return joined([_wide(lines.take(np.zeros(0, np.int64)), place + 1), *parts])

    def _grown(self, pairs: Pairs, lines: Lines, place: int, limit: float) -> Lines:
        cuts, pair = self.cuts, lines.pair
        row, kind = at = pairs.row[pair], self.orders.kinds[pairs.order[pair], place]
        vpp, below = cuts.vpp[row], pairs.stages[pair] - 1 - place
        lacks = lines.lighter if place == 0 else np.zeros_like(lines.lighter)
        size = np.arange(cuts.chunk_s.shape[-1])
        light = np.maximum(size - lacks[:, np.newaxis], 0)  # of the first chunk
        rest = self._rest(pairs.stages[pair])
        begin = np.minimum(lines.begin, cuts.lead)

        def first(table: Floats) -> Floats:
            return np.take_along_axis(table[begin, row, kind], light, axis=1)

        def stage(table: Floats) -> Floats:
            whole = self._stage(table, at, rest, begin)
            return whole - np.where(
                lacks[:, np.newaxis] > 0, table[begin, row, kind] - first(table), 0.0
            )

        # Plans share out the seconds of a stage among its chunks by their layers.
        held = vpp[:, np.newaxis] * size - lacks[:, np.newaxis]
        share = light / np.maximum(held, 1)
        whole = stage(cuts.chunk_s)
        work, chunk, down = cuts.micro_batches * whole, share * whole, share * stage(cuts.down_s)
        waits = stage(cuts.wait_s) * pairs.doublings[pair, np.newaxis]
        up, down_to = lines.up_s[:, np.newaxis], lines.down_s[:, np.newaxis]
        ends = lines.wait_s[:, np.newaxis]
        if place == 0:
            opening, after = self._once(kind, held, share)
            up, down_to, ends = up + opening, down_to + opening, waits + after
        view = np.maximum(up + work + ends, down_to + work + waits)
        left = lines.left[:, np.newaxis] - vpp[:, np.newaxis] * size + lacks[:, np.newaxis]
        good = (view < limit) & (light > 0)
        good &= left <= pairs.room[pair, place + 1][:, np.newaxis]
        good &= left >= (vpp * below)[:, np.newaxis]  # every chunk has a layer
        if place or not lacks.any():
            start = self._where(pairs.stages[pair], place)
            good &= self._fits(row, kind, below, pairs.group[pair], start)
        else:
            to, n = np.nonzero(good)
            good[to, n] = self._opens(row[to], kind[to], below[to], pairs.group[pair[to]], n)
        to, n = np.nonzero(good)
        following = np.maximum(self.orders.kinds[pairs.order[pair[to]], place + 1], 0)
        link = cuts.link_s[kind[to], following]
        return Lines(
            pair=pair[to],
            sizes=np.concatenate([lines.sizes[to], n[:, np.newaxis]], axis=1),
            lighter=lines.lighter[to],
            spare=lines.spare[to],
            begin=lines.begin[to] + light[to, n],
            left=left[to, n],
            up_s=np.broadcast_to(up, view.shape)[to, n] + chunk[to, n] + 2 * link,
            down_s=np.broadcast_to(down_to, view.shape)[to, n] + down[to, n] + link,
            wait_s=np.broadcast_to(ends, view.shape)[to, n],
            bound_s=np.maximum(lines.bound_s[to], view[to, n] + self.step_s),
        )

    def _once(self, kind: Ints, layers: Ints, share: Floats) -> tuple[Floats, Floats]:
        """Of a first stage, once a step: what its first forward waits for, as far as its first
        chunk does, and what comes behind its last backward, beyond what every stage has.
        """
        held = np.clip(layers, 0, self.layers)
        opening: Floats = self.cuts.opening_s[kind[:, np.newaxis], held] * share
        after: Floats = self.cuts.after_s[kind[:, np.newaxis], held] - self.step_s
        return opening, after

    def _last(self, pairs: Pairs, lines: Lines, place: int, limit: float) -> Lines:
        """The last stage holds what is left, its last chunk perhaps less than the others."""
        cuts, parts = self.cuts, []
        row = pairs.row[lines.pair]
        vpp = cuts.vpp[row]
        least, most = -(-lines.left // vpp), (lines.left - 1) // np.maximum(vpp - 1, 1)
        for more in range(int((most - least).max(initial=-1)) + 1):
            some = np.flatnonzero(least + more <= np.minimum(most, cuts.chunk_s.shape[-1] - 1))
            parts.append(self._ended(pairs, lines.take(some), least[some] + more, place, limit))
        return joined([_wide(lines.take(np.zeros(0, np.int64)), place + 1), *parts])

    def _ended(self, pairs: Pairs, lines: Lines, size: Ints, place: int, limit: float) -> Lines:
        cuts, pair = self.cuts, lines.pair
        row, kind = pairs.row[pair], self.orders.kinds[pairs.order[pair], place]
        vpp = cuts.vpp[row]
        spare = vpp * size - lines.left
        rest, begin = self._rest(pairs.stages[pair]), np.minimum(lines.begin, cuts.lead)

        def stage(table: Floats) -> Floats:
            ends = table[begin, row, kind, size] + table[rest, row, kind, size - spare]
            found: Floats = ends + (vpp - 2) * table[rest, row, kind, size]
            return found

        work = cuts.micro_batches * (stage(cuts.chunk_s) + cuts.head_s[row, kind])
        waits = stage(cuts.wait_s) + cuts.head_wait_s[row, kind]
        view = np.maximum(
            lines.up_s + work + lines.wait_s, lines.down_s + work + pairs.doublings[pair] * waits
        )
        good = (view < limit) & (vpp * size <= self.layers)
        some = np.flatnonzero(good)
        ends, cut = (row[some], kind[some]), (size[some], spare[some])
        where = pair[some]
        good[some] = self._closes(ends, pairs.stages[where], pairs.group[where], cut)
        return Lines(
            pair=pair,
            sizes=np.concatenate([lines.sizes, size[:, np.newaxis]], axis=1),
            lighter=lines.lighter,
            spare=spare,
            begin=lines.begin,
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
