"""Which shapes are measured, and in which order.

Transformers of usual widths, cut by tensor, context and expert parallelism and into
micro-batches. Wave 0 is a coarse grid over every operator, so that a short run says something
about each; wave 1 adds the shapes of models, wave 2 what lies between.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from astra.errors import InputError, did_you_mean
from astra.profile.measurement import Measurement, measurement

LINEAR = ("forward", "dgrad", "wgrad")
MAX_FLOPS = 6e13  # of one call: longer ones tell nothing that shorter ones do not
MAX_BYTES = 24e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """The widths of a transformer that decide the shapes of its kernels."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int


# Round figures of common sizes: 1B to 400B parameters, gated and plain, many heads and few.
WIDTHS = (
    Width(hidden=2048, heads=32, kv_heads=8, head_dim=64, ffn=8192, gated=True, vocab=128256),
    Width(hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, gated=True, vocab=128256),
    Width(hidden=5120, heads=40, kv_heads=40, head_dim=128, ffn=13824, gated=True, vocab=32000),
    Width(hidden=6144, heads=48, kv_heads=48, head_dim=128, ffn=24576, gated=False, vocab=51200),
    Width(hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, gated=True, vocab=128256),
    Width(hidden=12288, heads=96, kv_heads=96, head_dim=128, ffn=49152, gated=False, vocab=51200),
    Width(hidden=16384, heads=128, kv_heads=8, head_dim=128, ffn=53248, gated=True, vocab=128256),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: one expert's widths, how many there are, how many a token visits."""

    hidden: int
    ffn: int
    experts: int
    top_k: int


EXPERTS = (
    Experts(hidden=4096, ffn=14336, experts=8, top_k=2),
    Experts(hidden=2048, ffn=768, experts=128, top_k=8),
    Experts(hidden=7168, ffn=2048, experts=256, top_k=8),
    Experts(hidden=2048, ffn=1024, experts=64, top_k=8),
    Experts(hidden=6144, ffn=10752, experts=16, top_k=4),
)


# --- Products -----------------------------------------------------------------------------------


def linears(width: Width, tp: int) -> Iterator[tuple[int, int]]:
    """Outputs and inputs of a layer's linear maps and of the head, on one of `tp` GPUs."""
    queries = width.heads * width.head_dim
    keys = 2 * max(width.kv_heads // tp, 1) * width.head_dim
    yield queries // tp + keys, width.hidden
    yield width.hidden, queries // tp
    yield (2 if width.gated else 1) * width.ffn // tp, width.hidden
    yield width.hidden, width.ffn // tp
    yield width.vocab // tp, width.hidden


def gemms() -> Iterator[Measurement]:
    def each(wave: int, variants: Iterable[str], m: int, n: int, k: int) -> Iterator[Measurement]:
        for variant in variants:
            yield measurement("gemm", variant, "bf16", wave, m=m, n=n, k=k)

    for m, n, k in product((1024, 4096, 16384), (1024, 4096, 16384), (1024, 4096, 16384)):
        yield from each(0, ("forward",), m, n, k)
    for m, (n, k) in product((4096, 16384), ((4096, 4096), (28672, 4096), (4096, 14336))):
        yield from each(0, LINEAR, m, n, k)
    for width, tp, m in product(WIDTHS[1:6:2], (1, 4), (2048, 8192)):
        for n, k in linears(width, tp):
            yield from each(1, LINEAR, m, n, k)
    small, large = (64, 256, 1024, 4096), (256, 1024, 4096, 16384, 65536)
    for m, n, k in product(small, large, large):
        yield from each(1, ("forward",), m, n, k)
    for m, n, k in product((512, 2048, 8192, 32768), (512, 2048, 8192, 32768), (512, 2048, 8192)):
        yield from each(1, ("forward",), m, n, k)
    for width, tp, m in product(WIDTHS, (1, 2, 4, 8), (1024, 4096, 16384)):
        for n, k in linears(width, tp):
            yield from each(2, LINEAR, m, n, k)
    for m, n, k in product((64, 128, 512, 2048, 8192, 32768), repeat=3):
        yield from each(2, ("forward",), m, n, k)
    for m, n, k in product((2048, 8192), (4096, 16384), (4096, 16384)):
        yield from each(2, ("wgrad_half",), m, n, k)
        for dtype in ("fp16", "tf32", "fp32"):
            yield measurement("gemm", "forward", dtype, 2, m=m, n=n // 2, k=k // 2)


def fp8s() -> Iterator[Measurement]:
    def each(wave: int, variants: Iterable[str], m: int, n: int, k: int) -> Iterator[Measurement]:
        for variant in variants:
            yield measurement("fp8", variant, "fp8", wave, m=m, n=n, k=k)

    for m, n, k in product((4096, 16384), (4096, 16384), (4096, 16384)):
        yield from each(0, ("forward",), m, n, k)
    for how in ("eager", "compiled"):
        yield measurement("fp8", f"cast.{how}", "fp8", 0, tokens=8192, width=8192)
    for width, tp, m in product(WIDTHS[1:5:3], (1, 4), (2048, 8192)):
        for n, k in linears(width, tp):
            yield from each(1, LINEAR, m, n, k)
    for m, n, k in product((1024, 4096, 16384), (2048, 8192, 28672), (2048, 8192, 28672)):
        yield from each(2, LINEAR, m, n, k)
    for how, tokens, wide in product(("eager", "compiled"), (2048, 16384), (4096, 14336)):
        yield measurement("fp8", f"cast.{how}", "fp8", 2, tokens=tokens, width=wide)


def grouped_gemms() -> Iterator[Measurement]:
    """Products of a GPU's experts: local experts, tokens each, outputs and inputs of one."""

    def each(wave: int, moe: Experts, local: int, tokens: int) -> Iterator[Measurement]:
        for variant, (n, k) in product(LINEAR, ((2 * moe.ffn, moe.hidden), (moe.hidden, moe.ffn))):
            yield measurement(
                "grouped", variant, "bf16", wave, experts=local, tokens=tokens, n=n, k=k
            )

    for moe, tokens in product(EXPERTS[:3], (256, 2048)):
        yield from each(0, moe, min(moe.experts, 8), tokens)
    for moe, ep, tokens in product(EXPERTS, (1, 4, 16), (128, 512, 4096)):
        if moe.experts >= ep:
            yield from each(1 if ep == 4 else 2, moe, moe.experts // ep, tokens)


# --- Attention ----------------------------------------------------------------------------------


def attentions() -> Iterator[Measurement]:
    def each(
        wave: int, kernels: Iterable[str], *, batch: int, seq: int, heads: int, kv_heads: int,
        head_dim: int, v_head_dim: int = 0, causal: int = 1,
    ) -> Iterator[Measurement]:  # fmt: skip
        for kernel, direction in product(kernels, ("forward", "backward")):
            yield measurement(
                "attention", f"{kernel}.{direction}", "bf16", wave, batch=batch, seq=seq,
                heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                v_head_dim=v_head_dim or head_dim, causal=causal,
            )  # fmt: skip

    both = ("cudnn", "flash")
    for seq in (1024, 4096, 16384):
        batch = max(16384 // seq, 1)
        yield from each(0, both, batch=batch, seq=seq, heads=32, kv_heads=8, head_dim=128)
    for head_dim in (64, 256):
        heads = 2048 // head_dim
        yield from each(0, both, batch=4, seq=4096, heads=heads, kv_heads=heads, head_dim=head_dim)
    mla = {"heads": 16, "kv_heads": 16, "head_dim": 192, "v_head_dim": 128}
    yield from each(0, both, batch=2, seq=4096, **mla)
    yield from each(0, ("cudnn",), batch=4, seq=4096, heads=32, kv_heads=8, head_dim=128, causal=0)
    for seq, head_dim, causal in product((512, 2048, 8192, 32768), (64, 128, 256), (1, 0)):
        batch, heads = max(16384 // seq, 1), 4096 // head_dim
        yield from each(
            1, ("cudnn",), batch=batch, seq=seq, heads=heads, kv_heads=heads, head_dim=head_dim,
            causal=causal,
        )  # fmt: skip
    for seq, heads in product((2048, 8192), (4, 8, 16)):  # what tp leaves of the heads
        yield from each(
            1, ("cudnn",), batch=1, seq=seq, heads=heads, kv_heads=max(heads // 4, 1), head_dim=128
        )
    for seq in (65536, 131072):
        yield from each(1, ("cudnn",), batch=1, seq=seq, heads=4, kv_heads=1, head_dim=128)
    for seq in (1024, 16384, 65536):
        yield from each(1, ("cudnn",), batch=1, seq=seq, **mla)
    for seq, head_dim, heads in product(
        (512, 1024, 2048, 4096, 8192, 16384, 65536), (64, 80, 96, 128, 192, 256), (8, 32)
    ):
        batch = max(8192 // seq, 1)
        yield from each(
            2, both, batch=batch, seq=seq, heads=heads, kv_heads=heads, head_dim=head_dim
        )


# --- Kernels bound by memory --------------------------------------------------------------------


def _both_ways(
    op: str, kernels: Iterable[str], wave: int, hows: Iterable[str], **shape: int
) -> Iterator[Measurement]:
    for kernel, how, direction in product(kernels, hows, ("forward", "backward")):
        yield measurement(op, f"{kernel}.{direction}.{how}", "bf16", wave, **shape)


EAGER, HOWS = ("eager",), ("eager", "compiled")


def norms() -> Iterator[Measurement]:
    kernels = ("rms_norm", "layer_norm")
    yield from _both_ways("norm", kernels, 0, HOWS, tokens=8192, width=4096)
    for tokens, width in ((1024, 4096), (4096, 8192), (32768, 8192), (1024, 1024)):
        hows = HOWS if (tokens, width) in ((4096, 8192), (1024, 4096)) else EAGER
        yield from _both_ways("norm", kernels, 1, hows, tokens=tokens, width=width)
    yield from _both_ways("norm", ("rms_norm",), 1, HOWS, tokens=8192 * 32, width=128)
    for tokens, width in product((512, 2048, 16384), (2048, 5120, 12288)):
        yield from _both_ways("norm", kernels, 2, HOWS, tokens=tokens, width=width)


def activations() -> Iterator[Measurement]:
    kernels = ("swiglu", "gelu")
    yield from _both_ways("activation", kernels, 0, HOWS, tokens=8192, width=14336)
    for tokens, width in ((1024, 3584), (4096, 7168), (32768, 7168), (1024, 512)):
        hows = HOWS if tokens == 4096 else EAGER
        yield from _both_ways("activation", kernels, 1, hows, tokens=tokens, width=width)
    for tokens, width in product((512, 2048, 16384), (1024, 5120, 28672)):
        yield from _both_ways("activation", kernels, 2, HOWS, tokens=tokens, width=width)


def ropes() -> Iterator[Measurement]:
    yield from _both_ways("rope", ("rope",), 0, HOWS, tokens=8192, heads=32, head_dim=128)
    for tokens, heads in ((1024, 8), (4096, 16), (32768, 32)):
        hows = HOWS if tokens == 4096 else EAGER
        yield from _both_ways("rope", ("rope",), 1, hows, tokens=tokens, heads=heads, head_dim=128)
    for tokens, heads in product((2048, 16384), (4, 64)):
        yield from _both_ways("rope", ("rope",), 2, HOWS, tokens=tokens, heads=heads, head_dim=128)


def residuals() -> Iterator[Measurement]:
    def each(wave: int, hows: Iterable[str], tokens: int, width: int) -> Iterator[Measurement]:
        yield measurement("residual", "add.forward.eager", "bf16", wave, tokens=tokens, width=width)
        yield from _both_ways("residual", ("add_rms_norm",), wave, hows, tokens=tokens, width=width)

    yield from each(0, HOWS, 8192, 4096)
    for elements in (2**14, 2**18, 2**22, 2**24, 2**26, 2**28, 2**30):
        for kernel in ("add", "copy", "fill"):
            yield measurement(
                "residual", f"{kernel}.forward.eager", "bf16", 0, tokens=1, width=elements
            )
    yield from each(1, HOWS, 4096, 8192)
    yield from each(1, EAGER, 1024, 4096)
    yield from each(1, EAGER, 32768, 8192)
    for tokens, width in product((512, 2048, 16384), (2048, 5120, 12288)):
        yield from each(2, HOWS, tokens, width)


def embeddings() -> Iterator[Measurement]:
    def each(wave: int, tokens: int, vocab: int, width: int) -> Iterator[Measurement]:
        for direction in ("forward", "backward"):
            yield measurement(
                "embedding", f"lookup.{direction}.eager", "bf16", wave,
                tokens=tokens, vocab=vocab, width=width,
            )  # fmt: skip

    yield from each(0, 8192, 128256, 4096)
    for tokens, vocab, width in (
        (2048, 32000, 5120),
        (8192, 128256 // 8, 8192),
        (8192, 51200, 2048),
    ):
        yield from each(1, tokens, vocab, width)
    for tokens, vocab, width in product((1024, 16384), (32000, 152064), (2048, 8192)):
        yield from each(2, tokens, vocab, width)


def losses() -> Iterator[Measurement]:
    """Cross-entropy in fp32 on the logits of a shard of the vocabulary."""
    kernel = ("cross_entropy",)
    yield from _both_ways("loss", kernel, 0, HOWS, tokens=4096, vocab=128256)
    for tokens, vocab in ((4096, 32000), (8192, 128256 // 8), (2048, 256000)):
        hows = HOWS if vocab == 32000 else EAGER
        yield from _both_ways("loss", kernel, 1, hows, tokens=tokens, vocab=vocab)
    for tokens, vocab in product((1024, 8192), (50304, 152064, 152064 // 4)):
        yield from _both_ways("loss", kernel, 2, HOWS, tokens=tokens, vocab=vocab)


def permutes() -> Iterator[Measurement]:
    """Tokens sorted by expert, and brought back weighted."""

    def each(wave: int, tokens: int, moe: Experts) -> Iterator[Measurement]:
        for kernel, direction in product(("permute", "unpermute"), ("forward", "backward")):
            yield measurement(
                "permute", f"{kernel}.{direction}.eager", "bf16", wave, tokens=tokens,
                experts=moe.experts, top_k=moe.top_k, width=moe.hidden,
            )  # fmt: skip
        yield measurement(
            "permute", "sort.forward.eager", "bf16", wave, tokens=tokens,
            experts=moe.experts, top_k=moe.top_k, width=moe.hidden,
        )  # fmt: skip

    yield from each(0, 8192, EXPERTS[0])
    for tokens, moe in product((2048, 8192), EXPERTS[1:3]):
        yield from each(1, tokens, moe)
    for tokens, moe in product((1024, 4096, 16384), EXPERTS):
        yield from each(2, tokens, moe)


def optimizers() -> Iterator[Measurement]:
    def each(wave: int, kernel: str, parameters: int, tensors: int) -> Measurement:
        return measurement("adam", kernel, "fp32", wave, parameters=parameters, tensors=tensors)

    for parameters in (2**22, 2**26, 2**29):
        yield each(0, "fused", parameters, 1)
        yield each(0, "norm", parameters, 1)
    for parameters, tensors in product((2**24, 2**28), (1, 32, 256)):
        for kernel in ("fused", "norm", "cast"):
            yield each(1, kernel, parameters, tensors)
    for parameters, tensors in product((2**20, 2**25, 2**27, 2**30), (1, 64)):
        for kernel in ("fused", "norm", "cast", "foreach"):
            yield each(2, kernel, parameters, tensors)


def host_copies() -> Iterator[Measurement]:
    ways = ("to_device.pinned", "to_host.pinned", "to_device.pageable", "to_host.pageable")
    for wave, exponents in ((0, (16, 24, 28)), (1, (20, 30)), (2, (12, 18, 22, 26))):
        for way, exponent in product(ways, exponents):
            yield measurement("copy", way, "uint8", wave, bytes=2**exponent)


def launches() -> Iterator[Measurement]:
    for kernel in ("add.eager", "add.graph", "linear.eager", "linear_backward.eager", "sync.eager"):
        yield measurement("launch", kernel, "bf16", 0, elements=256)
    for kernel in ("layer.eager", "layer.graph", "layer.compiled"):
        yield measurement("launch", kernel, "bf16", 1, elements=256)


# --- Links --------------------------------------------------------------------------------------

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


def groups(world: int, per_node: int) -> list[tuple[int, int]]:
    """Sizes of groups and the step between their ranks: neighbours, and one GPU of each node."""
    sizes = [size for size in range(2, world + 1) if world % size == 0 and _power_or(size, world)]
    found = [(size, 1) for size in sizes]
    nodes = world // per_node if per_node and world % per_node == 0 else 1
    if nodes > 1 and per_node > 1:
        found += [(size, per_node) for size in sizes if nodes % size == 0]
    return found


def _power_or(size: int, world: int) -> bool:
    return size == world or size & (size - 1) == 0


def collectives(world: int, per_node: int) -> Iterator[Measurement]:
    """By kind, size of message and group, alone and beside products."""

    def each(wave: int, how: str, kind: str, group: tuple[int, int], size: int) -> Measurement:
        ranks, step = group
        return measurement(
            "collective", f"{kind}.{how}", "bf16", wave, ranks=ranks, step=step, bytes=size
        )

    def steps(kind: str) -> list[tuple[int, int]]:
        return [(2, step) for step in {1, max(per_node, 1)} if world >= 2 * step] if (
            kind == "p2p"
        ) else groups(world, per_node)  # fmt: skip

    for kind in COLLECTIVES:
        for group in steps(kind):
            for exponent in (12, 20, 24, 28):
                yield each(0, "alone", kind, group, 2**exponent)
            yield each(0, "beside", kind, group, 2**26)
            for exponent in (16, 22, 26, 30):
                yield each(1, "alone", kind, group, 2**exponent)
            for exponent in (22, 28):
                yield each(1, "beside", kind, group, 2**exponent)
            for exponent in (10, 14, 18, 19, 21, 23, 25, 27, 29):
                yield each(2, "alone", kind, group, 2**exponent)


# --- The list -----------------------------------------------------------------------------------

FAMILIES: dict[str, Callable[[], Iterator[Measurement]]] = {
    "launch": launches,
    "gemm": gemms,
    "attention": attentions,
    "norm": norms,
    "activation": activations,
    "rope": ropes,
    "residual": residuals,
    "embedding": embeddings,
    "loss": losses,
    "grouped": grouped_gemms,
    "permute": permutes,
    "adam": optimizers,
    "fp8": fp8s,
    "copy": host_copies,
}
FAMILY_NAMES = (*FAMILIES, "collective")


def chosen_families(only: str | None) -> tuple[str, ...]:
    """`gemm,attention` as names; all of them without it."""
    if only is None:
        return FAMILY_NAMES
    names = tuple(dict.fromkeys(name.strip() for name in only.split(",")))
    for name in names:
        if name not in FAMILY_NAMES:
            hint = did_you_mean(name, FAMILY_NAMES, f"The families are {', '.join(FAMILY_NAMES)}.")
            raise InputError(f"--only: there is no family {name!r}. {hint}")
    return names


def in_order(lists: Iterable[Iterable[Measurement]]) -> list[Measurement]:
    """Each measurement once, wave by wave; inside a wave every family advances at its own pace,
    so that a wave cut short has seen the same share of each."""
    placed: list[tuple[int, float, int, Measurement]] = []
    for family, ones in enumerate(lists):
        waves: dict[int, list[Measurement]] = {}
        for one in dict.fromkeys(sorted(ones, key=lambda found: found.wave)):
            waves.setdefault(one.wave, []).append(one)
        for wave, inside in waves.items():
            placed += [
                (wave, (place + 0.5) / len(inside), family, one) for place, one in enumerate(inside)
            ]
    return [one for _, _, _, one in sorted(placed, key=lambda found: found[:3])]


# The largest sides on a CPU, where the point is that every kernel runs at all.
SMALL_SIZES = {
    "m": 256, "n": 256, "k": 256, "seq": 256, "tokens": 128, "vocab": 1024, "width": 512,
    "parameters": 2**16, "tensors": 4, "experts": 4, "batch": 2, "heads": 4, "kv_heads": 2,
    "bytes": 2**18,
}  # fmt: skip


def small_shape(one: Measurement) -> Measurement:
    """The same kernel on a small shape."""
    shape = tuple((name, min(value, SMALL_SIZES.get(name, value))) for name, value in one.shape)
    return replace(one, shape=shape)


def measurements_of(
    families: Iterable[str], world: int = 1, per_node: int = 1, small: bool = False
) -> list[Measurement]:
    """Everything to measure. Several processes measure links, one alone everything else."""
    from astra.profile.flops_and_bytes import bytes_of, flops_of

    if world > 1:
        links = in_order([collectives(world, per_node)] if "collective" in families else [])
        return list(dict.fromkeys(map(small_shape, links))) if small else links
    if small:
        on_host = [FAMILIES[name]() for name in families if name in FAMILIES and name != "copy"]
        return in_order(map(small_shape, family) for family in on_host)
    lists = [FAMILIES[name]() for name in families if name in FAMILIES]
    return [
        one for one in in_order(lists) if flops_of(one) <= MAX_FLOPS and bytes_of(one) <= MAX_BYTES
    ]
