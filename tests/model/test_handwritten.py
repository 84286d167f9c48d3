"""Models written by hand in TOML."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.model.handwritten import model_from_table, read_model_toml
from astra.model.parameters import parameters
from astra.model.shape import Model

SHORT: dict[str, Any] = {"layers": 4, "hidden": 64, "heads": 8, "ffn": 160, "vocab": 100}
MOE: dict[str, Any] = {"experts": 8, "top_k": 2, "moe_ffn": 32}
MLA: dict[str, Any] = {
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}


def read(**fields: Any) -> Model:
    return model_from_table({**SHORT, **fields}, "my.toml", "my")


def test_five_fields_are_enough() -> None:
    model = read()
    assert (model.name, model.kv_heads, model.head_dim) == ("my", 8, 8)
    assert parameters(model).total == 4 * (4 * 64 * 64 + 3 * 64 * 160 + 2 * 64) + 2 * 6400 + 64


def test_what_was_filled_in_is_said() -> None:
    assert read().assumed == (
        "kv_heads = 8: not given, one for each head",
        "head_dim = 8: not given, hidden / heads",
    )
    assert read(kv_heads=2, head_dim=16).assumed == ()


def test_experts_take_the_place_of_the_mlp() -> None:
    table = {name: value for name, value in SHORT.items() if name != "ffn"} | {"moe": MOE}
    model = model_from_table(table, "my.toml", "my")
    assert model.ffn == 0
    assert "mlp" not in parameters(model).by_part


def test_latent_attention_gives_the_head_its_size() -> None:
    assert read(mla=MLA).head_dim == 10


@pytest.mark.parametrize("field", ["layers", "hidden", "heads", "vocab", "ffn"])
def test_a_missing_field_is_named(field: str) -> None:
    table = {name: value for name, value in SHORT.items() if name != field}
    with pytest.raises(InputError, match=rf"my\.toml: {field} is missing\. A model needs"):
        model_from_table(table, "my.toml", "my")


@each_case(
    "fields, message",
    [
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 8. Try one of 1, 2, 4, 8."),
        ({"kv_heads": 16}, "kv_heads = 16 is more than heads = 8. Try 8 or fewer."),
        ({"hidden": 65}, "hidden = 65 is not divisible by heads = 8"),
        ({"moe": MOE | {"top_k": 9}}, "moe.top_k = 9 is more than moe.experts = 8."),
        ({"moe": MOE | {"first_dense_layers": 5}}, "first_dense_layers = 5 is more than layers"),
        ({"moe": MOE | {"shared_experts": 1}}, "shared_ffn, their total width, is missing"),
        ({"moe": MOE | {"layers": [4]}}, "names layer 4, but there are 4, counted from 0"),
        ({"window": {"tokens": 5, "layers": [0, 7]}}, "names layer 7"),
        ({"moe": MOE | {"first_dense_layers": 1}, "ffn": 0}, "1 of 4 layers have no experts"),
        ({"ffn": 0}, "there are no experts either"),
        ({"parameters": 7}, "parameters = 7 disagrees with the shape"),
        ({"active_parameters": 7}, "active_parameters = 7 disagrees"),
        ({"layers": 20_000}, "layers = 20000 is more than 10,000"),
        ({"hidden": 10**9 - 8, "ffn": 10**9}, "Is a field too large by mistake?"),
        ({"headz": 3}, "headz: there is no such field. Did you mean heads"),
        ({"moe": MOE | {"expertz": 1}}, "moe.expertz: there is no such field"),
        ({"layers": 0}, "layers = 0: expected `int` >= 1"),
        ({"layers": "4"}, "layers = '4': expected `int`, got `str`"),
        ({"layers": 4.0}, "layers"),
        ({"layers": True}, "layers"),
        ({"heads": -8}, "heads = -8"),
        ({"hidden": "64"}, "hidden = '64'"),
        ({"norm": "batchnorm"}, "norm = 'batchnorm'"),
        ({"assumed": 3}, "assumed = 3"),
        ({"mla": 3}, "mla = 3"),
        ({"mla": MLA | {"kv_lora_rank": None}}, "mla.kv_lora_rank"),
        ({"qk_norm": "both"}, "qk_norm = 'both'"),
    ],
)
def test_a_contradiction_or_wrong_type_says_where_and_what(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(**fields)
    assert str(caught.value).startswith("my.toml: ")
    assert message in str(caught.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
fields = st.sampled_from([*Model.__struct_fields__, "nonsense"])


@given(st.dictionaries(fields, anything, max_size=4))
def test_whatever_stands_in_a_field_it_is_a_model_or_an_input_error(table: dict[str, Any]) -> None:
    try:
        model = model_from_table(SHORT | table, "my.toml", "my")
    except InputError as error:
        assert "my.toml" in str(error)
        assert len(str(error)) < 600
    else:
        assert parameters(model).total > 0


def test_a_file_that_is_no_toml_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("layers = 4\nhidden = = 3\n")
    with pytest.raises(InputError, match="line 2"):
        read_model_toml(path)


def test_the_example_reads_and_says_what_it_assumes() -> None:
    model = read_model_toml(Path(__file__).parents[2] / "examples" / "my-model.toml")
    assert model.name == "my-model"
    assert parameters(model).total == 1_185_253_376
    assert model.assumed == ("head_dim = 128: not given, hidden / heads",)
