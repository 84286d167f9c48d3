"""Measured efficiencies: bounds, order, borrowing, and rows typed in from their sources."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import each_case
from tools.efficiency_tables.boosted import features

from astra.errors import InputError
from astra.hardware.catalogue import all_gpus, find_gpu
from astra.hardware.cluster import Gpu, Link, Node
from astra.timing.efficiency import (
    Direction,
    Efficiency,
    Pass,
    _gemm_table,
    _lent_table,
    attention_efficiency,
    gemm_efficiency,
    grouped_gemm_efficiency,
    launch_s,
    masked_attention_efficiency,
    memory_efficiency,
    peak_flops_per_s,
)

DIRECTIONS: tuple[Direction, ...] = ("forward", "dgrad", "wgrad")
FORMATS = ("bf16", "fp16", "fp8", "fp8_block", "mxfp8", "fp4", "nvfp4", "tf32", "fp32")
KINDS = ("measured", "fitted", "borrowed", "guessed")

sides = st.integers(1, 200_000)
grows = st.floats(1.0, 4.0)
gpus = st.sampled_from(all_gpus())
directions = st.sampled_from(DIRECTIONS)
passes = st.sampled_from(("forward", "backward"))


def gpu_called(name: str) -> Gpu:
    return find_gpu(name)[0]


def own_gpu(**changes: object) -> Gpu:
    """A GPU of a user's own, with hardly anything known about it."""
    plain = Gpu(
        name="home-made",
        memory_bytes=40e9,
        usable_bytes=39e9,
        memory_bytes_per_s=1.2e12,
        bf16_flops_per_s=200e12,
        link=Link(kind="PCIe", bytes_per_s=30e9, peer_bytes_per_s=30e9, domain_gpus=1),
        node=Node(gpus=8, nic_bytes_per_s=25e9, pcie_bytes_per_s=30e9),
    )
    return msgspec.structs.replace(plain, **changes)


def formats_of(gpu: Gpu) -> list[str]:
    """The formats a GPU has a rate for."""
    found = []
    for dtype in FORMATS:
        try:
            peak_flops_per_s(gpu, dtype)
        except InputError:
            continue
        found.append(dtype)
    return found


def usual(gpu: Gpu) -> str:
    return "bf16" if gpu.bf16_flops_per_s else "fp16"


def assert_sound(found: Efficiency, shape: tuple[int, ...]) -> None:
    assert found.values.shape == found.outside.shape == shape
    assert found.outside.dtype == np.bool_
    assert np.all(found.values > 0)
    assert np.all(found.values <= 1)
    assert found.source.startswith(KINDS)


# --- Bounds and shapes --------------------------------------------------------------------------


@each_case("gpu", all_gpus())
def test_every_gpu_of_the_catalogue_answers_in_every_format_it_has(gpu: Gpu) -> None:
    side = np.array([1.0, 64, 1000, 4096, 70_000, 1e6])
    m, n, k = np.meshgrid(side, side, side)
    for dtype in formats_of(gpu):
        for direction in DIRECTIONS:
            assert_sound(gemm_efficiency(gpu, dtype, m, n, k, direction), m.shape)
            grouped = grouped_gemm_efficiency(gpu, dtype, 8, m, n, k, direction)
            assert_sound(grouped, m.shape)
        found = attention_efficiency(gpu, dtype, m, m, 128, 16, 2, True)
        assert_sound(found, m.shape)
    assert_sound(memory_efficiency(gpu, side * 1e4), side.shape)
    assert 0 < launch_s(gpu) < 1e-4


def test_scalars_arrays_and_their_mixtures_give_the_common_shape() -> None:
    gpu = gpu_called("H100")
    m = np.array([1024, 2048, 4096])
    assert_sound(gemm_efficiency(gpu, "bf16", 4096, 4096, 4096), ())
    assert_sound(gemm_efficiency(gpu, "bf16", m, 4096, 4096), (3,))
    assert_sound(gemm_efficiency(gpu, "bf16", m[:, None], m[None, :], 4096), (3, 3))
    assert_sound(attention_efficiency(gpu, "bf16", m, m, 128, 32, 1, True), (3,))
    assert_sound(attention_efficiency(gpu, "bf16", 4096, 4096, 128, 32, 1, False), ())
    assert_sound(grouped_gemm_efficiency(gpu, "bf16", 8, m, 4096, 4096), (3,))
    assert_sound(memory_efficiency(gpu, 1e6), ())


def test_a_row_costs_the_same_alone_as_in_a_table() -> None:
    gpu = gpu_called("A100")
    m = np.arange(100, 9000, 371)
    together = gemm_efficiency(gpu, "bf16", m, 5120, 1280, "wgrad").values
    alone = [gemm_efficiency(gpu, "bf16", one, 5120, 1280, "wgrad").values for one in m]
    np.testing.assert_array_equal(together, alone)


def test_an_empty_slot_is_harmless() -> None:
    found = gemm_efficiency(gpu_called("H100"), "bf16", [0, 4096], [0, 4096], [0, 4096])
    assert np.all(np.isfinite(found.values))
    assert found.values[0] > 0


def test_a_format_the_gpu_lacks_is_an_error_that_names_those_it_has() -> None:
    with pytest.raises(InputError, match=r"V100-16GB-SXM2 has no rate for bf16\. Try fp16"):
        gemm_efficiency(gpu_called("V100"), "bf16", 1024, 1024, 1024)
    with pytest.raises(InputError, match="unknown number format 'int8'"):
        gemm_efficiency(gpu_called("H100"), "int8", 1024, 1024, 1024)


# --- Order --------------------------------------------------------------------------------------


@pytest.mark.slow
@given(gpus, directions, sides, sides, sides, grows, st.integers(0, 2))
@settings(max_examples=300, deadline=None)
def test_a_larger_product_never_takes_less_time(
    gpu: Gpu, direction: Direction, m: int, n: int, k: int, grow: float, which: int
) -> None:
    sizes = np.array([[m, n, k], [m, n, k]], dtype=np.float64)
    sizes[1, which] *= grow
    for dtype in formats_of(gpu):
        share = gemm_efficiency(gpu, dtype, sizes[:, 0], sizes[:, 1], sizes[:, 2], direction).values
        seconds = sizes.prod(axis=1) / share
        assert seconds[1] >= seconds[0] * (1 - 1e-9)


@given(gpus, directions, st.lists(sides, min_size=4, max_size=4), grows, st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_a_larger_grouped_product_never_takes_less_time(
    gpu: Gpu, direction: Direction, shape: list[int], grow: float, which: int
) -> None:
    sizes = np.array([shape, shape], dtype=np.float64)
    sizes[:, 0] = sizes[:, 0] % 256 + 1
    sizes[1, which] *= grow
    e, t, n, k = sizes.T
    share = grouped_gemm_efficiency(gpu, usual(gpu), e, t, n, k, direction).values
    seconds = sizes.prod(axis=1) / share
    assert seconds[1] >= seconds[0] * (1 - 1e-9)


@given(gpus, passes, st.booleans(), st.lists(sides, min_size=5, max_size=5), grows, st.data())
@settings(max_examples=200, deadline=None)
def test_larger_attention_never_takes_less_time(
    gpu: Gpu, direction: Pass, causal: bool, shape: list[int], grow: float, data: st.DataObject
) -> None:
    sizes = np.array([shape, shape], dtype=np.float64)
    sizes[:, 2:] = sizes[:, 2:] % 512 + 1
    sizes[1, data.draw(st.integers(0, 4))] *= grow
    seq_q, seq_kv, d, heads, b = sizes.T
    found = attention_efficiency(gpu, usual(gpu), seq_q, seq_kv, d, heads, b, causal, direction)
    share = found.values
    seconds = sizes.prod(axis=1) / share
    assert seconds[1] >= seconds[0] * (1 - 1e-9)


@given(gpus, st.floats(1, 1e11), grows)
def test_moving_more_bytes_never_takes_less_time(gpu: Gpu, size: float, grow: float) -> None:
    share = memory_efficiency(gpu, [size, size * grow]).values
    assert size * grow / share[1] >= size / share[0] * (1 - 1e-9)
    assert share[1] >= share[0] * (1 - 1e-9)


@given(gpus, directions, sides, sides, sides, grows, grows)
@settings(max_examples=200, deadline=None)
def test_a_faster_gpu_with_the_same_table_is_never_slower(
    gpu: Gpu, direction: Direction, m: int, n: int, k: int, peak: float, bandwidth: float
) -> None:
    dtype = usual(gpu)
    field = f"{dtype}_flops_per_s"
    better = msgspec.structs.replace(
        gpu,
        memory_bytes_per_s=gpu.memory_bytes_per_s * bandwidth,
        **{field: peak_flops_per_s(gpu, dtype) * peak},
    )
    seconds = [
        1 / (peak_flops_per_s(one, dtype) * found.values)
        for one in (gpu, better)
        for found in [gemm_efficiency(one, dtype, m, n, k, direction)]
    ]
    same = gemm_efficiency(gpu, dtype, 1, 1, 1).source.split(":")[0]
    if same == gemm_efficiency(better, dtype, 1, 1, 1).source.split(":")[0]:
        assert seconds[1] <= seconds[0] * (1 + 1e-9)


def test_small_products_are_slow_and_large_ones_fast() -> None:
    for name in ("A100", "H100"):
        gpu = gpu_called(name)
        m = np.array([64, 256, 1024, 4096])
        share = gemm_efficiency(gpu, "bf16", m, 1024, 1024).values
        assert np.all(np.diff(share) > 0)
        assert share[0] < 0.1
        large = gemm_efficiency(gpu, "bf16", [8192, 8192], [8192, 28672], [8192, 8192]).values
        assert np.all((large > 0.6) & (large < 0.85))


def test_a_weight_gradient_over_few_tokens_pays_for_summing_in_fp32() -> None:
    gpu = gpu_called("H200-SXM")
    shares = {
        direction: gemm_efficiency(gpu, "bf16", [1024, 16384], 8192, 8192, direction).values
        for direction in DIRECTIONS
    }
    assert shares["wgrad"][0] < 0.85 * shares["dgrad"][0]
    assert shares["wgrad"][1] > 0.9 * shares["dgrad"][1]


# --- Where an answer comes from -----------------------------------------------------------------


def test_sources_say_measured_fitted_borrowed_or_guessed() -> None:
    def told(gpu: Gpu, dtype: str) -> str:
        return gemm_efficiency(gpu, dtype, 4096, 4096, 4096).source

    assert told(gpu_called("H100"), "bf16").startswith("measured on H100-80GB-SXM")
    assert told(gpu_called("H100"), "fp8").startswith("fitted on H100-80GB-SXM")
    assert told(gpu_called("H800"), "bf16").startswith("borrowed from H100-80GB-SXM")
    assert told(gpu_called("V100"), "fp16").startswith("borrowed from A100-80GB-SXM")
    other = gpu_called("RTX-PRO-6000-Blackwell-WS")
    assert told(other, "bf16").startswith("borrowed from RTX-PRO-6000-Blackwell-SE")
    assert told(gpu_called("T4"), "fp16").startswith("borrowed from A100-80GB-SXM")
    assert told(gpu_called("L4"), "fp16").startswith("guessed from L40S")
    assert told(gpu_called("MI300X"), "bf16").startswith("guessed")
    assert told(own_gpu(), "bf16").startswith("guessed")
    assert "home-made" in told(own_gpu(), "bf16")


def test_what_a_source_is_worth_follows_the_data_files() -> None:
    def products(name: str, dtype: str) -> str:
        return gemm_efficiency(gpu_called(name), dtype, 4096, 4096, 4096).kind

    def attention(name: str) -> str:
        return attention_efficiency(gpu_called(name), "bf16", 4096, 4096, 128, 32, 1, True).kind

    assert products("H100", "bf16") == "measured"
    assert products("H100", "fp8") == "fitted"
    assert products("H800", "bf16") == products("MI300X", "bf16") == "guessed"
    grouped = grouped_gemm_efficiency(gpu_called("H100"), "bf16", 8, 512, 4096, 4096)
    assert grouped.kind == "fitted"
    assert (attention("H200"), attention("H100"), attention("H800")) == (
        "measured",
        "fitted",
        "guessed",
    )
    kernels = [memory_efficiency(gpu_called(name), 1e8).kind for name in ("H200", "H100", "H800")]
    assert kernels == ["measured", "fitted", "guessed"]
    masked = [
        masked_attention_efficiency(gpu_called(name), 128.0).kind for name in ("H200", "H100")
    ]
    assert masked == ["measured", "guessed"]


def test_an_unknown_gpu_borrows_from_its_own_generation() -> None:
    gpu = own_gpu(compute_capability="9.0", architecture="Hopper", bf16_flops_per_s=500e12)
    found = attention_efficiency(gpu, "bf16", 4096, 4096, 128, 32, 1, True)
    assert found.source.startswith("borrowed from H")
    assert 0.2 < float(found.values) < 0.8


def test_memory_is_borrowed_from_the_same_relative() -> None:
    own, lent = (memory_efficiency(gpu_called(name), 1e8).source for name in ("H100", "H800"))
    assert own.startswith("fitted, elementwise kernels on H100-80GB-SXM")
    assert lent.startswith("borrowed, elementwise kernels on H100-80GB-SXM")


def test_block_scaled_formats_run_like_plain_ones() -> None:
    gpu = gpu_called("B200")
    plain, scaled = (gemm_efficiency(gpu, f, 4096, 8192, 8192).values for f in ("fp8", "mxfp8"))
    assert plain == scaled


def test_h20_reaches_a_large_share_where_h100_waits_for_memory() -> None:
    """H20 has the bandwidth of H100 and a seventh of its peak."""
    few = [
        gemm_efficiency(gpu_called(name), "bf16", 256, 4096, 4096).values
        for name in ("H20", "H100")
    ]
    assert few[0] > 1.3 * few[1]


def test_shapes_off_the_measured_grid_are_flagged() -> None:
    gpu = gpu_called("H100")
    found = gemm_efficiency(gpu, "bf16", [16, 4096, 4096, 4096], 4096, [4096, 4096, 16, 131072])
    assert found.outside.tolist() == [True, False, True, True]
    seq = np.array([128, 4096, 131072])
    flags = attention_efficiency(gpu, "bf16", seq, 4096, 128, 32, 1, True).outside
    assert flags.tolist() == [True, False, True]
    assert attention_efficiency(gpu, "bf16", 4096, 4096, 512, 32, 1, True).outside
    assert not memory_efficiency(gpu, 1e9).outside


# --- Rows typed in from their sources -----------------------------------------------------------


@each_case(
    "name, dtype, direction, shape, share",
    [
        # MooreThreads/SimuMax @4dcaae5, configs/system/a100_pcie (Transformer Engine)
        ("A100-80GB-PCIe", "bf16", "forward", (4096, 24576, 5120), 0.7504),
        ("A100-80GB-PCIe", "bf16", "dgrad", (4096, 24576, 5120), 0.7844),
        ("A100-80GB-PCIe", "bf16", "wgrad", (4096, 24576, 5120), 0.7165),
        ("A100-80GB-PCIe", "bf16", "forward", (4096, 5120, 16384), 0.7493),
        # Azure/AI-benchmarking-guide, cuBLASLt on ND A100 v4 and ND H100 v5
        ("A100-80GB-SXM", "fp16", "forward", (6144, 12288, 12288), 250.8 / 312),
        ("H100-80GB-SXM", "fp8", "forward", (4096, 4096, 4096), 1216.9 / 1978.9),
        ("H100-80GB-SXM", "fp8", "forward", (8192, 8192, 8192), 1290.1 / 1978.9),
        # eth-easl/sailor @cf2c8e3, operator profiles: GPT-Neo 2.7B, 4 samples of 2048, 4,835 us
        ("V100-16GB-SXM2", "fp16", "forward", (8192, 2560, 10240), 88.8 / 125),
        # the same in fp32, on vector units: 7,345 and 28,563 us (V100), OPT-350M 5,352 us (Titan)
        ("V100-16GB-SXM2", "fp32", "forward", (8192, 2560, 2560), 14.62 / 15.7),
        ("V100-16GB-SXM2", "fp32", "forward", (8192, 2560, 10240), 15.04 / 15.7),
        ("Titan-RTX", "fp32", "forward", (8192, 1024, 4096), 12.84 / 16.3),
    ],
)
def test_products_are_within_15_percent_of_published_ones(
    name: str, dtype: str, direction: Direction, shape: tuple[int, int, int], share: float
) -> None:
    m, n, k = shape
    found = gemm_efficiency(gpu_called(name), dtype, m, n, k, direction)
    assert float(found.values) == pytest.approx(share, rel=0.15)


@each_case(
    "name, direction, shape, share",
    [
        # charts of Dao-AILab/flash-attention @025110, cuDNN, fp16, causal, 16,384 tokens
        ("H100-80GB-SXM", "forward", (2048, 8, 16, 128), 484 / 989.4),
        ("H100-80GB-SXM", "forward", (8192, 2, 16, 128), 529 / 989.4),
        # MooreThreads/SimuMax @4dcaae5; it counts the whole square
        ("A100-80GB-SXM", "forward", (4096, 1, 32, 128), 1.1320 / 2),
        ("A100-80GB-SXM", "backward", (4096, 1, 32, 128), 0.9764 / 2),
        ("A100-80GB-SXM", "backward", (4096, 1, 8, 128), 0.7628 / 2),
        ("B200", "forward", (4096, 1, 64, 128), 0.8715 / 2),
        ("B200", "backward", (4096, 1, 32, 128), 0.7963 / 2),
        # our own timings of an H200, cuDNN 9.19
        ("H200-SXM", "forward", (4096, 1, 32, 128), 0.532),
        ("H200-SXM", "backward", (4096, 1, 32, 128), 0.447),
    ],
)
def test_attention_is_within_15_percent_of_published_kernels(
    name: str, direction: Pass, shape: tuple[int, int, int, int], share: float
) -> None:
    seq, batch, heads, head_dim = shape
    found = attention_efficiency(
        gpu_called(name), "bf16", seq, seq, head_dim, heads, batch, True, direction
    )
    assert float(found.values) == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize(
    ("direction", "shape", "share"),
    [  # our own timings of an H200: experts, tokens each, n, k; torch 2.11 grouped products
        ("forward", (32, 1024, 4096, 2048), 0.66),
        ("forward", (32, 512, 4096, 2048), 0.66),
        ("dgrad", (32, 1024, 4096, 2048), 0.64),
    ],
)
def test_grouped_products_are_within_20_percent_of_our_timings(
    direction: Direction, shape: tuple[int, int, int, int], share: float
) -> None:
    e, t, n, k = shape
    found = grouped_gemm_efficiency(gpu_called("H200-SXM"), "bf16", e, t, n, k, direction)
    assert float(found.values) == pytest.approx(share, rel=0.2)


def test_a_fine_table_serves_its_own_chip_and_the_smooth_one_all_that_borrow() -> None:
    """The A100's table by trees: its siblings of 40 GB run by it, older generations do not."""
    fine, smooth = _lent_table("A100-80GB-SXM", True), _lent_table("A100-80GB-SXM", False)
    assert fine.log_s.size > 10 * smooth.log_s.size
    for name, table in (("a100-40g", fine), ("v100", smooth)):
        assert _gemm_table(find_gpu(name)[0], "fp16").log_s.shape == table.log_s.shape
    for axis in range(3):
        assert (np.diff(fine.log_s, axis=axis) >= 0).all()


def test_trees_see_how_well_tiles_fill_the_multiprocessors() -> None:
    """A tile on each of 108 multiprocessors fills a wave; one more starts another."""
    side = np.array([128.0])
    full = features(side, 108 * side, side, 108)
    over = features(side, 109 * side, side, 108)
    assert full[0, 4] == 1.0 and over[0, 4] == pytest.approx(109 / 216)
