"""Clusters that come back from a plan file are checked again."""

import math

import pytest
from msgspec.structs import replace

from astra.errors import InputError
from astra.hardware.catalogue import all_gpus, find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.pools import check_cluster, merge_equal_pools

L4 = find_gpu("L4")[0]


def cluster(*gpus: Gpu) -> Cluster:
    return Cluster(name="own", pools=tuple(Pool(gpu=gpu, count=8) for gpu in gpus))


def test_the_whole_catalogue_is_a_sound_cluster() -> None:
    check_cluster(cluster(*all_gpus()), "plan.json")


@pytest.mark.parametrize(
    ("unsound", "said"),
    [
        (cluster(), "no GPUs"),
        (cluster(L4, L4), r"pools\[1\].gpu.name = 'L4' is there twice"),
        (cluster(replace(L4, memory_bytes=math.inf)), r"pools\[0\].gpu.memory_bytes = inf"),
        (cluster(replace(L4, usable_bytes=1e3)), r"pools\[0\].gpu.usable_bytes = 1000"),
        (cluster(replace(L4, link=replace(L4.link, domain_gpus=3))), "link domain of 3"),
        (cluster(replace(L4, name="a\nb")), "name = "),
    ],
)
def test_an_unsound_cluster_is_bad_input(unsound: Cluster, said: str) -> None:
    with pytest.raises(InputError, match=rf"plan\.json: .*{said}"):
        check_cluster(unsound, "plan.json")


def test_pools_come_out_sorted_whatever_their_order() -> None:
    pools = [Pool(gpu=gpu, count=8) for gpu in all_gpus()]
    forth, back = merge_equal_pools(pools, "x"), merge_equal_pools(reversed(pools), "x")
    assert forth == back and forth[1] == ()
    assert [pool.gpu.name for pool in forth[0]] == sorted(gpu.name for gpu in all_gpus())
