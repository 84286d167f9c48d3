"""What an answer says first, in JSON as on a terminal."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import astra
from astra.api.answers import Answer
from astra.report.answer import answer_parts
from astra.report.fit_risk import risk_of
from astra.report.frontier_words import surer_plan
from astra.report.headline import headline_of

JOB: dict[str, Any] = {"gpus": "h100:16", "global_batch": 64, "seq_len": 4096, "tp": [1, 2]}


def said_first(answer: Answer) -> str:
    """Sentences on top of the terminal's page, as one."""
    return " ".join(part for part in answer_parts(answer)[:2] if isinstance(part, str) and part)


def test_a_plan_is_safe_from_97_per_cent_and_tight_from_80() -> None:
    chances = (1.0, 0.97, 0.9699, 0.8, 0.7999, 0.0)
    assert [risk_of(each) for each in chances] == [*["safe"] * 2, *["tight"] * 2, *["risky"] * 2]


def test_json_says_what_a_terminal_says() -> None:
    answer = astra.plan("llama-3-8b", **JOB, risk="none")
    document = answer.to_dict()["answer"]
    assert document["sentence"] == said_first(answer)
    step, place = document["title"].split(" a step on ")
    assert f"{step} a step" in document["sentence"] and place.startswith("16 H100")
    lines = answer_parts(answer)
    best, safer = answer.plans[0], document["safer"]
    assert document["risk"] == risk_of(best.memory.fit_probability) != "safe"
    assert safer["sentence"] in lines and document["ties"]["why"] in lines
    other = answer.plans[safer["rank"] - 1]
    assert risk_of(other.memory.fit_probability) == "safe"
    assert other.step_s == pytest.approx(best.step_s * (1 + safer["slower_fraction"]))
    tied = [answer.plans[rank - 1].step_s for rank in document["ties"]["ranks"]]
    assert max(tied) == pytest.approx(min(tied) * (1 + document["ties"]["within_fraction"]))


def test_where_nothing_fits_the_sentence_says_so_and_why() -> None:
    answer = astra.plan("llama-3-70b", **JOB | {"gpus": "h100:1"})
    head = answer.headline
    assert head is not None and answer.nothing_fits is not None
    assert head.sentence == answer_parts(answer)[0]
    assert (
        head.sentence.startswith("No plan fits.") and answer.nothing_fits.binding in head.sentence
    )
    assert (head.risk, head.safer, head.ties) == (None, None, None)


def test_money_names_its_goal_and_a_surer_plan() -> None:
    words: dict[str, Any] = {"tokens": "1B", "deadline": "4.2h", "price": {"h100": 2}}
    answer = astra.plan("llama-3-8b", **JOB, **words, mixed=False)
    head, lines = answer.headline, answer_parts(answer)
    assert head is not None and answer.market is not None and head.safer is not None
    assert (
        head.sentence == f"{lines[0]} {lines[1]} {lines[2]}"
        and lines[0] == "The cheapest within the deadline:"
    )
    assert head.safer.sentence in lines
    surer = next(point for point in answer.frontier if point.rank == head.safer.rank)
    best = answer.frontier[answer.market.chosen - 1]
    assert surer.usd is not None and best.usd is not None
    assert surer.hours is not None and best.hours is not None
    assert surer.usd == pytest.approx(best.usd * (1 + head.safer.more_fraction))
    assert surer.hours == pytest.approx(best.hours * (1 + head.safer.slower_fraction))
    chances = answer.market.chances[answer.frontier.index(surer)]
    assert chances.deadline is not None and chances.deadline >= 0.9


def test_whoever_asks_for_the_fastest_within_a_budget_hears_of_the_fastest_that_surely_is() -> None:
    words: dict[str, Any] = {"tokens": "1B", "budget": 90, "price": {"h100": 2}}
    answer = astra.plan("llama-3-8b", **JOB | {"gpus": "h100:32"}, **words)
    market, points = answer.market, answer.frontier
    assert market is not None and len(points) > 2
    odds = [0.5] + [1.0] * (len(points) - 1)
    chances = tuple(
        replace(each, budget=b, fits=1.0) for each, b in zip(market.chances, odds, strict=True)
    )
    surer = surer_plan(points, replace(market, chosen=1, chances=chances, order="throughput"))
    assert surer is not None and surer.rank == points[1].rank
    surer = surer_plan(points, replace(market, chosen=1, chances=chances, order="cost"))
    assert surer is not None and surer.rank == points[-1].rank


@pytest.mark.slow
def test_a_pool_of_several_types_has_the_same_head() -> None:
    answer = astra.plan("gpt2", gpus="h100:8,a100-80g:8", global_batch=64, seq_len=1024)
    assert answer.headline == headline_of(answer)
    assert answer.headline is not None and answer.headline.sentence == said_first(answer)
    built = msgspec.to_builtins(answer)["answer"]
    assert built["risk"] == "safe" and built["sentence"].startswith("gpt2 on ")
