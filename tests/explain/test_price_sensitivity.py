"""What if: other prices, other networks; and how far a price must move."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.search.test_market import PRICES, asked
from tests.support.answers import explained_without_what_ifs
from tests.support.cases import each_case
from tests.support.tiers import soak_but_every

from astra.api.answers import Answer
from astra.errors import InputError
from astra.money.catalogue import shipped_offers
from astra.money.price_sensitivity import PriceSensitivity, RunnerUp
from astra.money.what_if import MarketChange, changed_offers
from astra.report.explain import price_line


def moves_of(answer: Answer) -> dict[str, PriceSensitivity]:
    return {move.gpu: move for move in explained_without_what_ifs(answer).prices}


def prices_with(gpu: str, factor: float) -> dict[str, float]:
    return {name: price * (factor if name == gpu else 1.0) for name, price in PRICES.items()}


NAMES = {"h100": "H100-80GB-SXM", "a100-80g": "A100-80GB-SXM"}


@pytest.mark.slow
def test_the_answer_changes_where_explain_says_it_does() -> None:
    answer = asked(order="cost")
    assert answer.best is not None
    (chosen,) = answer.best.gpus
    moves = moves_of(answer)
    for short, full in NAMES.items():
        move = moves[full]
        up = full == chosen
        fraction = move.rise_fraction if up else move.fall_fraction
        assert fraction is not None and fraction > 0
        edge = 1 + fraction if up else 1 - fraction
        for beyond in (False, True):
            factor = edge * (1 + (0.002 if beyond == up else -0.002))
            best = asked(order="cost", price=prices_with(short, factor)).best
            assert best is not None and (set(best.gpus) != {chosen}) == beyond


@pytest.mark.slow
def test_the_knee_moves_where_explain_says_it_does() -> None:
    answer = asked()
    assert answer.market is not None and answer.market.order == "knee" and answer.best is not None
    seen = 0
    for full, move in moves_of(answer).items():
        short = next(short for short, name in NAMES.items() if name == full)
        ways = (
            (1 + (move.rise_fraction or 0), move.rise_rival, 1.002),
            (1 - (move.fall_fraction or 0), move.fall_rival, 0.998),
        )
        for factor, rival, beyond in ways:
            if rival is not None:
                seen += 1
                there = asked(price=prices_with(short, factor * beyond)).best
                assert there is not None and there.hours == pytest.approx(rival.hours)
                before = asked(price=prices_with(short, factor / beyond)).best
                assert before is not None and before.hours == answer.best.hours
    assert seen


@pytest.mark.slow
def test_within_a_budget_the_answer_changes_where_explain_says_it_does() -> None:
    plain = asked()
    budget = (plain.frontier[0].usd or 0) * 0.99  # the fastest is just too dear
    answer = asked(budget=budget)
    assert answer.best is not None and answer.market is not None
    (chosen,) = answer.best.gpus
    move = moves_of(answer)[chosen]
    assert move.rise_fraction is not None and move.rise_fraction > 0
    short = next(short for short, full in NAMES.items() if full == chosen)
    for factor, same in ((1.002, False), (0.998, True)):
        moved = asked(
            budget=budget, price=prices_with(short, (1 + move.rise_fraction) * factor)
        ).best
        assert moved is not None
        assert (moved.hours == answer.best.hours) == same
    assert move.fall_fraction is not None
    moved = asked(budget=budget, price=prices_with(short, (1 - move.fall_fraction) * 0.998)).best
    assert moved is not None and (moved.hours or 0) < (answer.best.hours or 0)


@pytest.mark.parametrize(
    "goals", soak_but_every(2, [(3.0, 1.01), (0.95, 1.02), (1.8, 1.078), (0.5, 0.9)]), ids=str
)
def test_each_move_names_the_plan_that_is_chosen_then(goals: tuple[float, float]) -> None:
    """Also where no plan keeps both goals, and the nearest is the one that misses by less."""
    deadline, budget = goals
    plain = asked()
    first, last = plain.frontier[0], plain.frontier[-1]
    said = {"deadline": deadline * (first.hours or 0), "budget": budget * (last.usd or 0)}
    answer = asked(**said)
    assert answer.market is not None and answer.market.wished is not None
    assert answer.best is not None and not answer.market.wished.possible
    seen = 0
    for full, move in moves_of(answer).items():
        short = next(short for short, name in NAMES.items() if name == full)
        ways = (
            (1 + (move.rise_fraction or 0), move.rise_rival, 1.002),
            (1 - (move.fall_fraction or 0), move.fall_rival, 0.998),
        )
        for factor, rival, beyond in ways:
            if rival is None:
                continue
            seen += 1
            there = asked(**said, price=prices_with(short, factor * beyond)).best
            assert there is not None
            assert there.gpus == rival.gpus and there.hours == pytest.approx(rival.hours)
            before = asked(**said, price=prices_with(short, factor / beyond)).best
            assert before is not None and before.hours == answer.best.hours
    assert seen


def test_the_words_of_a_move_name_a_rival_for_each_direction() -> None:
    dearer = RunnerUp(summary="tp 1", gpus={"A100": 8}, usd=900.0, hours=50.0)
    cheaper = RunnerUp(summary="tp 2", gpus={"H100": 16}, usd=1100.0, hours=20.0)
    move = PriceSensitivity(
        gpu="H100",
        rise_fraction=0.784,
        fall_fraction=0.118,
        rise_rival=dearer,
        fall_rival=cheaper,
    )
    assert price_line(move) == (
        "  H100: rise by 78.4%, then 8 A100 (tp 1), today $900, 50 h; "
        "or fall by 11.8%, then 16 H100 (tp 2), today $1,100, 20 h"
    )
    same = replace(move, fall_rival=dearer)
    assert price_line(same).startswith("  H100: rise by 78.4% or fall by 11.8%; then 8 A100 (tp 1)")


@pytest.mark.slow
def test_what_if_is_the_answer_of_the_other_market() -> None:
    found = asked(what_if="price.h100=-50%,network=x2")
    assert found.market is not None and found.market.what_if is not None
    other = found.market.what_if
    assert other.plan is not None and found.best is not None
    assert other.usd_change == pytest.approx((other.plan.usd or 0) - (found.best.usd or 0))
    half = asked(price=prices_with("h100", 0.5)).best
    assert half is not None and (other.plan.usd or 0) <= (half.usd or 0) * (1 + 1e-9)


def test_changes_touch_what_they_name() -> None:
    offers = shipped_offers()
    changes = (
        MarketChange(key="price", gpu="H100-80GB-SXM", factor=0.8, where=""),
        MarketChange(key="network", gpu="A100-80GB-SXM", factor=2.0, where=""),
    )
    after = changed_offers(offers, changes)
    for old, new in zip(offers, after, strict=True):
        factor = 0.8 if old.machine.gpu == "H100-80GB-SXM" else 1.0
        assert new.usd_per_hour == pytest.approx(factor * old.usd_per_hour)
        speed = 2.0 if old.machine.gpu == "A100-80GB-SXM" else 1.0
        assert new.machine.nic_bytes_per_s == speed * old.machine.nic_bytes_per_s


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("price.h100", "no change"),
        ("price.h100=cheap", "is no change"),
        ("price.h100=-100%", "0 times as much"),
        ("price.h101=-10%", "unknown GPU"),
        ("prise=-10%", "Did you mean price"),
        ("mtbf.h100=x2", "leave .h100 out"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked(what_if=text)


@each_case(
    "more, said",
    [
        ({"what_if": "price.h200=-20%"}, "H200-SXM is not among the GPUs. Add it to gpus="),
        ({"what_if": "network.h200=x2"}, "H200-SXM is not among the GPUs"),
        ({"what_if": "spot-price=-20%"}, "no spot nodes are asked for. Add spot=True"),
        ({"what_if": "spot-price.h100=-20%"}, "no spot nodes are asked for. Add spot=True"),
        ({"what_if": "spot-interruptions=x2"}, "no spot nodes are asked for. Add spot=True"),
        ({"what_if": "mtbf=x2", "failures": False}, "failures=False leaves all of that out"),
        (
            {"what_if": "spot-price.v100-32g=-20%", "spot": True, "gpus": "h100:8,v100-32g:8"}
            | {"price": {"h100": 2.0}, "offers": "steady"},
            "no spot price of V100-32GB-SXM2 is known",
        ),
    ],
)
def test_a_change_that_can_change_nothing_is_refused(more: dict[str, Any], said: str) -> None:
    if more.get("offers") == "steady":
        more = more | {"offers": tuple(offer for offer in shipped_offers() if not offer.spot)}
    with pytest.raises(InputError, match=said):
        asked(**more)


@pytest.mark.slow
def test_a_change_of_spot_prices_touches_spot_nodes() -> None:
    found = asked(spot=True, what_if="spot-price=-50%")
    assert found.market is not None and found.market.what_if is not None and found.best is not None
    assert (found.market.what_if.usd_change or 0) < -0.4 * (found.best.usd or 0)


def test_an_explanation_of_plain_plans_speaks_of_no_prices(tmp_path: Any) -> None:
    import astra

    plan = astra.predict("llama-3.2-1b", gpus="h100:8", global_batch=8)
    assert astra.explain(plan, quick=True).prices == ()
    assert tmp_path.exists()


@pytest.mark.slow
def test_a_catalogue_of_the_users_own_is_kept_in_the_answer() -> None:
    own = tuple(o for o in shipped_offers() if o.machine.cloud == "nebius" and not o.spot)
    found = asked(gpus="h100:64", price=None, offers=own)
    moves = moves_of(found)
    assert list(moves) == ["H100-80GB-SXM"]
    money = found.request.money
    assert isinstance(money, dict) and {o["machine"]["cloud"] for o in money["offers"]} == {
        "nebius"
    }
