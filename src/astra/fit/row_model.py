"""The model of a row: its own numbers, and the zoo's where it has none."""

import re
from functools import cache
from typing import Any

from msgspec import to_builtins

from astra.errors import InputError
from astra.files import convert
from astra.fit.csv_row import CsvRow, is_on
from astra.fit.framework_defaults import FrameworkDefaults
from astra.model.check import check_shape
from astra.model.shape import Model
from astra.model.zoo import zoo_model, zoo_names

GPT2_VOCAB = 50257
COUNTED = ("parameters", "active_parameters", "advertised_parameters",
           "advertised_active_parameters")  # fmt: skip

# Multi-head latent attention where neither row nor zoo gives its ranks: Megatron-LM's defaults.
MEGATRON_MLA = {
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def model_of(csv_row: CsvRow, defaults: FrameworkDefaults) -> tuple[Model, list[str]]:
    """The model that was trained, and what had to be assumed about it."""
    assumed: list[str] = []
    known = look_up(csv_row)
    table = _from_zoo(known, csv_row, assumed) if known else _from_row(csv_row, assumed)
    _options(table, csv_row)
    _experts(table, csv_row, assumed)
    _latent(table, csv_row, defaults, assumed)
    _prediction(table, csv_row, defaults, assumed)
    if table.get("learned_positions"):
        table["learned_positions"] = max(
            table["learned_positions"], csv_row.required_count("seq_len")
        )
    return check_shape(convert(table, Model, "model"), "model"), assumed


def look_up(csv_row: CsvRow) -> Model | None:
    """The zoo's model of that name, if hidden size and heads agree; layers may be fewer."""
    hidden, heads = csv_row.count("hidden_size"), csv_row.count("num_heads")
    for key in _keys(csv_row.text("model")):
        name = _plain_zoo().get(key)
        if name is None:
            continue
        model = zoo_model(name)
        layers = csv_row.count("num_layers")
        agree = (hidden in (None, model.hidden)) and (heads in (None, model.heads))
        if agree and (layers is None or layers <= model.layers):
            return model
    return None


def _keys(name: str) -> list[str]:
    """A name as the zoo might spell it: without remarks, and without a size at its end."""
    bare = re.sub(r"\([^)]{0,100}\)", "", name[:200]).strip()
    words = re.split(r"[\s_-]+", bare)
    without_size = words[:-1] if re.fullmatch(r"[0-9.]+[bBmM]", words[-1]) else words
    return [_plain("".join(words)), _plain("".join(without_size))]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


@cache
def _plain_zoo() -> dict[str, str]:
    """Plain names of the zoo; the part before `17b-128e` also stands for its model."""
    plain = {_plain(name): name for name in zoo_names()}
    short = {_plain(name.partition("-17b")[0]): name for name in zoo_names() if "-17b" in name}
    return {"llama3405b": "llama-3.1-405b", **short, **plain}


def _from_zoo(known: Model, csv_row: CsvRow, assumed: list[str]) -> dict[str, Any]:
    """The zoo's shape with the row's numbers put in."""
    table: dict[str, Any] = to_builtins(known)
    given = _numbers(csv_row)
    taken = [name for name in ("vocab", "ffn", "kv_heads") if name not in given]
    table.update(given)
    for field in COUNTED:
        table[field] = None
    layers = table["layers"]
    for part in ("moe", "window"):
        inner = table.get(part)
        if inner and inner.get("layers") is not None:
            inner["layers"] = [layer for layer in inner["layers"] if layer < layers]
    extra = f", also its {', '.join(taken)}" if taken else ""
    assumed.append(f"model details as {known.name}{extra}")
    if layers != known.layers:
        assumed.append(f"{known.name} cut to {layers} layers")
    return table


def _numbers(csv_row: CsvRow) -> dict[str, Any]:
    """The shape that the row itself gives."""
    columns = {
        "layers": "num_layers",
        "hidden": "hidden_size",
        "heads": "num_heads",
        "kv_heads": "num_kv_heads",
        "head_dim": "head_dim",
        "ffn": "ffn_hidden_size",
        "vocab": "vocab_size",
    }
    found: dict[str, Any] = {field: csv_row.count(column) for field, column in columns.items()}
    found["gated_mlp"] = csv_row.flag("gated_mlp")
    if "corrected: hidden_size" in csv_row.lower_text("notes"):
        found["head_dim"] = None  # of the size before: its heads share the hidden size
    return {field: value for field, value in found.items() if value is not None}


def _from_row(csv_row: CsvRow, assumed: list[str]) -> dict[str, Any]:
    """A model nobody has described but the row."""
    table = {"name": csv_row.text("model")[:80] or "unnamed", **_numbers(csv_row)}
    for field, column in (("layers", "num_layers"), ("hidden", "hidden_size")):
        if field not in table:
            raise InputError(f"{column} is not known, and the model is not in the zoo")
    if "heads" not in table:
        table["heads"] = _likely_heads(table["hidden"])
        assumed.append(f"num_heads not stated: {table['heads']}")
    if "head_dim" not in table and table["hidden"] % table["heads"]:
        raise InputError("head_dim is not known, and num_heads does not divide hidden_size")
    table.setdefault("kv_heads", table["heads"])
    table.setdefault("head_dim", max(table["hidden"] // table["heads"], 1))
    gated = table.setdefault("gated_mlp", False)
    if "ffn" not in table:
        table["ffn"] = 4 * table["hidden"]
        assumed.append("ffn_hidden_size not stated: 4 x hidden")
    if "vocab" not in table:
        table["vocab"] = GPT2_VOCAB
        assumed.append(f"vocab_size not stated: {GPT2_VOCAB}, as GPT-2")
    if not gated:
        table |= _gpt_block(csv_row)
    return table


def _likely_heads(hidden: int) -> int:
    """Heads of about 128; of the usual counts the one that divides and comes nearest."""
    fitting = [n for n in (8, 12, 16, 32, 40, 48, 64, 72, 80, 96, 112, 128) if hidden % n == 0]
    return min(fitting, key=lambda n: abs(hidden / n - 128), default=1)


def _gpt_block(csv_row: CsvRow) -> dict[str, Any]:
    """What comes with an MLP that is not gated: GPT-2's ways, with known exceptions."""
    name = csv_row.lower_text("model")
    biases = dict.fromkeys(("qkv_bias", "attn_out_bias", "mlp_bias"), True)
    block: dict[str, Any] = {
        "activation": "gelu",
        "norm": "layernorm",
        "tied_embeddings": "sailor" not in csv_row.lower_text("framework"),
        "learned_positions": csv_row.required_count("seq_len"),
        **biases,
    }
    if "nemotron" in name:
        rope = {"activation": "relu2", "tied_embeddings": False, "learned_positions": 0}
        block |= {**rope, **dict.fromkeys(biases, False)}
    elif "bloom" in name:
        block |= {"learned_positions": 0, "positions": "alibi", "embedding_norm": True}
    return block


def _options(table: dict[str, Any], csv_row: CsvRow) -> None:
    """What options in the notes change."""
    flags = csv_row.flags
    if "untie-embeddings-and-output-weights" in flags:
        table["tied_embeddings"] = not is_on(flags, "untie-embeddings-and-output-weights")
    if is_on(flags, "disable-bias-linear"):
        table |= dict.fromkeys(("qkv_bias", "attn_out_bias", "mlp_bias"), False)
    if "qk_layernorm" in csv_row.lower_text("model"):
        table["qk_norm"] = "head"
    kind = flags.get("position-embedding-type")
    if kind in ("rope", "alibi", "none"):
        table |= {"learned_positions": 0, "positions": kind}


def _experts(table: dict[str, Any], csv_row: CsvRow, assumed: list[str]) -> None:
    """The row's experts into the table; none where neither row nor zoo has them."""
    experts = csv_row.count("num_experts")
    moe = table.get("moe") or {}
    if experts is None or experts < 2:
        if moe and experts is not None:
            table["moe"] = None
        return
    moe["experts"] = experts
    moe["top_k"] = csv_row.count("top_k") or moe.get("top_k") or 1
    moe["moe_ffn"] = csv_row.count("moe_ffn_hidden") or moe.get("moe_ffn") or table["ffn"]
    text = csv_row.lower_text("shared_experts")
    width = re.search(r"ffn ([0-9]{1,7})", text)
    if width:
        moe |= {"shared_experts": 1, "shared_ffn": int(width[1])}
    elif text:
        shared = csv_row.count("shared_experts", least=0, most=1000) or 0
        moe |= {"shared_experts": shared, "shared_ffn": shared * moe["moe_ffn"]}
    dense = csv_row.count("dense_layers", least=0)
    pattern = re.search(r"\[0\]\*([0-9]{1,4})", csv_row.flags.get("moe-layer-freq", ""))
    if dense is None and pattern:
        dense = int(pattern[1])
    if dense is not None:
        moe["first_dense_layers"] = dense
    elif moe.get("first_dense_layers", 0) > table["layers"]:
        moe["first_dense_layers"] = table["layers"]
        assumed.append("all layers dense: the zoo's model begins with more dense layers")
    table["moe"] = moe


def _latent(
    table: dict[str, Any], csv_row: CsvRow, defaults: FrameworkDefaults, assumed: list[str]
) -> None:
    """Latent attention's ranks, from the zoo by shape where the name said nothing."""
    wanted = csv_row.flag("mla")
    if wanted is False:
        table["mla"] = None
    if wanted and not table.get("mla"):
        found = _latent_relative(table["hidden"], table["heads"])
        if found is None and defaults.stack.startswith(("megatron", "nemo", "bridge")):
            table["mla"] = MEGATRON_MLA
            assumed.append("latent attention's ranks not stated: Megatron-LM's defaults")
        else:
            relative = found or zoo_model("deepseek-v3")
            table["mla"] = to_builtins(relative.mla)
            assumed.append(f"latent attention's ranks not stated: as {relative.name}")
    mla = table.get("mla")
    if mla:
        table["head_dim"] = mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]
        table["kv_heads"] = table["heads"]


def _latent_relative(hidden: int, heads: int) -> Model | None:
    for name in ("deepseek-v3", "deepseek-v2", "deepseek-v2-lite", "kimi-k2"):
        model = zoo_model(name)
        if (model.hidden, model.heads) == (hidden, heads):
            return model
    return None


def _prediction(
    table: dict[str, Any], csv_row: CsvRow, defaults: FrameworkDefaults, assumed: list[str]
) -> None:
    """Multi-token-prediction layers: as an option or layout says, else as Bridge trains V3."""
    layout = re.search(r"pp_layout=([^;\s]{1,300})", csv_row.text("overlap"))
    text = layout[1] if layout else csv_row.flags.get("pipeline-model-parallel-layout", "")
    flag = csv_row.flags.get("mtp-num-layers", "")
    count = int(flag) if re.fullmatch(r"[0-9]", flag) else text.count("m")
    bridge = "bridge" in csv_row.lower_text("framework") and "deepseekv3" in _plain(
        csv_row.text("model")
    )
    if not count and bridge and not text and "w/o mtp" not in csv_row.lower_text("model"):
        count = 1
        assumed.append("one multi-token-prediction layer")
    if defaults.runtime == "fsdp":
        count = 0
    table["mtp_layers"] = count
