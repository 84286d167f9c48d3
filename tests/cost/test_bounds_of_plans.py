"""No bound says more than the simulator, of any plan that fits; and each comes near somewhere."""

import numpy as np
import pytest
from tests.search.test_one_type import space_of, stack_of
from tests.support.tiers import soak_but_every

from astra.cost.bounds import BOUNDS
from astra.cost.evaluate import evaluate, simulate
from astra.strategy.plans import Plans, concatenate
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space
from astra.strategy.variants import enumerate_plans

SAMPLE = 400  # plans of a table


def fitting_plans(space: Space, margin: float) -> Plans:
    """Legal plans that fit, from all over a space."""
    task, found = space.workload.task, []
    for plans in enumerate_plans(space):
        plans = plans.take(np.flatnonzero(check(plans, task, rules_for(task.runtime)).allowed))
        if len(plans):
            fits = evaluate(plans, task, stack_of(space), margin).fits
            plans = plans.take(np.flatnonzero(fits))
            found.append(plans.take(slice(0, len(plans), max(len(plans) // SAMPLE, 1))))
    return concatenate([plans for plans in found if len(plans)] or found[:1])


@pytest.mark.parametrize("seed", [*range(3), *soak_but_every(2, range(3, 24))])
@pytest.mark.parametrize("margin", [0.05, 0.7])
def test_no_bound_exceeds_the_simulated_step_of_a_plan_that_fits(seed: int, margin: float) -> None:
    space = space_of(seed)
    task, stack = space.workload.task, stack_of(space)
    plans = fitting_plans(space, margin)
    if not len(plans):
        return
    steps = simulate(plans, task, stack)
    for name, bound in BOUNDS.items():
        bounds = bound(plans, task, stack, margin)
        assert (bounds <= steps * (1 + 1e-9)).all(), name
        assert (bounds > 0).all(), name


@pytest.mark.slow
def test_every_bound_comes_near_the_simulated_step_of_some_plan() -> None:
    """One that were always far below would prune nothing."""
    nearest = dict.fromkeys(BOUNDS, 0.0)
    for seed in range(6):
        space = space_of(seed)
        task, stack = space.workload.task, stack_of(space)
        plans = fitting_plans(space, 0.05)
        if len(plans):
            steps = simulate(plans, task, stack)
            for name, bound in BOUNDS.items():
                near = float((bound(plans, task, stack, 0.05) / steps).max())
                nearest[name] = max(nearest[name], near)
    assert min(nearest.values()) > 0.7, nearest
