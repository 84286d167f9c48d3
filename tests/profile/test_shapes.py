"""The list of measurements: sane shapes, each once, the broad grid first. No torch needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.profile.flops_and_bytes import bytes_of, flops_of
from astra.profile.link_bench import members
from astra.profile.measurement import Measurement, measurement, parse_key
from astra.profile.shapes import (
    FAMILIES,
    FAMILY_NAMES,
    MAX_BYTES,
    MAX_FLOPS,
    WIDTHS,
    chosen_families,
    collectives,
    groups,
    linears,
    measurements_of,
)

ALL = measurements_of(FAMILY_NAMES)
LINKS = measurements_of(FAMILY_NAMES, world=16, per_node=8)


def test_no_measurement_is_listed_twice() -> None:
    for found in (ALL, LINKS, measurements_of(FAMILY_NAMES, small=True)):
        assert len({one.key for one in found}) == len(found) > 20


@each_case("one", [*ALL[::7], *LINKS[::5]])
def test_a_key_names_its_measurement(one: Measurement) -> None:
    assert parse_key(one.key) == one


words = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1, max_size=8)


@given(words, words, words, st.dictionaries(words, st.integers(0, 10**12), min_size=1, max_size=5))
def test_any_measurement_comes_back_from_its_key(
    op: str, variant: str, dtype: str, shape: dict[str, int]
) -> None:
    one = Measurement(op=op, variant=variant, dtype=dtype, shape=tuple(shape.items()))
    assert parse_key(one.key) == one


@pytest.mark.parametrize("key", ["", "gemm", "gemm/forward/bf16/", "a/b/c/m=x", "a/b/c/m=1/d"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="not the key of a measurement"):
        parse_key(key)


def test_waves_come_in_order_and_the_first_sees_every_family() -> None:
    waves = [one.wave for one in ALL]
    assert waves == sorted(waves) and set(waves) == {0, 1, 2}
    assert {one.op for one in ALL if one.wave == 0} == set(FAMILIES)
    assert sum(wave == 0 for wave in waves) < 250


def test_a_wave_cut_in_half_has_seen_half_of_every_family() -> None:
    coarse = [one.op for one in ALL if one.wave == 0]
    half = coarse[: len(coarse) // 2]
    for family in FAMILIES:
        assert abs(half.count(family) - coarse.count(family) / 2) <= 1


def test_every_shape_is_positive_and_within_reason() -> None:
    for one in ALL:
        assert all(value > 0 for name, value in one.shape if name != "causal"), one.key
        assert 0 <= flops_of(one) <= MAX_FLOPS and 0 < bytes_of(one) <= MAX_BYTES, one.key


def test_the_shapes_of_the_brief_are_there() -> None:
    """Three directions, long sequences, wide and unlike heads, grouped queries, compiled ones."""
    keys = {one.key for one in ALL}
    for direction in ("forward", "dgrad", "wgrad"):
        assert f"gemm/{direction}/bf16/m=8192,n=28672,k=4096" in keys
    attention = [one for one in ALL if one.op == "attention"]
    assert {64, 128, 256} <= {one["head_dim"] for one in attention}
    assert {one["seq"] for one in attention} >= {512, 4096, 131072}
    assert any(one["head_dim"] == 192 and one["v_head_dim"] == 128 for one in attention)
    assert any(one["kv_heads"] < one["heads"] for one in attention)
    assert {one.words[0] for one in attention} == {"cudnn", "flash"}
    for family in ("norm", "activation", "rope", "residual", "loss"):
        assert {one.how for one in ALL if one.op == family} == {"eager", "compiled"}


def test_tensor_parallelism_cuts_every_linear_map() -> None:
    """Products on tp GPUs are 1 / tp of the whole, but for keys that cannot be cut further."""
    for width in WIDTHS:
        whole = sum(n * k for n, k in linears(width, 1))
        for tp in (2, 4, 8):
            cut = sum(n * k for n, k in linears(width, tp))
            assert whole / tp <= cut <= 1.02 * whole / tp


@pytest.mark.parametrize(
    ("key", "flops", "moved"),
    [
        ("gemm/forward/bf16/m=2,n=3,k=5", 60, 2 * (6 + 10 + 15)),
        ("gemm/wgrad/bf16/m=2,n=3,k=5", 60, 2 * (6 + 10) + 8 * 15),
        ("fp8/wgrad/fp8/m=2,n=3,k=5", 60, 6 + 10 + 2 * 15),
        ("grouped/dgrad/bf16/experts=7,tokens=2,n=3,k=5", 420, 7 * 2 * (6 + 10 + 15)),
        ("norm/rms_norm.forward.eager/bf16/tokens=2,width=3", 0, 24),
        ("adam/fused/fp32/parameters=10,tensors=1", 0, 280),
    ],
)
def test_work_is_counted_as_by_hand(key: str, flops: float, moved: float) -> None:
    one = parse_key(key)
    assert (flops_of(one), bytes_of(one)) == (flops, moved)


def test_attention_counts_half_under_a_causal_mask_and_more_backward() -> None:
    shape = {"batch": 2, "seq": 8, "heads": 3, "kv_heads": 1, "head_dim": 4, "v_head_dim": 4}
    full = measurement("attention", "flash.forward", "bf16", **shape, causal=0)
    causal = measurement("attention", "flash.forward", "bf16", **shape, causal=1)
    back = measurement("attention", "flash.backward", "bf16", **shape, causal=1)
    assert flops_of(full) == 4 * 2 * 3 * 8 * 8 * 4 == 2 * flops_of(causal)
    assert flops_of(back) == 2.5 * flops_of(causal)


# ------------------------------------------------------------------ links


@pytest.mark.parametrize(("world", "per_node"), [(2, 2), (8, 8), (16, 8), (6, 6), (32, 4)])
def test_groups_share_out_the_world(world: int, per_node: int) -> None:
    for ranks, step in groups(world, per_node):
        inside = members(world, ranks, step)
        assert sorted(rank for group in inside for rank in group) == list(range(world))
        assert all(len(group) == ranks for group in inside)


def test_links_are_measured_across_nodes_alone_and_beside_products() -> None:
    steps = {(one["ranks"], one["step"]) for one in LINKS}
    assert {(2, 1), (8, 1), (16, 1), (2, 8)} <= steps
    assert {one.words[1] for one in LINKS} == {"alone", "beside"}
    assert len({one.words[0] for one in LINKS}) == 5


def test_two_processes_have_one_group() -> None:
    assert groups(2, 2) == [(2, 1)]
    assert {(one["ranks"], one["step"]) for one in collectives(2, 2)} == {(2, 1)}


# ------------------------------------------------------------------ --only


def test_families_are_chosen_by_name() -> None:
    assert chosen_families("gemm, attention,gemm") == ("gemm", "attention")
    assert {one.op for one in measurements_of(chosen_families("gemm,attention"))} == {
        "gemm",
        "attention",
    }
    assert chosen_families(None) == FAMILY_NAMES


def test_an_unknown_family_is_refused_with_a_near_name() -> None:
    with pytest.raises(InputError, match="attention"):
        chosen_families("atention")
