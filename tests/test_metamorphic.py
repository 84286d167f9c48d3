"""What must hold between the answers to two questions, over random small questions.

More of anything is never worse, a narrowed space never better, a pool of two types never worse
than one of them or than all taken for the worse, and dollars follow prices. At `--risk none` plans
are compared by their step, else by what ranks them: whether one fits as surely as was asked, then
the expected step. A failure names the question, both answers and what was changed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
from msgspec.structs import replace as with_fields
from tests.strategy.mixed_plans import small_model

import astra
from astra.api.answers import Answer
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.slowest import RATES, slowest_gpu
from astra.hardware.stack import find_stack
from astra.model.shape import Model
from astra.notes import NoteCode, has
from astra.recommend.expectation import expected_steps_s, recommendation
from astra.search.query import Query
from astra.search.result import Result
from astra.search.solve import solve
from astra.strategy.plan import Runtime

TIE = 1 + 1e-9
TYPES = ("h100", "h200", "a100-80g", "a100-40g", "l40s", "b200", "l4", "gh200")
STACKS: dict[Runtime, str] = {"megatron": "megatron", "fsdp": "torch-fsdp"}
NARROWED: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"tp": (1, 2)},
    {"pp": (1, 2)},
    {"micro_batch": (1, 2)},
    {"cp": (1,)},
    {"recompute": ("none", "full:uniform:1")},
    {"offload_optimizer_fraction": (0.0,)},
    {"sharding": ("optimizer",)},
    {"vpp": (1,)},
)
Worth = tuple[bool, float]  # whether it fits less surely than was asked, then seconds
NOTHING: Worth = (True, float("inf"))


@dataclass(frozen=True)
class Question:
    """A job on pools of GPUs, narrowed so that its search is short."""

    seed: int
    model: Model
    pools: tuple[tuple[Gpu, int], ...]
    global_batch: int
    seq_len: int
    runtimes: tuple[Runtime, ...]
    risk: str
    margin: float
    settings: tuple[tuple[str, tuple[Any, ...]], ...]

    def __str__(self) -> str:
        gpus = " + ".join(f"{count} {gpu.name}" for gpu, count in self.pools)
        said = " ".join(f"{name}={','.join(map(str, values))}" for name, values in self.settings)
        return (
            f"question {self.seed}: {self.model.layers} layers of {self.model.hidden}, "
            f"{self.model.moe and self.model.moe.experts} experts, on {gpus}, batch "
            f"{self.global_batch} x {self.seq_len}, {self.runtimes[0]}, risk {self.risk}, margin "
            f"{self.margin}, {said or 'whole space'}"
        )

    def on(self, *pools: tuple[Gpu, int]) -> "Question":
        return replace(self, pools=pools)

    @cached_property
    def result(self) -> Result:
        pools = tuple(Pool(gpu=gpu, count=count) for gpu, count in self.pools)
        return solve(
            Query(
                model=self.model,
                cluster=Cluster(name="asked", pools=pools),
                stack=find_stack(STACKS[self.runtimes[0]]),
                global_batch=self.global_batch,
                seq_len=self.seq_len,
                runtimes=self.runtimes,
                settings=dict(self.settings),
                margin=self.margin,
                risk=self.risk,
                top=1,
                suggest=False,
            )
        )

    @property
    def worth(self) -> Worth:
        """What the answer is compared by."""
        best = self.result.best
        if best is None:
            return NOTHING
        unsure = has(self.result.notes, NoteCode.NONE_FITS_SURELY)
        return unsure, best.step_s if self.risk == "none" else expected_steps_s([best])[0]


def random_question(seed: int) -> Question:
    dice = random.Random(seed)
    wide = dice.choice((1, 2, 4, 8))
    model = small_model(
        layers=dice.choice((4, 6, 8)),
        experts=dice.choice((0, 0, 0, 4)),
        hidden=512 * wide,
        heads=8 * wide,
        ffn=2048 * wide,
        vocab=dice.choice((1000, 32_000, 128_000)),
    )
    narrow = dice.choice((*NARROWED, {}))
    return Question(
        seed=seed,
        model=model,
        pools=((find_gpu(dice.choice(TYPES))[0], dice.choice((2, 4, 8, 16))),),
        global_batch=dice.choice((8, 16, 24, 48)),
        seq_len=dice.choice((1024, 2048, 4096)),
        runtimes=(dice.choice(("megatron", "megatron", "megatron", "fsdp")),),
        risk=dice.choice(("none", "normal", "careful")),
        margin=dice.choice((0.05, 0.05, 0.5, 0.8, 0.9, 0.95)),  # loose and tight
        settings=tuple(narrow.items()),
    )


def more_gpus(question: Question, dice: random.Random) -> Question:
    ((gpu, count),) = question.pools
    return question.on((gpu, count * dice.choice((2, 4)) if count < 8 else count + 8))


def more_memory(question: Question, dice: random.Random) -> Question:
    ((gpu, count),) = question.pools
    factor = dice.choice((1.01, 1.2, 2.0))
    sizes = {name: getattr(gpu, name) * factor for name in ("usable_bytes", "memory_bytes")}
    return question.on((with_fields(gpu, **sizes), count))


def faster_link(question: Question, dice: random.Random) -> Question:
    ((gpu, count),) = question.pools
    factor = dice.choice((1.1, 2.0, 5.0))
    rates = {n: getattr(gpu.link, n) * factor for n in ("bytes_per_s", "peer_bytes_per_s")}
    return question.on((with_fields(gpu, link=with_fields(gpu.link, **rates)), count))


def faster_network(question: Question, dice: random.Random) -> Question:
    ((gpu, count),) = question.pools
    rate = gpu.node.nic_bytes_per_s * dice.choice((1.1, 2.0, 5.0))
    return question.on((with_fields(gpu, node=with_fields(gpu.node, nic_bytes_per_s=rate)), count))


def faster_gpu(question: Question, dice: random.Random) -> Question:
    """All its rates, so that what kernels reach of them stays the same."""
    ((gpu, count),) = question.pools
    factor = dice.choice((1.05, 1.5, 3.0))
    rates = {name: getattr(gpu, name) for name in (*RATES, "memory_bytes_per_s")}
    faster = {name: rate * factor for name, rate in rates.items() if rate is not None}
    return question.on((with_fields(gpu, **faster), count))


def better_gpu(question: Question, dice: random.Random) -> Question:
    """Exchanged for one that is better in everything."""
    for change in (faster_gpu, faster_link, faster_network, more_memory):
        question = change(question, dice)
    return question


def whole_space(question: Question, dice: random.Random) -> Question:
    del dice
    return replace(question, settings=())


BETTER: tuple[Callable[[Question, random.Random], Question], ...] = (
    more_gpus,
    more_memory,
    faster_link,
    faster_network,
    faster_gpu,
    better_gpu,
    whole_space,
)


def no_worse(better: Worth, than: Worth) -> bool:
    return (better[0], better[1]) <= (than[0], than[1] * TIE)


def told(question: Question) -> str:
    best = question.result.best
    return f"{question.worth} {best.summary if best else 'nothing'} ({question})"


def check_better(seed: int) -> None:
    """No change for the better makes the answer worse."""
    question, dice = random_question(seed), random.Random(-1 - seed)
    for change in BETTER:
        changed = change(question, dice)
        assert no_worse(changed.worth, question.worth), (
            f"{change.__name__} made it worse:\n{told(question)}\n{told(changed)}"
        )


# ------------------------------------------------------------------------------ two GPU types


def mixed_question(seed: int) -> Question:
    dice = random.Random(1000 + seed)
    first, second = dice.sample(TYPES, 2)
    narrow = {"tp": (1, 2), "micro_batch": (1, 2, 4), "cp": (1,), "pp": (1, 2, 3, 4)}
    return replace(
        random_question(seed),
        pools=tuple((find_gpu(name)[0], dice.choice((4, 8))) for name in (first, second)),
        runtimes=("megatron", "flagscale"),
        margin=0.05,
        settings=tuple(narrow.items()),
    )


def as_the_slower(question: Question) -> Question:
    """All GPUs as the type that makes the job slower, with nothing better than either has, and no
    more of them side by side than there are of either.
    """
    gpus = [gpu for gpu, _ in question.pools]
    least, total = min(count for _, count in question.pools), sum(c for _, c in question.pools)

    def alike(base: Gpu) -> Question:
        gpu = slowest_gpu(gpus, base)
        node = with_fields(gpu.node, gpus=min(gpu.node.gpus, least))
        link = with_fields(gpu.link, domain_gpus=min(gpu.link.domain_gpus, least))
        return question.on((with_fields(gpu, node=node, link=link), total))

    return max(map(alike, gpus), key=lambda asked: asked.worth)


def over_two_types(question: Question) -> Worth:
    """An answer's worth if its plan lay on two types: the second must save its share too."""
    best, (unsure, seconds) = question.result.best, question.worth
    if best is None or question.risk == "none":
        return unsure, seconds
    return unsure, seconds + recommendation().weights.gpu_type * best.step_s


def check_two_types(seed: int) -> None:
    """A pool of two types is no worse than either alone, nor than all taken for the slower."""
    question = mixed_question(seed)
    for pool in question.pools:
        alone = question.on(pool)
        assert no_worse(question.worth, alone.worth), (
            f"two types are worse than one:\n{told(question)}\n{told(alone)}"
        )
    slower = as_the_slower(question)
    assert no_worse(question.worth, over_two_types(slower)), (
        f"two types are worse than all as the slower:\n{told(question)}\n{told(slower)}"
    )


# ------------------------------------------------------------------------------------- money


def bought(question: Question, price: float, **goals: Any) -> Answer:
    ((gpu, _),) = question.pools
    return astra.plan(
        question.model,
        gpus={gpu.name: 16},
        global_batch=question.global_batch,
        seq_len=question.seq_len,
        objective="money",
        tokens="10B",
        price={gpu.name: price},
        settings=["tp=1,2", "pp=1,2", "cp=1", "recompute=none"],
        **goals,
    )


def cost_of(answer: Answer) -> tuple[float, float]:
    """Hours and dollars of the answer."""
    best = answer.best
    assert best is not None and best.hours is not None and best.usd is not None
    return best.hours, best.usd


def check_money(seed: int) -> None:
    """Prices times two, dollars times two; a larger budget buys no slower a run, and a later
    deadline no dearer a one.
    """
    question, dice = random_question(seed), random.Random(-1 - seed)
    price = dice.uniform(0.5, 5.0)
    plain = bought(question, price)
    if plain.best is None:
        assert bought(question, 2 * price).best is None
        return
    points = [(point.hours or 0.0, point.usd or 0.0) for point in plain.frontier]
    doubled = [
        (each.hours or 0.0, each.usd or 0.0) for each in bought(question, 2 * price).frontier
    ]
    assert doubled == [pytest.approx((hours, 2 * usd)) for hours, usd in points], question
    dearest, longest = max(usd for _, usd in points), max(hours for hours, _ in points)
    least_usd, least_hours = min(usd for _, usd in points), min(hours for hours, _ in points)
    small, large = sorted(dice.uniform(least_usd, 1.1 * dearest) for _ in range(2))
    poor, rich = (cost_of(bought(question, price, budget=usd)) for usd in (small, large))
    assert poor[1] <= small * TIE and rich[1] <= large * TIE, f"{question}: over the budget"
    assert rich[0] <= poor[0] * TIE, f"{question}: ${large} buy {rich} h, $; ${small} {poor}"
    near, far = sorted(dice.uniform(least_hours, 1.1 * longest) for _ in range(2))
    urgent, later = (cost_of(bought(question, price, deadline=f"{h}h")) for h in (near, far))
    assert urgent[0] <= near * TIE and later[0] <= far * TIE, f"{question}: after the deadline"
    assert later[1] <= urgent[1] * TIE, f"{question}: {far} h cost {later} h, $; {near} h {urgent}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_better_is_never_worse(seed: int) -> None:
    check_better(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_two_types_are_never_worse_than_one(seed: int) -> None:
    check_two_types(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_money_buys_what_it_should(seed: int) -> None:
    check_money(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8, 200))
def test_better_is_never_worse_of_many(seed: int) -> None:
    check_better(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6, 106))
def test_two_types_are_never_worse_than_one_of_many(seed: int) -> None:
    check_two_types(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6, 56))
def test_money_buys_what_it_should_of_many(seed: int) -> None:
    check_money(seed)
