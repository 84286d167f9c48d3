"""Nodes that a user describes are planned and paid for as described, whoever's price it is."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import astra
from astra.api.answers import Answer
from astra.errors import InputError
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.cluster_file import read_cluster
from astra.money.catalogue import Offer, instances, machine_gpu, shipped_offers
from astra.money.left_out import holds_a_job
from astra.money.offers import catalogue_of, offers_of, offers_together
from astra.money.options import MoneyOptions
from astra.report.answer import answer_page
from astra.report.request import read_request

SLOW = """\
[[pools]]
gpu = "h100"
count = 16
nic_bytes_per_s = "10 Gbps"
"""


def cluster_of(gpu: Gpu, count: int = 16) -> Cluster:
    return Cluster(name="own", pools=(Pool(gpu=gpu, count=count),))


def with_node(**node: float) -> Gpu:
    gpu, _ = find_gpu("h100")
    return replace(gpu, node=replace(gpu.node, **node))


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    path = tmp_path_factory.mktemp("own") / "slow.toml"
    path.write_text(SLOW, encoding="utf-8")
    return astra.plan(
        "llama-3.2-1b",
        cluster=path,
        global_batch=256,
        seq_len=2048,
        settings=["tp=1", "pp=1", "cp=1"],
        objective="money",
        tokens="10B",
    )


def test_the_network_of_a_cluster_file_without_a_price_holds(answer: Answer) -> None:
    assert sum(answer.frontier[0].gpus.values()) == 16  # two nodes
    for point in answer.frontier:
        (pool,) = point.plan.cluster.pools
        assert pool.gpu.node.nic_bytes_per_s == 10e9 / 8
        slow = astra.predict_plan(replace(point.plan, cluster=cluster_of(pool.gpu)))
        assert point.step_s == pytest.approx(slow.step_s)
    typical = replace(answer.frontier[0].plan, cluster=cluster_of(find_gpu("h100")[0]))
    assert astra.predict_plan(typical).step_s < 0.9 * answer.frontier[0].step_s


def test_whose_price_it_is_is_said(answer: Answer) -> None:
    notes = answer.request.notes
    (said,) = [note for note in notes if "as described" in note]
    best = answer.plans[0]
    assert best.money is not None
    (rent,) = best.money.rents
    lender = rent.price_source.removeprefix("list price of ")
    assert lender in said and rent.price_date in said
    cloud, region, instance = lender.split()
    prices = [
        offer.usd_per_hour
        for offer in shipped_offers()
        if (offer.machine.cloud, offer.region, offer.machine.instance) == (cloud, region, instance)
        and not offer.spot
    ]
    assert [rent.node_usd_per_hour] == prices
    page = " ".join(str(part) for part in answer_page(answer, None))
    assert "in nodes as described" in page


def test_a_result_asks_again_about_the_nodes_that_were_described(answer: Answer) -> None:
    request = msgspec.json.decode(msgspec.json.encode(answer.request))
    again = read_request(request, answer.plans[0].plan, "result.json")
    (pool,) = again.cluster.pools
    assert again.money is not None
    assert pool.gpu.node.nic_bytes_per_s == 10e9 / 8
    (offer,) = offers_of(again.money, again.cluster)
    assert answer.plans[0].money is not None
    assert offer.source == answer.plans[0].money.rents[0].price_source


def test_a_catalogue_of_ones_own_lends_its_price_and_is_kept() -> None:
    machine = replace(instances()["aws", "p5.48xlarge"], cloud="mine", instance="box")
    offer = Offer(machine=machine, region="r", usd_per_hour=16.0, date="2026-01-01", source="me")
    found = astra.plan(
        "llama-3.2-1b",
        cluster=cluster_of(with_node(nic_bytes_per_s=1e9)),
        global_batch=256,
        seq_len=2048,
        settings=["tp=1", "pp=1", "cp=1"],
        objective="money",
        tokens="10B",
        offers=[offer],
    )
    request = msgspec.json.decode(msgspec.json.encode(found.request))
    again = read_request(request, found.plans[0].plan, "result.json")
    assert again.money is not None
    (same,) = offers_of(again.money, again.cluster)
    assert same.usd_per_hour == 16.0 and same.source == "list price of mine r box"


def test_nodes_that_are_for_rent_as_described_are_rented() -> None:
    gpu = machine_gpu(instances()["aws", "p4de.24xlarge"])
    found = offers_of(MoneyOptions(), cluster_of(gpu))
    assert found and {machine_gpu(offer.machine).node for offer in found} == {gpu.node}
    assert "aws" in {offer.machine.cloud for offer in found}


def test_a_fast_network_is_priced_by_a_fast_one_and_spot_apart() -> None:
    both = offers_of(MoneyOptions(spot=True), cluster_of(with_node(nic_bytes_per_s=40e9)))
    assert sorted(offer.spot for offer in both) == [False, True]
    for offer in both:
        cloud, _, instance = offer.source.removeprefix("list price of ").split()
        assert instances()[cloud, instance].nic_bytes_per_s >= 0.9 * 40e9


def test_nodes_of_a_size_that_nobody_rents_out_need_a_price() -> None:
    gpu = with_node(gpus=6)
    gpu = replace(gpu, link=replace(gpu.link, domain_gpus=6))
    with pytest.raises(InputError, match=r"no price of nodes of 6 H100.*1, 2, 4, 8.*usd_per_hour"):
        offers_of(MoneyOptions(), cluster_of(gpu, 12))
    (given,) = offers_of(MoneyOptions(price="h100=2"), cluster_of(gpu, 12))
    assert given.usd_per_hour == 12.0


def test_a_typical_node_is_rented_anywhere_unless_it_is_what_the_file_asks_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "plain.toml"
    path.write_text('[[pools]]\ngpu = "h100"\ncount = 16\n', encoding="utf-8")
    plain, _ = read_cluster(path)
    assert {offer.machine.gpus for offer in offers_of(MoneyOptions(), plain)} == {1, 2, 4, 8}
    path.write_text('[[pools]]\ngpu = "h100"\ncount = 16\ngpus_per_node = 8\n', encoding="utf-8")
    asked, _ = read_cluster(path)
    assert asked.pools[0].gpu == plain.pools[0].gpu
    typical = plain.pools[0].gpu.node
    assert {machine_gpu(offer.machine).node for offer in offers_of(MoneyOptions(), asked)} == {
        typical
    }


def together(gpus: dict[str, int], anywhere: bool = False, **options: Any) -> dict[str, Offer]:
    pools = tuple(Pool(gpu=find_gpu(name)[0], count=count) for name, count in gpus.items())
    cluster = Cluster(name="two", pools=pools)
    offers = offers_of(MoneyOptions(**options), cluster)
    return offers_together({pool.gpu.name: pool.count for pool in pools}, cluster, offers, anywhere)


def test_a_plan_over_two_types_is_priced_in_one_cloud_and_region() -> None:
    gpus = {"h100": 64, "a100-80g": 64}
    found, cheapest = together(gpus), together(gpus, anywhere=True)
    assert len({offer.place for offer in found.values()}) == 1
    assert len({offer.place for offer in cheapest.values()}) == 2  # what it must not be unasked
    assert sum(o.usd_per_gpu_hour for o in found.values()) > sum(
        o.usd_per_gpu_hour for o in cheapest.values()
    )


def test_types_that_are_nowhere_for_rent_together_have_no_price_unless_asked() -> None:
    gpus = {"v100-32g": 8, "h100-nvl": 8}
    with pytest.raises(InputError, match=r"one cloud and region.*--price.*--any-region"):
        together(gpus)
    assert len(together(gpus, anywhere=True)) == 2


def test_prices_that_were_given_hold_in_any_place() -> None:
    found = together({"h100": 8, "a100-80g": 8}, price="h100=2")
    assert found["H100-80GB-SXM"].machine.cloud == "given"
    assert found["A100-80GB-SXM"].machine.cloud != "given"


def test_nodes_without_ram_for_a_job_are_left_out_and_named() -> None:
    cluster = cluster_of(find_gpu("h100")[0])
    small = [o for o in catalogue_of(MoneyOptions(), cluster) if not holds_a_job(o)]
    assert small and not set(small) & set(offers_of(MoneyOptions(), cluster))
    answer = astra.plan("llama-3.2-1b", gpus="h100:8", **QUICK)
    assert any("4 GiB beside 1 H100" in text for text in answer.request.notes)


QUICK: dict[str, Any] = {
    "global_batch": 64,
    "seq_len": 2048,
    "settings": ["tp=1", "pp=1", "cp=1"],
    "objective": "money",
    "tokens": "10B",
}


def test_old_lists_are_for_who_names_their_cloud_and_the_rest_is_said() -> None:
    plain = astra.plan("llama-3.2-1b", gpus="h100:8", **QUICK)
    assert any("azure (2024-08)" in t and "CoreWeave" in t for t in plain.request.notes)
    assert plain.market is not None
    assert "azure" not in {machine.cloud for machine in plain.market.machines}
    old = astra.plan("llama-3.2-1b", gpus="h100:8", cloud="azure", **QUICK)
    assert old.market is not None and old.best is not None and old.best.money is not None
    assert {machine.cloud for machine in old.market.machines} == {"azure"}
    assert old.best.money.rents[0].price_date == "2024-08-19"
    assert any("azure's are of 2024-08-19" in text for text in old.request.notes)
    assert astra.prices("h100", cloud="azure")[0].date == "2024-08-19"


def test_gpus_of_ones_own_that_stand_idle_are_paid_for() -> None:
    answer = astra.plan("llama-3.2-1b", gpus="h100:64", owned="h100=30000", top=99, **QUICK)
    hourly, power = 30_000 / (4 * 8766), 0.7 * 1.2 * 1.3 * 0.0806
    for plan in answer.frontier:
        (count,) = plan.gpus.values()
        nodes = -(-count // 8) * 8
        assert plan.usd_per_hour == pytest.approx(64 * hourly + nodes * power)
        assert plan.money is not None
        idle = sum(each.count for each in plan.money.idle)
        assert idle == 64 - nodes
    assert answer.best is not None and sum(answer.best.gpus.values()) > 16
    assert any("$0.0806 a kWh" in text for text in answer.request.notes)
    rented = astra.plan("llama-3.2-1b", gpus="h100:64", price="h100=0.95", order="cost", **QUICK)
    assert rented.best is not None  # where idle GPUs cost nothing, few are cheapest
    assert sum(rented.best.gpus.values()) < sum(answer.best.gpus.values())


def test_who_owns_gpus_says_how_many() -> None:
    with pytest.raises(InputError, match="how many are there"):
        astra.plan("llama-3.2-1b", gpus="h100", owned="h100=30000", **QUICK)


def test_a_guessed_network_stands_beside_the_best_on_a_known_one() -> None:
    asked = {**QUICK, "order": "throughput", "cloud": "nebius,aws"}
    answer = astra.plan("llama-3.2-1b", gpus="b300:16", **asked)
    assert answer.best is not None and answer.best.money is not None and answer.market is not None
    assert answer.best.money.rents[0].network_certainty == "guessed"
    known = answer.market.known_network
    assert known is not None and known.money is not None
    assert known.money.rents[0].network_certainty != "guessed" or known.money.rents[0].nodes == 1


def test_spot_nodes_come_with_a_source_and_a_range() -> None:
    asked = {**QUICK, "spot": True, "cloud": "aws"}
    answer = astra.plan("llama-3.2-1b", gpus="h100:16", **asked)
    assert answer.best is not None and answer.best.usd is not None and answer.market is not None
    spot = answer.market.spot_range
    assert spot is not None and spot.source
    assert spot.low_usd < answer.best.usd < spot.high_usd


def test_export_warns_where_most_gpus_stand_idle(tmp_path: Path) -> None:
    given = astra.plan("llama-3.2-1b", gpus="h100:64", order="cost", **QUICK)
    said = given.export("megatron", tmp_path / "few").notes
    assert any("of the 64 GPUs that were given" in text for text in said)
    given.save(tmp_path / "answer.json")
    assert astra.export(tmp_path / "answer.json", "megatron", tmp_path / "file").notes == said
    free = astra.plan("llama-3.2-1b", gpus="h100", max_gpus=64, order="cost", **QUICK)
    assert free.export("megatron", tmp_path / "free").notes == ()
    full = astra.plan("llama-3.2-1b", gpus="h100:64", order="throughput", **QUICK)
    assert full.export("megatron", tmp_path / "full").notes == ()


def test_a_price_in_a_what_if_takes_the_place_of_the_price_over_the_whole_frontier() -> None:
    plain = astra.plan("llama-3.2-1b", gpus="h100:16", price="h100=2", **QUICK)
    found = astra.plan(
        "llama-3.2-1b", gpus="h100:16", price="h100=2", what_if="price.h100=1", **QUICK
    )
    other = found.market.what_if if found.market else None
    assert other is not None and len(other.frontier) == len(plain.frontier) > 1
    for half, whole in zip(other.frontier, plain.frontier, strict=True):
        assert half.hours == whole.hours and half.usd == pytest.approx((whole.usd or 0) / 2)


def test_explain_compares_plans_for_money_by_hours_and_dollars() -> None:
    answer = astra.plan("llama-3.2-1b", gpus="h100:16", price="h100=2", **QUICK)
    found = answer.explain(quick=True)
    assert [each.rank for each in found.money] == [plan.rank for plan in answer.plans[1:]]
    best = answer.plans[0]
    for each, plan in zip(found.money, answer.plans[1:], strict=True):
        assert each.more_usd == (plan.usd or 0) - (best.usd or 0)
        assert each.more_hours == (plan.hours or 0) - (best.hours or 0)
