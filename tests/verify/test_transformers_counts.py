"""Our parameter counts against models that transformers builds on the meta device.

Needs torch and transformers. Without them these tests are skipped, unless ASTRA_VERIFY=1 says
that they are meant to run: then their absence is a failure.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from astra.errors import InputError
from astra.model.config_fields import table
from astra.model.huggingface import model_from_config
from astra.model.layer_kinds import is_windowed
from astra.model.parameters import parameters

try:
    import torch
    import transformers
except ImportError as missing:
    if os.environ.get("ASTRA_VERIFY") == "1":
        raise
    pytest.skip(f"not installed: {missing.name}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("default")

AT_LEAST = 60  # model types that must be buildable and equal

SMALL = {  # odd on purpose: no two sizes alike, hardly a power of two among them
    "num_hidden_layers": 7,
    "n_layer": 7,
    "n_layers": 7,
    "num_layers": 7,
    "hidden_size": 96,
    "n_embd": 96,
    "d_model": 96,
    "num_attention_heads": 6,
    "n_head": 6,
    "n_heads": 6,
    "num_heads": 6,
    "attention_heads": 6,
    "num_key_value_heads": 3,
    "num_kv_heads": 3,
    "head_dim": 20,
    "intermediate_size": 136,
    "intermediate_size_mlp": 152,
    "ffn_dim": 136,
    "ffn_hidden_size": 136,
    "dff": 136,
    "vocab_size": 1009,
    "max_position_embeddings": 222,
    "n_positions": 222,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "shared_intermediate_size": 56,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts": 6,
    "moe_num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_shared_experts": 2,
    "num_shared_experts": 2,
    "moe_num_shared_experts": 2,
    "first_k_dense_replace": 2,
    "num_dense_layers": 2,
    "decoder_sparse_step": 2,
    "interleave_moe_layer_step": 2,
    "moe_layer_interval": 2,
    "moe_layer_start_index": 2,
    "q_lora_rank": 28,
    "kv_lora_rank": 36,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "word_embed_proj_dim": 44,
    "n_group": 1,
    "topk_group": 1,
}
LISTS = ("layer_types", "mlp_layer_types", "moe_layers", "no_rope_layers", "mlp_only_layers")
MORE: dict[str, dict[str, Any]] = {  # what only one type needs, to be built at all
    "granitemoehybrid": {
        "layer_types": ["full_attention"] * 7,
        "mamba_n_heads": 6,
        "mamba_d_head": 32,
    },
    "cohere2_moe": {
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 4,
        "prefix_dense_intermediate_size": 152,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 3, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 96, "ffn_hidden_size": 40, "moe_num_experts": 6},
    },
}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


@dataclass(frozen=True)
class Outcome:
    """What became of one model type in one variation."""

    model_type: str
    variation: str
    verdict: str  # equal | different | refused | not buildable
    detail: str = ""


def variations(defaults: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keyword arguments of the config class, by the name of the variation."""
    small: dict[str, Any] = {name: SMALL[name] for name, value in defaults.items() if name in SMALL}
    if defaults["model_type"] == "helium":
        small["head_dim"] = 16
    small |= MORE.get(defaults["model_type"], {})
    if "qk_rope_head_dim" in small:
        small.pop("head_dim", None)
        small.pop("num_key_value_heads", None)
    small |= {name: 1 for name in TOKENS if name in defaults}
    if isinstance(defaults.get("attention_types"), list):
        small["attention_types"] = [[["global", "local"], 3], [["global"], 1]]
    flags = {
        name: not value
        for name, value in defaults.items()
        if isinstance(value, bool) and ("bias" in name or "norm" in name.split("_"))
    }
    tied = {"tie_word_embeddings": not defaults.get("tie_word_embeddings", False)}
    yield "default", {}
    if "text_config" in defaults:  # the sizes are in there
        yield "small", {}
        yield "tied the other way", tied | {"text_config": tied}
        return
    yield "small", small
    yield "small, tied the other way", small | tied
    if "head_dim" in small:
        yield (
            "small, no head_dim",
            {name: value for name, value in small.items() if name != "head_dim"},
        )
    for name, value in flags.items():
        if name not in ("norm_topk_prob", "scale_attn_by_inverse_layer_idx"):
            yield f"small, {name} = {value}", small | {name: value}
    for name in ("new_decoder_architecture", "multi_query", "parallel_attn"):
        if name in defaults:
            yield f"small, {name} = {not defaults[name]}", small | {name: not defaults[name]}
    for name in ("use_parallel_residual", "qk_layernorm", "do_layer_norm_before"):
        if name in defaults and name not in flags:
            yield f"small, {name} = {not defaults[name]}", small | {name: not defaults[name]}


def built_count(config: Any) -> int:
    """Parameters of the text decoder that transformers builds, tied ones once.

    The correction bias of sigmoid routers is a buffer in most of its families; it is trained
    state like the rest, and we count it.
    """
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    routers = sum(
        buffer.numel()
        for name, buffer in model.named_buffers()
        if name.endswith("e_score_correction_bias")
    )
    named = dict(model.named_parameters())
    if any("language_model." in name for name in named):  # beside it, a vision or audio encoder
        named = {
            name: each
            for name, each in named.items()
            if "language_model." in name or name.startswith("lm_head")
        }
    named = {name: each for name, each in named.items() if "embed_tokens_extend" not in name}
    return routers + sum(each.numel() for each in named.values())


def compared(
    model_type: str, variation: str, settings: dict[str, Any], omitted: str | None = None
) -> Outcome:
    """One variation of one type: theirs, ours from the full config, ours from the saved one.

    `omitted` names a field that our reader does not get to see.
    """
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]
    try:
        config = config_class(**settings)
        full = json.loads(json.dumps(config.to_dict(), default=str))
        saved = json.loads(json.dumps(config.to_diff_dict(), default=str))
        full.pop(omitted, None)
        saved.pop(omitted, None)
    except Exception as error:
        return Outcome(model_type, variation, "not buildable", repr(error)[:100])
    try:
        ours = [
            parameters(model_from_config(each, where, "built")).total
            for each, where in ((full, "to_dict"), (saved, "to_diff_dict"))
        ]
    except InputError as error:
        return Outcome(model_type, variation, "refused", str(error))
    try:
        theirs = built_count(config)
    except Exception as error:
        return Outcome(model_type, variation, "not buildable", repr(error)[:100])
    if ours == [theirs, theirs]:
        return Outcome(model_type, variation, "equal", f"{theirs:,}")
    return Outcome(model_type, variation, "different", f"theirs {theirs:,}, ours {ours}")


@cache
def outcomes() -> tuple[Outcome, ...]:
    """Every variation of every causal language model in transformers."""
    transformers.logging.set_verbosity_error()
    auto = transformers.models.auto
    found: list[Outcome] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model_type in auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            try:
                defaults = auto.configuration_auto.CONFIG_MAPPING[model_type]().to_dict()
            except Exception as error:
                found.append(Outcome(model_type, "default", "not buildable", repr(error)[:100]))
                continue
            found += [compared(model_type, *each) for each in variations(defaults)]
    return tuple(found)


REQUIRED = frozenset(
    [
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "hidden_size",
        "n_embd",
        "d_model",
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "attention_heads",
        "intermediate_size",
        "ffn_dim",
        "dff",
        "vocab_size",
        "model_type",
    ]
)


@cache
def omissions() -> tuple[Outcome, ...]:
    """Small models of every type that is equal, with one field after the other left out."""
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    found: list[Outcome] = []
    for model_type in equal_types():
        defaults = mapping[model_type]().to_dict()
        if "text_config" in defaults:
            continue
        small = dict(variations(defaults))["small"]
        for name in defaults:
            sized = name in SMALL or name in LISTS or isinstance(defaults[name], bool)
            if sized and name not in REQUIRED:
                settings = {key: value for key, value in small.items() if key != name}
                found.append(compared(model_type, f"without {name}", settings, name))
    return tuple(found)


def equal_types() -> list[str]:
    types = dict.fromkeys(each.model_type for each in outcomes() if each.verdict == "equal")
    return list(types)


def test_no_count_differs_from_the_model_transformers_builds() -> None:
    different = [each for each in outcomes() if each.verdict == "different"]
    assert not different, "\n".join(
        f"{each.model_type} ({each.variation}): {each.detail}" for each in different
    )


def test_what_a_config_leaves_out_is_taken_as_transformers_takes_it() -> None:
    different = [each for each in omissions() if each.verdict == "different"]
    assert not different, "\n".join(
        f"{each.model_type} {each.variation}: {each.detail}" for each in different
    )
    assert sum(each.verdict == "equal" for each in omissions()) > 10 * AT_LEAST


def test_windows_are_where_transformers_puts_them_listed_or_not() -> None:
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    checked = []
    for model_type in equal_types():
        config = mapping[model_type](**dict(variations(mapping[model_type]().to_dict()))["small"])
        kinds = getattr(config, "layer_types", None)
        if not kinds or "text_config" in config.to_dict():
            continue
        expected = [kind != "full_attention" for kind in kinds]
        raw = json.loads(json.dumps(config.to_dict(), default=str))
        for name in ("layer_types", "no_rope_layers", "nothing"):
            kept = {key: value for key, value in raw.items() if key != name}
            try:
                model = model_from_config(kept, model_type)
            except InputError as error:  # no rule to go by: then it must ask for the list
                assert name == "layer_types" and "layer_types is missing" in str(error)
                continue
            ours = [is_windowed(model, layer) for layer in range(model.layers)]
            assert ours == expected, f"{model_type} without {name}"
        checked.append(model_type)
    assert len(checked) >= 20, checked


def test_sizes_left_out_of_a_config_inside_another_are_the_class_s() -> None:
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    nested = [name for name, entry in table().families.items() if entry.nested]
    for model_type in nested:
        full = json.loads(json.dumps(mapping[model_type]().to_dict(), default=str))
        counts: list[int | None] = []
        for part in (full, {"model_type": model_type}):
            try:
                model = model_from_config({"model_type": "x", "text_config": part}, model_type)
                counts.append(parameters(model).total)
            except InputError:  # no default of the class makes a model by itself
                counts.append(None)
        assert counts[0] == counts[1], model_type
    assert len(nested) >= 30


def test_enough_model_types_are_equal_to_the_last_parameter() -> None:
    assert len(equal_types()) >= AT_LEAST


def test_every_type_is_equal_refused_with_a_reason_or_not_buildable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: dict[str, Outcome] = {}
    order = ("different", "equal", "refused", "not buildable")
    for each in outcomes():
        now = rows.get(each.model_type)
        if now is None or order.index(each.verdict) < order.index(now.verdict):
            rows[each.model_type] = each
    with capsys.disabled():
        sys.stdout.write(f"\ntransformers {transformers.__version__}, {len(rows)} model types\n")
        for verdict in order:
            types = [each for each in rows.values() if each.verdict == verdict]
            sys.stdout.write(f"\n{verdict}: {len(types)}\n")
            for each in types:
                times = sum(
                    other.model_type == each.model_type and other.verdict == verdict
                    for other in outcomes()
                )
                sys.stdout.write(f"  {each.model_type:26} {times:3}  {each.detail[:110]}\n")
    assert all(each.detail for each in rows.values() if each.verdict == "refused")
