"""Which labels another one is as good as in all that counts."""

import numpy as np

from astra.search.mixed.cellar import Cellar
from astra.search.mixed.labels import Labels, Rows
from astra.strategy.plans import Flags, Floats, Ints

NEIGHBOURS = 6  # labels that each is compared with beyond its own group
FINE = 1 << 20  # steps of a value in an order


class Fronts:
    """Dominance in one cell.

    Of two labels that can go on alike, one is as good as the other if its value, with what more
    GPUs wait for the slowest of them, its round trip and its ends are no larger.
    """

    def __init__(self, cellar: Cellar) -> None:
        self.cellar = cellar
        self.layers = cellar.limits.layers + 1
        self.tails = int(cellar.tail.max(initial=0)) + 1

    def open(self, labels: Labels) -> Rows:
        """Labels of the same kind and layers left, with no fewer stages left nor types."""
        cellar = self.cellar
        key = self._key(labels, labels.kind.astype(np.int64))
        fine = (key * (cellar.every + 1) + labels.mask) * cellar.closes.shape[1] + labels.count
        strict = ~cellar.any_count[labels.kind]
        return self._front(labels, key, fine, strict)

    def closed(self, labels: Labels) -> Rows:
        """Labels that go on with another type: only the way to them and the types left count."""
        cellar = self.cellar
        key = self._key(labels, cellar.classes[labels.kind])
        return self._front(labels, key, key * (cellar.every + 1) + labels.mask, None)

    def _key(self, labels: Labels, kind: Ints) -> Ints:
        key: Ints = (kind * self.layers + labels.left) * self.tails + labels.tail
        return key

    def _front(self, labels: Labels, key: Ints, fine: Ints, strict: Flags | None) -> Rows:
        weighed = labels.value_s + self.cellar.straggler_s * np.log2(labels.gpus)
        place = (weighed * (FINE / max(float(weighed.max(initial=0.0)), 1e-30))).astype(np.int64)
        order = np.argsort(fine * (2 * FINE) + place)
        order = order[self._of_group(labels, weighed, order, fine[order])]
        again = np.argsort(key[order] * (2 * FINE) + place[order])
        order = order[again]
        return order[self._of_neighbours(labels, weighed, order, key[order], strict)]

    def _better(self, labels: Labels, weighed: Floats, one: Rows, other: Rows) -> Flags:
        """Whether the first is no worse in any value."""
        found = labels.value_s[one] <= labels.value_s[other]
        found &= weighed[one] <= weighed[other]
        found &= labels.below_s[one] <= labels.below_s[other]
        found &= labels.ends_s[one] <= labels.ends_s[other]
        if self.cellar.cap is not None:
            found &= labels.gpus[one] <= labels.gpus[other]
        return found

    def _of_group(self, labels: Labels, weighed: Floats, order: Rows, fine: Ints) -> Flags:
        """Of labels alike in all counts, those that the shortest round trip does not beat."""
        new = np.ones(len(order), np.bool_)
        new[1:] = fine[1:] != fine[:-1]
        below = labels.below_s[order]
        high = float(below.max(initial=0.0)) + 1.0
        lowered = below - np.cumsum(new) * high  # each group lies below the ones before
        least = np.minimum.accumulate(lowered)
        best = np.maximum.accumulate(np.where(lowered <= least, np.arange(len(order)), 0))
        before = np.zeros_like(best)
        before[1:] = best[:-1]
        kept = new | (fine[before] != fine)
        worse = self._better(labels, weighed, order[before], order)
        first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
        worse |= self._better(labels, weighed, order[first], order)
        return kept | ~worse

    def _of_neighbours(
        self, labels: Labels, weighed: Floats, order: Rows, key: Ints, strict: Flags | None
    ) -> Flags:
        """Those that none of the few before them beats."""
        kept = np.ones(len(order), np.bool_)
        exact = self.cellar.limits.use_all
        for step in range(1, min(NEIGHBOURS, len(order) - 1) + 1):
            ahead, behind = order[:-step], order[step:]
            near = np.flatnonzero((key[step:] == key[:-step]) & kept[step:])
            ahead, behind = ahead[near], behind[near]
            worse = self._better(labels, weighed, ahead, behind)
            one, other = labels.mask[ahead], labels.mask[behind]
            worse &= (one == other) if exact else (one & ~other) == 0
            if strict is not None:
                fewer, more = labels.count[ahead], labels.count[behind]
                worse &= fewer <= more
                worse &= ~strict[behind] | (fewer == more)
            kept[near + step] &= ~worse
        return kept
