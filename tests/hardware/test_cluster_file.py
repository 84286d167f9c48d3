"""A cluster of one's own."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.cases import each_case

from astra.api import predict
from astra.errors import InputError
from astra.files import parse_toml
from astra.hardware.cluster import Cluster
from astra.hardware.cluster_file import cluster_of, read_cluster
from astra.notes import Note, NoteCode, note

EXAMPLES = Path(__file__).parents[2] / "examples"


def cluster(text: str, folder: Path = EXAMPLES) -> tuple[Cluster, tuple[Note, ...]]:
    return cluster_of(parse_toml(text, "own.toml"), "own.toml", folder, "own")


def pool(**fields: Any) -> str:
    lines = [
        f"{field} = {value!r}" for field, value in ({"gpu": "h100", "count": 64} | fields).items()
    ]
    return "\n".join(["[[pools]]", *lines, ""])


def test_the_example_cluster_loads_with_its_own_nodes_and_gpu() -> None:
    found, notes = read_cluster(EXAMPLES / "my-cluster.toml")
    assert (found.name, found.max_gpus) == ("my-cluster", 96)
    h100, own = found.pools
    assert (h100.gpu.name, h100.count, h100.usd_per_hour) == ("H100-80GB-SXM", 64, 2.49)
    assert h100.gpu.node.nic_bytes_per_s == 25e9
    assert (own.gpu.name, own.gpu.node.gpus, own.gpu.link.domain_gpus) == ("workhorse", 4, 1)
    assert not any(guess.startswith("node.gpus") for guess in own.gpu.assumed)
    assert notes == (note(NoteCode.GPU_READ_AS, written="h100", gpu="H100-80GB-SXM"),)


def test_what_a_pool_does_not_say_is_the_typical_node() -> None:
    from astra.hardware.catalogue import find_gpu

    found, _ = cluster(pool())
    assert found.pools[0].gpu == find_gpu("h100")[0]
    assert found.name == "own"


def test_links_that_joined_a_node_join_the_smaller_node() -> None:
    gpu = cluster(pool(gpus_per_node=4))[0].pools[0].gpu
    assert (gpu.node.gpus, gpu.link.domain_gpus) == (4, 4)
    assert gpu.assumed == ("link.domain_gpus: 4, the GPUs of a node",)


def test_a_slower_link_slows_its_peers_alike() -> None:
    gpu = cluster(pool(gpu="MI300X", link_bytes_per_s="224 GB/s"))[0].pools[0].gpu
    assert (gpu.link.bytes_per_s, gpu.link.peer_bytes_per_s) == (224e9, 32e9)


def test_links_faster_than_pcie_on_a_card_without_are_nvlink_and_the_answer_says_so() -> None:
    links = {"gpus_per_node": 8, "link_domain_gpus": 8}
    card = cluster(pool(gpu="l40s", **links, link_bytes_per_s="300 GB/s"))[0].pools[0].gpu
    assert card.link.kind == "NVLink"
    assert card.assumed[-1].startswith("link.kind: NVLink, since 300 GB/s are more than PCIe has")
    slow = cluster(pool(gpu="l40s", **links, link_bytes_per_s="20 GB/s"))[0].pools[0].gpu
    assert slow.link.kind == "PCIe" and not any("link.kind" in each for each in slow.assumed)
    own = pool(gpu="mine", link_bytes_per_s="300 GB/s") + (
        '[gpus.mine]\nmemory_bytes = "80 GB"\nmemory_bytes_per_s = "3 TB/s"\n'
        'bf16_flops_per_s = "900 TFLOP/s"\n[gpus.mine.link]\nbytes_per_s = "40 GB/s"\n'
    )
    mine = cluster(own)[0]
    said = [each for each in mine.pools[0].gpu.assumed if each.startswith("link.kind")]
    assert len(said) == 1 and said[0].startswith("link.kind: NVLink, since 300")
    priced = predict("llama-3-8b", cluster=mine, global_batch=64, seq_len=4096)
    assert f"mine: {said[0]}" in priced.provenance.notes


def test_a_path_in_a_cluster_file_starts_from_the_files_folder() -> None:
    assert cluster(pool(gpu="my-gpu.toml"))[0].pools[0].gpu.name == "my-gpu"


def test_one_type_in_two_kinds_of_node_needs_a_name_of_its_own() -> None:
    text = pool() + pool(nic_bytes_per_s="100 Gbps")
    with pytest.raises(InputError, match=r'pools\[1\].*name = "H100-80GB-SXM-2"'):
        cluster(text)
    named, _ = cluster(text + 'name = "slow"\n')
    assert [entry.gpu.name for entry in named.pools] == ["H100-80GB-SXM", "slow"]


def test_twins_at_one_price_are_merged_and_at_two_prices_kept() -> None:
    alike = pool(usd_per_hour=2) + pool(usd_per_hour=2, name="twin")
    assert [entry.count for entry in cluster(alike)[0].pools] == [128]
    unlike = pool(usd_per_hour=2) + pool(usd_per_hour=3, name="twin")
    assert [entry.count for entry in cluster(unlike)[0].pools] == [64, 64]


OWN = '[gpus.mine]\nmemory_bytes = "80 GB"\nmemory_bytes_per_s = "2 TB/s"\n'

HOSTILE = [
    ("", ["pools", "[[pools]]"]),
    ("pools = 3", ["pools", "[[pools]]"]),
    ("pools = [3]", ["pools[0]", "expected"]),
    ("[[pools]]\ncount = 8", ["pools[0].gpu is missing"]),
    ('[[pools]]\ngpu = "h100"', ["pools[0].count is missing"]),
    (pool(cuont=8), ["pools[0].cuont", "Did you mean count"]),
    ("max_gpu = 8\n" + pool(), ["max_gpu", "Did you mean max_gpus"]),
    ("max_gpus = 0\n" + pool(), ["max_gpus = 0", ">= 1"]),
    ("name = 'a\\u0007'\n".replace("'", '"') + pool(), ["name", "my-cluster"]),
    (pool(count=0), ["pools[0].count = 0", ">= 1"]),
    (pool(count=-8), ["pools[0].count = -8"]),
    (pool(count=10**9), ["pools[0].count", "<= 10000000"]),
    (pool(count="8"), ["pools[0].count = '8'", "int"]),
    (pool(count=12), ["pools[0].count = 12", "nodes of 8", "Try 8 or 16"]),
    (pool(gpus_per_node=0), ["pools[0].gpus_per_node = 0", ">= 1"]),
    (pool(link_domain_gpus=12), ["pools[0]", "domain of 12", "Try a domain of 8 or 16"]),
    (pool(nic="400 Gbps"), ["pools[0].nic", "Did you mean nic_bytes_per_s"]),
    (pool(nic_bytes_per_s="400 GB"), ["pools[0].nic_bytes_per_s", "GB/s"]),
    (pool(nic_bytes_per_s=400), ["pools[0].nic_bytes_per_s = 400", "bytes/s"]),
    (pool(usd_per_hour=-1), ["pools[0].usd_per_hour = -1", ">= 0"]),
    ('[[pools]]\ngpu = "l4"\ncount = 8\nusd_per_hour = nan', ["pools[0].usd_per_hour = nan"]),
    (pool(gpu="h1000"), ["pools[0].gpu", "unknown GPU 'h1000'", "Did you mean"]),
    (pool(gpu="gone.toml"), ["pools[0].gpu", "gone.toml", "no such file"]),
    (pool(gpu="") + OWN + "bf16_flops_per_s = 1e14", ["pools[0].gpu", "itself describes mine."]),
    (pool(gpu="mine") + OWN, ["own.toml: gpus.mine", "bf16_flops_per_s is missing"]),
    (pool() + "[gpus]\nmine = 3", ["gpus", "expected"]),
    (pool() * 2, ["pools[1].gpu", "already in pools[0]"]),
    (pool() * 1000, ["1000 pools"]),
    (pool(name="a:b,c"), ["pools[0]", "name = 'a:b,c'"]),
]


@each_case("text, said", HOSTILE)
def test_a_bad_cluster_is_an_error_that_names_the_place_and_what_to_try(
    text: str, said: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        cluster(text)
    message = str(error.value)
    assert message.startswith("own.toml: ")
    assert [word for word in said if word not in message] == []
