"""A search asked again with something different: the answer's change, a line each."""

from typing import Any

import pytest
from tests.support.cases import each_case

import astra
from astra.cli.main import run

JOB: dict[str, Any] = {"gpus": {"h100": 16}, "global_batch": 64, "seq_len": 4096, "top": 1}


def test_each_change_is_the_whole_question_asked_again() -> None:
    wanted = ["network=x0.5", "gpus=+16xh100", "gpus=-8xh100", "memory.h100=x0.5,compute=x2"]
    answer = astra.plan("llama-3-8b", **JOB, what_if=wanted)
    assert [each.what for each in answer.what_if] == wanted
    slower, more, fewer, _ = answer.what_if
    assert slower.step_change_fraction is not None and slower.step_change_fraction >= 0
    for other, gpus in ((more, 32), (fewer, 8)):
        alone = astra.plan("llama-3-8b", **JOB | {"gpus": {"h100": gpus}}).best
        assert alone is not None and answer.best is not None and other.plan is not None
        assert other.plan.step_s == pytest.approx(alone.step_s)
        change = alone.step_s / answer.best.step_s - 1
        assert other.step_change_fraction == pytest.approx(change)


def test_gpus_of_another_type_are_joined_to_those_there_are() -> None:
    answer = astra.plan("llama-3-8b", **JOB, what_if="gpus=+8xh200", tp=8, pp=1)
    (other,) = answer.what_if
    assert other.plan is not None
    names = [pool.gpu.name for pool in other.plan.plan.cluster.pools]
    assert names == ["H100-80GB-SXM", "H200-SXM"]


def test_where_nothing_fits_then_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3-8b --gpus h100:8 --global-batch 8 --seq-len 4096 --set tp=8 --what-if"
    assert run([*words.split(), "memory=x0.05", "--what-if", "link=x2"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "With memory=x0.05 no plan fits." in page and "With link=x2:" in page


@each_case(
    "text, why",
    [
        ("netwrk=x2", "Did you mean network"),
        ("network", "no change"),
        ("network=2", "is no change"),
        ("network=x0", "leaves 0 times"),
        ("network.a100-80g=x2", "not among the GPUs"),
        ("price.h100=-20%", "hours and dollars need"),
        ("failures.h100=x2", "the same for all GPUs"),
        ("owned=30000", "of which type"),
        ("gpus=64", "is no change"),
        ("gpus=-64xh100", "there are 16"),
        ("gpus=-16xh100", "leaves no GPU"),
        ("gpus=+8xh1000", "h1000"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_searched(text: str, why: str) -> None:
    with pytest.raises(astra.InputError, match=why):
        astra.plan("llama-3-8b", **JOB, what_if=text)


def test_a_search_that_is_stopped_claims_nothing_of_what_it_did_not_search() -> None:
    stopped = astra.plan("llama-3-8b", **JOB, what_if=["link=x2"], is_cancelled=lambda: True)
    assert stopped.search.status == "cancelled" and stopped.what_if == ()


MONEY: dict[str, Any] = {
    "gpus": {"h100": 16},
    "global_batch": 64,
    "seq_len": 2048,
    "tokens": "10B",
    "sharding": "optimizer",
    "micro_batch": (1, 2),
    "recompute": "none",
    "tp": (1, 2),
    "price": {"h100": 2},
}


def test_prices_and_failures_change_hours_and_dollars_of_the_fastest_plan() -> None:
    wanted = ["price.h100=1", "failures=x1000", "gpus=+16xh100"]
    answer = astra.plan("llama-3.2-1b", **MONEY, what_if=wanted)
    assert answer.best is not None and answer.best.usd is not None
    half, failing, more = answer.what_if
    assert half.same_plan and half.hours_change == 0
    assert half.usd_change == pytest.approx(-answer.best.usd / 2)
    assert failing.same_plan and failing.hours_change is not None and failing.hours_change > 0
    alone = astra.plan("llama-3.2-1b", **MONEY | {"gpus": {"h100": 32}}).best
    assert more.plan is not None and alone is not None
    assert more.plan.usd == pytest.approx(alone.usd)


@pytest.mark.slow
@each_case(
    "what_if, asked",
    [
        ("gpus=+16xh100", {"gpus": {"h100": 32}}),
        ("gpus=+16xh200,price.h200=3", {"gpus": "h100:16,h200:16", "price": "h100=2,h200=3"}),
        ("mtbf=x0.1", {"mtbf": 5070}),
    ],
)
def test_the_changed_frontier_is_that_of_the_question_with_the_change(
    what_if: str, asked: dict[str, Any]
) -> None:
    answer = astra.plan("llama-3.2-1b", objective="money", **MONEY, what_if=what_if)
    direct = astra.plan("llama-3.2-1b", objective="money", **MONEY | asked)
    (other,) = answer.what_if
    assert len(other.frontier) == len(direct.frontier) > 1
    for changed, point in zip(other.frontier, direct.frontier, strict=True):
        assert changed.hours == pytest.approx(point.hours)
        assert changed.usd == pytest.approx(point.usd) and changed.gpus == point.gpus


def test_less_memory_and_slower_networks_hold_for_machines_of_the_price_lists() -> None:
    listed = {**MONEY, "price": None, "cloud": "nebius", "objective": "money"}
    answer = astra.plan("llama-3.2-1b", **listed, what_if=["memory=x0.2", "network=x0.01"])
    smaller, slower = answer.what_if
    assert smaller.plan is not None and answer.best is not None
    usable_bytes = answer.best.memory.usable_bytes
    assert smaller.plan.memory.usable_bytes == pytest.approx(usable_bytes / 5)
    assert slower.frontier[0].hours > (answer.frontier[0].hours or 0.0)


def test_gpus_to_buy_are_paid_for_besides_those_one_owns() -> None:
    owned = {**MONEY, "price": None, "owned": {"h100": 30000}, "objective": "money"}
    bought = "gpus=+16xh200,owned.h200=40000"
    (other,) = astra.plan("llama-3.2-1b", **owned, what_if=bought).what_if
    assert other.plan is not None and other.plan.money is not None
    paid = {rent.gpu for rent in other.plan.money.rents} | {i.gpu for i in other.plan.money.idle}
    assert paid == {"H100-80GB-SXM", "H200-SXM"}
    assert {rent.price_from for rent in other.plan.money.rents} == {"owned"}
