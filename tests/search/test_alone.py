"""A search on one of several types finds what the ordinary search finds, wherever it begins."""

import numpy as np
import pytest
from tests.search.test_one_type import by_brute_force, searched, space_of, steps_found

from astra.search.objective import Fastest
from astra.strategy.enumerate import Layouts, enumerate_layouts
from astra.strategy.variants import plan_count, variant_counts

SPACES = (*range(16), *range(40, 64))


@pytest.mark.parametrize("seed", SPACES)
def test_plans_of_another_type_change_nothing_but_where_it_begins(seed: int) -> None:
    """Seeds come from the best of other spaces: of other degrees, models and memory."""
    space = space_of(seed)
    steps, count = by_brute_force(space)
    seeds = []
    for other in (seed, seed + 1, seed + 2):
        best = searched(space_of(other), Fastest(1)).objective.incumbents
        seeds += [plan for *_, plan in best]
    for some in ([], seeds, seeds[1:]):
        found = searched(space, Fastest(1), some)
        np.testing.assert_allclose(steps_found(found), steps[:1], rtol=1e-9)
        funnel = found.funnel
        assert funnel.candidates == count  # whatever was laid out
        assert sum(funnel.removed_by_rule.values()) + funnel.bounded + funnel.priced == count


@pytest.mark.parametrize("seed", SPACES)
def test_plans_are_counted_without_being_laid_out(seed: int) -> None:
    space = space_of(seed)
    layouts = Layouts(space)
    known = sum(int(variant_counts(table, space).sum()) for table in enumerate_layouts(space))
    assert plan_count(layouts, np.arange(len(layouts))) == known
