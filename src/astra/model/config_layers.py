"""Which layers of a Hugging Face config have experts, and which have a sliding window."""

from typing import Any

from astra.errors import InputError
from astra.model.config_fields import Config

FULL = {"full_attention", "attention", "global", "global_attention"}
SLIDING = {"sliding_attention", "sliding", "local", "local_attention"}
CHUNKED = {"chunked_attention"}
PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")


def experts(config: Config, layers: int, ffn: int | None) -> dict[str, Any] | None:
    """The [moe] table of this config; None where it is dense."""
    options = config.options
    number = None if options.no_experts else config.maybe_count("moe.experts", least=0)
    if not number:
        return None
    width = config.maybe_count("moe.moe_ffn")
    if width is None and options.experts_from_ffn:
        width = ffn
        config.used["moe.moe_ffn"] = config.used.get("ffn", "intermediate_size")
    if width is None:
        width = config.count("moe.moe_ffn")
    moe = {
        "experts": number,
        "top_k": config.count("moe.top_k"),
        "moe_ffn": width,
        "shared_gate": options.shared_gate,
        "router_bias": options.router_bias,
        "expert_bias": options.expert_bias,
    }
    return moe | shared_experts(config, width) | expert_layers(config, layers)


def shared_experts(config: Config, width: int) -> dict[str, int]:
    """How many shared experts there are, and how wide all of them together."""
    total = config.maybe_count("moe.shared_ffn", least=0)
    number = config.maybe_count("moe.shared_experts", least=0)
    if total is not None:
        return {"shared_experts": (number or 1) if total else 0, "shared_ffn": total}
    if number is None and config.options.one_shared:
        number = 1
    return {"shared_experts": number or 0, "shared_ffn": (number or 0) * width}


def expert_layers(config: Config, layers: int) -> dict[str, Any]:
    """Which layers have experts: a list, or a rule."""
    kinds = config.words("mlp_layer_types", layers)
    if kinds is not None:
        strange = sorted(set(kinds) - {"dense", "sparse"})
        if strange:
            raise config.error("mlp_layer_types", f"{strange[0]!r} is not a kind of MLP we know.")
        config.used["moe.layers"] = "mlp_layer_types"
        return {"layers": [row for row, kind in enumerate(kinds) if kind == "sparse"]}
    first = config.maybe_count("moe.first_dense_layers", least=0) or 0
    step = config.whole("decoder_sparse_step", 1) or 1
    dense = config.layer_numbers("mlp_only_layers", layers) or []
    frequency = config.given("moe_layer_freq")
    if isinstance(frequency, list):
        return {"layers": _marked(config, "moe_layer_freq", frequency, layers)}
    every = config.whole("moe_layer_freq", 1) or 1
    if dense or every > 1:
        return {
            "layers": [
                row
                for row in range(layers)
                if row >= first and row % every == 0 and (row + 1) % step == 0 and row not in dense
            ]
        }
    return {"first_dense_layers": first, "moe_layer_step": step}


def _marked(config: Config, name: str, marks: list[Any], layers: int) -> list[int]:
    """Layers marked 1 in a list of 0 and 1."""
    if len(marks) < layers or any(type(mark) is not int or mark not in (0, 1) for mark in marks):
        raise config.error(name, f"a list of {layers} entries, each 0 or 1, is needed.")
    return [row for row in range(layers) if marks[row] == 1]


def window(config: Config, layers: int) -> dict[str, Any] | None:
    """The [window] table of this config; None where every layer sees everything."""
    kinds = config.words("layer_types", layers)
    if kinds is not None:
        return _listed_window(config, kinds)
    rule = config.family.window or "none"
    if rule == "none" or config.get("use_sliding_window") is False:
        return None
    tokens = config.whole("sliding_window", 1)
    if tokens is None:
        return None
    if rule == "listed":
        raise InputError(
            f"{config.where}: {config.prefix}layer_types is missing, and nothing else says which "
            f"layers have the sliding window of {tokens}. Add layer_types."
        )
    if rule == "every":
        return {"tokens": tokens}
    if rule == "late":
        start = config.whole("max_window_layers", 0) or 0
        rows = list(range(start, layers))
    else:
        rows = _pattern(config, layers)
    return {"tokens": tokens, "layers": rows} if rows else None


def _listed_window(config: Config, kinds: list[str]) -> dict[str, Any] | None:
    """From a list that names the kind of attention of every layer."""
    strange = [kind for kind in kinds if kind not in FULL | SLIDING | CHUNKED]
    if strange:
        raise InputError(
            f"{config.where}: {config.prefix}layer_types has {strange[0]!r} layers, which are not "
            "modelled: only full, sliding-window and chunked attention are."
        )
    sliding = [row for row, kind in enumerate(kinds) if kind in SLIDING]
    chunked = [row for row, kind in enumerate(kinds) if kind in CHUNKED]
    if sliding and chunked:
        raise config.error("layer_types", "sliding and chunked layers in one model.")
    if not sliding and not chunked:
        return None
    name = "sliding_window" if sliding else "attention_chunk_size"
    tokens = config.whole(name, 0)
    if not tokens:
        raise InputError(
            f"{config.where}: {config.prefix}layer_types has {kinds[(sliding or chunked)[0]]!r} "
            f"layers, but {name} says no width. Add {name}."
        )
    return {"tokens": tokens, "chunked": bool(chunked), "layers": sliding or chunked}


def _pattern(config: Config, layers: int) -> list[int]:
    """All layers but each n-th; the pattern is n, or letters such as LLLG."""
    given = [name for name in PATTERNS if config.given(name) is not None]
    usual = [name for name in PATTERNS if name in config.family.defaults]
    name = (given or usual or list(PATTERNS))[0]
    pattern = config.get(name)
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return [row for row in range(layers) if pattern[row % len(pattern)] == "L"]
    step = config.whole(name, 1)
    return [row for row in range(layers) if step is None or (row + 1) % step]
