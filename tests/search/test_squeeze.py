"""No plan that fits takes less than the bound of its cut."""

import numpy as np
import pytest
from tests.search.test_find import space_of, stack_of, steps_of

from astra.search.bulk import bulk_of
from astra.search.squeeze import filled_bound_s, squeezed_bound_s
from astra.strategy.enumerate import module_sets
from astra.strategy.rules.book import judge, rules_for
from astra.strategy.variants import enumerate_plans
from astra.timing.layer import LayerCache, work_of


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("margin", [0.05, 0.7])
def test_no_plan_that_fits_beats_the_bound_of_its_cut(seed: int, margin: float) -> None:
    space = space_of(seed)
    task, stack = space.question.task, stack_of(space)
    modules = tuple(sorted({m for some in module_sets(space.question) for m in some}))
    for plans in enumerate_plans(space):
        plans = plans.take(np.flatnonzero(judge(plans, task, rules_for(task.runtime)).allowed))
        if len(plans):
            plans = plans.take(np.flatnonzero(bulk_of(plans, task, stack, margin).fits))
        if not len(plans):
            continue
        plans = plans.take(slice(0, len(plans), max(len(plans) // 400, 1)))  # some of them
        book = LayerCache()
        bound, rows = squeezed_bound_s(plans, task, stack, margin, modules, book)
        _, layer_s, head_s = work_of(book, task.model, rows)
        steps = steps_of(plans, space) * (1 + 1e-9)
        assert (bound <= steps).all()
        assert (filled_bound_s(plans, layer_s, head_s, stack) <= steps).all()
        assert (bound > 0).all()
