"""The fastest dispatcher is taken wherever it can be had, and nowhere else."""

from functools import cache

import numpy as np
import pytest
from tests.strategy.mixed_plans import small_model
from tests.support.tiers import slow_after

from astra.cost.evaluate import memory_fraction
from astra.cost.price import price_plans
from astra.hardware.catalogue import all_gpus
from astra.hardware.gpus_option import parse_gpus
from astra.hardware.stack import find_stack
from astra.memory.stage import memory_of
from astra.model.shape import Moe
from astra.search.one_type import search_best
from astra.search.query import query_of_space
from astra.search.solve import solve
from astra.strategy.dispatchers import available, dispatch_libraries
from astra.strategy.enumerate import enumerate_layouts
from astra.strategy.plan import Runtime
from astra.strategy.plans import WORDS, Task, plan_at
from astra.strategy.rules.registry import rules_for
from astra.strategy.space import Space, Workload
from astra.strategy.stage_view import stage_view

TIE = 1 + 1e-9
STACKS: dict[Runtime, str] = {"fsdp": "torch-fsdp", "deepspeed": "torch-fsdp"}
QUESTIONS: list[tuple[str, Runtime, str]] = [
    ("h100:8", "megatron", "bf16"),
    ("b200:8", "megatron", "fp8"),
    ("gb200:8", "fsdp", "fp8"),
    ("h100:16", "flagscale", "fp8"),
    ("h100:8", "deepspeed", "bf16"),
    ("a100-80g:8", "megatron", "bf16"),
    ("h100:8", "any", "bf16"),
    ("h100:8", "megatron", "fp16"),
]


@cache
def space_of(gpus: str, runtime: Runtime, precision: str) -> Space:
    model = small_model(layers=4, hidden=2048, moe=Moe(experts=8, top_k=4, moe_ffn=1024))
    cluster, _ = parse_gpus(gpus)
    stack = find_stack(STACKS.get(runtime, "megatron"))
    task = Task(model=model, cluster=cluster, runtime=runtime, stack=stack.full_name)
    return Space(Workload(task, 32, 2048, precision=precision))


def best_s(space: Space, **asked: tuple[str, ...]) -> float:
    stack = find_stack(space.workload.task.stack)
    query = query_of_space(Space(space.workload, dict(asked)), stack, top=1, fold=False)
    return search_best(query).best_s


@pytest.mark.parametrize("question", slow_after(3, QUESTIONS))
def test_no_dispatcher_that_is_asked_for_beats_the_whole(
    question: tuple[str, Runtime, str],
) -> None:
    space = space_of(*question)
    whole_s = best_s(space)
    assert np.isfinite(whole_s)
    for dispatcher in ("alltoall", "deepep", "hybridep"):
        assert whole_s <= best_s(space, dispatcher=(dispatcher,)) * TIE, dispatcher
    every_s = best_s(space, dispatcher=("alltoall", "deepep", "hybridep"))
    assert whole_s == pytest.approx(every_s, rel=1e-9)


@pytest.mark.parametrize("question", slow_after(3, QUESTIONS))
def test_a_dispatcher_of_its_own_is_never_slower_and_needs_no_more_memory(
    question: tuple[str, Runtime, str],
) -> None:
    space = space_of(*question)
    task, stack = space.workload.task, find_stack(space.workload.task.stack)
    own = next(enumerate_layouts(space))
    plain = next(enumerate_layouts(Space(space.workload, {"dispatcher": ("alltoall",)})))
    assert len(own) == len(plain)
    views = [stage_view(plans, task) for plans in (own, plain)]
    first, second = (memory_fraction(view, memory_of(view, stack), stack) for view in views)
    np.testing.assert_array_equal(first, second)
    allowed = np.logical_and.reduce([rule.holds(own, task) for rule in rules_for(task.runtime)])
    rows = np.flatnonzero(allowed)[:: max(int(allowed.sum()) // 40, 1)].tolist()
    tables = [[plan_at(plans, row, task) for row in rows] for plans in (own, plain)]
    fast, slow = (price_plans(plans) for plans in tables)
    assert all(one.step_s <= other.step_s * TIE for one, other in zip(fast, slow, strict=True))


@pytest.mark.parametrize("runtime", ["megatron", "flagscale", "fsdp", "deepspeed", "any"])
def test_gpus_and_runtimes_without_a_library_never_get_it(runtime: Runtime) -> None:
    allowed = {
        "deepep": {"H100-80GB-SXM", "H100-96GB-HBM2e", "H200-SXM", "H20", "H800"}
        | {"B100", "B200", "B300"}
    }
    allowed["hybridep"] = {*allowed["deepep"], "GB200", "GB300"}
    for gpu in all_gpus():
        space = space_of(f"{gpu.name}:{2 * gpu.node.gpus}", runtime, "bf16")
        found = next(enumerate_layouts(space))
        taken = {WORDS["dispatcher"][value] for value in np.unique(found.dispatcher)}
        for name in taken - {"alltoall"}:
            assert gpu.name in allowed[name]
            assert runtime in dispatch_libraries()[name].runtimes
        assert (taken == {"alltoall"}) == (not available(runtime, (gpu,), "bf16"))
        alone = found.take(np.flatnonzero(found.ep == 1))
        assert set(alone.dispatcher.tolist()) <= {WORDS["dispatcher"].index("alltoall")}


def test_types_together_take_what_all_of_them_have() -> None:
    types = {gpu.name: gpu for gpu in all_gpus()}
    assert available("megatron", (types["H100-80GB-SXM"], types["GB200"]), "bf16") == ("hybridep",)
    assert available("flagscale", (types["H100-80GB-SXM"], types["GB200"]), "bf16") == ()
    assert available("megatron", (types["H200-SXM"], types["A100-80GB-SXM"]), "bf16") == ()


@pytest.mark.parametrize(
    ("gpus", "had"),
    [
        ("h100:8,h200:8", {"deepep"}),
        pytest.param("h100:8,a100-80g:8", set(), marks=pytest.mark.soak),
    ],
)
def test_plans_over_several_types_have_one_that_all_their_gpus_have(
    gpus: str, had: set[str]
) -> None:
    space, stack = space_of(gpus, "megatron", "bf16"), find_stack("megatron")
    query = query_of_space(space, stack, top=5, runtimes=("megatron", "flagscale"), use_all=True)
    plans = solve(query).plans
    assert plans and all(len(priced.gpus) == 2 for priced in plans)
    assert {priced.plan.dispatcher for priced in plans} <= had | {"alltoall"}
    narrowed = Space(space.workload, {"dispatcher": ("deepep",)})
    best = solve(query_of_space(narrowed, stack, top=1, use_all=True)).best
    assert (best is not None) == bool(had)
    assert best is None or plans[0].step_s <= best.step_s * TIE
