"""A layer as a list of operators with their seconds, forward and backward.

Shapes follow Megatron-LM's layers: what tensor, context and expert parallelism leave of each
matrix on one GPU. Arrays go over shapes: the distinct ways to shard a layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from astra.columns import factorized
from astra.model.flops import mean_reach
from astra.model.layer_kinds import LayerKind
from astra.model.shape import Mla, Model, Moe
from astra.timing.constants import ElementwiseKernels, MovedBytes, timing_constants
from astra.timing.device import Device

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LayerShape:
    """What one GPU has of a layer, in every distinct way to shard it. (shape,)"""

    micro_batch: Floats
    seq_len: Floats
    tp: Floats
    cp: Floats
    sp: Floats  # tp where the sequence is shared among tensor-parallel ranks, else 1
    ep: Floats
    etp: Floats
    capacity: Floats  # tokens an expert takes for each one routed to it on average
    domain: Floats  # GPUs of the job in each link domain
    node: Floats  # and in each node

    @property
    def tokens(self) -> Floats:
        """Of one micro-batch on one GPU, before sequence parallelism shares them."""
        return self.micro_batch * self.seq_len / self.cp


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a layer, and the module that recompute knows it by."""

    name: str
    module: str
    forward_s: Floats
    backward_s: Floats
    wgrad_s: Floats | None = None  # the part of the backward pass that nothing waits for

    def take(self, rows: NDArray[np.intp]) -> "Operator":
        """The same for these of its shapes."""
        parts = (self.forward_s, self.backward_s, self.wgrad_s)
        taken = (part if part is None or part.ndim == 0 else part[rows] for part in parts)
        return Operator(self.name, self.module, *taken)  # type: ignore[arg-type]


def layer_operators(
    model: Model,
    kind: LayerKind,
    shape: LayerShape,
    device: Device,
    fused_attention: bool,
    dispatcher: str = "alltoall",
) -> list[Operator]:
    """All operators of one decoder layer, in the order of the forward pass."""
    if model.mla is not None:
        attention = _latent_attention(model, model.mla, kind, shape, device, fused_attention)
    else:
        attention = _attention(model, kind, shape, device, fused_attention)
    if kind.mlp == "moe":
        assert model.moe is not None
        mlp = _experts(model, model.moe, shape, device, dispatcher)
    else:
        mlp = _mlp(model, model.ffn, shape, device, "mlp")
    return [*attention, *mlp, *_stream(model, kind, shape, device)]


def _elementwise(device: Device) -> ElementwiseKernels:
    found: ElementwiseKernels = getattr(timing_constants().layers, device.stack.layers)
    return found


def _separate_products(model: Model, device: Device) -> bool:
    """Whether products of one input are kernels of their own: query, key and value, gate and up."""
    return device.stack.layers != "fused" and not model.fused_qkv


def _moved(name: str, module: str, device: Device, *parts: tuple[MovedBytes, Floats]) -> Operator:
    """An operator of kernels bound by memory: each part with the elements it works on."""

    def seconds(way: str) -> Floats:
        moved = sum((getattr(part, f"{way}_bytes") * count for part, count in parts), np.zeros(1))
        kernels = sum(getattr(part, f"{way}_kernels") for part, _ in parts)
        return device.memory_s(moved, kernels)

    return Operator(name, module, seconds("forward"), seconds("backward"))


def _linears(
    name: str,
    module: str,
    shape: LayerShape,
    widths: Sequence[Floats | float],
    k: float,
    device: Device,
) -> Operator:
    """Linear layers of one input that is gathered, one after the other. It is cast once."""
    each = [_linear(name, module, shape, n, k, device, "input") for n in widths]
    wgrad = sum((op.wgrad_s for op in each if op.wgrad_s is not None), np.zeros(1))
    forward = sum((op.forward_s for op in each), np.zeros(1))
    if device.stack.layers == "compiled":
        forward = forward - (len(each) - 1) * _casts(_cast(shape, device, True), k, device)
    return Operator(name, module, forward, sum((op.backward_s for op in each), np.zeros(1)), wgrad)


def _linear(
    name: str,
    module: str,
    shape: LayerShape,
    n: Floats | float,
    k: Floats | float,
    device: Device,
    gathered: Literal["input", "output"] | None = None,
) -> Operator:
    """A linear layer over all tokens, with fp8 casts of what goes in.

    `gathered` among ranks that share a sequence is its input, or its output's gradient.
    """
    m = shape.tokens
    ns, ks = np.broadcast_to(n, m.shape), np.broadcast_to(k, m.shape)
    wgrad = device.gemm_s(m, ns, ks, "wgrad") + _summed_s(
        ns * ks, device, device.stack.weight_gradient_bytes
    )
    into, back = (_cast(shape, device, gathered == side) for side in ("input", "output"))
    return Operator(
        name,
        module,
        device.gemm_s(m, ns, ks, "forward") + _casts(into, ks, device),
        device.gemm_s(m, ns, ks, "dgrad") + wgrad + _casts(back, ns, device),
        wgrad,
    )


def _cast(shape: LayerShape, device: Device, gathered: bool) -> Floats:
    """Tokens that are cast: a rank's share where it is gathered after that."""
    return shape.tokens / (shape.sp if gathered and device.casts_shards else 1.0)


def _summed_s(parameters: Floats, device: Device, each_bytes: float) -> Floats:
    """Gradients that a stack moves once more than the products that make them."""
    if not each_bytes:
        return np.zeros(parameters.shape)
    return device.memory_s(each_bytes * parameters)


def _casts(tokens: Floats, width: Floats | float, device: Device) -> Floats:
    """Inputs of a product in fp8 or fp4, made by a kernel of their own."""
    if not device.cast_bytes:
        return np.zeros(tokens.shape)
    return device.memory_s(device.cast_bytes * tokens * width)


def _attention(
    model: Model, kind: LayerKind, shape: LayerShape, device: Device, fused: bool
) -> list[Operator]:
    queries = model.heads * model.head_dim / shape.tp
    keys_values = model.kv_heads * model.head_dim / np.minimum(shape.tp, model.kv_heads)
    turned = shape.tokens * (queries + keys_values)
    kernels = [(_elementwise(device).rope, turned)]
    if model.qk_norm is not None:
        kernels.append((_elementwise(device).head_norm, turned))
    widths = [queries + 2 * keys_values]
    if _separate_products(model, device):
        widths = [queries, keys_values, keys_values]
    return [
        _linears("qkv", "attention", shape, widths, model.hidden, device),
        _moved("rope", "attention", device, *kernels),
        _core(model, kind, shape, device, model.head_dim, model.head_dim, fused),
        _linear("attention_out", "attention", shape, model.hidden, queries, device, "output"),
    ]


def _latent_attention(
    model: Model, mla: Mla, kind: LayerKind, shape: LayerShape, device: Device, fused: bool
) -> list[Operator]:
    """Down-projections on every tensor-parallel rank, up-projections cut by heads."""
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    rank = mla.q_lora_rank or 0
    heads = model.heads / shape.tp
    shared = replace(shape, micro_batch=shape.micro_batch / shape.sp, sp=np.ones_like(shape.sp))
    down = rank + mla.kv_lora_rank + mla.qk_rope_head_dim
    unfolded = heads * (query + mla.qk_nope_head_dim + mla.v_head_dim)
    copied = shape.tokens * (unfolded + heads * query)
    elementwise = _elementwise(device)
    downs: list[Floats | float] = [down]
    if device.stack.layers != "fused":
        downs = [*([float(rank)] if rank else []), float(down - rank)]
    return [
        _linears("latent_down", "attention", shared, downs, model.hidden, device),
        _moved(
            "latent_norms", "attention", device, (elementwise.latent_norm, shared.tokens * down)
        ),
        _linear("query_up", "mla_up_proj", shape, heads * query, rank or model.hidden, device),
        _linear(
            "key_value_up",
            "mla_up_proj",
            shape,
            heads * (mla.qk_nope_head_dim + mla.v_head_dim),
            mla.kv_lora_rank,
            device,
        ),
        _moved("rope", "mla_up_proj", device, (elementwise.latent, copied)),
        _core(model, kind, shape, device, query, mla.v_head_dim, fused),
        _linear("attention_out", "attention", shape, model.hidden, heads * mla.v_head_dim, device),
    ]


def _core(
    model: Model,
    kind: LayerKind,
    shape: LayerShape,
    device: Device,
    query_dim: int,
    value_dim: int,
    fused: bool,
) -> Operator:
    """Scores and weighted values; causal and windowed positions counted as far as they reach.

    Context parallelism cuts the causal triangle in balanced halves, so each rank does 1 / cp.
    Hugging Face's layers tell PyTorch a window by a mask, once the sequence is as long as it; the
    whole square is computed then.
    """
    heads = model.heads / shape.tp
    if not fused:
        return _unfused_core(shape, device, heads, query_dim + value_dim)
    lengths, of_length = factorized(shape.seq_len)
    reach = np.array([mean_reach(kind, int(length)) for length in lengths])[of_length]
    flops = 2.0 * shape.tokens * heads * (query_dim + value_dim) * reach
    lengths_seen = np.maximum(2 * reach / shape.cp, 1.0)
    masks = kind.window is not None and device.stack.layers != "fused"
    masked = shape.seq_len >= (kind.window or np.inf) if masks else None
    whole = 2.0 * shape.tokens * heads * (query_dim + value_dim) * shape.seq_len

    def seconds(backward: bool) -> Floats:
        causal = device.attention_s(
            flops=flops,
            seq_len=lengths_seen,
            head_dim=(query_dim + value_dim) / 2,
            heads=heads,
            batch=shape.micro_batch,
            backward=backward,
        )
        if masked is None:
            return causal
        square = device.masked_attention_s(whole, (query_dim + value_dim) / 2, backward)
        return np.where(masked, square, causal)

    return Operator("core_attention", "core_attn", seconds(False), seconds(True))


def _unfused_core(shape: LayerShape, device: Device, heads: Floats, dims: int) -> Operator:
    """Two batched products over the whole square, and softmax and dropout through memory."""
    rows = shape.tokens * heads
    square = rows * shape.seq_len
    half = np.full(rows.shape, dims / 2.0)
    matmul = 2 * device.gemm_s(rows, shape.seq_len, half, "forward", device.half)
    matmul_back = 2 * (
        device.gemm_s(rows, shape.seq_len, half, "dgrad", device.half)
        + device.gemm_s(rows, shape.seq_len, half, "wgrad", device.half)
    )
    return Operator(
        "core_attention",
        "core_attn",
        matmul + device.memory_s(device.stack.unfused_forward_bytes * square, 3),
        matmul_back + device.memory_s(device.stack.unfused_backward_bytes * square, 3),
    )


def _mlp(
    model: Model, width: int, shape: LayerShape, device: Device, module: str
) -> list[Operator]:
    ups = 1 + model.gated_mlp
    cut = width / shape.tp
    through = shape.tokens * cut
    elementwise = _elementwise(device)
    kernels = elementwise.gated if model.gated_mlp else elementwise.ungated
    widths = [cut] * ups if _separate_products(model, device) else [ups * cut]
    return [
        _linears("mlp_up", module, shape, widths, model.hidden, device),
        _moved("activation", module, device, (kernels, through)),
        _linear("mlp_down", module, shape, model.hidden, cut, device, "output"),
    ]


def _experts(
    model: Model, moe: Moe, shape: LayerShape, device: Device, dispatcher: str
) -> list[Operator]:
    """Router, permutation, grouped products of the local experts, shared experts."""
    arriving = shape.tokens / shape.sp
    routed = arriving * moe.top_k * shape.capacity * shape.etp
    local = np.maximum(moe.experts / shape.ep, 1.0)
    ups = 1 + model.gated_mlp
    cut = moe.moe_ffn / shape.etp
    hidden = np.full(routed.shape, float(model.hidden))
    half = np.full(routed.shape, float(moe.experts))
    router = device.gemm_s(arriving, half, hidden, "forward", device.half)
    scores = device.memory_s(24.0 * arriving * moe.experts, 6, True)
    pads = device.cast_bytes > 0 and dispatcher != "hybridep"
    copied = 8.0 + (2 * timing_constants().casts.padded_bytes if pads else 0.0)
    copied += device.stack.routing_bytes / 2
    moved = device.memory_s(copied * routed * model.hidden, 4, True)
    elementwise = _elementwise(device)
    kernels = elementwise.experts_gated if model.gated_mlp else elementwise.ungated

    def grouped(name: str, n: Floats, k: Floats) -> Operator:
        wgrad = device.grouped_gemm_s(local, routed, n, k, "wgrad")
        wgrad = wgrad + _summed_s(local * n * k, device, device.stack.expert_gradient_bytes)
        return Operator(
            name,
            "moe",
            device.grouped_gemm_s(local, routed, n, k, "forward") + _casts(routed, k, device),
            device.grouped_gemm_s(local, routed, n, k, "dgrad") + wgrad + _casts(routed, n, device),
            wgrad,
        )

    found = [
        Operator("router", "moe", router + scores, 2 * router + scores),
        Operator("permute", "moe", moved, moved),
        grouped("experts_up", ups * cut, hidden),
        _moved("experts_activation", "moe_act", device, (kernels, routed * cut)),
        grouped("experts_down", hidden, cut),
    ]
    if model.biased_experts:
        found.append(_expert_biases(routed, model.hidden, ups * cut, device))
    if moe.shared_ffn:
        found += _mlp(model, moe.shared_ffn, shape, device, "shared_experts")
    return found


def _expert_biases(routed: Floats, hidden: int, width: Floats, device: Device) -> Operator:
    """Biases of the experts: the first within its product, the second by kernels of its own.

    It is weighed by the router's probabilities in fp32, expert by expert, joined and rounded again
    (Megatron-core's `TEGroupedMLP._apply_bias`). Bytes an element, forward: 4 for the weighed bias,
    10 for the sum, 8 for joining, 6 for rounding. Backward: 6 and 6 for converting, 12 each for
    what the bias and the probabilities get, 4 for joining; and the first bias sums its gradient.
    """
    elements = routed * hidden
    return Operator(
        "experts_bias",
        "moe",
        device.memory_s(28.0 * elements, 4, True),
        device.memory_s(40.0 * elements + 2.0 * routed * width, 8, True),
    )


def _stream(model: Model, kind: LayerKind, shape: LayerShape, device: Device) -> list[Operator]:
    """Norms and residual additions, on the share of the sequence a rank has.

    With them, where products of one input are kernels of their own, the sums of its gradients, and
    the gradients of biases that no product makes on its way.
    """
    stream = shape.tokens * model.hidden / shape.sp
    elementwise, dense = _elementwise(device), kind.mlp == "dense"
    norm = elementwise.rms_norm if model.norm == "rmsnorm" else elementwise.layer_norm
    added = [(elementwise.residual, stream)]
    if _separate_products(model, device) and elementwise.joined.backward_bytes:
        more = 2 * (model.mla is None) + model.gated_mlp * dense
        added += [(elementwise.joined, stream)] * more
    if model.fused_qkv and model.gated_mlp and dense and elementwise.split.backward_bytes:
        width = (model.heads + 2 * model.kv_heads) * model.head_dim + 2 * model.ffn
        added.append((elementwise.split, shape.tokens * width / shape.tp))
    if elementwise.bias.backward_bytes:
        widths = _biased(model, dense)
        added += [(elementwise.bias, shape.tokens * width / shape.tp) for width in widths]
    return [
        _moved("norms", "layernorm", device, *[(norm, stream)] * model.norms_per_layer),
        _moved("residual", "residual", device, *added),
    ]


def _biased(model: Model, dense: bool) -> list[float]:
    """Widths of the products that add a bias."""
    found: list[float] = []
    if model.qkv_bias and model.mla is None:
        found += [(model.heads + 2 * model.kv_heads) * model.head_dim]
    if model.attn_out_bias:
        found += [model.hidden]
    if model.mlp_bias and dense:
        found += [(1 + model.gated_mlp) * model.ffn, model.hidden]
    return found


def head_operators(model: Model, shape: LayerShape, device: Device, rows: Floats) -> list[Operator]:
    """Final norm, logits and the loss over the vocabulary, of so many rows with their padding."""
    vocab = rows / shape.tp
    hidden = np.full(vocab.shape, float(model.hidden))
    logits = shape.tokens * vocab
    wgrad = device.gemm_s(shape.tokens, vocab, hidden, "wgrad", device.half)
    wgrad = wgrad + _summed_s(vocab * hidden, device, device.stack.weight_gradient_bytes)
    norm = 4.0 * shape.tokens * model.hidden / shape.sp
    found = [
        Operator("final_norm", "head", device.memory_s(norm), device.memory_s(1.5 * norm)),
        Operator(
            "logits",
            "head",
            device.gemm_s(shape.tokens, vocab, hidden, "forward", device.half),
            device.gemm_s(shape.tokens, vocab, hidden, "dgrad", device.half) + wgrad,
            wgrad,
        ),
        _moved("loss", "head", device, (_elementwise(device).loss, logits)),
    ]
    if model.capped_logits:
        found.append(_moved("logits_cap", "head", device, (_elementwise(device).cap, logits)))
    return found


def embedding_operators(model: Model, shape: LayerShape, device: Device) -> list[Operator]:
    """Looking rows up, and adding gradients to them."""
    rows = shape.tokens * model.hidden
    return [
        Operator(
            "embedding", "embedding", device.memory_s(4.0 * rows), device.memory_s(10.0 * rows)
        )
    ]
