"""Recompute and offload add no less to a layout's bound than a search takes off in advance."""

import numpy as np
import pytest
from tests.search.test_find import QUICK, space_of, stack_of

from astra.search.bulk import bulk_of
from astra.search.variants import least_added_s
from astra.strategy.enumerate import enumerate_layouts
from astra.strategy.variants import variants_in, variants_of
from astra.timing.layer import LayerCache


@pytest.mark.parametrize("seed", [*range(16), *range(QUICK, QUICK + 24)])
def test_no_variant_adds_less_than_was_taken_off_in_advance(seed: int) -> None:
    space = space_of(seed)
    task, stack = space.question.task, stack_of(space)
    dice, told = np.random.default_rng(seed), 0.0
    for layouts in enumerate_layouts(space):
        layouts = layouts.take(np.sort(dice.permutation(len(layouts))[:200]))
        every = variants_in(layouts, space)
        own = bulk_of(layouts, task, stack).bound_s[every.rows]
        bounds = bulk_of(variants_of(layouts, space), task, stack).bound_s
        added = least_added_s(layouts, every, task, stack, LayerCache())
        assert (own + added <= bounds * (1 + 1e-12)).all()
        told = max(told, float((added / np.maximum(bounds - own, 1e-12)).max(initial=0.0)))
    assert told > 0.5  # most of what some variant adds is known in advance
