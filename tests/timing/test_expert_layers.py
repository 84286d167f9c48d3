"""Layers of experts against those that Megatron-LM's own tests time on eight H100s.

Milliseconds from tests/functional_tests/test_cases/common/moe_perf/baseline.json of
NVIDIA/Megatron-LM (Apache-2.0): Transformer Engine, 4,096 tokens a rank, balanced routing, ep 8,
shapes from test_cases.py beside it. No number of ours was fitted on them.
"""

import numpy as np
from msgspec.structs import replace
from tests.support.cases import each_case

from astra.fit.hierarchy import FACTOR_FIELDS
from astra.hardware.catalogue import find_gpu
from astra.hardware.stack import find_stack
from astra.model.layer_kinds import layer_kinds
from astra.model.shape import Model, Moe
from astra.timing.device import Device, SourceUse
from astra.timing.operators import LayerShape, layer_operators
from astra.timing.traffic import expert_traffic

GPU = find_gpu("h100")[0]
BARE = replace(find_stack("megatron"), **dict.fromkeys(FACTOR_FIELDS, 1.0), settings=())
MEASURED = {  # model, precision, dispatcher: forward, backward [ms]
    ("deepseek", "bf16", "alltoall"): (7.12, 10.48),
    ("deepseek", "bf16", "deepep"): (5.68, 9.06),
    ("deepseek", "bf16", "hybridep"): (5.39, 8.80),
    ("deepseek", "fp8", "alltoall"): (7.61, 10.13),
    ("deepseek", "fp8", "deepep"): (6.03, 8.60),
    ("deepseek", "fp8", "hybridep"): (5.14, 7.69),
    ("mixtral", "bf16", "alltoall"): (4.33, 7.68),
    ("mixtral", "bf16", "deepep"): (4.64, 7.85),
    ("mixtral", "bf16", "hybridep"): (4.34, 7.74),
    ("mixtral", "fp8", "alltoall"): (3.79, 6.62),
    ("mixtral", "fp8", "deepep"): (4.10, 6.83),
    ("mixtral", "fp8", "hybridep"): (3.70, 6.57),
}


def model(name: str) -> Model:
    deepseek = name == "deepseek"
    hidden, width = (7168, 2048) if deepseek else (4096, 14336)
    experts, top_k = (32, 8) if deepseek else (8, 2)
    shared = 1 if deepseek else 0
    return Model(
        name=name,
        layers=1,
        hidden=hidden,
        heads=8,
        kv_heads=8,
        head_dim=hidden // 8,
        ffn=width,
        vocab=32000,
        activation="gelu",
        gated_mlp=False,  # the tests leave it at Megatron-LM's default
        moe=Moe(
            experts=experts,
            top_k=top_k,
            moe_ffn=width,
            shared_experts=shared,
            shared_ffn=shared * width,
        ),
    )


def keys() -> LayerShape:
    given = {"seq_len": 4096, "ep": 8, "domain": 8, "node": 8}
    names = ("micro_batch", "seq_len", "tp", "cp", "sp", "ep", "etp", "capacity", "domain", "node")
    return LayerShape(**{name: np.array([float(given.get(name, 1))]) for name in names})


def layer_ms(name: str, precision: str, dispatcher: str) -> tuple[float, float]:
    """Router, experts and dispatch; all factors at 1."""
    shape = model(name)
    recipe = "blockwise" if precision == "fp8" else None
    device = Device(GPU, precision, SourceUse(), BARE, recipe)
    kind = layer_kinds(shape).kinds[0]
    operators = layer_operators(shape, kind, keys(), device, True, dispatcher)
    experts = [op for op in operators if op.module in ("moe", "moe_act", "shared_experts")]
    sent = expert_traffic(shape, keys(), GPU, operators, dispatcher, False, 2.0)
    forward = sum(op.forward_s[0] for op in experts) + sent.forward_s[0]
    backward = sum(op.backward_s[0] for op in experts) + sent.backward_s[0]
    return 1e3 * float(forward), 1e3 * float(backward)


@each_case("case", MEASURED)
def test_layers_of_experts_take_what_megatrons_tests_time(case: tuple[str, str, str]) -> None:
    """Wide experts in blocks of fp8 are a third too fast: their scales cost what we do not count,
    and the tests cast all weights anew in every pass.
    """
    pairs = zip(layer_ms(*case), MEASURED[case], strict=True)
    errors = [ours / theirs - 1 for ours, theirs in pairs]
    low, high = (-0.36, -0.2) if case[:2] == ("mixtral", "fp8") else (-0.21, 0.13)
    assert all(low < error < high for error in errors), errors


def test_the_mean_error_of_those_layers_is_a_tenth_where_no_blocks_are_scaled() -> None:
    errors = [
        abs(ours / theirs - 1)
        for case, measured in MEASURED.items()
        if case[1] == "bf16"
        for ours, theirs in zip(layer_ms(*case), measured, strict=True)
    ]
    assert np.mean(errors) < 0.1


def test_the_order_of_dispatchers_is_that_of_the_measurement() -> None:
    for precision in ("bf16", "fp8"):
        ours = [sum(layer_ms("deepseek", precision, name)) for name in ("alltoall", "deepep")]
        theirs = [sum(MEASURED["deepseek", precision, name]) for name in ("alltoall", "deepep")]
        assert (ours[0] > ours[1]) == (theirs[0] > theirs[1])
    padded, plain = (sum(layer_ms("deepseek", "fp8", name)) for name in ("deepep", "hybridep"))
    assert padded > plain


def test_a_scale_of_the_whole_tensor_costs_one_more_look_at_it() -> None:
    tensorwise, delayed = (
        Device(GPU, "fp8", SourceUse(), BARE, recipe).cast_bytes
        for recipe in ("tensorwise", "delayed")
    )
    assert tensorwise == delayed + 2
    assert Device(GPU, "bf16", SourceUse(), BARE).cast_bytes == 0
