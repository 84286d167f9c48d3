"""Tensor parallelism as PyTorch does it: copies around collectives, and fp8 that is gathered."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.cost.some_plans import view
from tests.timing.test_own_kernels import H200, timed
from tests.timing.test_traffic import DENSE, LLAMA, keys

from astra.api import predict
from astra.hardware.stack import find_stack
from astra.model.layer_kinds import layer_kinds
from astra.model.zoo import find_model
from astra.strategy.plan import Plan
from astra.timing.device import Device, SourceUse
from astra.timing.operators import Operator, layer_operators
from astra.timing.stage import StageTime, stage_times

TORCH = replace(find_stack("torch-fsdp"), settings=(), elementwise_factor=1.0, compute_factor=1.0)
FUSED = replace(TORCH, layers="fused")


def device(recipe: str | None = None) -> Device:
    return Device(H200, "fp8" if recipe else "bf16", SourceUse(), TORCH, recipe)


def plan(**said: Any) -> Plan:
    usual: dict[str, Any] = {"gpus": "h200:64", "global_batch": 96, "seq_len": 8192, "tp": 8}
    usual |= {"micro_batch": 12, "runtime": "fsdp", "stack": "torch-fsdp", "overlap_tp": False}
    return predict("llama-3-8b", **usual | said).plan


@pytest.mark.parametrize(
    ("operator", "kernel", "each_bytes"),
    [
        ("copy", "order", 4.0),
        ("cast", "tensorwise", device("tensorwise").cast_bytes),
        ("cast", "rows and columns", device("blockwise").cast_bytes),
    ],
)
def test_copies_and_casts_take_what_compiled_ones_took(
    operator: str, kernel: str, each_bytes: float
) -> None:
    rows = timed(operator, kernel=kernel)
    elements = np.array([float(row["a"]) * float(row["b"]) for row in rows])
    seconds = np.array([float(row["seconds"]) for row in rows])
    ratio = device().memory_s(each_bytes * elements) / seconds
    assert len(rows) >= 2
    assert np.median(ratio) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("tp", "copies"), [(8, True), (1, False)])
def test_what_is_gathered_or_scattered_along_the_sequence_is_copied(tp: int, copies: bool) -> None:
    """Four collectives forward, six backward, each with a copy of all tokens of the group."""

    def tensor_s(found: StageTime) -> tuple[float, float]:
        ways = (found.part(f"tensor_{way}_s") for way in ("forward", "backward"))
        forward, backward = (float(column[0, 0, 0]) for column in ways)
        return forward, backward

    seen = view(plan() if tp > 1 else plan(tp=1, micro_batch=1, global_batch=64))
    ours, plain = (tensor_s(stage_times(seen, stack)) for stack in (TORCH, FUSED))
    tokens = np.array([12.0 * 8192])
    copy_s = float(device().memory_s(4.0 * tokens * LLAMA.hidden)[0]) * LLAMA.layers
    assert ours[0] - plain[0] == pytest.approx(4 * copy_s * copies)
    # products beside it differ a little, and with them what they hide
    assert ours[1] - plain[1] == pytest.approx(6 * copy_s * copies, rel=0.1)


def test_fp8_of_one_scale_a_tensor_is_gathered_as_it_is() -> None:
    """torchao casts a rank's share and gathers half the bytes; scales by row are made of all."""
    times = {}
    for recipe in ("tensorwise", "blockwise"):
        own = plan(precision="fp8", fp8_recipe=recipe)
        found = stage_times(view(own), TORCH)
        times[recipe] = float(found.part("tensor_forward_s")[0, 0, 0])
    assert 0.5 < times["tensorwise"] / times["blockwise"] < 0.9


@pytest.mark.parametrize(("recipe", "shares"), [("tensorwise", True), ("blockwise", False)])
def test_casts_of_what_is_gathered(recipe: str, shares: bool) -> None:
    """Inputs of the first products and gradients of the last: on a share of the tokens, or on all.
    Others are cut by heads or width and cast by every rank.
    """

    def operators(sp: int) -> dict[str, Operator]:
        found = layer_operators(
            LLAMA, DENSE, keys(tp=8, sp=sp, micro_batch=8), device(recipe), True
        )
        return {operator.name: operator for operator in found}

    whole, cut = operators(1), operators(8)
    for name, way in (
        ("qkv", "forward_s"),
        ("mlp_up", "forward_s"),
        ("attention_out", "backward_s"),
        ("mlp_down", "backward_s"),
    ):
        assert bool(getattr(cut[name], way) < getattr(whole[name], way)) is shares
    for name, way in (("attention_out", "forward_s"), ("mlp_up", "backward_s")):
        assert getattr(cut[name], way) == getattr(whole[name], way)


def test_one_input_of_three_products_is_cast_once() -> None:
    recipe = "tensorwise"
    rows = keys(micro_batch=4)
    fp8 = next(iter(layer_operators(LLAMA, DENSE, rows, device(recipe), True)))
    products = [
        device(recipe).gemm_s(rows.tokens, np.array([n]), np.array([4096.0]), "forward")
        for n in (4096.0, 1024.0, 1024.0)
    ]
    cast = device(recipe).memory_s(device(recipe).cast_bytes * rows.tokens * 4096)
    assert fp8.forward_s == pytest.approx(sum(products) + cast)


def test_latents_are_cast_by_the_rank_that_has_them() -> None:
    """Down-projections of MLA work on a rank's share of the sequence: its casts shrink once."""
    model = find_model("deepseek-v2-lite")
    kind = layer_kinds(model).kinds[0]
    once, cut = (
        layer_operators(
            model, kind, keys(tp=8, sp=sp, micro_batch=micro), device("tensorwise"), True
        )
        for sp, micro in ((8, 8), (1, 1))
    )
    name = "latent_down"
    found = [next(op for op in each if op.name == name).forward_s for each in (once, cut)]
    assert found[0] == pytest.approx(found[1])
