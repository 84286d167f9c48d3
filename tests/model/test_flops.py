"""FLOPs against brute force and against published formulas."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.shapes import models

from astra.model.flops import (
    attention_flops,
    forward_flops,
    head_flops,
    layer_forward_flops,
    mean_reach,
    step_flops,
    train_flops_per_token,
)
from astra.model.layer_kinds import LayerKind, layer_kinds
from astra.model.parameters import parameters
from astra.model.shape import Model
from astra.model.zoo import zoo_model

lengths = st.integers(1, 80)


def seen(kind: LayerKind, seq_len: int) -> int:
    """Pairs of positions in the mask, counted one by one."""
    pairs = 0
    for query in range(seq_len):
        for key in range(query + 1):
            near = kind.window is None or query - key < kind.window
            together = kind.window is None or query // kind.window == key // kind.window
            pairs += together if kind.chunked else near
    return pairs


@given(lengths)
def test_causal_reach_is_the_mask_with_its_diagonal_at_half(seq_len: int) -> None:
    kind = LayerKind(attention="mha")
    assert mean_reach(kind, seq_len) * seq_len == seen(kind, seq_len) - seq_len / 2


@given(lengths, st.integers(1, 80))
def test_window_reach_is_the_mask_but_for_half_a_window(seq_len: int, window: int) -> None:
    kind = LayerKind(attention="mha", window=window)
    edge = min(window, seq_len) / 2
    assert mean_reach(kind, seq_len) * seq_len == pytest.approx(seen(kind, seq_len) - edge)


@given(lengths, st.integers(1, 80))
def test_chunk_reach_is_the_mask_with_its_diagonal_at_half(seq_len: int, chunk: int) -> None:
    kind = LayerKind(attention="mha", window=chunk, chunked=True)
    assert mean_reach(kind, seq_len) * seq_len == pytest.approx(seen(kind, seq_len) - seq_len / 2)


@given(lengths, st.integers(1, 80), st.booleans())
def test_a_window_never_costs_more_than_seeing_everything(
    seq_len: int, window: int, chunked: bool
) -> None:
    cut = LayerKind(attention="mha", window=window, chunked=chunked)
    assert mean_reach(cut, seq_len) <= mean_reach(LayerKind(attention="mha"), seq_len) * (1 + 1e-12)


@given(st.integers(1, 60))
def test_a_window_as_long_as_the_sequence_is_none(seq_len: int) -> None:
    whole = mean_reach(LayerKind(attention="mha"), seq_len)
    for chunked in (False, True):
        cut = LayerKind(attention="mha", window=seq_len, chunked=chunked)
        assert mean_reach(cut, seq_len) == whole


def gpt(layers: int, hidden: int, vocab: int) -> Model:
    return Model(
        name="gpt", layers=layers, hidden=hidden, heads=hidden // 64, kv_heads=hidden // 64,
        head_dim=64, ffn=4 * hidden, vocab=vocab, gated_mlp=False, norm="layernorm",
        qkv_bias=True, attn_out_bias=True, mlp_bias=True, tied_embeddings=True,
        learned_positions=2048,
    )  # fmt: skip


@given(st.integers(1, 50), st.integers(1, 40), st.integers(1, 60_000), st.integers(1, 5000))
def test_a_gpt_costs_what_narayanan_2021_says(
    layers: int, width: int, vocab: int, seq_len: int
) -> None:
    """72 b s l h^2 (1 + s / 6h + V / 12lh), with attention at half for the causal mask."""
    hidden, batch = 64 * width, 3
    published = (
        72 * batch * seq_len * layers * hidden**2
        * (1 + seq_len / (12 * hidden) + vocab / (12 * layers * hidden))
    )  # fmt: skip
    assert step_flops(gpt(layers, hidden, vocab), seq_len, batch) == pytest.approx(published)


def test_gpt_3_takes_about_six_flops_a_parameter_and_token() -> None:
    """Brown et al. 2020, table D.1: 3.14e23 FLOPs for 300 B tokens with 174.6 B parameters."""
    model = zoo_model("gpt3-175b")
    assert train_flops_per_token(model, 2048) * 300e9 == pytest.approx(3.14e23, rel=0.03)
    assert train_flops_per_token(model, 1) == pytest.approx(6 * parameters(model).total, rel=0.01)


def test_llama_3_405b_takes_what_its_paper_says() -> None:
    """Grattafiori et al. 2024 (arXiv 2407.21783): 3.8e25 FLOPs for 15.6 T tokens."""
    model = zoo_model("llama-3.1-405b")
    assert train_flops_per_token(model, 8192) * 15.6e12 == pytest.approx(3.8e25, rel=0.05)


def test_deepseek_v3_takes_about_six_flops_an_active_parameter() -> None:
    model = zoo_model("deepseek-v3")
    embedding = model.vocab * model.hidden  # looked up, not multiplied
    expected = 6 * (parameters(model).active - embedding)
    assert train_flops_per_token(model, 1) == pytest.approx(expected, rel=0.01)


def test_latent_attention_counts_its_own_widths() -> None:
    model = zoo_model("deepseek-v3")
    kind = layer_kinds(model).kinds[0]
    assert attention_flops(model, kind, 4096) == 2 * 128 * (192 + 128) * 2048


@given(models(), st.integers(1, 500))
def test_the_model_is_the_sum_of_its_layers_and_ends(model: Model, seq_len: int) -> None:
    found = layer_kinds(model)
    layers = sum(
        layer_forward_flops(model, found.kinds[row], seq_len).total_flops for row in found.of_layer
    )
    flops = forward_flops(model, seq_len)
    assert flops.total_flops - flops.mtp_flops == pytest.approx(layers + head_flops(model))


@given(models(attn_gate=None), st.integers(1, 500))
def test_products_cost_two_flops_for_every_active_weight_that_is_no_vector(
    model: Model, seq_len: int
) -> None:
    counted = parameters(model)
    moe = model.moe
    weights = 0.0
    for entry in counted.kinds:
        for each in entry.weights:
            if each.matrix:
                share = moe.top_k / moe.experts if moe and each.part == "routed_experts" else 1
                weights += entry.layers * each.count * share
    assert forward_flops(model, seq_len).matmul_flops == pytest.approx(2 * weights)


@given(models(mtp_layers=0), st.integers(1, 200))
def test_prediction_layers_cost_more(model: Model, seq_len: int) -> None:
    more = msgspec.structs.replace(model, mtp_layers=1)
    extra = forward_flops(more, seq_len).total_flops - forward_flops(model, seq_len).total_flops
    kind = layer_kinds(model).mtp_kind
    join = 2 * 2 * model.hidden**2
    layer = layer_forward_flops(model, kind, seq_len).total_flops
    assert extra == pytest.approx(layer + join + head_flops(model))


def test_experts_left_out_cost_nothing() -> None:
    model = zoo_model("mixtral-8x7b")
    kind = layer_kinds(model).kinds[0]
    flops = layer_forward_flops(model, kind, 1).matmul_flops
    attention = 4096 * 4096 * 2 + 2 * 4096 * 1024
    assert flops == 2 * (attention + 2 * 3 * 4096 * 14336 + 4096 * 8)
