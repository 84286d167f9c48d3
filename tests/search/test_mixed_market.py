"""Clusters of several types: where they win, and where they may be rented."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.search.test_market import assert_terms
from tests.support.answers import explained_without_what_ifs, planned

import astra
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.gpus_option import parse_gpus
from astra.hardware.stack import find_stack
from astra.money.catalogue import Instance, Offer
from astra.money.conditions import conditions
from astra.money.places import mixtures_of, places_of
from astra.money.user_prices import user_offer
from astra.notes import NoteCode, note
from astra.report.answer import answer_json
from astra.report.words import words
from astra.search.evaluator import Limits
from astra.search.market import MarketSearch, RentalMarket
from astra.search.mixed_market import MixedSearch
from astra.search.query import Query, query_of_space
from astra.strategy.plans import Task
from astra.strategy.space import Space, Workload, parse_set

APART = words(note(NoteCode.MIXTURES_APART, elsewhere=False))
ONE_MAKE = words(note(NoteCode.MIXTURES_OF_LAUNCHABLE))
PRICES = {"h100": 3.0, "a100-80g": 1.2}
FEW = ["micro_batch=1,2", "cp=1", "tp=1,2", "sharding=optimizer"]


ASKED: dict[str, Any] = {
    "gpus": "h100:16,a100-80g:16",
    "global_batch": 32,
    "seq_len": 4096,
    "objective": "frontier",
    "tokens": "20B",
    "price": PRICES,
    "settings": FEW,
}


def asked(**more: Any) -> astra.Answer:
    return planned("llama-3-8b", **ASKED | more)


@pytest.mark.slow
def test_all_gpus_together_are_the_fast_end_of_the_frontier() -> None:
    mixed, apart = asked(), asked(mixed=False)
    first = mixed.frontier[0]
    assert set(first.gpus) == {"H100-80GB-SXM", "A100-80GB-SXM"}
    assert (first.hours or 0) < (apart.frontier[0].hours or 0)
    assert first.money is not None and len(first.money.rents) == 2
    assert_terms(first)
    alone = [p for p in mixed.frontier if len(p.gpus) == 1]
    assert alone and {p.summary for p in alone} <= {p.summary for p in apart.frontier}
    for lost in (p for p in apart.frontier if p.summary not in {q.summary for q in alone}):
        assert lost.hours and lost.usd
        assert any(
            (q.hours or 0) <= lost.hours and (q.usd or 0) <= lost.usd for q in mixed.frontier
        )
    fastest = astra.plan(
        "llama-3-8b",
        gpus="h100:16,a100-80g:16",
        global_batch=32,
        seq_len=4096,
        settings=FEW,
    ).best
    assert fastest is not None and first.step_s == pytest.approx(fastest.step_s)


@pytest.mark.slow
def test_any_runtime_mixes_types_as_flagscale_does_and_says_what_it_leaves_out() -> None:
    plain, every = asked(), asked(runtime="any")
    first, mixed = plain.frontier[0], [p for p in every.frontier if len(p.gpus) == 2]
    assert mixed and mixed[0] == every.frontier[0]
    assert mixed[0].hours == pytest.approx(first.hours) and mixed[0].gpus == first.gpus
    notes = {name: found.request.notes for name, found in (("megatron", plain), ("any", every))}
    assert ONE_MAKE in notes["any"] and ONE_MAKE not in notes["megatron"]


def test_a_runtime_without_pipelines_over_types_says_so_and_mixes_them_in_uniform_plans() -> None:
    found = asked(runtime="fsdp", settings=())
    notes = found.request.notes
    assert "plans of fsdp have no pipelines over several GPU types" in notes
    assert {point.plan.runtime for point in found.frontier} == {"fsdp"}


@pytest.mark.slow
def test_a_price_moves_a_mixed_answer_where_explain_says_it_does(tmp_path: Path) -> None:
    """The fastest within a budget that is just enough for all GPUs."""
    few: dict[str, Any] = {"gpus": "h100:8,a100-80g:8", "settings": ["mb=1", *FEW[1:]]}
    first = asked(**few).frontier[0]
    budget = (first.usd or 0) * 1.02
    answer = asked(**few, budget=budget)
    assert answer.best is not None and len(answer.best.gpus) == 2
    found = explained_without_what_ifs(answer)
    assert any("mix GPU types" in note for note in found.notes)
    moves = {move.gpu: move for move in found.prices}
    for short, full in (("h100", "H100-80GB-SXM"), ("a100-80g", "A100-80GB-SXM")):
        rise = moves[full].rise_fraction
        assert rise is not None and rise > 0.02
        for factor, same in ((1 + rise * 0.99, True), (1 + rise * 1.01, False)):
            prices = {name: usd * (factor if name == short else 1) for name, usd in PRICES.items()}
            moved = asked(**few, budget=budget, price=prices).best
            assert moved is not None and (moved.gpus == answer.best.gpus) == same
    file = tmp_path / "result.json"
    file.write_bytes(msgspec.json.encode(answer_json(answer, [answer])))
    assert explained_without_what_ifs(file).prices == found.prices


@pytest.mark.slow
def test_mixtures_with_a_part_of_one_type_lie_between_one_type_and_all() -> None:
    found = asked(gpus="h100:16,h200:16", global_batch=48, price={"h100": 2.5, "h200": 3.0})
    counts = [
        (point.gpus["H100-80GB-SXM"], point.gpus["H200-SXM"])
        for point in found.frontier
        if len(point.gpus) == 2
    ]
    assert counts == [(16, 16), (16, 8)]  # at one pace, so fewer of the dearer
    for point in found.frontier:
        assert_terms(point)
    notes = found.request.notes
    assert any("a half" in note for note in notes)


@pytest.mark.slow
def test_mixtures_that_are_too_much_work_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is searched; then those that may win are counted, not lost."""
    monkeypatch.setattr("astra.search.mixed_market.MAX_SEARCHED", 1)
    told: list[list[str]] = []
    for exact in (False, True):
        notes = astra.plan("llama-3-8b", exact=exact, **ASKED).request.notes
        told.append([note for note in notes if "not looked at" in note])
    assert len(told[0]) == 1 and not told[1]


@pytest.mark.slow
def test_spot_nodes_are_mixed_with_spot_nodes() -> None:
    first = asked(spot=True).frontier[0]
    assert first.money is not None and len(first.money.rents) == 2
    assert all(rent.spot for rent in first.money.rents)
    assert first.money.goodput_fraction < asked().frontier[0].money.goodput_fraction  # type: ignore[union-attr]


@pytest.mark.slow
def test_no_mixed_plan_beats_its_types_apart_by_much() -> None:
    pools, query = market()
    offers = [offer("h100", "aws", "x", 3.0), offer("a100-80g", "aws", "x", 1.2)]
    rental = RentalMarket(query=query, offers=offers, tokens=2e10, conditions=conditions())
    search = MixedSearch(MarketSearch(rental, Limits(), 1e6))
    (place,) = places_of(pools, offers, anywhere=False)
    mixtures = mixtures_of(pools, place, None)
    assert [[pool.count for pool in each.pools] for each in mixtures] == [
        [16, 16],
        [16, 8],
        [8, 16],
    ]
    for mixture in mixtures:
        found = search._fastest(mixture, 1e9, np.inf)
        assert found is not None
        least = search._least_s(mixture.pools)
        assert 0.5 * found.step_s < least <= found.step_s
        assert search._fastest(mixture, least, np.inf) is None


def test_a_second_gpu_type_must_save_two_percent_unless_risk_is_no_matter() -> None:
    pools, query = market()
    offers = [offer("h100", "aws", "x", 3.0), offer("a100-80g", "aws", "x", 1.2)]
    limit_s = {}
    for risk in ("none", "normal"):
        weighed = replace(query, risk=risk)
        rental = RentalMarket(query=weighed, offers=offers, tokens=2e10, conditions=conditions())
        search = MixedSearch(MarketSearch(rental, Limits(), 1e6))
        (place,) = places_of(pools, offers, anywhere=False)
        limit_s[risk] = search._limit_s(mixtures_of(pools, place, None)[0])
    assert limit_s["normal"] == pytest.approx(limit_s["none"] / 1.02)


def test_what_cannot_be_mixed_is_said() -> None:
    settings = ["micro_batch=1", "cp=1", "pp=2", "vpp=1"]
    found = planned("mixtral-8x7b", **ASKED | {"settings": settings})
    notes = found.request.notes
    assert any(note.startswith("--set pp") and "are not searched" in note for note in notes)


def offer(gpu: str, cloud: str, region: str, price: float, certainty: str = "high") -> Offer:
    plain = user_offer(find_gpu(gpu)[0], price, "2026-01-01")
    fields = {name: getattr(plain.machine, name) for name in Instance.__struct_fields__}
    machine = Instance(**fields | {"cloud": cloud, "certainty": certainty, "rdma": False})
    return Offer(
        machine=machine, region=region, usd_per_hour=8 * price, date="2026-01-01", source="test"
    )


def market(count: int = 16) -> tuple[tuple[Pool, ...], Query]:
    pools = tuple(Pool(gpu=find_gpu(name)[0], count=count) for name in ("h100", "a100-80g"))
    task = Task(
        model=astra.find_model("llama-3-8b"),
        cluster=Cluster(name="x", pools=pools),
        runtime="megatron",
        stack="megatron",
    )
    chosen = parse_set(FEW)
    space = Space(Workload(task, 32, 4096), chosen)
    return pools, query_of_space(space, find_stack("megatron"))


@pytest.mark.slow
def test_fewer_gpus_than_a_mixture_has_are_no_dearer_than_it_counts_with() -> None:
    pools, _ = market()
    offers = [offer("h100", "aws", "x", 3.0), offer("a100-80g", "aws", "x", 1.2)]
    (place,) = places_of(pools, offers, anywhere=False)
    whole = mixtures_of(pools, place, None)[0]
    assert whole.usd_per_hour == pytest.approx(16 * 3.0 + 16 * 1.2) and whole.nodes == 4
    assert mixtures_of(pools, place, 20)[0].usd_per_hour == pytest.approx(20 * 1.2)
    found = asked(max_gpus=24)
    assert found.frontier and all(sum(p.gpus.values()) <= 24 for p in found.frontier)


def test_places_that_are_dearer_for_every_type_are_left_out() -> None:
    pools, _ = market()
    cheap = [offer("h100", "aws", "a", 3.0), offer("a100-80g", "aws", "a", 1.2)]
    dear = [offer("h100", "aws", "b", 3.1), offer("a100-80g", "aws", "b", 1.2)]
    other = [offer("h100", "aws", "c", 3.1), offer("a100-80g", "aws", "c", 1.0)]
    places = places_of(pools, [*cheap, *dear, *other], anywhere=False)
    assert [place[0].region for place in places] == ["c", "a"]


def test_a_cluster_lies_in_one_cloud_and_region_unless_told_otherwise() -> None:
    pools, _ = market(64)
    apart = [
        offer("h100", "aws", "us-east-1", 3.0),
        offer("a100-80g", "aws", "us-west-2", 1.0),
        offer("a100-80g", "gcp", "us-east-1", 1.0),
    ]
    assert places_of(pools, apart, anywhere=False) == []
    assert len(places_of(pools, apart, anywhere=True)) == 1
    (place,) = places_of(
        pools, [*apart, offer("a100-80g", "aws", "us-east-1", 2.0)], anywhere=False
    )
    assert {each.place for each in place} == {("aws", "us-east-1")}
    unknown = [*apart[:1], offer("a100-80g", "aws", "us-east-1", 1.0, "guessed")]
    assert places_of(pools, unknown, anywhere=False) == []


def test_mixtures_are_of_one_vendor() -> None:
    pools = parse_gpus("h100:16,a100-80g:16,mi300x:16,mi325x:16")[0].pools
    names = ("h100", "a100-80g", "mi300x", "mi325x")
    places = places_of(pools, [offer(name, "aws", "a", 2.0) for name in names], anywhere=False)
    assert {tuple(each.machine.gpu for each in place) for place in places} == {
        ("A100-80GB-SXM", "H100-80GB-SXM"),
        ("MI300X", "MI325X"),
    }


def test_money_rents_no_cluster_of_two_vendors_and_says_why() -> None:
    found = asked(gpus="h100:16,mi300x:16", price={"h100": 3.0, "mi300x": 2.5})
    assert found.frontier and all(len(plan.gpus) == 1 for plan in found.frontier)
    notes = found.request.notes
    assert any("RCCL and NCCL do not speak to each other" in note for note in notes)


@pytest.mark.parametrize(
    ("gpus", "more", "said"),
    [
        ("h100:8,a100-80g:8", {"price": "h100=2"}, f"{APART}; --any-region looks at them"),
        pytest.param("h100:8,rtx-4090:8", {}, APART, marks=pytest.mark.slow),
        pytest.param(
            "h100:8,a100-80g:8", {"price": "h100=2,a100-80g=1"}, None, marks=pytest.mark.slow
        ),
    ],
)
def test_types_that_are_not_sold_in_one_place_are_said_to_stay_apart(
    gpus: str, more: dict[str, Any], said: str | None
) -> None:
    found = astra.plan(
        "llama-3.2-1b",
        gpus=gpus,
        global_batch=64,
        seq_len=2048,
        objective="money",
        tokens="1B",
        settings=["tp=1", "micro_batch=1"],
        **more,
    )
    notes = found.request.notes
    assert [note for note in notes if note.startswith(APART)] == ([said] if said else [])
