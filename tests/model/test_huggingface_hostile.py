"""Configs that are broken, contradictory or made to hurt."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.model.flops import forward_flops
from astra.model.huggingface import model_from_config, read_config
from astra.model.parameters import parameters

Raw = dict[str, Any]
BUILT: dict[str, Raw] = json.loads(
    (Path(__file__).parent / "built_by_transformers.json").read_text()
)
LLAMA: Raw = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "intermediate_size": 96,
    "vocab_size": 100,
}
MOE: Raw = LLAMA | {"model_type": "mixtral", "num_key_value_heads": 8}


@each_case(
    "raw, message",
    [
        (LLAMA | {"num_attention_heads": "8"}, "num_attention_heads = '8': a whole number is"),
        (LLAMA | {"num_attention_heads": "8"}, "Try 8 without quotes"),
        (LLAMA | {"hidden_size": 64.0}, "hidden_size = 64.0: a whole number is needed"),
        (LLAMA | {"hidden_size": True}, "hidden_size = true: a whole number is needed"),
        (LLAMA | {"hidden_size": None}, "hidden_size = null: a number is needed here"),
        (LLAMA | {"hidden_size": -64}, "hidden_size = -64: must be at least 1"),
        (LLAMA | {"hidden_size": 0}, "hidden_size = 0: must be at least 1"),
        (LLAMA | {"vocab_size": 10**30}, "is more than 1,000,000,000"),
        (LLAMA | {"hidden_size": [64, 32]}, "differs from layer to layer"),
        (LLAMA | {"hidden_size": {"a": 1}}, "a whole number is needed"),
        (LLAMA | {"num_key_value_heads": 3}, "num_key_value_heads = 3 does not divide num_att"),
        (LLAMA | {"num_key_value_heads": 16}, "is more than num_attention_heads = 8"),
        (LLAMA | {"num_attention_heads": 7}, "hidden_size = 64 is not divisible by num_attention"),
        (LLAMA | {"n_embd": 32}, "n_embd = 32: contradicts hidden_size = 64"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes': true or false"),
        (LLAMA | {"hidden_act": 3}, "hidden_act = 3: a name in quotes"),
        (LLAMA | {"rope_theta": "big"}, "rope_theta = 'big': a positive number"),
        (LLAMA | {"rope_theta": float("nan")}, "a positive number"),
        (LLAMA | {"model_type": 7}, "model_type = 7: a name in quotes"),
        (LLAMA | {"layer_types": ["full_attention"]}, "has 1 entries for 4 layers"),
        (LLAMA | {"layer_types": "full"}, "a list with one word for every layer"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 4}, "Add sliding_window"),
        (MOE | {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is more than num_local_exp"),
        (MOE | {"num_local_experts": -1}, "num_local_experts = -1: must be at least 0"),
        (
            LLAMA | {"model_type": "deepseek_v3", "first_k_dense_replace": 9},
            "first_k_dense_replace = 9 is more than num_hidden_layers = 4",
        ),
        (
            LLAMA | {"model_type": "qwen3_moe", "num_key_value_heads": 4, "mlp_only_layers": [7]},
            "mlp_only_layers = [7]: names layer 7",
        ),
        (
            LLAMA | {"model_type": "deepseek_v3", "moe_layer_freq": [1, 2, 3]},
            "each 0 or 1, is needed",
        ),
        (
            {"model_type": "x", "text_config": LLAMA | {"hidden_size": "64"}},
            "text_config.hidden_size = '64'",
        ),
        (LLAMA | {"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000: is more than 10,000"),
        (
            LLAMA | {"model_type": "gemma2", "num_hidden_layers": 10**9},
            "num_hidden_layers = 1000000000: is more than 10,000",
        ),
        (
            LLAMA | {"model_type": "gpt_neo", "attention_types": [[["global"], 10**12]]},
            "does not describe 4 layers",
        ),
        (LLAMA | {"model_type": "gpt_neo", "attention_types": 7}, "does not describe 4 layers"),
        (LLAMA | {"hidden_size": 8 * 10**7, "intermediate_size": 10**9}, "too large by mistake"),
    ],
)
def test_the_message_names_file_field_value_and_reason(raw: Raw, message: str) -> None:
    with pytest.raises(InputError) as caught:
        model_from_config(raw, "config.json")
    assert str(caught.value).startswith("config.json: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("field", [name for name in LLAMA if name != "model_type"])
def test_a_missing_size_is_named_with_its_other_names(field: str) -> None:
    raw = {name: value for name, value in LLAMA.items() if name != field}
    with pytest.raises(InputError, match=rf"config\.json: {field} \(or .*\) is missing"):
        model_from_config(raw, "config.json")


@each_case("raw", [[], "text", 3, None, True, {}, {"text_config": {}}])
def test_what_is_no_config_is_an_input_error(raw: object) -> None:
    with pytest.raises(InputError, match=r"^config\.json: "):
        model_from_config(raw, "config.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 5000,
        '{"hidden_size": 1e999}',
        "nul\x00",
        '{"hidden_size": ' + "9" * 5000 + "}",
    ],
)
def test_a_broken_file_is_an_input_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(path)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "8", "full_attention", "sliding_attention", "dense", "x" * 300]),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=9,
)
MORE_FIELDS = sorted(
    {name for entry in BUILT.values() for name in entry["config"]}
    | {"text_config", "moe_layer_freq", "attention_types", "mlp_only_layers", "is_encoder_decoder"}
    | {"rope_parameters", "use_sliding_window", "sliding_window_pattern", "_name_or_path"}
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(BUILT)),
    st.dictionaries(st.sampled_from(MORE_FIELDS), anything, min_size=1, max_size=3),
)
def test_whatever_stands_in_a_field_it_is_a_model_or_an_input_error(
    model_type: str, changes: Raw
) -> None:
    raw = BUILT[model_type]["config"] | changes
    try:
        model = model_from_config(raw, "config.json")
    except InputError as error:
        assert str(error).startswith("config.json: ")
        assert len(str(error)) < 700
    else:
        counted = parameters(model)
        assert 0 < counted.active <= counted.total
        assert forward_flops(model, 128).total_flops > 0


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(BUILT)), st.data())
def test_a_field_left_out_is_a_default_or_an_input_error(
    model_type: str, data: st.DataObject
) -> None:
    raw: Raw = dict(BUILT[model_type]["config"])
    for name in data.draw(st.lists(st.sampled_from(sorted(raw)), max_size=3, unique=True)):
        del raw[name]
    try:
        assert parameters(model_from_config(raw, "config.json")).total > 0
    except InputError as error:
        assert str(error).startswith("config.json: ")
