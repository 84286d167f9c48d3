"""Hugging Face configs as models."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cases import each_case

from astra.errors import InputError
from astra.model.config_fields import family, table
from astra.model.config_special import SPECIAL
from astra.model.huggingface import model_from_config
from astra.model.layer_kinds import layer_kinds
from astra.model.parameters import parameters
from astra.model.shape import Model
from astra.model.zoo import find_model, zoo_model

Raw = dict[str, Any]
BUILT: dict[str, Raw] = json.loads(
    (Path(__file__).parent / "built_by_transformers.json").read_text()
)


def sizes(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int) -> Raw:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
    }


# Configs as the publishers wrote them, cut to what matters; the zoo holds the same models.
PUBLISHED: dict[str, Raw] = {
    "llama-2-7b": {"model_type": "llama", "tie_word_embeddings": False}
    | sizes(32, 4096, 32, 32, 11008, 32000),
    "llama-3.2-1b": {"model_type": "llama", "head_dim": 64, "tie_word_embeddings": True}
    | sizes(16, 2048, 32, 8, 8192, 128256),
    "mistral-7b": {"model_type": "mistral", "sliding_window": 4096, "tie_word_embeddings": False}
    | sizes(32, 4096, 32, 8, 14336, 32000),
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    | sizes(32, 4096, 32, 8, 14336, 32000),
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "use_sliding_window": False,
        "sliding_window": 131072,
        "max_window_layers": 28,
        "tie_word_embeddings": False,
    }
    | sizes(28, 3584, 28, 4, 18944, 152064),
    "qwen1.5-moe-a2.7b": {
        "model_type": "qwen2_moe",
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "decoder_sparse_step": 1,
        "tie_word_embeddings": False,
    }
    | sizes(24, 2048, 16, 16, 5632, 151936),
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "tie_word_embeddings": False,
    }
    | sizes(48, 2048, 32, 4, 6144, 151936),
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "tie_word_embeddings": False,
    }
    | sizes(27, 2048, 16, 16, 10944, 102400),
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    | sizes(61, 7168, 128, 128, 18432, 129280),
    "gemma-2-2b": {"model_type": "gemma2", "head_dim": 256, "sliding_window": 4096}
    | sizes(26, 2304, 8, 4, 9216, 256000),
    "gemma-3-4b": {  # most sizes equal the class's, so they were never written
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
            "vocab_size": 262144,
        },
        "vision_config": {"model_type": "siglip_vision_model"},
    },
    "phi-2": {"model_type": "phi", "qk_layernorm": False, "tie_word_embeddings": False}
    | sizes(32, 2560, 32, 32, 10240, 51200),
    "phi-3.5-moe": {
        "model_type": "phimoe",
        "attention_bias": True,
        "lm_head_bias": True,
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    | sizes(32, 4096, 32, 8, 6400, 32064),
    "glm-4.5-air": {
        "model_type": "glm4_moe",
        "attention_bias": True,
        "use_qk_norm": False,
        "head_dim": 128,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "tie_word_embeddings": False,
    }
    | sizes(46, 4096, 96, 8, 10944, 151552),
    "gpt2": {
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 1024,
        "n_ctx": 1024,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
    },
    "bloom-7b1": {
        "model_type": "bloom",
        "n_layer": 30,
        "n_embed": 4096,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "n_inner": None,
        "vocab_size": 250880,
    },
    "opt-1.3b": {
        "model_type": "opt",
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
        "word_embed_proj_dim": 2048,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "vocab_size": 50272,
    },
    "falcon-7b": {
        "model_type": "falcon",
        "num_hidden_layers": 32,
        "hidden_size": 4544,
        "num_attention_heads": 71,
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "bias": False,
        "vocab_size": 65024,
    },
    "falcon-40b": {
        "model_type": "RefinedWeb",
        "n_layer": 60,
        "hidden_size": 8192,
        "n_head": 128,
        "n_head_kv": 8,
        "parallel_attn": True,
        "vocab_size": 65024,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "tie_word_embeddings": False,
    }
    | sizes(24, 2880, 64, 8, 2880, 201088),
    "olmoe-1b-7b": {
        "model_type": "olmoe",
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "tie_word_embeddings": False,
    }
    | sizes(16, 2048, 16, 16, 1024, 50304),
    "internlm2-7b": {"model_type": "internlm2", "bias": False, "tie_word_embeddings": False}
    | sizes(32, 4096, 32, 8, 14336, 92544),
    "baichuan2-7b": {"model_type": "baichuan", "tie_word_embeddings": False}
    | sizes(32, 4096, 32, 32, 11008, 125696),
    "llama-4-scout-17b-16e": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            "head_dim": 128,
            "intermediate_size_mlp": 16384,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "attention_chunk_size": 8192,
        }
        | sizes(48, 5120, 40, 8, 8192, 202048),
        "vision_config": {},
    },
}


@each_case("name", PUBLISHED)
def test_a_published_config_gives_the_zoo_s_model(name: str) -> None:
    model, known = model_from_config(PUBLISHED[name], "config.json"), zoo_model(name)
    assert parameters(model).total == known.parameters
    assert parameters(model).active == known.active_parameters
    ours, theirs = layer_kinds(model), layer_kinds(known)
    assert (ours.kinds, ours.of_layer) == (theirs.kinds, theirs.of_layer)


@each_case("model_type", BUILT)
def test_counts_equal_what_transformers_built(model_type: str) -> None:
    """Counted on the meta device with transformers 5.22.2, router correction bias included."""
    model = model_from_config(BUILT[model_type]["config"], "config.json")
    assert parameters(model).total == BUILT[model_type]["parameters"]


def test_families_that_live_outside_transformers_have_their_published_counts() -> None:
    chatglm3 = {
        "model_type": "chatglm",
        "num_layers": 28,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "ffn_hidden_size": 13696,
        "kv_channels": 128,
        "padded_vocab_size": 65024,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "rmsnorm": True,
        "post_layer_norm": True,
    }
    assert parameters(model_from_config(chatglm3, "config.json")).total == 6_243_584_000
    qwen = {"model_type": "qwen", "kv_channels": 128, "tie_word_embeddings": False}
    qwen |= sizes(32, 4096, 32, 32, 22016, 151936)
    assert parameters(model_from_config(qwen, "config.json")).total == 7_721_324_544


def test_opt_350m_has_a_narrow_embedding_and_no_final_norm() -> None:
    raw = {
        "model_type": "opt",
        "num_hidden_layers": 24,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "ffn_dim": 4096,
        "word_embed_proj_dim": 512,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": False,
        "vocab_size": 50272,
    }
    assert parameters(model_from_config(raw, "config.json")).total == 331_196_416


def test_dbrx_reads_its_inner_tables() -> None:
    raw = {
        "model_type": "dbrx",
        "n_layers": 40,
        "d_model": 6144,
        "n_heads": 48,
        "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        "tie_word_embeddings": False,
    }
    assert parameters(model_from_config(raw, "config.json")).total == 131_596_523_520


LLAMA: Raw = PUBLISHED["llama-2-7b"]


def test_prediction_layers_are_read_but_not_counted_in() -> None:
    model = model_from_config(PUBLISHED["deepseek-v3"], "config.json")
    assert model.mtp_layers == 1
    assert parameters(model).mtp_total > 11e9


def test_an_unknown_type_is_read_as_llama_and_said_so() -> None:
    model = model_from_config(LLAMA | {"model_type": "brand_new"}, "config.json")
    assert parameters(model).total == 6_738_415_616
    assert any("'brand_new' is not known here" in line for line in model.assumed)
    assert any("so the usual defaults are taken" in line for line in model.assumed)
    assert not any("brand_new's defaults" in line for line in model.assumed)


def test_a_config_without_a_type_is_read_if_its_fields_suffice() -> None:
    raw = {name: value for name, value in LLAMA.items() if name != "model_type"}
    assert parameters(model_from_config(raw, "config.json")).total == 6_738_415_616


def test_a_text_part_is_taken_and_said_so() -> None:
    model = model_from_config({"model_type": "llava", "text_config": LLAMA}, "config.json")
    assert parameters(model).total == 6_738_415_616
    assert "only the text decoder (text_config) is planned; other encoders are left out" in (
        model.assumed
    )


def test_whether_the_head_is_tied_is_the_whole_model_s_to_say() -> None:
    raw = {"model_type": "llava", "text_config": LLAMA, "tie_word_embeddings": True}
    model = model_from_config(raw, "config.json")
    assert model.tied_embeddings
    assert any("rules over the text part's" in line for line in model.assumed)


def test_defaults_that_were_taken_are_said() -> None:
    raw = {"model_type": "gemma2"} | sizes(26, 2304, 8, 4, 9216, 256000)
    model = model_from_config(raw, "config.json")
    assert model.tied_embeddings
    assert any("tie_word_embeddings = true" in line for line in model.assumed)
    complete = LLAMA | {"attention_bias": False, "mlp_bias": False}
    assert model_from_config(complete, "config.json").assumed == ()


def windows(raw: Raw) -> tuple[int, ...] | None:
    model = model_from_config(raw, "config.json")
    return None if model.window is None else model.window.layers


def test_windows_follow_the_rule_of_the_family() -> None:
    eight = sizes(8, 64, 4, 4, 64, 100) | {"sliding_window": 16}
    assert windows(eight | {"model_type": "llama"}) is None
    assert windows(eight | {"model_type": "gemma2"}) == (0, 2, 4, 6)
    assert windows(eight | {"model_type": "gemma3_text"}) == (0, 1, 2, 3, 4, 6, 7)
    assert windows(eight | {"model_type": "cohere2"}) == (0, 1, 2, 4, 5, 6)
    assert windows(eight | {"model_type": "exaone4", "sliding_window_pattern": "LLG"}) == (
        0,
        1,
        3,
        4,
        6,
        7,
    )
    late = eight | {"model_type": "qwen2", "max_window_layers": 6}
    assert windows(late) is None
    assert windows(late | {"use_sliding_window": True}) == (6, 7)
    every = model_from_config(eight | {"model_type": "mistral"}, "config.json").window
    assert every is not None
    assert (every.tokens, every.layers) == (16, None)
    assert windows(eight | {"model_type": "mistral", "sliding_window": None}) is None


def test_a_list_of_layer_types_rules_over_the_family() -> None:
    raw = sizes(3, 64, 4, 4, 64, 100) | {"model_type": "gemma2", "sliding_window": 16}
    kinds = ["full_attention", "full_attention", "sliding_attention"]
    assert windows(raw | {"layer_types": kinds}) == (2,)
    assert windows(raw | {"layer_types": ["full_attention"] * 3}) is None


def test_a_dense_prefix_has_its_own_pattern_of_windows() -> None:
    raw = sizes(8, 64, 4, 4, 64, 100) | {"model_type": "cohere2_moe", "first_k_dense_replace": 3}
    assert windows(raw) == (3, 4, 5, 7)
    assert windows(raw | {"prefix_dense_sliding_window_pattern": 2}) == (0, 2, 3, 4, 5, 7)


def test_local_layers_of_gpt_neo_are_a_window() -> None:
    raw = {"model_type": "gpt_neo", "num_layers": 4, "hidden_size": 8, "num_heads": 2}
    raw |= {"vocab_size": 10, "window_size": 5, "attention_types": [[["global", "local"], 2]]}
    assert windows(raw) == (1, 3)


def expert_rows(raw: Raw) -> list[int]:
    found = layer_kinds(model_from_config(raw, "config.json"))
    return [row for row, kind in enumerate(found.of_layer) if found.kinds[kind].mlp == "moe"]


def test_layers_with_experts_follow_every_way_of_saying_it() -> None:
    base = sizes(6, 64, 4, 4, 64, 100)
    qwen = base | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
    assert expert_rows(qwen) == [0, 1, 2, 3, 4, 5]
    assert expert_rows(qwen | {"decoder_sparse_step": 2}) == [1, 3, 5]
    assert expert_rows(qwen | {"mlp_only_layers": [0, 3]}) == [1, 2, 4, 5]
    assert expert_rows(qwen | {"num_experts": 0}) == []
    deep = base | {"model_type": "deepseek_v3", "first_k_dense_replace": 2}
    assert expert_rows(deep) == [2, 3, 4, 5]
    assert expert_rows(deep | {"moe_layer_freq": 2}) == [2, 4]
    assert expert_rows(deep | {"moe_layer_freq": [0, 1, 0, 0, 0, 1]}) == [1, 5]
    kinds = ["dense", "sparse", "dense", "sparse", "sparse", "dense"]
    assert expert_rows(deep | {"mlp_layer_types": kinds}) == [1, 3, 4]


def test_every_family_can_be_resolved_and_its_traits_are_fields_of_a_model() -> None:
    for name in table().families:
        entry = family(name)
        assert set(entry.traits) | set(entry.read) <= set(Model.__struct_fields__)
        assert entry.window in (None, "none", "every", "pattern", "late", "listed")
        assert entry.special is None or entry.special in SPECIAL


def test_no_type_is_both_a_family_and_refused() -> None:
    refused = [name for refusal in table().refused for name in refusal.types]
    assert len(refused) == len(set(refused))
    assert not set(refused) & set(table().families)


def test_the_name_is_the_file_s_the_hub_s_or_family_and_size(tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    config, other = tmp_path / "snapshot" / "config.json", tmp_path / "other.json"
    for path in (config, other):
        path.write_text(json.dumps(LLAMA | {"_name_or_path": "meta-llama/Llama-2-7b-hf"}))
    assert find_model(str(tmp_path / "snapshot")).name == "Llama-2-7b-hf"
    model = find_model(str(other))
    assert (model.name, model.hf_id) == ("other", "meta-llama/Llama-2-7b-hf")
    assert model.source.kind == "user"
    for place in ("/data/checkpoints/7", "./here", "", None):
        config.write_text(json.dumps(LLAMA | {"_name_or_path": place}))
        size = f"{parameters(find_model(str(config))).total / 1e6:.0f}m"  # no 6.74b: not a release
        assert find_model(str(config)).name == f"llama-{size}"


@each_case(
    "raw, reason",
    [
        ({"model_type": "mamba"}, "state-space or recurrent"),
        ({"model_type": "qwen3_next"}, "linear-attention"),
        ({"model_type": "lfm2"}, "linear-attention or convolution"),
        ({"model_type": "bert"}, "encoder"),
        ({"model_type": "t5"}, "encoder"),
        ({"model_type": "whisper"}, "encoder"),
        ({"model_type": "vit"}, "vision"),
        ({"model_type": "gemma3n"}, "across depth"),
        ({"model_type": "diffllama"}, "not modelled"),
        ({"model_type": "new", "text_config": {"model_type": "jamba"}}, r"text_config\.model_type"),
        (LLAMA | {"model_type": "new", "mamba_d_state": 16}, "state-space layers"),
        (LLAMA | {"model_type": "new", "linear_num_value_heads": 16}, "linear-attention layers"),
        (LLAMA | {"is_encoder_decoder": True}, "only decoder-only models"),
        (LLAMA | {"layer_types": ["mamba"] * 32}, "'mamba' layers, which are not modelled"),
        ({"peft_type": "LORA", "base_model_name_or_path": "x/y", "r": 8}, "adapter of 'x/y'"),
        ({"base_model_name_or_path": "x/y", "r": 8}, "only full training is planned"),
        ({"model_type": "granitemoehybrid"} | sizes(2, 8, 2, 2, 8, 9), "state-space layer"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_reason(raw: Raw, reason: str) -> None:
    with pytest.raises(InputError, match=rf"^config\.json: .*{reason}"):
        model_from_config(raw, "config.json")


@each_case(
    "more, positions",
    [
        ({"model_type": "llama"}, "rope"),
        ({"model_type": "bloom"}, "alibi"),
        ({"model_type": "mpt"}, "alibi"),
        ({"model_type": "falcon", "alibi": True}, "alibi"),
        ({"model_type": "falcon", "alibi": False}, "rope"),
        ({"model_type": "baichuan"}, "rope"),
        ({"model_type": "baichuan"} | sizes(40, 5120, 40, 40, 13696, 125696), "alibi"),
        ({"model_type": "jais", "position_embedding_type": "alibi"}, "alibi"),
        ({"model_type": "own", "attn_config": {"alibi": True}}, "alibi"),
    ],
)
def test_positions_are_rotary_only_where_the_model_has_such(more: Raw, positions: str) -> None:
    base = sizes(32, 4096, 32, 32, 11008, 32000)
    assert model_from_config(base | more, "config.json").positions == positions
