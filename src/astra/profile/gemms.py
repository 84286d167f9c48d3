"""Matrix products and attention as torch runs them: plain, in fp8, of many experts."""

from typing import Any

from astra.profile.bench import Bench
from astra.profile.measurement import Measurement
from astra.profile.timer import Run, TimedCase


def gemm(bench: Bench, one: Measurement) -> TimedCase:
    torch, m, n, k = bench.torch, one["m"], one["n"], one["k"]
    bench.allow_tf32(one.dtype == "tf32")
    dtype = bench.dtype(one.dtype)

    def make() -> Run:
        if one.variant == "forward":
            x, w = bench.normal(m, k, dtype=dtype), bench.normal(n, k, dtype=dtype)
            y = bench.empty(m, n, dtype=dtype)
            return lambda: torch.mm(x, w.t(), out=y)
        dy = bench.normal(m, n, dtype=dtype)
        if one.variant == "dgrad":
            w, dx = bench.normal(n, k, dtype=dtype), bench.empty(m, k, dtype=dtype)
            return lambda: torch.mm(dy, w, out=dx)
        x = bench.normal(m, k, dtype=dtype)
        if one.variant == "wgrad_half":
            dw = bench.empty(n, k, dtype=dtype)
            return lambda: torch.mm(dy.t(), x, out=dw)
        total = bench.zeros(n, k, dtype=torch.float32)
        return lambda: torch.addmm(total, dy.t(), x, out_dtype=torch.float32, out=total)

    return TimedCase(make=make)


def fp8(bench: Bench, one: Measurement) -> TimedCase:
    """Scaled by tensor. Gradients in e5m2, and summed exactly as the usual recipes do."""
    if one.words[0] == "cast":
        return _cast(bench, one)
    torch, m, n, k = bench.torch, one["m"], one["n"], one["k"]
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    sides = {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}
    rows, columns, depth = sides[one.variant]
    left = e4m3 if one.variant == "forward" else e5m2

    def make() -> Run:
        a = bench.normal(rows, depth, dtype=torch.bfloat16).to(left)
        b = bench.normal(columns, depth, dtype=torch.bfloat16).to(e4m3)
        scale = bench.ones(1, dtype=torch.float32).reshape(())
        fast = one.variant == "forward"
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    return TimedCase(make=make)


def _cast(bench: Bench, one: Measurement) -> TimedCase:
    torch = bench.torch

    def cast(x: Any) -> Any:
        scale = 448.0 / x.abs().amax().float().clamp(min=1e-12)
        return (x * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale

    run = bench.compiled(cast, one)

    def make() -> Run:
        x = bench.normal(one["tokens"], one["width"], dtype=torch.bfloat16)
        return lambda: run(x)

    return TimedCase(make=make)


def grouped(bench: Bench, one: Measurement) -> TimedCase:
    """All experts in one call, each with the same number of tokens."""
    torch = bench.torch
    experts, tokens, n, k = one["experts"], one["tokens"], one["n"], one["k"]
    product = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm

    def make() -> Run:
        ends = bench.steps(experts, tokens)
        x = bench.normal(experts * tokens, k)
        w = bench.normal(experts, n, k)
        if one.variant == "forward":
            return lambda: product(x, w.transpose(-2, -1), offs=ends)
        dy = bench.normal(experts * tokens, n)
        if one.variant == "dgrad":
            return lambda: product(dy, w, offs=ends)
        return lambda: product(dy.t(), x, offs=ends)

    return TimedCase(make=make)


def attention(bench: Bench, one: Measurement) -> TimedCase:
    """One backend of torch's fused attention, on tensors laid out (sample, token, head)."""
    torch = bench.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernel, direction = one.words
    backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[kernel]
    grouped_heads = one["heads"] != one["kv_heads"]
    extra = {"enable_gqa": True} if grouped_heads else {}

    def heads(count: int, width: int, grad: bool) -> Any:
        rows = bench.normal(one["batch"], one["seq"], count, width)
        return rows.transpose(1, 2).requires_grad_(grad)

    def make() -> Run:
        back = direction == "backward"
        q = heads(one["heads"], one["head_dim"], back)
        k = heads(one["kv_heads"], one["head_dim"], back)
        v = heads(one["kv_heads"], one["v_head_dim"], back)

        def forward() -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=bool(one["causal"]), **extra
                )

        return bench.backward_of(forward, (q, k, v)) if back else bench.without_grad(forward)

    return TimedCase(make=make)
