"""Collectives: what physics forbids, measured rows, and where the figures come from."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.cases import each_case

from astra.hardware.catalogue import all_gpus, find_gpu
from astra.hardware.cluster import Gpu
from astra.timing.collectives import (
    Floats,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    p2p_s,
    reduce_scatter_s,
)
from astra.timing.link_curves import (
    inter_node_table,
    intra_node_tables,
    link_class,
    link_source,
    overlap_slowdown,
)

Collective = Callable[..., Floats]
COLLECTIVES: tuple[Collective, ...] = (
    all_reduce_s,
    all_gather_s,
    reduce_scatter_s,
    all_to_all_s,
)
SLACK = 1 + 1e-9

collectives = st.sampled_from(COLLECTIVES)
payloads = st.one_of(st.just(0.0), st.floats(1, 1e13))
powers = st.integers(0, 14).map(lambda power: 2**power)
counts = st.one_of(powers, st.integers(1, 20_000))
speeds = st.floats(0.05, 20)


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    """A catalogue GPU with any speeds of link, NIC and PCIe."""
    gpu = draw(st.sampled_from(all_gpus()))
    return faster(gpu, link=draw(speeds), nic=draw(speeds), pcie=draw(speeds))


def faster(gpu: Gpu, link: float = 1, nic: float = 1, pcie: float = 1) -> Gpu:
    return replace(
        gpu,
        link=replace(
            gpu.link,
            bytes_per_s=gpu.link.bytes_per_s * link,
            peer_bytes_per_s=gpu.link.peer_bytes_per_s * link,
        ),
        node=replace(
            gpu.node,
            nic_bytes_per_s=gpu.node.nic_bytes_per_s * nic,
            pcie_bytes_per_s=gpu.node.pcie_bytes_per_s * pcie,
        ),
    )


def gpu(name: str, nic_gbps: float | None = None) -> Gpu:
    found = find_gpu(name)[0]
    if nic_gbps is None:
        return found
    return replace(found, node=replace(found.node, nic_bytes_per_s=nic_gbps * 1e9 / 8))


# --- physics ---------------------------------------------------------------------------------


@given(collectives, payloads, gpus())
def test_one_rank_sends_nothing(collective: Collective, payload: float, any_gpu: Gpu) -> None:
    assert collective(payload, 1, 1, any_gpu) == 0


@settings(deadline=None)
@given(collectives, payloads, counts, counts, counts, gpus())
def test_seconds_are_finite_and_not_negative(
    collective: Collective, payload: float, ranks: int, near: int, node: int, any_gpu: Gpu
) -> None:
    seconds = collective(payload, ranks, near, any_gpu, node)
    assert np.isfinite(seconds)
    assert seconds >= 0


@settings(deadline=None)
@given(collectives, payloads, st.floats(1, 1e3), counts, counts, counts, gpus())
def test_more_bytes_never_take_less_time(
    collective: Collective,
    payload: float,
    more: float,
    ranks: int,
    near: int,
    node: int,
    any_gpu: Gpu,
) -> None:
    few, many = collective(np.array([payload, payload * more]), ranks, near, any_gpu, node)
    assert few <= many * SLACK


@settings(deadline=None)
@given(
    collectives, payloads, counts, counts, counts, gpus(), st.sampled_from(["link", "nic", "pcie"])
)
def test_a_faster_part_never_takes_more_time(
    collective: Collective,
    payload: float,
    ranks: int,
    near: int,
    node: int,
    any_gpu: Gpu,
    part: str,
) -> None:
    better = faster(any_gpu, **{part: 1.7})
    assert (
        collective(payload, ranks, near, better, node)
        <= collective(payload, ranks, near, any_gpu, node) * SLACK
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(collectives, payloads, counts, counts, counts, gpus())
def test_ranks_that_sit_closer_are_never_slower(
    collective: Collective, payload: float, ranks: int, near: int, nearer: int, any_gpu: Gpu
) -> None:
    near, nearer = sorted((near, nearer))
    apart, close = collective(payload, ranks, np.array([near, nearer]), any_gpu)
    assert close <= apart * SLACK
    host, link = collective(payload, ranks, np.array([near, nearer]), any_gpu, nearer)
    assert link <= host * SLACK


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(payloads, counts, counts, counts, gpus())
def test_an_all_reduce_lies_between_a_half_and_both_halves(
    payload: float, ranks: int, near: int, node: int, any_gpu: Gpu
) -> None:
    scatter = reduce_scatter_s(payload, ranks, near, any_gpu, node)
    gather = all_gather_s(payload, ranks, near, any_gpu, node)
    whole = all_reduce_s(payload, ranks, near, any_gpu, node)
    assert np.maximum(scatter, gather) <= whole * SLACK
    assert whole <= (scatter + gather) * SLACK


@settings(deadline=None)
@given(
    st.sampled_from([all_gather_s, reduce_scatter_s, all_to_all_s]),
    st.floats(1e6, 1e12),
    st.integers(2, 512),
    st.sampled_from(all_gpus()),
)
def test_nobody_beats_the_nominal_link(
    collective: Collective, payload: float, ranks: int, plain_gpu: Gpu
) -> None:
    wire = payload * (ranks - 1) / ranks
    assert collective(payload, ranks, ranks, plain_gpu) > wire / plain_gpu.link.bytes_per_s


@settings(deadline=None)
@given(st.lists(st.tuples(payloads, counts, counts), min_size=1, max_size=200), collectives)
def test_a_group_costs_the_same_alone_as_in_a_table(
    rows: list[tuple[float, int, int]], collective: Collective
) -> None:
    payload, ranks, near = (np.array(column) for column in zip(*rows, strict=True))
    together = collective(payload, ranks, near, gpu("H100"))
    alone = [float(collective(*row, gpu("H100"))) for row in rows]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@given(payloads, payloads, st.booleans(), gpus(), gpus())
def test_the_slower_end_of_a_send_rules(
    payload: float, other: float, inside: bool, one: Gpu, two: Gpu
) -> None:
    few, many = sorted((payload, other))
    assert p2p_s(few, inside, one) <= p2p_s(many, inside, one) * SLACK
    both = p2p_s(few, inside, one, two)
    assert both == max(p2p_s(few, inside, one), p2p_s(few, inside, two))
    assert p2p_s(few, True, one) <= p2p_s(few, False, one) * SLACK


def test_columns_broadcast() -> None:
    sizes = np.array([1e6, 1e8, 1e9])[:, None]
    ranks = np.array([2, 8, 64, 512])
    assert all_reduce_s(sizes, ranks, 8, gpu("H100")).shape == (3, 4)
    assert p2p_s(np.array([1e6, 1e8]), np.array([True, False]), gpu("H100")).shape == (2,)


# --- measured rows ---------------------------------------------------------------------------

# AIC: ai-dynamo/aiconfigurator, nccl_perf @095f58a. AWS p4de, p5 and p5en on sixteen nodes:
# aws-samples/awsome-distributed-training @7217859. GB200: coreweave/nccl-tests @cb86553. Nebius and
# GCP: skypilot-org/skypilot examples @147db0f. One GPU per node: NVIDIA/nccl-tests issue 232.
# Single figures of H200, B200 and MI300X: Stas Bekman, stas00/ml-engineering @744d01e.


@each_case(
    "collective, name, nic_gbps, ranks, near, payload, measured_us, within",
    [
        # inside a node
        (all_reduce_s, "H100", None, 8, 8, 536870912, 2111.06, 0.10),  # AIC, NCCL 2.29.2
        (all_reduce_s, "H100", None, 2, 2, 134217728, 466.24, 0.10),  # AIC
        (all_gather_s, "H100", None, 8, 8, 33554432, 125.46, 0.15),  # AIC
        (reduce_scatter_s, "H100", None, 4, 4, 536870912, 1299.82, 0.10),  # AIC
        (all_to_all_s, "H100", None, 8, 8, 134217728, 402.42, 0.15),  # AIC
        (all_reduce_s, "A100-80GB-SXM", None, 8, 8, 536870912, 4225.9, 0.10),  # AIC, NCCL 2.27.3
        (reduce_scatter_s, "B200", None, 8, 8, 134217728, 208.04, 0.20),  # AIC
        (all_gather_s, "RTX-PRO-6000-Blackwell-SE", None, 8, 8, 134217728, 5137.85, 0.10),  # AIC
        (all_reduce_s, "H200-SXM", None, 6, 6, 8589934592, 32866.29, 0.10),  # NVLS, one node
        (all_reduce_s, "GB200", None, 72, 72, 8589934592, 20299.0, 0.10),  # coreweave/nccl-tests
        (all_reduce_s, "MI300X", None, 8, 8, 4294967296, 24020.15, 0.10),  # one node, RCCL
        (all_reduce_s, "V100-32GB-SXM2", None, 8, 8, 537919488, 7012.8, 0.10),  # vTrain
        # across
        (all_reduce_s, "H100", 400, 16, 8, 536870912, 2559.2, 0.10),  # AWS p5, two nodes
        (all_reduce_s, "H100", 400, 16, 8, 8589934592, 33792.0, 0.10),  # Nebius, two nodes
        (all_reduce_s, "H200-SXM", 400, 32, 8, 4294967296, 22806.75, 0.10),  # AWS p5en, four nodes
        (all_reduce_s, "H200-SXM", 400, 128, 8, 17179869184, 92173.0, 0.10),  # AWS p5en, sixteen
        (all_reduce_s, "B200", 400, 32, 8, 8589934592, 43752.46, 0.10),  # AWS p6, four nodes
        (all_reduce_s, "A100-80GB-SXM", 50, 16, 8, 2147483648, 51406.0, 0.15),  # AWS p4de
        (all_reduce_s, "H100", 400, 2, 1, 33554432, 812.3, 0.25),  # one GPU per node
        (all_gather_s, "H200-SXM", 400, 16, 8, 1073741824, 3123.9, 0.15),  # GCP a3-ultra
        (all_reduce_s, "GB200", 400, 144, 72, 8589934592, 21493.0, 0.15),  # two NVL72 racks
    ],
)
def test_a_measured_row_is_met(
    collective: Collective,
    name: str,
    nic_gbps: float | None,
    ranks: int,
    near: int,
    payload: float,
    measured_us: float,
    within: float,
) -> None:
    seconds = float(collective(payload, ranks, near, gpu(name, nic_gbps)))
    assert abs(np.log(seconds / (measured_us * 1e-6))) < within


def test_small_messages_take_the_measured_latency() -> None:
    # aiconfigurator nccl_perf @095f58a: 512 bytes on 8 H100: 15.6 us reduced, 10.1 us gathered
    assert 12e-6 < float(all_reduce_s(512, 8, 8, gpu("H100"))) < 22e-6
    assert 8e-6 < float(all_gather_s(512, 8, 8, gpu("H100"))) < 13e-6


def test_an_all_to_all_across_nodes_runs_at_one_nic_per_gpu() -> None:
    # 48 H100 of 8 with 400 Gbps each: bus bandwidth 48.5 GB/s, NCCL issue
    payload = 8e9
    seconds = float(all_to_all_s(payload, 48, 8, gpu("H100", 400)))
    assert abs(np.log(payload * 47 / 48 / seconds / 48.5e9)) < 0.1


def test_a_send_between_two_gpus_of_an_a100_node_gets_160_gb_per_s() -> None:
    # PKU-DAIR/Hetu-Galvatron p2p_bandwidth: 163.7 GB/s, 8 GPUs with NVLink (A100 by its speed)
    seconds = float(p2p_s(128e6, True, gpu("A100-80GB-SXM")))
    assert 128e6 / seconds == pytest.approx(163.7e9, rel=0.1)


def test_a_send_to_another_node_gets_most_of_one_nic() -> None:
    # One H100 per node, NCCL issue: 33.5 MB reduced by two ranks, sent up and down, in 812 us
    seconds = float(p2p_s(33554432, False, gpu("H100", 400)))
    assert seconds == pytest.approx(812e-6, rel=0.15)


# --- places and provenance -------------------------------------------------------------------


def test_gpus_of_a_node_without_a_common_link_go_through_the_host() -> None:
    card = gpu("A100-80GB-PCIe")  # bridged pairs
    pair = float(all_reduce_s(1e9, 2, 2, card))
    pairs = float(all_reduce_s(1e9, 4, 2, card, ranks_per_node=4))
    nodes = float(all_reduce_s(1e9, 4, 2, card))
    assert pair * 5 < pairs < nodes


def test_a_card_without_a_link_uses_pcie_inside_its_node() -> None:
    card = gpu("L40S")
    assert float(all_reduce_s(1e9, 2, 1, card, ranks_per_node=2)) == float(
        all_reduce_s(1e9, 2, 2, card)
    )
    # AIC: 2 L40S, 512 MiB: 26.7 ms
    assert float(all_reduce_s(536870912, 2, 2, card)) == pytest.approx(26.7e-3, rel=0.1)


def test_every_rank_of_a_node_brings_its_nic() -> None:
    one = float(all_gather_s(8e9, 64, 1, gpu("H100")))
    eight = float(all_gather_s(8e9, 64, 8, gpu("H100")))
    assert 7 < one / eight < 9


def test_only_a_switch_that_adds_beats_the_ring() -> None:
    switched, plain = gpu("H100"), gpu("H100")
    plain = replace(plain, link=replace(plain.link, kind="NVLink 4"))
    assert float(all_reduce_s(1e9, 8, 8, switched)) < 0.85 * float(all_reduce_s(1e9, 8, 8, plain))
    assert all_reduce_s(1e9, 4, 4, switched) == all_reduce_s(1e9, 4, 4, plain)


@each_case("known", all_gpus())
def test_every_gpu_says_where_its_figures_come_from(known: Gpu) -> None:
    source = link_source(known)
    measured = (known.name, link_class(known)) in {(t.gpu, t.link) for t in intra_node_tables()}
    assert source.borrowed != measured
    assert ("borrowed from" in source.inside) == source.borrowed
    assert 0.05 < overlap_slowdown(known) < 0.4


def test_shipped_figures_are_fractions_of_the_nominal_speed() -> None:
    for table in intra_node_tables():
        for curve in (table.all_gather, table.reduce_scatter, table.all_to_all):
            assert 0 < min(curve.efficiency) <= max(curve.efficiency) < 1
        assert max(table.all_reduce.efficiency) < (1.25 if table.switch_adds else 1)
    across = inter_node_table()
    assert max(across.ring_efficiency, across.tree_efficiency) < 1


def test_a_hundred_thousand_groups_are_priced_at_once() -> None:
    random = np.random.default_rng(7)
    ranks = 2 ** random.integers(0, 11, 100_000)
    payload = 10 ** random.uniform(3, 10, 100_000)
    h100 = gpu("H100")
    took = []
    for _ in range(5):
        start = time.process_time()
        all_reduce_s(payload, ranks, np.minimum(ranks, 8), h100)
        took.append(time.process_time() - start)
    assert min(took) < 0.030


def test_a_pair_is_only_faster_than_four_on_the_board_that_was_measured() -> None:
    """Two RTX 4090 exchange through the host like four; two RTX PRO 6000 share a switch."""

    def bus_bytes_per_s(name: str, ranks: int) -> float:
        gpu, payload = find_gpu(name)[0], 64e6
        seconds = float(all_reduce_s(payload, ranks, 1, gpu, ranks))
        return 2 * (ranks - 1) / ranks * payload / seconds

    alike = bus_bytes_per_s("RTX-4090", 2) / bus_bytes_per_s("RTX-4090", 4)
    assert 0.9 < alike < 1.1
    # T4s by steps of training, Titan RTX by collectives: no switch, and two are the slower ones
    fewer = [bus_bytes_per_s(name, 2) / bus_bytes_per_s(name, 4) for name in ("T4", "Titan-RTX")]
    assert fewer == pytest.approx([0.81, 0.81], abs=0.03)
    own = "RTX-PRO-6000-Blackwell-SE"
    assert bus_bytes_per_s(own, 2) > 1.3 * bus_bytes_per_s(own, 4)


def test_boards_without_bridges_sum_through_the_host_at_five_gb_per_s() -> None:
    """16 MiB among eight, by a forward pass of OPT-350M less an eighth of the pass on one GPU.

    eth-easl/sailor @cf2c8e3, layer profiles: 13.89 and 1.91 ms (Titan RTX), micro-batch 2, two
    sums a pass. The curves come from collectives alone.
    """
    titan = gpu("Titan-RTX")
    measured_s = (13.89e-3 - 15.25e-3 / 8) / 2
    assert float(all_reduce_s(2**24, 8, 2, titan, 8)) == pytest.approx(measured_s, rel=0.08)


def test_few_senders_share_a_nic_and_all_have_their_part() -> None:
    """One NIC of 10 Gb/s for four V100: one GPU has it alone, four have a quarter each."""
    node = replace(gpu("V100").node, gpus=4, nics=1, nic_bytes_per_s=1.25e9 / 4)
    v100 = replace(gpu("V100"), node=node)
    alone, two, four, all_of_them = (
        float(p2p_s(1e8, False, v100, senders=senders)) for senders in (1, 2, 4, None)
    )
    assert 1e8 / 1.25e9 < alone < 1.12 * 1e8 / 1.25e9
    assert (two / alone, four / alone) == pytest.approx((2, 4), rel=0.05)
    assert all_of_them == four
    own = replace(v100, node=replace(node, nics=None))
    assert float(p2p_s(1e8, False, own, senders=1)) == four, "a NIC each: nobody has more"


def test_rings_over_a_shared_nic_send_all_they_must() -> None:
    """Four ranks in two nodes: 2 (n - 1) / n of the bytes leave each node, at line rate."""
    node = replace(gpu("V100").node, gpus=4, nics=1, nic_bytes_per_s=1.25e9 / 4)
    v100 = replace(gpu("V100"), node=node)
    line_s = 1.5 * 4e8 / (2 * node.nic_bytes_per_s)
    assert line_s < float(all_reduce_s(4e8, 4, 2, v100)) < 1.12 * line_s


@pytest.mark.parametrize(("size", "measured"), [(2**20, 2.228e9), (2**23, 2.797e9)])
def test_slow_nics_fill_with_smaller_messages_than_fast_ones(size: int, measured: float) -> None:
    """Sends between RTX 2080 Ti nodes, eth-easl/sailor @cf2c8e3, network_coeffs_all_homo.json:
    -0.0208 x^2 + 0.2523 x + 2.2276 GB/s at 2^x MB, 2.856 at most.
    """
    node = replace(gpu("RTX-2080-Ti").node, gpus=1, nic_bytes_per_s=2.856e9)
    board = replace(gpu("RTX-2080-Ti"), node=node)
    assert size / float(p2p_s(size, False, board)) == pytest.approx(measured, rel=0.3)
