"""Parameters by part and by what shards them."""

import msgspec
import pytest
from hypothesis import given
from tests.model.shapes import models
from tests.support.cases import each_case

from astra.model.layer_kinds import layer_kinds
from astra.model.parameters import count, layer_weights, mtp_weights, parameters
from astra.model.shape import Model
from astra.model.zoo import zoo_model, zoo_names


@given(models())
def test_parts_sum_to_the_total(model: Model) -> None:
    counted = parameters(model)
    layers = sum(entry.layers * count(entry.weights) for entry in counted.kinds)
    assert counted.total == layers + count(counted.ends) == sum(counted.by_part.values())


@given(models())
def test_shards_sum_to_the_layer(model: Model) -> None:
    for kind in layer_kinds(model).kinds:
        weights = layer_weights(model, kind)
        counts = [count(weights, sharded_by=name) for name in ("tp", "kv", "whole", "ep_etp", "ep")]
        assert sum(counts) == count(weights)


@given(models())
def test_active_is_the_total_with_only_the_chosen_experts(model: Model) -> None:
    counted = parameters(model)
    if model.moe is None:
        assert counted.active == counted.total
        return
    chosen = msgspec.structs.replace(model.moe, experts=model.moe.top_k)
    smaller = parameters(msgspec.structs.replace(model, moe=chosen))
    idle = model.moe.experts - model.moe.top_k
    moe_layers = sum(entry.layers for entry in counted.kinds if entry.kind.mlp == "moe")
    routers = moe_layers * idle * (model.hidden + model.moe.router_bias)
    assert counted.active == smaller.total + routers


@given(models(moe=None, mla=None))
def test_one_more_layer_adds_one_layer(model: Model) -> None:
    longer = msgspec.structs.replace(model, layers=model.layers + 1)
    kind = layer_kinds(model).kinds[0]
    assert parameters(longer).total - parameters(model).total == count(layer_weights(model, kind))


@given(models())
def test_multi_token_prediction_is_counted_apart(model: Model) -> None:
    without = msgspec.structs.replace(model, mtp_layers=0)
    assert parameters(model).total == parameters(without).total
    assert parameters(without).mtp_total == 0
    assert parameters(model).mtp_total == model.mtp_layers * count(mtp_weights(model))


def test_the_prediction_layer_of_deepseek_v3_has_its_published_size() -> None:
    """The checkpoint holds 685B: 671B, 11.5B of the prediction layer, and copies of the
    embedding and head, 0.9B each, which are the main model's (DeepSeek-V3, README_WEIGHTS)."""
    model = msgspec.structs.replace(zoo_model("deepseek-v3"), mtp_layers=1)
    assert parameters(model).mtp_total == pytest.approx(11.5e9, rel=0.01)


@each_case("name", zoo_names())
def test_what_tensor_parallelism_shards_is_divisible_by_two(name: str) -> None:
    model = zoo_model(name)
    for kind in layer_kinds(model).kinds:
        weights = layer_weights(model, kind)
        assert count(weights, sharded_by="tp") % 2 == 0 or model.heads % 2
        assert count(weights, part="norms") == count(weights, part="norms", sharded_by="whole")
        assert count(weights, part="router") == count(weights, part="router", sharded_by="whole")


def test_a_layer_of_llama_3_8b_by_hand() -> None:
    model = zoo_model("llama-3-8b")
    weights = layer_weights(model, layer_kinds(model).kinds[0])
    assert count(weights, sharded_by="kv") == 2 * 4096 * 8 * 128
    assert count(weights, sharded_by="tp") == 2 * 4096 * 4096 + 3 * 4096 * 14336
    assert count(weights, sharded_by="whole") == 2 * 4096
    assert count(weights, sharded_by="ep_etp") == 0


def test_a_layer_with_experts_of_deepseek_v3_by_hand() -> None:
    model = zoo_model("deepseek-v3")
    weights = layer_weights(model, layer_kinds(model).kinds[1])
    assert count(weights, sharded_by="ep_etp") == 256 * 3 * 7168 * 2048
    down = 7168 * 1536 + 7168 * (512 + 64)
    assert count(weights, sharded_by="whole") == down + 1536 + 512 + 7168 * 256 + 256 + 2 * 7168
    up = 1536 * 128 * 192 + 512 * 128 * (128 + 128) + 128 * 128 * 7168
    assert count(weights, sharded_by="tp") == up + 3 * 7168 * 2048
    assert count(weights, sharded_by="kv") == 0


def test_biases_after_row_parallel_products_are_not_sharded() -> None:
    model = zoo_model("gpt-oss-20b")
    weights = layer_weights(model, layer_kinds(model).kinds[0])
    assert count(weights, sharded_by="ep") == 32 * 2880
    assert {each.name for each in weights if each.sharded_by == "whole"} == {
        "output_bias",
        "router",
        "router_bias",
        "norms",
    }


def test_tied_embeddings_have_no_head() -> None:
    tied = parameters(zoo_model("gemma-2-2b")).by_part
    assert "head" not in tied
    assert "head" in parameters(zoo_model("llama-3-8b")).by_part


def test_a_narrower_embedding_is_projected_in_and_out() -> None:
    model = msgspec.structs.replace(zoo_model("opt-125m"), embedding_dim=512, parameters=None)
    plain = zoo_model("opt-125m")
    lost = plain.vocab * (768 - 512)
    assert parameters(model).total == parameters(plain).total - lost + 2 * 512 * 768
