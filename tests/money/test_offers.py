"""Nodes that a user describes are planned and paid for as described, whoever's price it is."""

from pathlib import Path

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
from astra.money.offers import offers_of
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
