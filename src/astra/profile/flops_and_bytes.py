"""What a measurement computes and moves: FLOPs and bytes, out of its shape alone."""

from collections.abc import Callable

from astra.profile.measurement import Measurement

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4, "fp8": 1, "uint8": 1}
BACKWARD_FLOPS = 2.5  # of attention's forward pass: five products instead of two


def flops_of(one: Measurement) -> float:
    """Multiplications and additions of products; other kernels count as none. [FLOPs]"""
    if one.op == "grouped":
        return 2.0 * one["experts"] * one["tokens"] * one["n"] * one["k"]
    if one.op in ("gemm", "fp8") and one.words[0] != "cast":
        return 2.0 * one["m"] * one["n"] * one["k"]
    if one.op == "attention":
        square = one["batch"] * one["heads"] * one["seq"] ** 2 / (2 if one["causal"] else 1)
        forward = 2.0 * square * (one["head_dim"] + one["v_head_dim"])
        return forward * (BACKWARD_FLOPS if one.words[-1] == "backward" else 1.0)
    return 0.0


def bytes_of(one: Measurement) -> float:
    """Least traffic with memory: every input read once, every output written once. [bytes]

    Of a collective it is the size of the message, as its benchmarks print it.
    """
    return float(_TRAFFIC[one.op](one))


def _gemm(one: Measurement) -> float:
    m, n, k = one["m"], one["n"], one["k"]
    element = ELEMENT_BYTES[one.dtype]
    if one.words[0] == "wgrad":  # reads and writes the fp32 sum
        return element * (m * n + m * k) + 8 * n * k
    return element * (m * n + m * k + n * k)


def _fp8(one: Measurement) -> float:
    if one.words[0] == "cast":
        return 3 * one["tokens"] * one["width"]
    m, n, k = one["m"], one["n"], one["k"]
    sides = {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}
    rows, columns, depth = sides[one.words[0]]
    return rows * depth + columns * depth + 2 * rows * columns


def _grouped(one: Measurement) -> float:
    experts, tokens, n, k = one["experts"], one["tokens"], one["n"], one["k"]
    return 2 * experts * (tokens * n + tokens * k + n * k)


def _attention(one: Measurement) -> float:
    rows = one["batch"] * one["seq"]
    queries = rows * one["heads"] * (one["head_dim"] + one["v_head_dim"])
    keys = rows * one["kv_heads"] * (one["head_dim"] + one["v_head_dim"])
    return 2 * (queries + keys) * (2 if one.words[-1] == "backward" else 1)


def _norm(one: Measurement) -> float:
    tensors = 2 if one.words[1] == "forward" else 3
    return 2 * tensors * one["tokens"] * one["width"]


def _activation(one: Measurement) -> float:
    gated = one.words[0] == "swiglu"
    tensors = {"forward": 3 if gated else 2, "backward": 5 if gated else 3}[one.words[1]]
    return 2 * tensors * one["tokens"] * one["width"]


def _rope(one: Measurement) -> float:
    return 4 * one["tokens"] * one["heads"] * one["head_dim"]


def _residual(one: Measurement) -> float:
    back = one.words[1] == "backward"  # reads both inputs again and the gradient
    tensors = {"add": 3, "copy": 2, "fill": 1, "add_rms_norm": 4 if back else 3}[one.words[0]]
    return 2 * tensors * one["tokens"] * one["width"]


def _embedding(one: Measurement) -> float:
    if one.words[1] == "forward":
        return 4 * one["tokens"] * one["width"]
    return 2 * (one["tokens"] + one["vocab"]) * one["width"]


def _loss(one: Measurement) -> float:
    tensors = 1 if one.words[1] == "forward" else 2
    return 2 * tensors * one["tokens"] * one["vocab"]


def _permute(one: Measurement) -> float:
    if one.words[0] == "sort":
        return 12 * one["tokens"] * one["top_k"]
    return 2 * one["tokens"] * one["width"] * (1 + one["top_k"])


def _adam(one: Measurement) -> float:
    # p, g, m, v read and all but g written; g read; p read and half of it written
    per_parameter = {"fused": 28, "foreach": 28, "norm": 4, "cast": 6}[one.words[0]]
    return per_parameter * one["parameters"]


_TRAFFIC: dict[str, Callable[[Measurement], float]] = {
    "gemm": _gemm,
    "fp8": _fp8,
    "grouped": _grouped,
    "attention": _attention,
    "norm": _norm,
    "activation": _activation,
    "rope": _rope,
    "residual": _residual,
    "embedding": _embedding,
    "loss": _loss,
    "permute": _permute,
    "adam": _adam,
    "copy": lambda one: one["bytes"],
    "launch": lambda one: 6 * one["elements"],
    "collective": lambda one: one["bytes"],
}
