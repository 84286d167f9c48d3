"""No setting of recompute and no number of chunks is closed that has a pipeline which fits."""

import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from astra.memory.in_flight import _layers_in_flight
from astra.search.mixed.cells import Kind
from astra.search.mixed.roomy import Bytes, Costs, WholeStages, open_rows
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plans import Floats, Ints


class Small:
    """A question by chance: two types, one setting, first layers that take a share of others."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.layers, self.lead = dice.randint(5, 8), dice.choice((0, 1, 2, 3))
        self.count, self.hides = dice.choice((4, 6, 8)), dice.random() < 0.4
        self.share = dice.choice((0.0, 0.3, 0.7))  # of a later layer, in all it takes
        self.most = dice.randint(1, 3), dice.randint(1, 2)
        self.layer_s = np.array([1.0, dice.choice((1.5, 2.5))])
        self.wait_s, self.head_s = np.array([0.2, 0.3]), np.array([0.5, 0.9])
        self.down_s = 0.3 * self.share if self.lead else 0.3
        self.states = np.array([dice.randint(2, 6), dice.randint(2, 6)])
        self.kept = np.array([dice.randint(1, 5), dice.randint(1, 5)])
        self.ends = np.array([dice.randint(0, 2), dice.randint(0, 2)])
        self.free = np.array([dice.randint(25, 110), dice.randint(25, 110)])
        self.less = dice.randint(0, 8)  # free on the last stage
        self.limit_s = dice.uniform(0.7, 2.0) * self.count * self.layers / sum(self.most)
        if dice.random() < 0.6:  # memory alone binds
            self.limit_s = np.inf
            self.free = self.free * self.layers // 12

    @property
    def costs(self) -> Costs:
        inside, last = (
            Bytes(
                free=1.0 * (self.free - less)[np.newaxis],
                states=1.0 * self.states,
                kept=1.0 * self.kept[np.newaxis],
                ends=1.0 * self.ends[np.newaxis],
            )
            for less in (0, self.less)
        )
        own = self.layer_s[np.newaxis], self.wait_s, self.head_s, self.head_s / 4
        return Costs(*own, self.down_s, inside, last)

    @property
    def whole(self) -> WholeStages:
        kinds = [
            Kind(pool, 1, 1, 1, 1, 1, tuple(range(1, most + 1)))
            for pool, most in enumerate(self.most)
        ]
        return WholeStages(kinds, self.count, 2, self.layers, self.lead, self.hides)

    def pipelines(self, vpp: int) -> Iterator[tuple[tuple[int, ...], Ints]]:
        """Types of the stages, and layers of the chunks. (chunk, stage)"""
        for stages in range(2, min(sum(self.most), self.layers // vpp) + 1):
            for types in product((0, 1), repeat=stages):
                if all(types.count(pool) <= most for pool, most in enumerate(self.most)):
                    yield from ((types, chunks) for chunks in self.cut(vpp, stages))

    def cut(self, vpp: int, stages: int) -> Iterator[Ints]:
        """One size a stage; the first chunk may lack a layer, the last one any number."""
        for sizes in product(range(1, self.layers // vpp + 2), repeat=stages):
            for lighter, spare in product((0, 1), range(sizes[-1])):
                chunks = np.tile(np.array(sizes), (vpp, 1))
                chunks[0, 0] -= lighter
                chunks[-1, -1] -= spare
                if chunks.sum() == self.layers and chunks.min() >= 1:
                    yield chunks

    def works(self, types: tuple[int, ...], chunks: Ints) -> bool:
        """Whether every stage has the time and the room, layer by layer."""
        vpp, stages = chunks.shape
        group = least_microbatch_group(stages, self.count)
        if group is None:
            return False
        weight = self.weights(chunks)
        doublings = np.log2(stages * 2)
        held = _layers_in_flight(
            np.round(weight * 1000).astype(np.int64), self.count, group, self.hides
        )
        for stage, kind in enumerate(types):
            last = stage == stages - 1
            own = weight[:, stage].sum()
            work = own * (self.count * self.layer_s[kind] + doublings * self.wait_s[kind])
            if last:
                work += self.head_s[kind] * (self.count + doublings / 4)
            ahead = 2 * (stages - 1 - stage) + (vpp - 1) * group + 1 + self.hides
            flying = min(self.count * vpp, ahead)
            used = self.states[kind] * own + self.kept[kind] * held[stage] / 1000
            used += self.ends[kind] * flying / vpp
            if work > self.limit_s - stage * self.down_s:
                return False
            if used > self.free[kind] - (self.less if last else 0):
                return False
        return True

    def weights(self, chunks: Ints) -> Floats:
        """Layers of the chunks, the first of the model by their share. (chunk, stage)"""
        ends = np.cumsum(chunks.ravel()).reshape(chunks.shape)
        early = np.clip(self.lead - (ends - chunks), 0, chunks)
        found: Floats = chunks - early * (1 - self.share)
        return found


@pytest.mark.parametrize("start", range(0, 120, 30))
def test_what_has_a_pipeline_that_fits_stays_open(start: int) -> None:
    opened = closed = 0
    vpps = np.array([2, 3])
    for seed in range(start, start + 30):
        small = Small(seed)
        (found,) = open_rows(small.costs, small.whole, vpps, small.limit_s)
        for vpp, can in zip(vpps.tolist(), found.tolist(), strict=True):
            opened, closed = opened + can, closed + (not can)
            if not can:
                assert not any(small.works(*each) for each in small.pipelines(vpp)), (seed, vpp)
    assert opened >= 10 and closed >= 10
