"""Kernels bound by memory, optimizer, copies and launches, as torch runs them."""

from collections.abc import Callable
from typing import Any

from astra.profile.bench import Bench
from astra.profile.measurement import Measurement
from astra.profile.timer import Run, TimedCase


def _two_ways(
    bench: Bench, one: Measurement, call: Callable[..., Any], operands: Callable[[], list[Any]]
) -> TimedCase:
    """A differentiable function, forward or backward, eager or compiled."""
    run = bench.compiled(call, one)
    back = one.words[1] == "backward"

    def make() -> Run:
        given = operands()
        if not back:
            return bench.without_grad(lambda: run(*given))
        wanted = [x.requires_grad_() for x in given if x.is_floating_point()]
        return bench.backward_of(lambda: run(*given), wanted)

    return TimedCase(make=make)


def norm(bench: Bench, one: Measurement) -> TimedCase:
    functional, width = bench.torch.nn.functional, one["width"]
    kernel = one.words[0]

    def rms_norm(x: Any, w: Any) -> Any:
        return functional.rms_norm(x, (width,), w, 1e-6)

    def layer_norm(x: Any, w: Any, b: Any) -> Any:
        return functional.layer_norm(x, (width,), w, b, 1e-5)

    def operands() -> list[Any]:
        weights = [bench.ones(width) for _ in range(1 if kernel == "rms_norm" else 2)]
        return [bench.normal(one["tokens"], width), *weights]

    return _two_ways(bench, one, rms_norm if kernel == "rms_norm" else layer_norm, operands)


def activation(bench: Bench, one: Measurement) -> TimedCase:
    functional = bench.torch.nn.functional
    gated = one.words[0] == "swiglu"

    def swiglu(x: Any) -> Any:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def gelu(x: Any) -> Any:
        return functional.gelu(x, approximate="tanh")

    def operands() -> list[Any]:
        return [bench.normal(one["tokens"], one["width"] * (2 if gated else 1))]

    return _two_ways(bench, one, swiglu if gated else gelu, operands)


def rope(bench: Bench, one: Measurement) -> TimedCase:
    """Halves of each head rotated by tables that all heads share."""
    torch, tokens, width = bench.torch, one["tokens"], one["head_dim"]
    cosine, sine = (bench.normal(tokens, 1, width) for _ in range(2))

    def rotate(x: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-second, first), dim=-1) * sine

    return _two_ways(bench, one, rotate, lambda: [bench.normal(tokens, one["heads"], width)])


def residual(bench: Bench, one: Measurement) -> TimedCase:
    torch, kernel = bench.torch, one.words[0]
    shape = (one["tokens"], one["width"])

    def add_rms_norm(x: Any, y: Any, w: Any) -> Any:
        total = x + y
        return total + torch.nn.functional.rms_norm(total, (one["width"],), w, 1e-6)

    if kernel == "add_rms_norm":
        operands = lambda: [bench.normal(*shape), bench.normal(*shape), bench.ones(one["width"])]  # noqa: E731
        return _two_ways(bench, one, add_rms_norm, operands)

    def make() -> Run:
        x, y, z = bench.normal(*shape), bench.normal(*shape), bench.empty(*shape)
        if kernel == "add":
            return lambda: torch.add(x, y, out=z)
        return (lambda: z.copy_(x)) if kernel == "copy" else (lambda: z.zero_())

    return TimedCase(make=make)


def embedding(bench: Bench, one: Measurement) -> TimedCase:
    functional = bench.torch.nn.functional
    back = one.words[1] == "backward"

    def make() -> Run:
        table = bench.normal(one["vocab"], one["width"])
        rows = bench.integers(one["vocab"], one["tokens"])
        if not back:
            return bench.without_grad(lambda: functional.embedding(rows, table))
        table.requires_grad_()
        return bench.backward_of(lambda: functional.embedding(rows, table), [table])

    return TimedCase(
        make=make, capture=not back, rotate=not back
    )  # sorts, and may wait for the host


def loss(bench: Bench, one: Measurement) -> TimedCase:
    functional = bench.torch.nn.functional
    rows = bench.integers(one["vocab"], one["tokens"])

    def cross_entropy(logits: Any) -> Any:
        return functional.cross_entropy(logits.float(), rows)

    return _two_ways(bench, one, cross_entropy, lambda: [bench.normal(one["tokens"], one["vocab"])])


def permute(bench: Bench, one: Measurement) -> TimedCase:
    """Tokens copied to where their experts are, sorted; results brought back, weighted."""
    torch, tokens, top_k, width = bench.torch, one["tokens"], one["top_k"], one["width"]
    kernel = one.words[0]
    chosen = bench.integers(one["experts"], tokens * top_k)
    order = torch.argsort(chosen, stable=True)
    back_order = torch.argsort(order)
    owners = order // top_k

    if kernel == "sort":
        return TimedCase(make=lambda: lambda: torch.argsort(chosen, stable=True), capture=False)

    def spread(x: Any) -> Any:
        return x.index_select(0, owners)

    def gather(y: Any, weights: Any) -> Any:
        rows = y.index_select(0, back_order).view(tokens, top_k, width)
        return (rows * weights).sum(dim=1)

    def operands() -> list[Any]:
        if kernel == "permute":
            return [bench.normal(tokens, width)]
        return [bench.normal(tokens * top_k, width), bench.normal(tokens, top_k, 1)]

    return _two_ways(bench, one, spread if kernel == "permute" else gather, operands)


def adam(bench: Bench, one: Measurement) -> TimedCase:
    """The optimizer's step, the norm of gradients, and masters cast to working weights."""
    torch, tensors, kernel = bench.torch, one["tensors"], one.variant
    size = one["parameters"] // tensors
    on_gpu = bench.device != "cpu"

    def make() -> Run:
        masters = [bench.normal(size, dtype=torch.float32) for _ in range(tensors)]
        if kernel == "norm":
            return lambda: torch._foreach_norm(masters)
        if kernel == "cast":
            halves = [bench.empty(size) for _ in range(tensors)]
            return lambda: torch._foreach_copy_(halves, masters)
        for master in masters:
            master.grad = bench.normal(size, dtype=torch.float32)
        how = {"fused": True} if kernel == "fused" else {"foreach": True}
        step = torch.optim.AdamW(masters, lr=1e-6, capturable=on_gpu, **how).step
        return lambda: step()

    return TimedCase(make=make, rotate=one["parameters"] < 2**24)


def copy(bench: Bench, one: Measurement) -> TimedCase:
    torch, size = bench.torch, one["bytes"]
    way, kind = one.words
    pinned = kind == "pinned"

    def make() -> Run:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        host.fill_(1)  # pages are given out when they are first written
        near = bench.zeros(size, dtype=torch.uint8)
        if way == "to_device":
            return lambda: near.copy_(host, non_blocking=pinned)
        return lambda: host.copy_(near, non_blocking=pinned)

    return TimedCase(make=make, capture=False, rotate=False)


def launch(bench: Bench, one: Measurement) -> TimedCase:
    """Kernels so small that only their start is left."""
    torch, (kernel, how) = bench.torch, one.words
    width = one["elements"]

    def layer(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = x + torch.nn.functional.gelu(torch.nn.functional.rms_norm(x, (width,)) @ w)
        return x

    run = bench.compiled(layer, one)

    def make() -> Run:
        x, y, w = bench.normal(16, width), bench.normal(16, width), bench.normal(width, width)
        if kernel == "add":
            return lambda: torch.add(x, y, out=y)
        if kernel == "linear":
            return bench.without_grad(lambda: torch.nn.functional.linear(x, w))
        if kernel == "layer":
            return bench.without_grad(lambda: run(x, w))
        if kernel == "sync":
            return lambda: torch.add(x, y).sum().item()
        x.requires_grad_()
        w.requires_grad_()
        return lambda: torch.nn.functional.linear(x, w).backward(y)

    return TimedCase(make=make, capture=how == "graph", rotate=False)
