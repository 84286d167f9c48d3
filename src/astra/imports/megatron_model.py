"""The model that Megatron-LM's options describe, with Megatron-LM's own defaults."""

import ast
import re
from typing import Any

import msgspec

from astra.errors import InputError, shorten
from astra.imports.options import LaunchOptions
from astra.model.handwritten import model_from_table
from astra.model.layer_kinds import has_experts
from astra.model.shape import Model
from astra.model.zoo import zoo_model, zoo_names

# Rows of tokenizers that are always the same; others are in a file we do not have.
TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "Llama3Tokenizer": 128256}
# Kinds of positions by Megatron-LM's and Megatron-DeepSpeed's names, as a model has them.
POSITIONS = {"learned_absolute": None, "rope": "rope", "mrope": "rope", "yarn": "rope"}
POSITIONS |= {"alibi": "alibi", "none": "none"}
CORE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "mla")


def model_of(options: LaunchOptions, name: str, vocab: int | None) -> Model:
    """A known model where the shape is its own, else the shape under the job's name."""
    table = _shape(options)
    said = vocab or options.whole("vocab-size", "padded-vocab-size")
    known = _known(table, said)
    if known is not None:
        return known
    rows = said or TOKENIZERS.get(options.text("tokenizer-type") or "")
    if rows is None:
        raise InputError(
            f"{options.where}: the rows of the vocabulary are in a tokenizer's file. "
            "Say them: --vocab-size 128256."
        )
    return model_from_table(table | {"vocab": rows}, options.where, name)


def _shape(options: LaunchOptions) -> dict[str, Any]:
    layers, hidden = options.need("num-layers"), options.need("hidden-size")
    heads = options.need("num-attention-heads")
    gated = options.flag("swiglu", "quick-geglu") or _is_gated(options.text("activation"))
    ffn = _rounded_up(options, hidden) or options.whole("ffn-hidden-size")
    if ffn is None:  # as Megatron-LM fills it in
        ffn = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    biased = not options.flag("disable-bias-linear")
    biased = biased and options.text("bias", "add-bias-linear") not in ("False", "false")
    (positions,) = options.many("position-embedding-type")[:1] or ["learned_absolute"]
    if options.flag("use-rotary-position-embeddings"):
        positions = "rope"
    kind = POSITIONS.get(positions)
    if positions not in POSITIONS:  # told as not understood
        options.read.discard("position-embedding-type")
    limit = options.whole("max-position-embeddings")
    norm = (options.text("normalization") or "LayerNorm").lower()
    table: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _groups(options, heads),
        "head_dim": options.whole("kv-channels") or hidden // heads,
        "ffn": ffn,
        "max_positions": limit,
        "tied_embeddings": _is_tied(options),
        "gated_mlp": gated,
        "activation": _activation(options, gated),
        "norm": "rmsnorm" if "rms" in norm else "layernorm",
        "qkv_bias": biased or options.flag("add-qkv-bias"),
        "attn_out_bias": biased,
        "mlp_bias": biased,
        "qk_norm": "head" if options.flag("qk-layernorm") else None,
        "embedding_norm": options.flag("embed-layernorm"),
        "attn_sinks": options.text("softmax-type") == "learnable",
        "learned_positions": (limit or 0) if positions == "learned_absolute" else 0,
        "positions": kind,
        "rope_theta": float(options.text("rotary-base") or 10000) if kind == "rope" else None,
        "mtp_layers": options.whole("mtp-num-layers", default=0),
    }
    table |= _latent(options) | _experts(options, layers, ffn) | _window(options, layers)
    return {name: value for name, value in table.items() if value is not None}


def _rounded_up(options: LaunchOptions, hidden: int) -> int | None:
    """The MLP's width where FlagScale is given `multiple_of`: two thirds of 4 h, rounded up.

    The rule of Llama's reference code (llama/model.py, FeedForward), 11,008 for 4,096 and 256.
    """
    unit = options.whole("multiple-of")
    said = options.text("hidden-dim-multiplier") or "1"
    if not unit:
        return None
    if not re.fullmatch(r"\d{1,3}(\.\d{1,6})?", said):
        raise InputError(f"{options.where}: hidden_dim_multiplier = {shorten(said)}: no number.")
    return -(-int(float(said) * int(8 * hidden / 3)) // unit) * unit


def _is_gated(activation: str | None) -> bool:
    return activation is not None and activation.lower() in ("swiglu", "fast-swiglu", "geglu")


def _is_tied(options: LaunchOptions) -> bool:
    shared = options.text("share-embeddings-and-output-weights")
    if shared is not None:
        return shared.lower() == "true"
    return not options.flag("untie-embeddings-and-output-weights")


def _activation(options: LaunchOptions, gated: bool) -> str:
    if options.flag("squared-relu") or options.text("activation") == "squared-relu":
        return "relu2"
    return "silu" if gated else "gelu"


def _groups(options: LaunchOptions, heads: int) -> int:
    """Key-value heads: one group unless said otherwise, once groups are asked for; else as many."""
    groups = options.whole("num-query-groups", default=1) or 1
    if options.flag("group-query-attention"):
        return groups
    return options.whole("num-key-value-heads") or heads  # Megatron-DeepSpeed's


def _latent(options: LaunchOptions) -> dict[str, Any]:
    if not options.flag("multi-latent-attention"):
        return {}
    nope = options.whole("qk-head-dim", default=128) or 128
    rope = options.whole("qk-pos-emb-head-dim", default=64) or 64
    mla = {
        "q_lora_rank": options.whole("q-lora-rank"),
        "kv_lora_rank": options.whole("kv-lora-rank", default=512),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": options.whole("v-head-dim", default=128),
    }
    heads = options.need("num-attention-heads")
    return {"mla": mla, "head_dim": nope + rope, "kv_heads": heads, "qk_norm": None}


def _experts(options: LaunchOptions, layers: int, ffn: int) -> dict[str, Any]:
    count = options.whole("num-experts", "num-moe-experts")
    if not count:
        return {}
    width = options.whole("moe-ffn-hidden-size", default=ffn) or ffn
    shared = options.whole("moe-shared-expert-intermediate-size", default=0) or 0
    flags = _frequency(options.text("moe-layer-freq"), layers, options.where)
    moe: dict[str, Any] = {
        "experts": count,
        "top_k": options.whole("moe-router-topk", default=2),
        "moe_ffn": width,
        "shared_ffn": shared,
        "shared_experts": max(round(shared / width), 1) if shared else 0,
        "shared_gate": options.flag("moe-shared-expert-gate"),
        "router_bias": options.flag("moe-router-enable-expert-bias"),
    }
    if not all(flags):
        first = flags.index(1) if 1 in flags else layers
        if all(flags[first:]):
            moe["first_dense_layers"] = first
        else:
            moe["layers"] = tuple(layer for layer, flag in enumerate(flags) if flag)
    return {"moe": moe, "ffn": ffn if not all(flags) else 0}


def _frequency(text: str | None, layers: int, where: str) -> list[int]:
    """Which layers have experts: every n-th, or a list as Python writes it."""
    if text is None:
        return [1] * layers
    try:
        value = (
            int(text) if text.isdigit() else _listed(ast.parse(text.strip("'\""), mode="eval").body)
        )
    except (SyntaxError, ValueError):
        raise InputError(
            f"{where}: --moe-layer-freq {shorten(text)} is neither a number nor a list of 0 and 1."
        ) from None
    if isinstance(value, int):
        return [1 if layer % max(value, 1) == 0 else 0 for layer in range(layers)]
    if len(value) != layers:
        raise InputError(f"{where}: --moe-layer-freq has {len(value)} entries for {layers} layers.")
    return value


def _listed(node: ast.expr) -> list[int]:
    """`([0]*3+[1]*58)` without running it."""
    if isinstance(node, ast.List):
        return [_number(entry) for entry in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _listed(node.left) + _listed(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        times = _number(node.right)
        if times <= 10**5:
            return _listed(node.left) * times
    raise ValueError("no list of numbers")


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError("no number")


def _window(options: LaunchOptions, layers: int) -> dict[str, Any]:
    said = options.text("window-size")
    if said is None:
        return {}
    before = said.strip("()[]").split(",")[0]
    if not before.strip().isdigit():
        return {}
    flags = options.text("window-attn-skip-freq")
    window: dict[str, Any] = {"tokens": int(before) + 1}
    if flags is not None and not flags.isdigit():
        listed = _listed(ast.parse(flags.strip("'\""), mode="eval").body)
        window["layers"] = tuple(layer for layer, flag in enumerate(listed[:layers]) if flag)
    elif flags is not None:  # every n-th layer sees everything
        each = max(int(flags), 1)
        window["layers"] = tuple(layer for layer in range(layers) if (layer + 1) % each)
    return {"window": window}


def _known(table: dict[str, Any], vocab: int | None) -> Model | None:
    """The zoo's model of this shape; where several have it, the one that agrees in most."""
    asked = msgspec.convert({"name": "", "vocab": vocab or 1} | table, Model)
    found = [model for model in map(zoo_model, zoo_names()) if _is_like(model, asked, vocab)]

    def agrees(model: Model) -> int:
        more = ("max_positions", "rope_theta", "qkv_bias", "qk_norm", "mtp_layers")
        return sum(getattr(model, name) == getattr(asked, name) for name in more)

    return max(found, key=agrees, default=None)


def _is_like(model: Model, asked: Model, vocab: int | None) -> bool:
    """Same layers, widths, heads and experts, and nothing that costs differs."""
    core = all(
        getattr(model, name) == getattr(asked, name)
        for name in CORE
        if name != "ffn" or model.moe is None
    )
    if not core or (vocab is not None and model.vocab != vocab):
        return False
    alike = ("tied_embeddings", "gated_mlp", "mlp_bias")
    if not all(getattr(model, name) == getattr(asked, name) for name in alike):
        return False
    # Without positions is how exports write ALiBi.
    if asked.positions not in (model.positions, "none" if model.positions == "alibi" else ""):
        return False
    if model.norm.startswith("rms") != asked.norm.startswith("rms"):
        return False
    if (model.moe is None) != (asked.moe is None):
        return False
    if model.moe is None or asked.moe is None:
        return True
    widths = ("experts", "top_k", "moe_ffn", "shared_ffn")
    return all(getattr(model.moe, name) == getattr(asked.moe, name) for name in widths) and all(
        has_experts(model, layer) == has_experts(asked, layer) for layer in range(model.layers)
    )
