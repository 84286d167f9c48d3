"""What anybody expects of an answer over several GPU types, over random questions."""

import msgspec
import pytest
from tests.search.mixed_questions import BETTER, Question, random_question, step_of
from tests.search.uniform_brute import best_uniform_s
from tests.search.uniform_brute import random_question as small_question

from astra.hardware.catalogue import find_gpu
from astra.hardware.slowest import slowest_gpu
from astra.hardware.stack import find_stack
from astra.search.query import query_of_space
from astra.search.solve import solve
from astra.strategy.mixed_space import MIXES

STACK = find_stack("megatron")
ROUNDING = 1 + 1e-9
WITHIN = 1.005  # what a search that is not proven may lose on other pools

DENSE = [seed for seed in range(60) if "llama" in random_question(seed).model]


def check_one(seed: int) -> None:
    """Never slower than a type alone, a uniform plan, all taken for the slowest, or either
    runtime; types in another order change nothing.
    """
    question = random_question(seed)
    answer = question.answer()
    step_s, mixed = step_of(answer), answer.mixed
    assert mixed is not None
    known = [*mixed.alone_step_s.values(), mixed.uniform_step_s, *mixed.runtimes_step_s.values()]
    for other in [each for each in known if each is not None]:
        assert step_s <= other * ROUNDING
    assert step_s <= step_of(question.taken_for_the_slowest()) * ROUNDING
    assert step_of(question.on(*question.pools[::-1]).answer()) == step_s


def check_part(seed: int) -> None:
    """A larger pool is never slower than its part."""
    question = random_question(seed)
    (name, count), *rest = question.pools
    whole = step_of(question.answer())
    if count > 8:
        assert whole <= step_of(question.on((name, count - 8), *rest).answer()) * WITHIN
    assert whole <= step_of(question.on(*rest).answer()) * WITHIN


def check_exchange(seed: int) -> None:
    """Two pools are never slower where the GPUs of one are exchanged for better ones."""
    question = random_question(seed)
    (_, first), (_, second), *_ = question.pools
    worse, better = BETTER[seed % len(BETTER)]
    before = question.on((worse, first), (worse, second))
    assert step_of(before.on((worse, first), (better, second)).answer()) <= WITHIN * step_of(
        before.answer()
    )


def check_brute(seed: int) -> None:
    """No uniform plan is faster than the answer."""
    space = small_question(seed)
    least_s, _ = best_uniform_s(space, STACK)
    answer = solve(query_of_space(space, STACK, runtimes=MIXES))
    assert step_of(answer) <= least_s * ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("seed", DENSE[:1])
def test_a_mixed_answer_is_no_slower_than_what_anybody_would_run(seed: int) -> None:
    check_one(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", DENSE[12:13])
def test_a_larger_pool_is_no_slower_than_its_part(seed: int) -> None:
    check_part(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", DENSE[5:6])
def test_better_gpus_in_one_of_two_pools_are_no_slower(seed: int) -> None:
    check_exchange(seed)


@pytest.mark.slow
def test_no_uniform_plan_of_brute_force_is_faster_than_the_answer() -> None:
    for seed in range(0, 20, 3):
        check_brute(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6, 40))
def test_promises_hold_of_many_questions(seed: int) -> None:
    check_one(seed)
    check_part(seed)
    check_exchange(seed)
    for own in range(10 * seed - 60, 10 * seed - 50):
        check_brute(own)


@pytest.mark.slow
def test_half_of_the_gpus_replaced_by_better_ones_are_faster() -> None:
    """Llama 3 8B on 16 H100, and on 8 H100 + 8 H200."""
    plain = Question("llama-3-8b", (("h100", 16),), 64, 8192)
    both = plain.on(("h100", 8), ("h200", 8))
    assert step_of(both.answer()) < step_of(plain.answer())


@pytest.mark.parametrize(("worse", "better"), BETTER)
def test_a_better_gpu_is_no_worse_in_any_figure(worse: str, better: str) -> None:
    low, high = find_gpu(worse)[0], find_gpu(better)[0]
    least = slowest_gpu([low, high], low)
    for name in ("usable_bytes", "memory_bytes_per_s", "bf16_flops_per_s", "link", "node"):
        assert getattr(least, name) == getattr(low, name)


@pytest.mark.slow
def test_two_pools_of_one_gpu_with_unlike_networks_are_one_job() -> None:
    """The half with the slower network is used, at its pace."""
    question = Question("llama-3-8b", (("h100", 16), ("h100", 16)), 128, 8192)
    cluster = question.cluster()
    fast, twin = cluster.pools
    node = twin.gpu.node
    node = msgspec.structs.replace(node, nic_bytes_per_s=node.nic_bytes_per_s / 2)
    gpu = msgspec.structs.replace(twin.gpu, node=node)
    pools = (fast, msgspec.structs.replace(twin, gpu=gpu))
    answer = question.of_cluster(msgspec.structs.replace(cluster, pools=pools))
    assert answer.best is not None and answer.mixed is not None
    assert len(answer.best.gpus) == 2 and answer.best.plan.is_one_job
    alone = [step for step in answer.mixed.alone_step_s.values() if step is not None]
    assert answer.best.step_s < 0.55 * min(alone)
