"""The frontier of hours and dollars is what brute force finds, and keeps its promises."""

import datetime
import io
import math
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.strategy.mixed_plans import small_model
from tests.support.answers import planned
from tests.support.cases import each_case
from tests.support.tiers import slow_after, soak_but_every

import astra
from astra.cost.bill import with_money
from astra.cost.evaluate import evaluate
from astra.cost.result import PricedPlan
from astra.cost.step import simulated_step
from astra.errors import InputError
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.stack import find_stack
from astra.memory.stage import memory_of
from astra.money.catalogue import Instance, Offer, instances, shipped_offers
from astra.money.conditions import Conditions, conditions
from astra.money.frontier import knee
from astra.money.goals import GoalOutcome, goal_outcome
from astra.money.machines import Machine, machines_of
from astra.money.options import MoneyOptions, goals_of, hours_until
from astra.report.answer import answer_page
from astra.report.words import with_words
from astra.search.evaluator import Limits
from astra.search.market import MarketSearch, RentalMarket
from astra.search.query import Query, query_of_space
from astra.strategy.plans import Task
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space, Workload
from astra.strategy.stage_view import stage_view
from astra.strategy.variants import enumerate_plans
from astra.timing.stage import stage_times

QUICK, ALL = 20, 220  # markets of the quick tests, and of all tests
SEEN = 12  # markets that are looked at for being of use
SOME = range(QUICK, ALL, 6)  # of `make test`; `make soak` looks at the others
SEEDS = [*slow_after(3, range(6)), *soak_but_every(2, range(6, QUICK))]
SIZES = {"first_moment_dtype": 4.0, "second_moment_dtype": 4.0, "master_dtype": 4.0}
BYTES = {"fp32": 4.0, "bf16": 2.0}


RAM_BYTES = (None, 1e8, 1e9, 3e9, 1e10, 1e12)  # of the nodes of markets where it matters


def offer_of(dice: random.Random, gpu: str, node: int, place: int) -> Offer:
    machine = Instance(
        cloud=f"cloud{place % 2}",
        instance=f"{gpu}-{node}-{place}",
        gpu=gpu,
        gpus=node,
        nic_bytes_per_s=dice.choice([3e9, 12e9, 50e9]),
        domain_gpus=node,
        rdma=True,
        certainty="high",
        network_source="dice",
    )
    return Offer(
        machine=machine,
        region="here",
        usd_per_hour=node * dice.choice([0.5, 1.0, 1.1, 2.0, 4.0]),
        spot=dice.random() < 0.3,
        date="2026-01-01",
        source="dice",
    )


class Market:
    """A random small question about money."""

    def __init__(self, seed: int, hosts: bool = False) -> None:
        dice = random.Random(seed)
        wide = dice.choice([1, 2, 4])
        model = small_model(
            layers=dice.choice([2, 3, 4]),
            experts=dice.choice([0, 0, 0, 4]),
            hidden=1024 * wide,
            ffn=4096 * wide,
            vocab=dice.choice([1000, 100_000]),
        )
        types = dice.sample(["H100-80GB-SXM", "A100-40GB-SXM", "B200"], dice.choice([1, 2, 3]))
        self.most = dice.choice([2, 4, 4, 8])
        pools = tuple(Pool(gpu=find_gpu(name)[0], count=self.most) for name in types)
        self.offers = [
            offer_of(dice, name, dice.choice([1, 2, 4, 8]), place)
            for place, name in enumerate(types * 2)
        ]
        chosen: dict[str, tuple[Any, ...]] = {"recompute": ("none", "full:uniform:1")}
        if dice.random() < 0.3:
            chosen["second_moment_dtype"] = ("fp32", "bf16")
        if dice.random() < 0.3 or self.most == 8:
            chosen["micro_batch"] = (1, 2)
        if dice.random() < 0.7 or self.most == 8:
            chosen |= {"cp": (1,), "sharding": ("optimizer",)}
        if dice.random() < 0.7:
            chosen["offload_optimizer_fraction"] = (0.0,)
        if hosts:  # plans that offload, on nodes whose RAM they may be too large for
            chosen["offload_optimizer_fraction"] = dice.choice([(1.0,), (0.5, 1.0), (0.0, 1.0)])
            names = types * 3
            self.offers = [self.hosted(dice, name, place) for place, name in enumerate(names)]
        task = Task(
            model=model,
            cluster=Cluster(name="market", pools=pools),
            runtime="megatron",
            stack="megatron",
        )
        workload = Workload(task, dice.choice([4, 6, 8]), dice.choice([1024, 2048]))
        self.query = query_of_space(
            Space(workload, chosen), find_stack("megatron"), margin=dice.choice([0.05, 0.6])
        )
        self.tokens = dice.choice([1e9, 3e11])
        self.kept = conditions(
            failures=dice.random() < 0.8,
            gpu_mtbf_hours=dice.choice([100.0, 50_000.0]),
            storage_usd_per_gb_month=dice.choice([0.0, 0.1]),
            egress_usd_per_gb=dice.choice([0.0, 0.1]),
        )

    def hosted(self, dice: random.Random, name: str, place: int) -> Offer:
        """Of two sizes of nodes, so that offers alike but for RAM and price are frequent."""
        offer = offer_of(dice, name, dice.choice([1, 4]), place)
        machine = replace(offer.machine, nic_bytes_per_s=5e10, ram_bytes=dice.choice(RAM_BYTES))
        return replace(offer, machine=machine)

    def machines(self) -> list[Machine]:
        return machines_of(self.query.cluster.pools, self.offers)

    def searched(self) -> list[tuple[float, float]]:
        market = RentalMarket(
            query=self.query, offers=self.offers, tokens=self.tokens, conditions=self.kept
        )
        found = MarketSearch(market, Limits()).run()
        return [(trade.wall_h, trade.usd) for trade in found.trades]

    def by_brute_force(self) -> list[tuple[float, float]]:
        """Every plan that fits at every price there is, compared all with all."""
        points = []
        for machine in self.machines():
            query = self.query.on(machine.cluster(self.query.cluster))
            for gpus, size, step, host in fitting(query):
                for offer in (*machine.offers, *machine.elsewhere):
                    ram = offer.machine.ram_bytes
                    if ram is None or min(gpus, offer.machine.gpus) * host <= 0.9 * ram:
                        points.append(self.point(gpus, size, step, offer))
        best: list[tuple[float, float]] = []
        for hours, usd in sorted(set(points)):
            if math.isfinite(hours) and (not best or usd < best[-1][1]):
                best.append((hours, usd))
        return best

    def point(self, gpus: int, size: float, step: float, offer: Offer) -> tuple[float, float]:
        steps = self.tokens / self.query.tokens_per_step
        return hours_and_dollars(gpus, size, step * steps / 3600, offer, self.kept)


def hours_and_dollars(
    gpus: int, size: float, training_h: float, offer: Offer, kept: Conditions
) -> tuple[float, float]:
    """By hand, with nothing of the product's but its figures."""
    nodes = math.ceil(gpus / offer.machine.gpus)
    price = nodes * offer.usd_per_hour
    write = size / min(nodes * kept.storage_bytes_per_s_per_node, kept.storage_bytes_per_s_most)
    wall = training_h
    if kept.failures:
        rate = gpus / kept.gpu_mtbf_hours / 3600
        restart = kept.restart_s + write
        if offer.spot:
            rate += nodes * kept.spot_interruptions_per_hour / 3600
            restart = kept.spot_restart_s + write
        between = 1 / rate
        part = write / (2 * between)
        train = between
        if part < 1:
            train = math.sqrt(2 * write * between) * (1 + math.sqrt(part) / 3 + part / 9) - write
        whole = (math.exp(rate * (train + write)) - 1) / rate * math.exp(rate * restart)
        wall = training_h * whole / train + kept.startup_s / 3600
    storage = size / 1e9 * kept.storage_usd_per_gb_month * wall / 730.5
    return wall, price * wall + storage + size / 1e9 * kept.egress_usd_per_gb


def fitting(query: Query) -> list[tuple[int, float, float, float]]:
    """GPUs, checkpoint, step and bytes on the host for a GPU of every plan that may run."""
    task, space = query.task, query.space
    found = []
    count = astra.predict(task.model, gpus="b200:1", global_batch=1, seq_len=64).checkpoint_bytes
    for plans in enumerate_plans(space):
        plans = plans.take(np.flatnonzero(check(plans, task, rules_for("megatron")).allowed))
        if not len(plans):
            continue
        fits = evaluate(plans, task, query.stack, query.margin).fits
        plans = plans.take(np.flatnonzero(fits))
        if not len(plans):
            continue
        view = stage_view(plans, task, every_stage=True)
        steps = simulated_step(plans, view.stages, stage_times(view, query.stack)).step_s
        states = memory_of(view, query.stack).part("optimizer")
        words = ("fp32", "bf16")
        for row in range(len(plans)):
            moment = words[0] if plans.second_moment_dtype[row] == 0 else words[1]
            size = count / 14 * (2 + 4 + 4 + BYTES[moment])
            host = plans.offload_optimizer_fraction[row] * max(states[..., row].ravel().tolist())
            found.append((int(plans.gpus[row]), size, float(steps[row]), float(host)))
    return found


def assert_same_frontier(seed: int, hosts: bool = False, tokens: float | None = None) -> None:
    market = Market(seed, hosts)
    market.tokens = tokens or market.tokens
    found, expected = market.searched(), market.by_brute_force()
    assert len(found) == len(expected), (found, expected)
    for point, other in zip(found, expected, strict=True):
        assert point == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_frontier_is_what_brute_force_finds(seed: int) -> None:
    assert_same_frontier(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_frontier_obeys_the_ram_of_every_node_as_brute_force_does(seed: int) -> None:
    assert_same_frontier(seed, hosts=True)


@pytest.mark.parametrize("seed", slow_after(1, range(6, 10)))
def test_steps_that_hours_hardly_tell_apart_are_compared_as_brute_force_does(seed: int) -> None:
    assert_same_frontier(seed, hosts=True, tokens=8e3)  # starting up takes nearly all the time


@pytest.mark.slow
def test_a_tiny_model_on_a_few_thousand_tokens_has_an_answer(tmp_path: Path) -> None:
    model = tmp_path / "tiny.toml"
    shape = "layers = 4\nhidden = 256\nheads = 4\nkv_heads = 2\nffn = 512\nvocab = 1000\n"
    model.write_text(f"{shape}tied_embeddings = true\n")
    found = astra.plan(
        model,
        gpus="h100",
        max_gpus=8,
        global_batch=8,
        seq_len=128,
        objective="money",
        tokens="8k",
    )
    assert found.best is not None and found.best.hours == pytest.approx(0.5, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_frontier_obeys_the_ram_of_every_node_on_many_markets(part: int) -> None:
    for seed in SOME[part::8]:
        assert_same_frontier(seed, hosts=True)


@pytest.mark.slow
def test_ram_changes_the_frontiers_of_the_markets_it_is_tested_on() -> None:
    markets = [Market(seed, hosts=True) for seed in range(SEEN)]
    bound = [market.searched() for market in markets]
    for market in markets:
        market.offers = [
            replace(offer, machine=replace(offer.machine, ram_bytes=None))
            for offer in market.offers
        ]
    free = [market.searched() for market in markets]
    assert sum(a != b for a, b in zip(bound, free, strict=True)) >= SEEN // 4
    assert sum(bool(a) for a in bound) >= SEEN // 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_frontier_is_what_brute_force_finds_on_many_markets(part: int) -> None:
    for seed in SOME[part::4]:
        assert_same_frontier(seed)


@pytest.mark.soak
@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("first", range(QUICK, ALL, 20))
def test_the_frontier_is_what_brute_force_finds_on_all_markets(first: int, hosts: bool) -> None:
    for seed in range(first, first + 20):
        assert_same_frontier(seed, hosts)


@pytest.mark.slow
def test_what_is_offloaded_fits_into_the_ram_of_the_machines_that_are_named() -> None:
    """The cheapest H100 of all is in a node of 4 GiB; plans for one GPU keep 90 on the host."""
    asked = {**ASKED, "global_batch": 128, "settings": (), "risk": "none", "order": "cost"}
    answer = astra.plan("llama-3-8b", gpus="h100:64", **asked)
    hosting = [plan for plan in answer.frontier if plan.host_memory_bytes]
    assert hosting and answer.best in hosting
    for plan in hosting:
        assert plan.money is not None
        for rent in plan.money.rents:
            assert rent.node_ram_bytes and plan.host_memory_bytes <= 0.9 * rent.node_ram_bytes
    assert "90 GiB a node for offload; ECS1GPU8 has 256 GiB of RAM" in page_of(answer)
    known = {(o.cloud, o.instance): instances()[o.cloud, o.instance] for o in elsewhere_of(answer)}
    assert known and all((m.ram_bytes or math.inf) > 90 * 2**30 for m in known.values())


def page_of(answer: astra.Answer) -> str:
    """As it is printed, in one line."""
    text = io.StringIO()
    for part in answer_page(answer, None):
        Console(file=text, width=100).print(part)
    return " ".join(text.getvalue().split())


def elsewhere_of(answer: astra.Answer) -> tuple[Any, ...]:
    return answer.market.elsewhere if answer.market else ()


def test_machines_without_the_ram_for_any_plan_are_told_of() -> None:
    """Llama 3 8B fits one H100 only with its optimizer on the host."""
    small = [o for o in shipped_offers() if o.machine.instance.endswith("h100_1x2v4gb")]
    answer = astra.plan(
        "llama-3-8b", gpus="h100:1", offers=tuple(small), **{**ASKED, "settings": ()}
    )
    assert answer.nothing_fits is not None and not answer.frontier
    assert re.search("h100_1x2v4gb: host memory: [0-9]+ GiB", answer.nothing_fits.binding)
    assert "4 GiB usable" in answer.nothing_fits.binding


def test_a_plan_that_was_not_searched_for_its_machine_gets_a_warning() -> None:
    plan = astra.predict(
        "llama-3-8b", gpus="h100:1", global_batch=8, seq_len=4096, offload_optimizer_fraction=1.0
    )
    by_name = {offer.machine.instance: offer for offer in shipped_offers()}
    for name, warned in (("sapphire-rapids-h100_1x2v4gb", True), ("ECS1GPU8", False)):
        offers = {"H100-80GB-SXM": by_name[name]}
        found = with_words(with_money(plan, offers, 1e9, conditions(failures=False))).warnings
        assert any(f"do not fit into cudo {name}" in text for text in found) == warned


def test_ram_that_is_not_known_is_said() -> None:
    answer = astra.plan(
        "llama-3-8b", gpus="h100:1", price={"h100": 2.0}, **{**ASKED, "settings": ()}
    )
    assert answer.best is not None and answer.best.host_memory_bytes
    assert "RAM 8 x H100-80GB-SXM has is not known" in page_of(answer)


def test_a_dearer_machine_with_slower_nics_is_not_looked_at() -> None:
    from astra.money.catalogue import filter_offers, shipped_offers
    from astra.money.machines import undominated

    pools = (Pool(gpu=find_gpu("h100")[0], count=1024),)
    machines = machines_of(pools, filter_offers(shipped_offers()))
    left = undominated(machines)
    speeds = {m.gpu.node.nic_bytes_per_s for m in left if m.gpu.node.gpus == 8}
    assert len(left) < len(machines) and 50e9 in speeds
    fast = next(m for m in left if m.gpu.node.nic_bytes_per_s == 50e9)
    gone = [m for m in machines if m not in left]
    assert all(m.offers[0].usd_per_hour >= fast.offers[0].usd_per_hour for m in gone)


@pytest.mark.slow
def test_markets_of_the_tests_have_frontiers_worth_the_name() -> None:
    lengths = [len(Market(seed).searched()) for seed in range(SEEN)]
    assert max(lengths) >= 3 and sum(length > 1 for length in lengths) >= SEEN // 4


ASKED: dict[str, Any] = {
    "global_batch": 64,
    "seq_len": 4096,
    "objective": "money",
    "tokens": "20B",
    "settings": ["micro_batch=1,2", "cp=1", "sharding=optimizer", "pp=1,2,4"],
}
PRICES = {"h100": 3.0, "a100-80g": 1.2}


def asked(**more: Any) -> astra.Answer:
    """Llama 3 8B on up to 64 GPUs of two types."""
    return planned(
        "llama-3-8b", **{"gpus": "h100:64,a100-80g:64", "price": PRICES, **ASKED, **more}
    )


@pytest.fixture(scope="module")
def answer() -> astra.Answer:
    return asked()


def test_every_figure_follows_from_the_terms_beside_it(answer: astra.Answer) -> None:
    for plan in answer.frontier:
        assert_terms(plan)


def assert_terms(plan: PricedPlan) -> None:
    money = plan.money
    assert money is not None and plan.hours is not None and plan.usd is not None
    parts = money.goodput_fraction + money.writing_fraction + money.lost_fraction
    assert parts + money.restarting_fraction == pytest.approx(1)
    assert money.training_hours == pytest.approx(money.tokens / plan.tokens_per_s / 3600)
    wall = money.training_hours / money.goodput_fraction + money.startup_hours
    assert plan.hours == pytest.approx(wall)
    hourly = sum(rent.nodes * rent.node_usd_per_hour for rent in money.rents)
    assert plan.usd_per_hour == pytest.approx(hourly)
    assert plan.usd == pytest.approx(hourly * wall + money.storage_usd + money.egress_usd)
    assert money.usd_per_million_tokens == pytest.approx(plan.usd / money.tokens * 1e6)
    for rent in money.rents:
        assert rent.nodes * rent.node_gpus == plan.gpus[rent.gpu] + rent.idle_gpus
        assert rent.price_date and rent.price_source


def test_dollars_by_cause_add_up_and_intervals_are_those_of_the_step(answer: astra.Answer) -> None:
    assert answer.market is not None
    for point, chances in zip(answer.frontier, answer.market.chances, strict=True):
        money = point.money
        assert money is not None and point.usd is not None and point.usd_per_hour is not None
        causes = money.usd_by_cause
        assert sum(causes.values()) == pytest.approx(point.usd, rel=1e-12)
        assert causes["training"] == pytest.approx(point.usd_per_hour * money.training_hours)
        assert causes["startup"] == pytest.approx(point.usd_per_hour * money.startup_hours)
        shares = (money.writing_fraction, money.lost_fraction, money.restarting_fraction)
        lost = [causes[name] for name in ("checkpoints", "lost_work", "restarts")]
        per_share = causes["training"] / money.goodput_fraction
        assert lost == pytest.approx([share * per_share for share in shares])
        ends = (point.hours_low, point.hours_high, point.usd_low, point.usd_high)
        known = (chances.hours_low, chances.hours_high, chances.usd_low, chances.usd_high)
        assert ends == pytest.approx(known, rel=1e-9)


def test_no_point_of_the_frontier_dominates_another(answer: astra.Answer) -> None:
    hours = [plan.hours or 0 for plan in answer.frontier]
    usd = [plan.usd or 0 for plan in answer.frontier]
    assert len(hours) > 3
    assert hours == sorted(set(hours)) and usd == sorted(set(usd), reverse=True)


@pytest.mark.slow
def test_what_was_simulated_and_left_out_is_beaten_by_the_frontier() -> None:
    answer = asked(price=None, spot=True)
    assert answer.market is not None and answer.market.beaten
    kept = [(plan.hours or 0, plan.usd or 0) for plan in answer.frontier]
    for hours, usd in answer.market.beaten:
        assert any(h <= hours * (1 + 1e-9) and d <= usd * (1 + 1e-9) for h, d in kept)
        assert (hours, usd) not in kept
    for lost, at in zip(answer.market.beaten_plans, answer.market.beaten, strict=True):
        assert (lost.hours, lost.usd) == at
        assert lost.summary.startswith("tp ") and 0 < sum(lost.gpus.values()) <= 128


def test_places_of_the_frontier_have_the_ranks_of_their_plans(answer: astra.Answer) -> None:
    market = answer.market
    assert market is not None and market.chosen_rank == 1
    for name in ("fastest", "cheapest", "knee", "chosen"):
        place, rank = getattr(market, name), getattr(market, f"{name}_rank")
        assert answer.frontier[place - 1].rank == rank
        if rank <= len(answer.plans):
            assert answer.frontier[place - 1] == answer.plans[rank - 1]


@pytest.mark.slow
def test_more_money_is_never_slower_and_more_time_never_dearer(answer: astra.Answer) -> None:
    cheapest, dearest = answer.frontier[-1].usd or 0, answer.frontier[0].usd or 0
    last = math.inf
    for share in (0.5, 1.0, 1.02, 1.1, 1.5, 3.0):
        best = asked(budget=share * cheapest).best
        assert best is not None and best.hours is not None
        assert best.hours <= last * (1 + 1e-12)
        last = best.hours
    last = math.inf
    for hours in [0.5 * (answer.frontier[0].hours or 0), *(p.hours for p in answer.frontier)]:
        best = asked(deadline=hours).best
        assert best is not None and best.usd is not None and best.usd <= last * (1 + 1e-12)
        last = best.usd
    assert last == pytest.approx(cheapest) and dearest > cheapest


def test_twice_the_prices_are_twice_the_dollars_and_the_same_choices(answer: astra.Answer) -> None:
    twice = asked(price={name: 2 * price for name, price in PRICES.items()})
    assert [p.summary for p in twice.frontier] == [p.summary for p in answer.frontier]
    assert [p.hours for p in twice.frontier] == [p.hours for p in answer.frontier]
    for dear, plain in zip(twice.frontier, answer.frontier, strict=True):
        assert dear.usd == pytest.approx(2 * (plain.usd or 0))
    assert twice.market and answer.market and twice.market.chosen == answer.market.chosen


def test_the_orders_put_the_fastest_or_the_cheapest_first(answer: astra.Answer) -> None:
    cheap, fast = asked(order="cost"), asked(order="throughput")
    assert cheap.best is not None and cheap.best.usd == answer.frontier[-1].usd
    assert fast.best is not None and fast.best.hours == answer.frontier[0].hours
    assert [p.rank for p in fast.plans] == list(range(1, len(fast.plans) + 1))


def test_without_goals_the_answer_is_the_knee_and_the_others_follow_fastest_first(
    answer: astra.Answer,
) -> None:
    assert answer.market is not None and answer.market.order == "knee"
    assert answer.market.chosen == answer.market.knee
    assert answer.best == answer.frontier[answer.market.knee - 1]
    behind = [plan.hours or 0 for plan in answer.plans[1:]]
    assert len(behind) > 2 and behind == sorted(behind)


def test_a_knee_can_be_asked_for_within_a_deadline(answer: astra.Answer) -> None:
    in_time = answer.frontier[:4]
    found = asked(order="knee", deadline=in_time[-1].hours)
    hours, usd = (np.array([getattr(p, name) for p in in_time]) for name in ("hours", "usd"))
    assert found.best is not None and found.best.hours == in_time[knee(hours, usd)].hours
    cheapest = asked(order="cost", deadline=in_time[-1].hours)
    assert cheapest.market is not None and cheapest.market.knee == knee(hours, usd) + 1


@pytest.mark.slow
def test_a_cheaper_type_takes_the_place_of_a_dearer_one(answer: astra.Answer) -> None:
    assert {gpu for plan in answer.frontier for gpu in plan.gpus} >= {"H100-80GB-SXM"}
    cheap = asked(price={"h100": 3.0, "a100-80g": 0.1})
    assert cheap.best is not None and set(cheap.best.gpus) == {"A100-80GB-SXM"}


@pytest.mark.slow
def test_a_budget_below_the_cheapest_names_it_and_the_gap(answer: astra.Answer) -> None:
    cheapest = answer.frontier[-1].usd or 0
    found = asked(budget=cheapest / 4)
    wished = found.market.wished if found.market else None
    assert wished and not wished.possible and wished.rank == len(answer.frontier)
    assert wished.gap_usd == pytest.approx(0.75 * cheapest)
    assert_enough(wished, budget=cheapest / 4)


def assert_enough(wished: GoalOutcome, **goals: float) -> None:
    """What the goals are said to be enough for keeps them, and hardly more does."""
    assert wished.tokens is not None and wished.tokens < 20e9
    for factor, possible in ((1.0, True), (1.001, False)):
        again = asked(tokens=wished.tokens * factor, **goals)
        assert again.market is not None and again.market.wished is not None
        assert again.market.wished.possible == possible


@pytest.mark.slow
def test_a_deadline_below_the_fastest_names_it_and_the_gap(answer: astra.Answer) -> None:
    fastest = answer.frontier[0].hours or 0
    found = asked(deadline=fastest / 2)
    wished = found.market.wished if found.market else None
    assert wished and not wished.possible and wished.rank == 1
    assert wished.gap_hours == pytest.approx(fastest / 2)
    assert_enough(wished, deadline=fastest / 2)


def test_a_deadline_shorter_than_the_start_up_is_enough_for_nothing() -> None:
    found = asked(deadline=0.4, startup="30m")
    assert found.market is not None and found.market.wished is not None
    assert found.market.wished.tokens == 0


def test_both_goals_that_exclude_each_other_name_both_ways_out(answer: astra.Answer) -> None:
    first, last = answer.frontier[0], answer.frontier[-1]
    deadline, budget = (first.hours or 0) * 1.001, (last.usd or 0) * 1.001
    dear = (first.usd or 0) - budget
    late = (last.hours or 0) - deadline
    assert dear / budget < late / deadline  # so the one in time misses by less
    found = asked(deadline=deadline, budget=budget)
    wished = found.market.wished if found.market else None
    assert wished and not wished.possible and wished.rank == 1
    assert wished.gap_usd == pytest.approx(dear) and wished.gap_hours is None
    assert wished.also_rank == len(answer.frontier)
    assert wished.also_gap_hours == pytest.approx(late) and wished.also_gap_usd is None


@pytest.mark.parametrize(
    ("deadline", "budget", "rank", "gaps", "also", "also_gaps"),
    [
        (20.0, 10.0, 2, (50.0, None), 3, (40.0, 80.0)),  # none so cheap: the one in time
        (5.0, 75.0, 2, (None, 15.0), 1, (25.0, 5.0)),  # none so fast: the one that can be paid
        (20.0, 55.0, 2, (5.0, None), 3, (None, 80.0)),  # 9 % too dear, or four times late
        (95.0, 55.0, 3, (None, 5.0), 2, (5.0, None)),  # 5 % late, or 9 % too dear
        (5.0, 45.0, 1, (55.0, 5.0), 3, (5.0, 95.0)),  # neither can be kept
    ],
)
def test_the_nearest_keeps_a_goal_where_one_can_be_kept_and_misses_by_the_least(
    deadline: float,
    budget: float,
    rank: int,
    gaps: tuple[float | None, float | None],
    also: int,
    also_gaps: tuple[float | None, float | None],
) -> None:
    hours, usd = np.array([10.0, 20.0, 100.0]), np.array([100.0, 60.0, 50.0])
    found = goal_outcome(hours, usd, goals_of(MoneyOptions(deadline=deadline, budget=budget)))
    assert found is not None and not found.possible
    assert (found.rank, found.gap_usd, found.gap_hours) == (rank, *gaps)
    assert (found.also_rank, found.also_gap_usd, found.also_gap_hours) == (also, *also_gaps)


def test_without_failures_the_wall_time_is_the_training() -> None:
    found = asked(failures=False)
    for plan in found.frontier:
        assert plan.money and plan.hours == pytest.approx(plan.money.training_hours)


OWNED = {"price": None, "owned": "h100=30000", "gpus": "h100:16"}


@each_case(
    "more, said",
    [
        ({"tokens": None}, "tokens='1T'"),
        ({"tokens": "many"}, "tokens = 'many': not a number"),
        ({"tokens": "-1T"}, "Try 1T"),
        ({"budget": "-5"}, "0 or more"),
        ({"budget": 0}, "more than nothing"),
        ({"deadline": "soon"}, "not a time"),
        ({"price": "h100=-1"}, "0 or more"),
        ({"price": "b200=1"}, "not among the GPUs"),
        ({"price": None, "cloud": "awss"}, "Did you mean aws"),
        ({"cloud": "aws"}, "cloud = 'aws': every price is given"),
        ({"price": None, "cloud": "aws", "region": "mars"}, "no prices of it at aws"),
        ({"price": None, "gpus": "h800:64"}, "price={'H800"),
        ({"order": "speed"}, "throughput, cost or knee"),
        ({"use_all": True}, "use_all=True forbids it"),
        ({"objective": "time", "budget": 5}, "objective='money'"),
        ({"objective": "time", "longest": 5}, "longest= is a goal of objective='money'"),
        ({"objective": "time", "mixed": False}, "mixed=False is about what objective='money'"),
        ({"objective": "gpus", "join_guessed": True}, "join_guessed=True is about what objective"),
        ({"longest": 0}, "more than nothing"),
        ({"failures": False, "mtbf": 5}, "drop mtbf="),
        ({"mtbf": 0}, "never works"),
        ({"power_price": 0.1}, "give owned="),
        ({**OWNED, "amortise_years": 0}, "amortise_years = 0: must lie between 0.01 and 100"),
        ({**OWNED, "amortise_years": ""}, "amortise_years = '': not a number"),
        ({**OWNED, "pue": 0}, "pue = 0: must lie between 1 and 10"),
        ({**OWNED, "pue": 0.0}, "pue = 0.0: must lie between 1 and 10"),
        ({**OWNED, "power_price": ""}, "power_price = '': not a number"),
        ({"storage_bandwidth": 0}, "storage_bandwidth"),
        ({"order": ""}, "throughput, cost or knee"),
        ({"what_if": ""}, "no change"),
        ({"budgett": 5}, "Did you mean budget"),
    ],
)
def test_what_cannot_be_asked_is_an_error_that_helps(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked(**more)


def test_prices_that_cannot_be_are_refused_before_a_search_for_time() -> None:
    def searched(_: object) -> None:
        raise AssertionError("the search has begun")

    for money, said in (
        ({"owned": "h100=30000", "pue": 0}, "pue = 0: must lie between 1 and 10"),
        ({"price": "h100=dear"}, "'dear': not an amount of USD"),
        ({"price": "b200=1"}, "it is not among the GPUs"),
    ):
        with pytest.raises(InputError, match=said):
            astra.plan(
                "llama-3-8b",
                gpus="h100:8",
                global_batch=8,
                seq_len=4096,
                tokens="1B",
                progress=searched,
                **money,
            )


def test_a_plan_that_is_given_has_hours_and_dollars_too() -> None:
    plan = astra.predict(
        "llama-3-8b",
        gpus="h100:64",
        tp=2,
        global_batch=256,
        seq_len=4096,
        money={"tokens": "1T", "price": "h100=2.49"},
    )
    assert plan.usd_per_hour == pytest.approx(64 * 2.49)
    assert_terms(plan)
    bare = astra.predict("llama-3-8b", gpus="h800:8", global_batch=8, money={"tokens": "1T"})
    assert bare.usd is None and any("no price of H800" in text for text in bare.warnings)


def test_gpus_of_ones_own_show_amortisation_and_power() -> None:
    plan = astra.predict(
        "llama-3-8b",
        gpus="h100:8",
        global_batch=8,
        money={"tokens": "1B", "owned": "h100=30000", "power_price": 0.1, "pue": 1.5},
    )
    assert plan.money is not None
    hourly = 30_000 / (4 * 8766) + 0.7 * 1.2 * 1.5 * 0.1
    assert plan.usd_per_hour == pytest.approx(8 * hourly)
    source = plan.money.rents[0].price_source
    assert "amortisation" in source and "$0.1260/h power" in source
    assert_terms(plan)


def test_a_fraction_of_a_node_pays_for_all_of_it() -> None:
    plan = astra.predict(
        "llama-3.2-1b",
        gpus="h100:2",
        global_batch=8,
        money={"tokens": "1B", "price": "h100=2", "failures": False},
    )
    assert plan.money and plan.money.rents[0].idle_gpus == 6 and plan.usd_per_hour == 16


def test_the_answer_is_json_and_its_plans_can_be_read_again(answer: astra.Answer) -> None:
    document = msgspec.json.decode(msgspec.json.encode(answer))
    assert document["frontier"][0]["money"]["rents"][0]["node_usd_per_hour"] > 0
    assert document["request"]["money"]["tokens"] == "20B"
    assert document["plans"][0]["usd"] == answer.frontier[document["market"]["knee"] - 1].usd


@pytest.mark.slow
def test_a_date_is_a_deadline_and_a_budget_asks_about_money() -> None:
    day = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=31)
    found = asked(objective=None, deadline=day.isoformat())
    assert found.market is not None and found.market.deadline_hours is not None
    assert 30 * 24 < found.market.deadline_hours <= 31 * 24
    money = found.request.money
    assert isinstance(money, dict)
    assert money["deadline"] == pytest.approx(found.market.deadline_hours, abs=0.1)
    assert asked(objective=None, budget=1e9).market is not None
    with pytest.raises(InputError, match="that day has come"):
        asked(deadline="2020-01-01")
    with pytest.raises(InputError, match=r"not a time.*or a date"):
        asked(deadline="tomorrow")
    with pytest.raises(InputError, match="add that"):
        asked(objective="time", budget=5)


def test_hours_until_a_day_count_from_now() -> None:
    now = datetime.datetime(2026, 2, 27, 12, tzinfo=datetime.UTC)
    assert hours_until("2026-03-01", "--deadline", now) == 36
    assert hours_until("36", "--deadline", now) == hours_until("1.5d", "--deadline", now) == 36


def test_plans_that_take_longer_than_asked_for_are_left_out() -> None:
    every = asked()
    assert every.market is not None and every.market.longest_hours == 8766
    middle = every.frontier[len(every.frontier) // 2].hours or 0.0
    short = asked(longest=middle)
    assert [p.summary for p in short.frontier] == [
        p.summary for p in every.frontier if (p.hours or 0) < middle
    ]
    assert short.market is not None and short.market.longest_hours == middle


@pytest.mark.slow
def test_a_budget_that_no_year_keeps_looks_beyond_it() -> None:
    """Many tokens: what takes years is cheaper, and within this budget."""
    year = asked(tokens="10T", gpus="h100:64", price={"h100": 3.0})
    decades = asked(tokens="10T", gpus="h100:64", price={"h100": 3.0}, longest="500y")
    assert year.frontier and (decades.frontier[-1].usd or 0) < (year.frontier[-1].usd or 0)
    budget = (decades.frontier[-1].usd or 0) * 1.001
    found = asked(tokens="10T", gpus="h100:64", price={"h100": 3.0}, budget=budget)
    assert found.market is not None and found.market.wished is not None
    assert found.market.wished.possible and found.market.longest_hours == 0


def test_a_type_without_a_count_is_looked_at_up_to_the_most() -> None:
    found = asked(gpus="h100", max_gpus=16, price={"h100": 3.0})
    assert found.request.gpus == {"H100-80GB-SXM": 16}
