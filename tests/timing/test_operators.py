"""A layer's operators do the FLOPs of the model, shared out as the parallel degrees say."""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.cases import each_case

from astra.hardware.cluster import Cluster
from astra.hardware.stack import Stack, find_stack
from astra.model.flops import attention_flops, head_flops, layer_forward_flops
from astra.model.layer_kinds import layer_kinds
from astra.model.parameters import layer_weights
from astra.model.zoo import find_model
from astra.strategy.parameters_per_gpu import padded_vocab
from astra.strategy.plan import Runtime
from astra.strategy.plans import Task
from astra.timing.device import Device
from astra.timing.operators import LayerShape, Operator, head_operators, layer_operators

Floats = NDArray[np.float64]
SEQ_LEN = 4096
MODELS = (
    "gpt3-6.7b",
    "llama-3-8b",
    "gemma-2-2b",
    "mixtral-8x7b",
    "deepseek-v3",
    "deepseek-v2-lite",
)


@dataclass(frozen=True)
class Counter:
    """Stands in for a GPU: answers FLOPs of matrix products and attention, 0 for all else."""

    precision: str = "bf16"
    half: str = "bf16"
    cast_bytes: float = 0.0
    casts_shards: bool = False
    stack: Stack = field(default_factory=lambda: find_stack("megatron"))

    def gemm_s(self, m: Floats, n: Floats, k: Floats, *_: Any) -> Floats:
        return 2.0 * m * n * k

    def grouped_gemm_s(self, _: Floats, tokens: Floats, n: Floats, k: Floats, __: Any) -> Floats:
        return 2.0 * tokens * n * k

    def attention_s(self, *, flops: Floats, backward: bool, **_: Any) -> Floats:
        return flops * (2.5 if backward else 1.0)

    def memory_s(self, moved_bytes: Floats, *_: float) -> Floats:
        return np.zeros(np.shape(moved_bytes))


@dataclass(frozen=True)
class Mover(Counter):
    """Answers the bytes of kernels bound by memory, 0 for all else."""

    def gemm_s(self, m: Floats, n: Floats, k: Floats, *_: Any) -> Floats:
        return np.zeros(np.broadcast(m, n, k).shape)

    def grouped_gemm_s(self, _: Floats, tokens: Floats, n: Floats, k: Floats, __: Any) -> Floats:
        return np.zeros(np.broadcast(tokens, n, k).shape)

    def attention_s(self, *, flops: Floats, **_: Any) -> Floats:
        return np.zeros(np.shape(flops))

    def memory_s(self, moved_bytes: Floats, *_: float) -> Floats:
        return moved_bytes


DEVICE = cast("Device", Counter())


def keys(**degrees: float) -> LayerShape:
    names = ("micro_batch", "tp", "cp", "sp", "ep", "etp", "capacity", "domain", "node")
    columns = {name: np.array([float(degrees.get(name, 1))]) for name in names}
    return LayerShape(seq_len=np.array([float(SEQ_LEN)]), **columns)


def forward(operators: list[Operator]) -> float:
    return float(sum(op.forward_s for op in operators)[0])  # type: ignore[index]


@pytest.mark.parametrize("name", MODELS)
def test_the_operators_of_a_layer_do_its_models_flops(name: str) -> None:
    model = find_model(name)
    for kind in layer_kinds(model).kinds:
        operators = layer_operators(model, kind, keys(micro_batch=2), DEVICE, True)
        expected = layer_forward_flops(model, kind, SEQ_LEN).total_flops * 2 * SEQ_LEN
        assert forward(operators) == pytest.approx(expected, rel=1e-12), kind


@pytest.mark.parametrize("name", MODELS)
def test_linear_layers_do_twice_the_work_backward_and_attention_two_and_a_half(name: str) -> None:
    model = find_model(name)
    for kind in layer_kinds(model).kinds:
        for op in layer_operators(model, kind, keys(), DEVICE, True):
            times = 2.5 if op.name == "core_attention" else 2.0
            assert op.backward_s == pytest.approx(times * op.forward_s, rel=1e-12), op.name
            if op.wgrad_s is not None:
                assert op.wgrad_s == pytest.approx(op.forward_s, rel=1e-12)


@each_case("name", MODELS)
@each_case("tp", [2, 4])
def test_tensor_parallel_ranks_share_all_the_work_of_a_layer(name: str, tp: int) -> None:
    """With the sequence shared and experts cut alike nothing is done twice: the router and the
    latents, which nothing cuts, see a share of the tokens.
    """
    model = find_model(name)
    for kind in layer_kinds(model).kinds:
        whole = forward(layer_operators(model, kind, keys(), DEVICE, True))
        cut = keys(tp=tp, sp=tp, etp=tp)
        part = forward(layer_operators(model, kind, cut, DEVICE, True))
        assert tp * part == pytest.approx(whole, rel=1e-12), kind


def test_keys_and_values_are_done_twice_where_ranks_outnumber_their_heads() -> None:
    model = find_model("gemma-2-2b")
    kind = layer_kinds(model).kinds[0]
    whole = forward(layer_operators(model, kind, keys(), DEVICE, True))
    part = forward(layer_operators(model, kind, keys(tp=8, sp=8), DEVICE, True))
    again = 2.0 * SEQ_LEN * 2 * model.hidden * model.kv_heads * model.head_dim
    assert 8 * part == pytest.approx(whole + again, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_context_parallel_ranks_share_everything(name: str) -> None:
    model = find_model(name)
    for kind in layer_kinds(model).kinds:
        whole = forward(layer_operators(model, kind, keys(), DEVICE, True))
        part = forward(layer_operators(model, kind, keys(cp=4), DEVICE, True))
        assert 4 * part == pytest.approx(whole, rel=1e-12)


def test_unfused_attention_does_the_whole_square() -> None:
    model = find_model("gpt3-6.7b")
    (kind,) = layer_kinds(model).kinds
    fused, unfused = (
        next(
            op.forward_s.item()
            for op in layer_operators(model, kind, keys(), DEVICE, how)
            if op.module == "core_attn"
        )
        for how in (True, False)
    )
    assert fused == pytest.approx(attention_flops(model, kind, SEQ_LEN) * SEQ_LEN, rel=1e-12)
    assert unfused == pytest.approx(2 * fused, rel=1e-12)


def test_expert_parallelism_keeps_the_work_of_a_rank_and_capacity_scales_it() -> None:
    """As many tokens arrive from other ranks as leave; a capacity of 1.25 pads by a quarter."""
    model = find_model("mixtral-8x7b")
    (kind,) = layer_kinds(model).kinds

    def routed(**degrees: float) -> float:
        operators = layer_operators(model, kind, keys(**degrees), DEVICE, True)
        return forward([op for op in operators if op.name.startswith("experts_")])

    assert routed(ep=8) == pytest.approx(routed(ep=1), rel=1e-12)
    assert routed(capacity=1.25) == pytest.approx(1.25 * routed(), rel=1e-12)
    expected = (
        2.0
        * SEQ_LEN
        * 2
        / 8
        * sum(
            weight.count for weight in layer_weights(model, kind) if weight.sharded_by == "ep_etp"
        )
    )
    assert routed() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("runtime", "rows"), [("megatron", 50_304), ("fsdp", 50_257)])
def test_the_head_does_the_vocabulary_that_its_runtime_holds(runtime: Runtime, rows: int) -> None:
    """Megatron-LM pads it to a multiple of 128 x TP, PyTorch does not."""
    model = find_model("gpt3-6.7b")
    task = Task(model=model, cluster=Cluster(name="none", pools=()), runtime=runtime)
    vocab = padded_vocab(task, keys().tp)
    found = forward(head_operators(model, keys(), DEVICE, vocab))
    assert found == pytest.approx(head_flops(model) * rows / 50_257 * SEQ_LEN, rel=1e-12)


def test_capped_logits_pass_three_more_kernels_each_way() -> None:
    """x / c, tanh, times c: two operands of two bytes each; the gradient of tanh has three."""
    device = cast("Device", Mover())
    rows = np.array([256_000.0])
    capped = head_operators(find_model("gemma-2-9b"), keys(), device, rows)
    (cap,) = (op for op in capped if "cap" in op.name)
    logits = SEQ_LEN * 256_000
    assert float(cap.forward_s[0]) == 3 * 2 * 2 * logits
    assert float(cap.backward_s[0]) == (2 + 3 + 2) * 2 * logits
    plain = head_operators(find_model("gemma-3-12b"), keys(), device, rows)
    assert not any("cap" in op.name for op in plain)


def moved_bytes(name: str, stack: str = "megatron") -> dict[str, tuple[float, float]]:
    """Of each operator of the layer with experts, forward and backward."""
    model = find_model(name)
    kind = layer_kinds(model).kinds[-1]
    device = cast("Device", Mover(stack=find_stack(stack)))
    operators = layer_operators(model, kind, keys(), device, True)
    return {op.name: (float(op.forward_s[0]), float(op.backward_s[0])) for op in operators}


def test_biases_of_experts_move_what_their_kernels_read_and_write() -> None:
    """Each kernel of Megatron-core's `_apply_bias` and of its gradient, operand by operand."""
    gpt_oss = find_model("gpt-oss-20b")
    assert gpt_oss.moe is not None and gpt_oss.biased_experts
    bf16, fp32 = 2, 4
    kernels = (
        (fp32,),  # bias x probability, both small
        (bf16, fp32, fp32),  # added to the tokens
        (fp32, fp32),  # joined
        (fp32, bf16),  # rounded
    )
    back = (
        (bf16, fp32),  # the gradient of rounding
        (fp32, bf16),  # of the tokens
        (fp32, fp32, fp32),  # of the bias: weighed, and summed over tokens
        (fp32, fp32, fp32),  # of the probabilities: weighed, and summed over the width
        (bf16, bf16),  # joined
    )
    elements = SEQ_LEN * gpt_oss.moe.top_k * gpt_oss.hidden
    first = bf16 * SEQ_LEN * gpt_oss.moe.top_k * 2 * gpt_oss.moe.moe_ffn  # summed over tokens
    forward_bytes, backward_bytes = moved_bytes("gpt-oss-20b")["experts_bias"]
    assert forward_bytes == elements * sum(map(sum, kernels))
    assert backward_bytes == elements * sum(map(sum, back)) + first
    assert "experts_bias" not in moved_bytes("mixtral-8x7b")


def test_a_stack_may_move_gradients_and_routed_tokens_once_more() -> None:
    model = find_model("mixtral-8x7b")
    own, usual = moved_bytes("mixtral-8x7b", "torch-compile"), moved_bytes("mixtral-8x7b")
    stack = find_stack("torch-compile")
    assert stack.weight_gradient_bytes > 0 and stack.expert_gradient_bytes > 0
    weights = {
        weight.name: weight.count for weight in layer_weights(model, layer_kinds(model).kinds[0])
    }

    def more(name: str) -> float:
        return own[name][1] - usual[name][1]

    assert more("attention_out") == stack.weight_gradient_bytes * weights["output"]
    assert more("experts_down") == stack.expert_gradient_bytes * weights["down"]
    elements = SEQ_LEN * 2 * model.hidden
    both = sum(own["permute"]) - sum(usual["permute"])
    assert both == pytest.approx(stack.routing_bytes * elements)
