"""What single families say in their own way. Each function amends the fields read so far."""

from collections.abc import Callable
from typing import Any

from astra.errors import InputError
from astra.model.config_fields import Config

Fields = dict[str, Any]


def multi_query(config: Config, fields: Fields) -> None:
    """GPT-BigCode: one key-value head for all, or one for each."""
    fields["kv_heads"] = 1 if config.flag("multi_query") else fields["heads"]


def local_layers(config: Config, fields: Fields) -> None:
    """GPT-Neo: global and local layers, listed or as groups to repeat."""
    layers = fields["layers"]
    kinds = config.words("attention_layers", layers) or _repeated(config, layers)
    local = [row for row, kind in enumerate(kinds) if kind == "local"]
    if local:
        fields["window"] = {"tokens": config.whole("window_size", 1) or 256, "layers": local}


def _repeated(config: Config, layers: int) -> list[str]:
    """[[["global", "local"], 12]]: the pair, twelve times."""
    groups = config.get("attention_types")
    if groups is None:
        return ["global", "local"] * (layers // 2) + ["global"] * (layers % 2)
    try:
        repeats = ((group, range(min(times, layers + 1))) for group, times in groups)
        kinds = [kind for group, times in repeats for _ in times for kind in group]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or not set(kinds) <= {"global", "local"}:
        raise config.error("attention_types", f"does not describe {layers} layers.")
    return kinds


def opt(config: Config, fields: Fields) -> None:
    """OPT: no final norm where norms come after; a narrower embedding in the 350M model."""
    if config.flag("_remove_final_layer_norm"):
        fields["final_norm"] = False
    if config.get("layer_norm_elementwise_affine") is False:
        fields["norm"] = "layernorm_nonparametric"
    if fields.get("embedding_dim") == fields["hidden"]:
        fields["embedding_dim"] = None


def falcon(config: Config, fields: Fields) -> None:
    """Falcon: key-value heads and norms by generation (7B, RW, 40B and later)."""
    new = config.flag("new_decoder_architecture")
    if not new:
        fields["kv_heads"] = 1 if config.flag("multi_query") else fields["heads"]
    norms = config.whole("num_ln_in_parallel_attn", 1) or (2 if new else 1)
    fields["norms_per_layer"] = norms if config.flag("parallel_attn") else 2


def mpt(config: Config, fields: Fields) -> None:
    """MPT: the MLP by a ratio; attention described in a table of its own."""
    ratio = config.whole("expansion_ratio", 1)
    if ratio is not None:
        fields["ffn"] = ratio * fields["hidden"]
    kind = config.given("attn_config.attn_type")
    if kind not in (None, "multihead_attention"):
        raise config.error("attn_config.attn_type", "only multihead_attention is modelled here.")
    fields["kv_heads"] = fields["heads"]


def baichuan(_: Config, fields: Fields) -> None:
    """Baichuan: 7B is rotary, 13B has ALiBi; their code differs and no field says so."""
    fields["positions"] = "rope" if fields["hidden"] == 4096 else "alibi"


def dbrx(config: Config, fields: Fields) -> None:
    """DBRX: attention and experts in tables of their own."""
    kv_heads = config.whole("attn_config.kv_n_heads", 1)
    if kv_heads is None or fields["moe"] is None:
        raise InputError(
            f"{config.where}: {config.prefix}attn_config.kv_n_heads and "
            "ffn_config.moe_num_experts are needed for dbrx."
        )
    config.used["kv_heads"] = "attn_config.kv_n_heads"
    fields["kv_heads"] = kv_heads


def head_norms(config: Config, fields: Fields) -> None:
    """A norm over each head's queries and keys, if the config asks for it."""
    if config.flag("use_qk_norm"):
        fields["qk_norm"] = "head"


def full_norms(config: Config, fields: Fields) -> None:
    """A norm with weights for every head, if the config asks for it."""
    if config.flag("use_qk_norm"):
        fields["qk_norm"] = "full"


def head_norms_with_bias(config: Config, fields: Fields) -> None:
    """Persimmon and Phi: layer norms with bias over each head, if the config asks for it."""
    if config.flag("qk_layernorm"):
        fields["qk_norm"], fields["qk_norm_bias"] = "head", True


def cohere_moe(config: Config, fields: Fields) -> None:
    """Command A with experts: a dense prefix of its own width and its own pattern of windows."""
    moe, layers = fields["moe"], fields["layers"]
    dense = config.whole("prefix_dense_intermediate_size", 1)
    if dense is not None:
        fields["ffn"] = dense
        config.used["ffn"] = "prefix_dense_intermediate_size"
    prefix = min(layers, moe.get("first_dense_layers") or 0) if moe else 0
    window = fields["window"]
    if not prefix or window is None or config.given("layer_types") is not None:
        return
    first = config.whole("prefix_dense_sliding_window_pattern", 1) or 1
    step = config.whole("sliding_window_pattern", 1) or 4
    window["layers"] = [row for row in range(prefix) if (row + 1) % first]
    window["layers"] += [row for row in range(prefix, layers) if (row - prefix + 1) % step]


def granite_hybrid(config: Config, fields: Fields) -> None:
    """Granite 4: attention layers only; without experts the shared MLP is the MLP."""
    if not config.has("layer_types"):
        raise InputError(
            f"{config.where}: {config.prefix}layer_types is missing, so every layer would be a "
            "state-space layer, and those are not modelled."
        )
    if fields["moe"] is None:
        fields["ffn"] = config.count("moe.shared_ffn")


def stablelm(config: Config, fields: Fields) -> None:
    """StableLM: one norm where attention and MLP run side by side."""
    if config.flag("use_parallel_residual"):
        fields["norms_per_layer"] = 1
    if config.flag("qk_layernorm"):
        fields["qk_norm"] = "full"


def post_norms(config: Config, fields: Fields) -> None:
    """HyperCLOVA X: norms after attention and MLP as well, if asked for."""
    fields["norms_per_layer"] = 4 if config.flag("use_post_norm") else 2


def chatglm(config: Config, fields: Fields) -> None:
    """ChatGLM2 and 3, GLM-4 in its first form."""
    linear = config.flag("add_bias_linear")
    fields["qkv_bias"] = linear or config.flag("add_qkv_bias")
    fields["attn_out_bias"] = fields["mlp_bias"] = linear
    fields["norm"] = "rmsnorm" if config.flag("rmsnorm") else "layernorm"
    fields["final_norm"] = config.flag("post_layer_norm")
    groups = config.whole("multi_query_group_num", 1)
    shared = config.flag("multi_query_attention") and groups is not None
    config.used["kv_heads"] = "multi_query_group_num"
    fields["kv_heads"] = groups if shared else fields["heads"]


def ernie_moe(config: Config, fields: Fields) -> None:
    """ERNIE 4.5: experts from one layer to another, at an interval."""
    if fields["moe"] is None or fields["moe"].get("layers") is not None:
        return
    layers = fields["layers"]
    first = config.whole("moe_layer_start_index", 0)
    last = config.whole("moe_layer_end_index", -1)
    step = config.whole("moe_layer_interval", 1) or 1
    last = layers - 1 if last in (None, -1) else last
    assert last is not None
    fields["moe"]["layers"] = [
        row
        for row in range(layers)
        if (row + 1) % step == 0 and (1 if first is None else first) <= row <= last
    ]


def equal_heads(config: Config, fields: Fields) -> None:
    """Laguna: as many heads in every layer, gated or not."""
    heads = config.whole("num_attention_heads_per_layer", 1)
    if heads not in (None, fields["heads"]):
        raise config.error(
            "num_attention_heads_per_layer", "differs from num_attention_heads: not modelled."
        )
    gate = config.given("gating") if config.has("gating") else True
    per_head = gate is True or gate == "per-head"
    fields["attn_gate"] = None if gate is False else "head" if per_head else "element"


def square_output(config: Config, fields: Fields) -> None:
    """Helium: the output projection is hidden by hidden, so the heads must fill it."""
    head_dim = config.maybe_count("head_dim") or fields["hidden"] // fields["heads"]
    if head_dim * fields["heads"] != fields["hidden"]:
        raise config.error(
            "head_dim",
            f"times {fields['heads']} heads is not hidden_size = {fields['hidden']}; "
            f"{config.model_type} cannot run so.",
        )


def llama4(config: Config, fields: Fields) -> None:
    """Llama 4: dense layers of another width, experts at a step, chunks but for each n-th."""
    layers, dense = fields["layers"], config.whole("intermediate_size_mlp", 1)
    if dense is not None:
        fields["ffn"] = dense
        config.used["ffn"] = "intermediate_size_mlp"
    listed = config.layer_numbers("moe_layers", layers)
    step = config.whole("interleave_moe_layer_step", 1) or 1
    if fields["moe"] is not None and listed is not None:
        fields["moe"]["layers"] = listed
    elif fields["moe"] is not None:
        fields["moe"]["moe_layer_step"] = step
    chunk = config.whole("attention_chunk_size", 1)
    if chunk is None or config.given("layer_types") is not None:
        return
    roped = config.given("no_rope_layers")
    every = config.whole("no_rope_layer_interval", 1) or 4
    marks = roped if isinstance(roped, list) and len(roped) >= layers else None
    rows = [row for row in range(layers) if (marks[row] if marks else (row + 1) % every)]
    fields["window"] = {"tokens": chunk, "chunked": True, "layers": rows} if rows else None


def unknown(config: Config, fields: Fields) -> None:
    """A family we have never met: take at their word the fields that others use too."""
    for name in ("use_qk_norm", "qk_layernorm"):
        if config.has(name) and config.flag(name):
            fields["qk_norm"] = "head"
    for name in ("qkv_bias", "use_qkv_bias", "add_qkv_bias"):
        if config.has(name) and config.flag(name):
            fields["qkv_bias"] = True
    if config.has("use_bias") and config.flag("use_bias"):
        fields["qkv_bias"] = fields["attn_out_bias"] = fields["mlp_bias"] = True


SPECIAL: dict[str, Callable[[Config, Fields], None]] = {
    each.__name__: each
    for each in (
        multi_query,
        local_layers,
        opt,
        falcon,
        mpt,
        baichuan,
        dbrx,
        head_norms,
        full_norms,
        head_norms_with_bias,
        cohere_moe,
        granite_hybrid,
        stablelm,
        post_norms,
        chatglm,
        ernie_moe,
        equal_heads,
        square_output,
        llama4,
        unknown,
    )
}
