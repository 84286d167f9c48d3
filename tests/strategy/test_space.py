"""`--set KEY=V,V`: what it means, and what is said when it cannot be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.strategy.recompute import MODULES, Recompute
from astra.strategy.space import DIMENSION_BY_NAME, DIMENSIONS, parse_set


@each_case(
    "text, name, values",
    [
        ("tp=4,8", "tp", (4, 8)),
        (" tp = 4 , 8 ", "tp", (4, 8)),
        ("tp=4,4,8,4", "tp", (4, 8)),
        ("micro-batch=1", "micro_batch", (1,)),
        ("recompute=none,full:block:4", "recompute", ("none", "full:block:4")),
        ("recompute=full,full:uniform:1", "recompute", ("full:uniform:1",)),
        ("recompute=selective:mlp+core_attn", "recompute", ("selective:core_attn+mlp",)),
        ("sequence_parallel=on,False", "sequence_parallel", (True, False)),
        ("overlap_tp=1,true", "overlap_tp", (True,)),
        ("sharding=none,optimizer", "sharding", ("none", "optimizer")),
        ("capacity_factor=1,1.0,2.5", "capacity_factor", (1.0, 2.5)),
        ("offload_optimizer_fraction=0,0.5", "offload_optimizer_fraction", (0.0, 0.5)),
        (
            "offload_activations=none,moe_act+core_attn",
            "offload_activations",
            ((), ("core_attn", "moe_act")),
        ),
    ],
)
def test_values_are_read_and_each_is_kept_once(
    text: str, name: str, values: tuple[object, ...]
) -> None:
    assert parse_set([text]) == {name: values}


@each_case(
    "text, said",
    [
        ("tpp=4", "Did you mean tp"),
        ("recompte=full", "Did you mean recompute"),
        ("sequence_paralel=true", "Did you mean sequence_parallel"),
        ("zzz=4", "The dimensions are tp, cp, pp"),
        ("layers=4", "no dimension 'layers'. The dimensions are tp"),
        ("layer=4", "no dimension 'layer'. The dimensions are tp"),
        ("tp", "write KEY=VALUE"),
        ("tp=", "write KEY=VALUE"),
        ("tp= ", "write KEY=VALUE"),
        ("", "write KEY=VALUE"),
        ("=4", "no dimension ''"),
        ("tp=0", "not a whole number of 1 or more"),
        ("tp=-2", "not a whole number of 1 or more"),
        ("tp=2.0", "not a whole number of 1 or more"),
        ("tp=4,,8", "not a whole number of 1 or more"),
        ("tp=four", "not a whole number of 1 or more"),
        ("tp=²", "not a whole number of 1 or more"),
        ("tp=999999999", "not a whole number of 1 or more"),
        (f"tp={'9' * 5000}", "not a whole number of 1 or more"),
        ("sharding=optimiser", "Did you mean optimizer"),
        ("cuda_graph=zzz", "Use one of none, local"),
        ("sequence_parallel=maybe", "use true or false"),
        ("recompute=ful", "not a recompute setting"),
        ("recompute=selective:mpl", "Did you mean mlp"),
        ("recompute=full:block:0", "not a number of layers"),
        ("recompute=full:block:x", "not a number of layers"),
        ("offload_activations=core_atn", "Did you mean core_attn"),
        ("offload_layers=-1", "not a whole number of 0 or more"),
        ("capacity_factor=0", "must lie between 0.01"),
        ("capacity_factor=nan", "must lie between"),
        ("capacity_factor=inf", "must lie between"),
        ("capacity_factor=x", "not a number"),
        ("offload_optimizer_fraction=1.5", "must lie between 0 and 1"),
        ("offload_optimizer_fraction=-0.1", "must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_to_try(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_set([text])
    assert said in str(caught.value)
    assert "--set" in str(caught.value) and len(str(caught.value)) < 900


def test_one_dimension_twice_is_an_error() -> None:
    with pytest.raises(InputError, match="given twice; list its values with commas"):
        parse_set(["tp=4", "tp=8"])


@given(st.text(max_size=40).filter(lambda text: "=" not in text))
def test_a_text_without_a_value_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="--set"):
        parse_set([text])


@given(
    st.sampled_from(sorted(DIMENSION_BY_NAME)), st.text("0123456789abcdefnoul+:,.-_", max_size=20)
)
def test_any_value_of_a_dimension_is_read_or_an_input_error(name: str, text: str) -> None:
    try:
        found = parse_set([f"{name}={text}"])
    except InputError as error:
        assert "--set" in str(error)
        return
    assert set(found) == {name} and len(found[name]) == len(set(found[name])) >= 1


def test_every_dimension_says_where_its_values_come_from() -> None:
    assert len(DIMENSION_BY_NAME) == len(DIMENSIONS)
    for dimension in DIMENSIONS:
        assert dimension.why and dimension.how in ("searched", "follows", "asked")


@given(
    st.sampled_from(["none", "selective", "full:uniform", "full:block"]),
    st.integers(1, 10**6),
    st.sets(st.sampled_from(MODULES), min_size=1),
)
def test_a_recompute_setting_survives_its_own_text(mode: str, layers: int, names: set[str]) -> None:
    modules = tuple(name for name in MODULES if name in names) if mode == "selective" else ()
    setting = Recompute(mode, layers if mode.startswith("full") else 0, modules)
    assert Recompute.parse(str(setting)) == setting
    code = ("none", "selective", "full:uniform", "full:block").index(mode)
    assert Recompute.of_codes(code, setting.layers, setting.module_bits) == setting
