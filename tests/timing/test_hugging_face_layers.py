"""Kernels of Hugging Face's layers in plain PyTorch, counted and compared with those timed."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from astra.hardware.catalogue import find_gpu
from astra.hardware.stack import find_stack
from astra.model.layer_kinds import LayerKind, layer_kinds
from astra.model.shape import Model, Window
from astra.model.zoo import find_model
from astra.timing.constants import timing_constants
from astra.timing.device import Device, SourceUse
from astra.timing.efficiency import masked_attention_efficiency
from astra.timing.operators import LayerShape, Operator, head_operators, layer_operators

GPU = find_gpu("H200-SXM")[0]
PEAK = GPU.bf16_flops_per_s or 0.0


def keys(batch: float, length: float) -> LayerShape:
    one = np.ones(1)
    return LayerShape(
        micro_batch=batch * one, seq_len=length * one, tp=one, cp=one, sp=one, ep=one, etp=one,
        capacity=one, domain=one, node=one,
    )  # fmt: skip


def device(stack: str) -> Device:
    return Device(GPU, "bf16", SourceUse(), find_stack(stack).on(GPU, "bf16"))


def operators(
    model: Model, stack: str, batch: float, length: float, kind: LayerKind | None = None
) -> dict[str, Operator]:
    found = layer_operators(
        model, kind or layer_kinds(model).kinds[0], keys(batch, length), device(stack), True
    )
    return {one.name: one for one in found}


def both_s(one: Operator) -> float:
    return float(one.forward_s[0] + one.backward_s[0])


def test_kernels_of_eager_llama_layers_take_as_long_as_timed() -> None:
    """Llama 3.2 3B, 28 layers, 4,096 tokens: all kernels that are neither products, attention,
    optimizer, loss nor sums of weight gradients took 59.8 ms in one step."""
    found = operators(find_model("llama-3.2-3b"), "torch-eager", 1, 4096)
    between = sum(both_s(found[name]) for name in ("norms", "rope", "activation", "residual"))
    assert 28 * between == pytest.approx(59.8e-3, rel=0.15)


@pytest.mark.parametrize("stack", ["torch-compile", "torch-eager"])
@pytest.mark.parametrize(("name", "tokens"), [("qwen3-4b", 16384), ("llama-3.2-3b", 4096)])
def test_the_loss_takes_13_ps_a_logit(stack: str, name: str, tokens: float) -> None:
    """Copy to fp32 2.97, softmax both ways 7.8, zeros 0.85, copy back 1.42."""
    model = find_model(name)
    rows = np.array([float(model.vocab)])
    (loss,) = (
        one
        for one in head_operators(model, keys(1, tokens), device(stack), rows)
        if one.name == "loss"
    )
    assert both_s(loss) == pytest.approx(13.04e-12 * tokens * model.vocab, rel=0.03)


def test_eager_norms_move_twelve_times_what_a_fused_one_does() -> None:
    """RMSNorm forward: to fp32 6, square 8, mean 4, scale 8, to bf16 6, weigh 4 bytes."""
    eager, fused = (
        timing_constants().layers.eager.rms_norm,
        timing_constants().layers.fused.rms_norm,
    )
    assert eager.forward_bytes == 6 + 8 + 4 + 8 + 6 + 4
    assert eager.forward_bytes + eager.backward_bytes == 12 * (
        fused.forward_bytes + fused.backward_bytes
    )


@pytest.mark.parametrize(
    ("heads", "head_dim", "batch", "length", "forward_ms", "backward_ms"),
    [
        (32, 64, 1, 8192, 2.229, 5.184),
        (32, 128, 2, 4096, 1.573, 4.625),
        (16, 256, 1, 4096, 1.054, 3.334),
    ],
)
def test_attention_with_a_mask_takes_as_long_as_timed(
    heads: int, head_dim: int, batch: int, length: int, forward_ms: float, backward_ms: float
) -> None:
    flops = 4.0 * batch * heads * length**2 * head_dim
    forward = masked_attention_efficiency(GPU, head_dim).values
    backward = masked_attention_efficiency(GPU, head_dim, "backward").values
    assert flops / (PEAK * forward) == pytest.approx(forward_ms * 1e-3, rel=0.1)
    assert 2.5 * flops / (PEAK * backward) == pytest.approx(backward_ms * 1e-3, rel=0.1)


def windowed() -> tuple[Model, LayerKind]:
    model = find_model("llama-3-8b")
    model = msgspec.structs.replace(model, window=Window(tokens=4096))
    return model, layer_kinds(model).kinds[0]


def test_a_window_is_a_mask_only_once_the_sequence_is_as_long() -> None:
    model, kind = windowed()
    plain = replace(kind, window=None)
    for stack in ("torch-compile", "torch-eager"):
        short = operators(model, stack, 1, 4095, kind)["core_attention"]
        same = operators(model, stack, 1, 4095, plain)["core_attention"]
        assert both_s(short) == both_s(same)
        long = operators(model, stack, 1, 4096, kind)["core_attention"]
        assert both_s(long) > 2.5 * both_s(short)


def test_megatron_skips_what_a_window_hides() -> None:
    model, kind = windowed()
    hidden = operators(model, "megatron", 1, 16384, kind)["core_attention"]
    whole = operators(model, "megatron", 1, 16384, replace(kind, window=None))["core_attention"]
    assert both_s(hidden) < both_s(whole)


def test_heads_between_64_and_128_take_the_time_of_128() -> None:
    """cuDNN's kernel of a head of 80 was the one for 128: 25 ms backward, 16 layers, GPT-3 2.7B."""
    model = msgspec.structs.replace(find_model("gpt3-2.7b"), heads=32, kv_heads=32, head_dim=80)
    narrow = operators(model, "torch-compile", 2, 4096)["core_attention"]
    assert 16 * float(narrow.backward_s[0]) == pytest.approx(25.0e-3, rel=0.1)
    wide = msgspec.structs.replace(model, head_dim=128)
    assert both_s(narrow) == pytest.approx(
        both_s(operators(wide, "torch-compile", 2, 4096)["core_attention"])
    )


def test_products_of_one_input_are_kernels_of_their_own() -> None:
    """Narrow keys and values run at a lower rate alone than behind the queries."""
    model = find_model("qwen2.5-1.5b")
    alone = operators(model, "torch-compile", 1, 1024)["qkv"]
    fused = msgspec.structs.replace(model, fused_qkv=True)
    together = operators(fused, "torch-compile", 1, 1024)["qkv"]
    assert both_s(alone) > 1.1 * both_s(together)


def test_biases_add_the_reading_of_what_their_products_made() -> None:
    model = find_model("llama-3-8b")
    biased = msgspec.structs.replace(model, mlp_bias=True)
    more = (
        operators(biased, "torch-compile", 1, 8192)["residual"].backward_s
        - operators(model, "torch-compile", 1, 8192)["residual"].backward_s
    )
    read = 2.0 * 8192 * (2 * model.ffn + model.hidden)
    assert float(more[0]) == pytest.approx(read / (0.719 * 4.8e12), rel=0.1)
