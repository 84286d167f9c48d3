"""The plan of someone who does not look, which answers over several types are held against."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from tests.search.mixed_brute import best_step_s, random_space
from tests.search.pipeline.small_pools import STACK, evaluator_of, search_plain

from astra.search.even_split import even_split_s
from astra.strategy.complete import split_layers
from astra.strategy.plan import Plan
from astra.strategy.space import Space


def is_even(plan: Plan) -> bool:
    """One cut for all stages, equal layers, types in order of their names."""
    segments = plan.pipelines[0].segments
    cuts = {(each.tp, each.dp, each.ep, each.micro_batch) for each in segments}
    layers = list(chain.from_iterable(each.layers for each in segments))
    names = [each.gpu for each in segments]
    even = list(split_layers(plan.model.layers, len(layers)))
    return len(cuts) == 1 and names == sorted(names) and layers == even


@pytest.mark.slow
@pytest.mark.parametrize("experts", (False, True))
def test_the_least_even_split_is_that_of_all_of_them(experts: bool) -> None:
    """Every GPU, all layers recomputed or none; the best plan is no slower."""
    some = 0
    for seed in range(900, 924):
        space = random_space(seed, experts=experts)
        settings = {**space.settings, "recompute": ("none", "full:uniform:1")}
        everything = Space(replace(space.workload, use_all=True), settings)
        wanted_s, _ = best_step_s(everything, STACK, is_even)
        found_s = even_split_s(space, evaluator_of(space))
        if found_s is None:
            assert np.isinf(wanted_s), seed
            continue
        assert found_s == pytest.approx(wanted_s, rel=1e-9), seed
        assert search_plain(space).best_s <= found_s * (1 + 1e-9), seed
        some += 1
    assert some >= 2
