"""The least micro-batch group that an interleaved pipeline may have."""

import numpy as np
from tests.support.random_plans import random_plan

from astra.model.zoo import find_model
from astra.strategy.microbatch_group import (
    least_microbatch_group,
    microbatch_group_for,
    microbatch_groups_for,
)
from astra.strategy.plans import plans_of, task_of
from astra.strategy.rules import megatron

RULES = [rule for rule in megatron.RULES if rule.name.startswith("microbatch-group")]


def accepted(stages: int, count: int) -> list[int]:
    """Groups that break neither rule, of all that there could be."""
    model = find_model("llama-3-8b")
    plan = next(p for seed in range(999) if (p := random_plan(seed, model, ("h100",))).vpp > 1)
    groups = range(1, count + 2)
    table = plans_of([plan]).take(np.zeros(len(groups), np.int64))
    table.stages[:] = 0
    table.stages[0, 0] = stages
    table.vpp[:], table.micro_batches[:], table.microbatch_group[:] = 2, count, groups
    held = np.logical_and.reduce([rule.holds(table, task_of(plan)) for rule in RULES])
    return [group for group, good in zip(groups, held, strict=True) if good]


def test_it_is_the_first_that_the_rules_accept() -> None:
    assert len(RULES) == 2
    for stages in range(2, 9):
        for count in range(1, 30):
            allowed = accepted(stages, count)
            assert least_microbatch_group(stages, count) == (allowed[0] if allowed else None)
            assert microbatch_group_for(stages, count) == (allowed[0] if allowed else stages)


def test_of_many_pipelines_each_has_its_own() -> None:
    stages, counts = (column.ravel() for column in np.mgrid[1:13, 1:40])
    each = [microbatch_group_for(int(p), int(m)) for p, m in zip(stages, counts, strict=True)]
    np.testing.assert_array_equal(microbatch_groups_for(stages, counts), each)
    assert len(microbatch_groups_for(stages[:0], counts[:0])) == 0
