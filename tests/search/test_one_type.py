"""The search finds what brute force finds."""

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.strategy.mixed_plans import small_model
from tests.support.cases import each_case
from tests.support.tiers import slow_after, soak_but_every

from astra.cost.evaluate import evaluate
from astra.cost.stages import times_of
from astra.cost.step import simulated_step
from astra.hardware.gpus_option import parse_gpus
from astra.hardware.stack import Stack, find_stack
from astra.model.zoo import find_model
from astra.search.evaluator import Evaluator
from astra.search.objective import Fastest, Objective
from astra.search.one_type import OneType
from astra.strategy import enumerate as enumerate_module
from astra.strategy.enumerate import Layouts, enumerate_layouts
from astra.strategy.plan import Runtime
from astra.strategy.plans import Floats, Ints, Plans, Task
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space, Workload
from astra.strategy.stage_view import stage_view
from astra.strategy.variants import enumerate_plans, plan_count, variant_counts

TOP = 10
QUICK, ALL = 24, 224  # spaces of the quick tests, and of all tests
STACKS: dict[Runtime, str] = {
    "megatron": "megatron",
    "fsdp": "torch-fsdp",
    "deepspeed": "deepspeed",
}


def stack_of(space: Space) -> Stack:
    return find_stack(space.workload.task.stack)


def steps_of(plans: Plans, space: Space) -> Floats:
    view = stage_view(plans, space.workload.task, every_stage=True)
    return simulated_step(plans, view.stages, times_of(view, stack_of(space))).step_s


def space_of(seed: int) -> Space:
    """A small question: dense or with experts, loose or tight in memory."""
    dice = random.Random(seed)
    wide = dice.choice([1, 2, 6])
    model = small_model(
        layers=dice.choice([3, 4, 5, 6, 8]),
        experts=dice.choice([0, 0, 4]),
        hidden=1024 * wide,
        ffn=4096 * wide,
        vocab=dice.choice([1000, 150_000]),
    )
    gpu = dice.choice(["h100", "a100-40g", "t4", "b200"])
    many = [1, 2, 4, 8, 16] if seed < QUICK else [1, 2, 4, 8]
    cluster, _ = parse_gpus(f"{gpu}:{dice.choice(many)}")
    precision = "fp16" if gpu == "t4" else "bf16"
    batch, length = dice.choice([2, 4, 6, 8]), dice.choice([1024, 2048, 8192])
    runtime: Runtime = "megatron"
    if seed >= QUICK:  # other runtimes and more precisions than the quick tests have
        runtime = dice.choice(["megatron", "megatron", "megatron", "fsdp", "deepspeed"])
        if gpu in ("h100", "b200") and runtime == "megatron":
            precision = dice.choice(["bf16", "fp8"])
    task = Task(model=model, cluster=cluster, runtime=runtime, stack=STACKS[runtime])
    return Space(Workload(task, batch, length, precision=precision), _narrowed(dice, seed))


def _narrowed(dice: random.Random, seed: int) -> dict[str, tuple[Any, ...]]:
    """Now and then a dimension as a person sets it."""
    if seed < QUICK or dice.random() < 0.6:
        return {}
    return dice.choice(
        [
            {"tp": (1, 2)},
            {"micro_batch": (1, 2), "recompute": ("none", "full:uniform:1", "selective:layernorm")},
            {"overlap_grad_reduce": (False, True)},
            {"offload_optimizer_fraction": (0.0, 0.5)},
        ]
    )


def searched(
    space: Space,
    objective: Objective | None = None,
    rules: Sequence[Rule] | None = None,
    margin: float = 0.05,
) -> Evaluator:
    """A space through the engine."""
    task = space.workload.task
    evaluator = Evaluator(
        task=task,
        rules=rules_for(task.runtime) if rules is None else rules,
        stack=stack_of(space),
        margin=margin,
        objective=objective or Fastest(TOP),
    )
    OneType(space).search(evaluator)
    return evaluator


def steps_found(evaluator: Evaluator) -> list[float]:
    return [step for step, *_ in evaluator.objective.incumbents]


def listed(plans: Plans, values: Floats) -> Floats:
    """What a search lists of these: of plans that differ but in how much of the optimizer is
    offloaded the best.
    """
    first, group = plans.without(("offload_optimizer_fraction",))
    best = np.full(len(first), np.inf)
    np.minimum.at(best, group, values)
    return best


def by_brute_force(space: Space) -> tuple[Floats, int]:
    """The best steps of all plans that the rules allow and that fit, and how many there were."""
    task = space.workload.task
    found, count = [np.zeros(0)], 0
    for table in enumerate_plans(space):
        count += len(table)
        legal = table.take(check(table, task, rules_for(task.runtime)).allowed)
        if len(legal):
            fits = np.flatnonzero(evaluate(legal, task, stack_of(space)).fits)
            if len(fits):
                able = legal.take(fits)
                found.append(listed(able, steps_of(able, space)))
    return np.sort(np.concatenate(found))[:TOP], count


def compare_with_brute_force(space: Space) -> Evaluator:
    best, count = by_brute_force(space)
    found = searched(space)
    np.testing.assert_allclose(steps_found(found), best, rtol=1e-9)
    funnel = found.funnel
    assert funnel.candidates == count
    removed = sum(funnel.removed_by_rule.values())
    assert removed + funnel.bounded + funnel.priced == count
    assert len(found.plans()) == len(best)
    return found


@pytest.mark.parametrize("seed", [*slow_after(1, range(2)), *soak_but_every(2, range(2, QUICK))])
def test_the_best_ten_are_those_of_brute_force(seed: int) -> None:
    compare_with_brute_force(space_of(seed))


@pytest.mark.parametrize("seed", soak_but_every(6, range(QUICK, ALL)))
def test_the_best_ten_of_many_more_spaces_are_those_of_brute_force(seed: int) -> None:
    compare_with_brute_force(space_of(seed))


@each_case("samples", (2, 4))
def test_where_layers_may_be_offloaded_the_best_are_those_of_brute_force(samples: int) -> None:
    """On a GB200 with a model whose activations are too large, if they stay."""
    model = small_model(layers=6, hidden=8192, ffn=28_672, vocab=1000)
    cluster, _ = parse_gpus("gb200:4")
    workload = Workload(Task(model=model, cluster=cluster), 2 * samples, 32_768)
    narrowed = {"tp": (1,), "cp": (1,), "micro_batch": (samples,), "dp": (2, 4)}
    found = compare_with_brute_force(Space(workload, narrowed))
    assert any(plan.offload_layers > 0 for plan in found.plans())


@each_case("seed", (*range(16), *range(40, 64)))
def test_plans_are_counted_without_being_laid_out(seed: int) -> None:
    space = space_of(seed)
    layouts = Layouts(space)
    known = sum(int(variant_counts(table, space).sum()) for table in enumerate_layouts(space))
    assert plan_count(layouts, np.arange(len(layouts))) == known


def space_with_a_rest(gpus: str, layers: int, batch: int, experts: int, runtime: Runtime) -> Space:
    """One whose micro-batches the stages of most pipelines do not divide."""
    model = small_model(layers=layers, experts=experts, hidden=4096, ffn=16_384)
    task = Task(model=model, cluster=parse_gpus(gpus)[0], runtime=runtime, stack="megatron")
    chosen = {"pp": (3,), "vpp": (2,)} if experts else {}  # small ones do best without stages
    return Space(Workload(task, batch, 1024, use_all=True), chosen)


@pytest.mark.parametrize(
    ("gpus", "layers", "batch", "experts", "runtime"),
    [
        ("h100:3", 6, 8, 0, "megatron"),
        ("a100-40g:5", 10, 12, 0, "flagscale"),
        ("h100:6", 6, 16, 0, "megatron"),
        ("a100-40g:6", 6, 16, 4, "megatron"),
    ],
)
def test_pipelines_interleave_where_stages_do_not_divide_the_micro_batches(
    gpus: str, layers: int, batch: int, experts: int, runtime: Runtime
) -> None:
    found = compare_with_brute_force(space_with_a_rest(gpus, layers, batch, experts, runtime))
    grouped = [p for p in found.plans() if p.vpp > 1 and (p.microbatch_group or 0) > p.pp]
    assert grouped
    assert all(plan.pipelines[0].micro_batches % plan.pp for plan in grouped)


def test_the_spaces_are_of_all_kinds() -> None:
    tasks = [space_of(seed).workload.task for seed in range(ALL)]
    for runtime in STACKS:
        for experts in (True, False):
            kind = [t for t in tasks if t.runtime == runtime and (t.model.moe is None) != experts]
            assert len(kind) >= 5


def test_the_same_question_has_the_same_answer() -> None:
    one, other = (searched(space_of(3)) for _ in range(2))
    assert one.plans() and one.plans() == other.plans()
    assert steps_found(one) == steps_found(other)


@pytest.mark.parametrize("seed", slow_after(1, range(0, QUICK, 3)))
def test_no_bound_exceeds_its_simulated_step(seed: int) -> None:
    space = space_of(seed)
    task = space.workload.task
    for table in enumerate_plans(space):
        legal = table.take(check(table, task, rules_for("megatron")).allowed)
        if len(legal):
            some = legal.take(np.arange(0, len(legal), max(len(legal) // 200, 1)))
            bounds = evaluate(some, task, stack_of(space)).bound_s
            assert (bounds <= steps_of(some, space) * (1 + 1e-9)).all()


@pytest.mark.parametrize("seed", slow_after(2, (1, 5, 8, 12, 19)))
def test_the_answer_does_not_depend_on_how_the_space_is_cut_into_tables(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = searched(space_of(seed))
    monkeypatch.setattr(enumerate_module, "ROWS_PER_TABLE", 256)
    cut = searched(space_of(seed))
    assert whole.funnel.candidates == cut.funnel.candidates
    np.testing.assert_allclose(steps_found(whole), steps_found(cut), rtol=1e-12)
    written = {msgspec.json.encode(plan) for plan in cut.plans()}
    assert len(written) == len(cut.plans()), "no plan is listed twice"


@pytest.mark.slow
def test_memory_of_a_search_is_a_few_bytes_for_each_of_its_cuts() -> None:
    """What tables of plans hold of a quarter of a million cuts would be 200 MB."""
    task = Task(model=find_model("mixtral-8x7b"), cluster=parse_gpus("h100:128")[0])
    space = Space(Workload(task, 960, 4096))
    searched(space_of(0))  # files are read once
    tracemalloc.start()
    try:
        found = searched(space)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.funnel.candidates > 40_000_000
    assert most < 64e6


def kinds_of(plans: Plans) -> Ints:
    """Degrees, micro-batch and sharding of every plan. (plan, setting)"""
    degrees = [plans.tp[0, 0], plans.pp[0], plans.dp[0, 0], plans.cp, plans.ep, plans.etp]
    return np.stack([*degrees, plans.micro_batch, plans.sharding], axis=1).astype(np.int64)


@pytest.mark.parametrize("seed", slow_after(1, (1, 5, 8, 12, 19)))
def test_folded_plans_are_the_best_of_each_kind(seed: int) -> None:
    space = space_of(seed)
    task = space.workload.task
    kinds: dict[tuple[int, ...], float] = {}
    for table in enumerate_plans(space):
        legal = table.take(check(table, task, rules_for("megatron")).allowed)
        fits = legal.take(np.flatnonzero(evaluate(legal, task, stack_of(space)).fits))
        if len(fits):
            order = np.argsort(steps := steps_of(fits, space), kind="stable")
            kind = kinds_of(fits)[order]
            _, first = np.unique(kind, axis=0, return_index=True)
            for place in first:
                step = float(steps[order[place]])
                key = tuple(kind[place])
                kinds[key] = min(step, kinds.get(key, np.inf))
    found = searched(space, Fastest(TOP, fold=True))
    np.testing.assert_allclose(steps_found(found), sorted(kinds.values())[:TOP], rtol=1e-9)
