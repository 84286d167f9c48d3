"""Many plans at once: bounds never above the simulated step, memory however stages are gathered."""

from functools import cache

import numpy as np
import pytest
from tests.support.tiers import slow_after

from astra.cost.evaluate import evaluate, memory_fraction
from astra.cost.step import step_s
from astra.hardware.gpus_option import parse_gpus
from astra.hardware.stack import find_stack
from astra.memory.stage import memory_of
from astra.model.layer_kinds import layer_kinds
from astra.model.zoo import find_model
from astra.strategy.plans import Plans, Task, concatenate
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space, Workload, parse_set
from astra.strategy.stage_view import stage_view, without_layers
from astra.strategy.variants import enumerate_plans
from astra.timing.layer import work_s
from astra.timing.plan_bounds import work_bound_s
from astra.timing.stage import stage_times

STACK = find_stack("megatron")
ASKED = (
    ("llama-3-8b", "h100:64", 64),
    ("gpt3-175b", "a100:128", 128),
    ("deepseek-moe-16b", "h100:32", 64),
    ("llama-4-scout-17b-16e", "h200:64", 64),
)


@cache
def some(model: str, gpus: str, batch: int, count: int = 150) -> tuple[Plans, Task]:
    """Legal plans from all over a space."""
    cluster, _ = parse_gpus(gpus)
    task = Task(model=find_model(model), cluster=cluster)
    dice = np.random.default_rng(7)
    found: list[Plans] = []
    for table in enumerate_plans(Space(Workload(task, batch, 2048))):
        allowed = check(table, task, rules_for(task.runtime)).allowed
        legal = np.flatnonzero(allowed & (table.pp[0] > 3) & (table.vpp < 9))
        if len(legal):
            found.append(
                table.take(np.sort(dice.choice(legal, min(30, len(legal)), replace=False)))
            )
        if sum(len(table) for table in found) >= count:
            break
    return concatenate(found), task


@pytest.mark.parametrize("asked", slow_after(1, ASKED), ids=lambda asked: asked[0])
def test_every_bound_stays_below_the_simulated_step(asked: tuple[str, str, int]) -> None:
    plans, task = some(*asked)
    view = stage_view(plans, task, every_stage=True)
    step = step_s(plans, view.stages, stage_times(view, STACK))
    whole = evaluate(plans, task, STACK).bound_s
    ((work, _, _),) = work_s([without_layers(plans, task)], STACK)
    first = work_bound_s(plans.micro_batches[0], plans.pp[0], work[0, 0])
    for bound in (first, whole):
        assert (bound <= step * (1 + 1e-12)).all()
    assert (plans.vpp > 1).any()
    assert np.median(whole / step) > 0.8  # why few need to be simulated


@pytest.mark.parametrize("asked", slow_after(1, ASKED), ids=lambda asked: asked[0])
def test_stages_gathered_into_runs_need_the_same(asked: tuple[str, str, int]) -> None:
    plans, task = some(*asked)
    apart, runs = (stage_view(plans, task, every_stage) for every_stage in (True, False))
    assert runs.stages.count.shape[1] <= apart.stages.count.shape[1]
    assert (runs.stages.count > 1).any() or len(layer_kinds(task.model).kinds) > 1
    assert (runs.stages.count.sum(axis=1) == plans.pp).all()
    full, few = (memory_fraction(v, memory_of(v, STACK), STACK) for v in (apart, runs))
    assert full == pytest.approx(few, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v2-lite"])
def test_variants_in_a_table_cost_what_they_cost_alone(model: str, precision: str) -> None:
    """What is shared by plans that differ in recompute and offload depends on neither."""
    cluster, _ = parse_gpus("h100:16")
    task = Task(model=find_model(model), cluster=cluster)
    space = Space(Workload(task, 32, 4096, precision=precision))
    dice = np.random.default_rng(3)
    for table in enumerate_plans(space):
        rows = np.flatnonzero(check(table, task, rules_for(task.runtime)).allowed)
        if len(rows) > 30:
            break
    some = table.take(np.sort(dice.choice(rows, 30, replace=False)))
    assert len(set(some.offload_optimizer_fraction)) > 1
    together = evaluate(some, task, STACK)
    for row in range(len(some)):
        alone = evaluate(some.take([row]), task, STACK)
        assert alone.memory_fraction[0] == pytest.approx(together.memory_fraction[row], rel=1e-9)
        assert alone.bound_s[0] == pytest.approx(together.bound_s[row], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpus"), [("llama-3-70b", "h100:96"), ("deepseek-v3", "h100:64")]
)
def test_one_list_of_chunks_may_be_cut_for_few_stages_or_for_many(model: str, gpus: str) -> None:
    """80 layers in 27 chunks are 3 stages of 9 or 9 of 3: neither holds what the other does."""
    cluster, _ = parse_gpus(gpus)
    task = Task(model=find_model(model), cluster=cluster)
    chosen = parse_set(
        ["tp=1", "cp=1", "micro_batch=1", "recompute=none", "ep=8", "sharding=optimizer"]
    )
    chosen = chosen if task.model.moe else {k: v for k, v in chosen.items() if k != "ep"}
    tables = list(enumerate_plans(Space(Workload(task, 96, 2048), chosen)))
    table = concatenate(tables)
    seen: dict[int, set[int]] = {}
    for chunking, vpp in zip(table.chunking.tolist(), table.vpp.tolist(), strict=True):
        seen.setdefault(chunking, set()).add(vpp)
    shared = [at for at, ways in seen.items() if at >= 0 and len(ways) > 1]
    assert shared
    rows = np.flatnonzero(np.isin(table.chunking, shared) & (table.micro_batches[0] >= table.pp[0]))
    some = table.take(rows[:: max(len(rows) // 40, 1)])
    assert len(set(some.vpp.tolist())) > 1
    together = evaluate(some, task, STACK)
    for row in range(len(some)):
        alone = evaluate(some.take([row]), task, STACK)
        assert alone.memory_fraction[0] == pytest.approx(together.memory_fraction[row], rel=1e-9)
        assert alone.bound_s[0] == pytest.approx(together.bound_s[row], rel=1e-9)
