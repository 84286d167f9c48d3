"""Which layer is of which kind."""

from hypothesis import given
from tests.model.shapes import models

from astra.model.layer_kinds import has_experts, is_windowed, layer_kind, layer_kinds
from astra.model.shape import Model, Moe, Window
from astra.model.zoo import zoo_model

PLAIN = Model(name="plain", layers=6, hidden=8, heads=4, kv_heads=2, head_dim=2, ffn=16, vocab=10)


@given(models())
def test_every_layer_has_the_kind_its_row_says(model: Model) -> None:
    found = layer_kinds(model)
    assert len(found.of_layer) == model.layers
    assert sum(found.counts) == model.layers
    for layer, row in enumerate(found.of_layer):
        assert found.kinds[row] == layer_kind(model, layer)
        assert (found.kinds[row].mlp == "moe") == has_experts(model, layer)
        assert (found.kinds[row].window is not None) == is_windowed(model, layer)


@given(models())
def test_kinds_are_distinct_and_in_order_of_first_appearance(model: Model) -> None:
    found = layer_kinds(model)
    assert len(set(found.kinds)) == len(found.kinds)
    assert list(dict.fromkeys(found.of_layer)) == list(range(len(found.kinds)))


def test_a_plain_model_has_one_kind() -> None:
    assert [kind.name for kind in layer_kinds(PLAIN).kinds] == ["gqa, dense"]


def test_deepseek_v3_has_three_dense_layers_then_experts() -> None:
    found = layer_kinds(zoo_model("deepseek-v3"))
    assert [kind.name for kind in found.kinds] == ["mla, dense", "mla, moe"]
    assert found.of_layer == (0,) * 3 + (1,) * 58
    assert found.mtp_kind.name == "mla, moe"


def test_llama_4_maverick_alternates_experts_and_has_chunks_in_three_of_four_layers() -> None:
    found = layer_kinds(zoo_model("llama-4-maverick-17b-128e"))
    names = [found.kinds[row].name for row in found.of_layer[:4]]
    assert names == [
        "gqa, chunk 8192, dense",
        "gqa, chunk 8192, moe",
        "gqa, chunk 8192, dense",
        "gqa, moe",
    ]
    assert found.counts == (24, 12, 12)


def test_a_list_of_layers_rules_over_the_step() -> None:
    moe = Moe(experts=4, top_k=1, moe_ffn=8, layers=(1, 4))
    model = Model(
        name="listed",
        layers=6,
        hidden=8,
        heads=4,
        kv_heads=4,
        head_dim=2,
        ffn=16,
        vocab=10,
        moe=moe,
    )
    assert [has_experts(model, layer) for layer in range(6)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_attention_is_named_after_its_key_value_heads() -> None:
    assert layer_kind(zoo_model("llama-2-7b"), 0).attention == "mha"
    assert layer_kind(zoo_model("llama-3-8b"), 0).attention == "gqa"
    assert layer_kind(zoo_model("falcon-7b"), 0).attention == "mqa"
    assert layer_kind(zoo_model("deepseek-v2"), 0).attention == "mla"


def test_a_window_without_layers_holds_for_all() -> None:
    model = Model(
        name="windowed", layers=3, hidden=8, heads=4, kv_heads=4, head_dim=2, ffn=16, vocab=10,
        window=Window(tokens=5),
    )  # fmt: skip
    assert [kind.window for kind in layer_kinds(model).kinds] == [5]
