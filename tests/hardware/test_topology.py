"""Where ranks lie, against a plain enumeration."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.cases import each_case

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Pool
from astra.hardware.topology import (
    allowed_counts,
    domains_per_group,
    placement,
    ranks_per_domain,
)


def enumerated(size: int, stride: int, domain_gpus: int, world: int) -> tuple[int, int]:
    """Fewest ranks per touched domain, most domains per group, by looking at every group."""
    fewest, most = size, 1
    for block in range(0, world, size * stride):
        for first in range(block, block + stride):
            ranks = range(first, first + size * stride, stride)
            held = Counter(rank // domain_gpus for rank in ranks)
            fewest, most = min(fewest, *held.values()), max(most, len(held))
    return fewest, most


small = st.integers(1, 14)


@settings(max_examples=400, deadline=None)
@given(small, small, st.integers(1, 80), st.integers(1, 12))
def test_placement_is_what_enumerating_the_ranks_gives(
    size: int, stride: int, domain_gpus: int, blocks: int
) -> None:
    world = size * stride * blocks
    ranks, domains = placement(size, stride, domain_gpus, world)
    assert (int(ranks), int(domains)) == enumerated(size, stride, domain_gpus, world)


@settings(max_examples=150, deadline=None)
@given(small, small, st.integers(1, 24))
def test_without_a_world_every_position_counts(size: int, stride: int, domain_gpus: int) -> None:
    endless = size * stride * domain_gpus  # after so many ranks positions repeat
    ranks, domains = placement(size, stride, domain_gpus)
    assert (int(ranks), int(domains)) == enumerated(size, stride, domain_gpus, endless)


@settings(deadline=None)
@given(st.lists(st.tuples(small, small, st.sampled_from([1, 4, 6, 8, 72])), min_size=1))
def test_a_group_lies_the_same_alone_as_in_a_table(rows: list[tuple[int, int, int]]) -> None:
    size, stride, domain = (np.array(column) for column in zip(*rows, strict=True))
    ranks, domains = placement(size, stride, domain)
    for row, (n, s, d) in enumerate(rows):
        assert (ranks[row], domains[row]) == tuple(map(int, placement(n, s, d)))


@pytest.mark.parametrize(
    ("size", "stride", "domain", "ranks", "domains"),
    [
        (8, 1, 8, 8, 1),  # tp 8 in an HGX node
        (16, 1, 8, 8, 2),  # tp 16 over two
        (64, 8, 8, 1, 64),  # dp beyond tp 8: one rank a node
        (16, 4, 8, 2, 8),  # dp beyond tp 4: two ranks share a node
        (64, 1, 72, 8, 2),  # ep 64 on NVL72: the second group has 8 ranks left in the first rack
        (8, 1, 72, 8, 1),
    ],
)
def test_familiar_groups_lie_where_expected(
    size: int, stride: int, domain: int, ranks: int, domains: int
) -> None:
    assert int(ranks_per_domain(size, stride, domain)) == ranks
    assert int(domains_per_group(size, stride, domain)) == domains


def test_one_rack_holds_a_group_that_would_straddle_two() -> None:
    assert int(ranks_per_domain(16, 1, 72, 64)) == 16
    assert int(ranks_per_domain(16, 1, 72, 128)) == 8


def test_a_large_odd_world_is_placed_without_enumerating_it() -> None:
    assert int(domains_per_group(999_983, 7, 72)) > 97_000


@each_case(
    "gpu, count, allowed",
    [
        ("h100", 1, (1,)),
        ("h100", 6, (1, 2, 4, 6)),
        ("h100", 8, (1, 2, 4, 8)),
        ("h100", 32, (1, 2, 4, 8, 16, 24, 32)),
        ("h100", 20, (1, 2, 4, 8, 16)),
        ("gb200", 14, (1, 2, 4, 8, 12)),
        ("gh200", 3, (1, 2, 3)),
    ],
)
def test_plans_take_powers_of_two_inside_a_node_then_whole_nodes(
    gpu: str, count: int, allowed: tuple[int, ...]
) -> None:
    assert allowed_counts(Pool(gpu=find_gpu(gpu)[0], count=count)) == allowed


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(1, 200))
def test_allowed_counts_rise_and_are_reachable(node: int, count: int) -> None:
    h100 = find_gpu("h100")[0]
    gpu = replace(h100, node=replace(h100.node, gpus=node))
    counts = allowed_counts(Pool(gpu=gpu, count=count))
    assert list(counts) == sorted(set(counts))
    for used in range(1, count + 1):
        power_inside = used < node and used & (used - 1) == 0
        cap_inside = used == count < node
        assert (used in counts) == (power_inside or cap_inside or used % node == 0)
