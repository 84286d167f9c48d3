"""Layers are priced once per distinct cut, and a stack adds what it adds."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.search import some_plans
from tests.search.some_plans import changed, stack, view

from astra.strategy.plan import Plan
from astra.timing import layer
from astra.timing.layer import PARTS, LayerTime, in_stack, layers_of

BARE = stack(
    compute_factor=1.0,
    communication_factor=1.0,
    host_forward_s=0.0,
    host_backward_s=0.0,
    host_experts_s=0.0,
)


@settings(max_examples=100)
@given(
    st.one_of(
        st.lists(st.integers(-5, 70), min_size=1, max_size=30),
        st.lists(st.integers(0, 10**12), min_size=1, max_size=30),
        st.lists(st.booleans(), min_size=1, max_size=30),
        st.lists(st.sampled_from([np.nan, 1.0, 1.25]), min_size=1, max_size=30),
    )
)
def test_distinct_values_and_their_places_give_back_the_column(values: list[float]) -> None:
    column: NDArray[np.float64] = np.array(values).reshape(1, -1)
    known, index = layer._factorized(column)
    assert np.array_equal(known[index], column, equal_nan=column.dtype.kind == "f")
    assert len(known) == len(np.unique(column))


def same(one: LayerTime, other: LayerTime) -> bool:
    columns = all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in PARTS
    )
    return columns and all(
        np.array_equal(one.module_s[name], other.module_s[name]) for name in one.module_s
    )


@settings(max_examples=15, deadline=None)
@given(some_plans.any_plan())
def test_a_stack_without_factors_leaves_kernels_alone(plan: Plan) -> None:
    bare = layers_of(view(plan))
    found = in_stack(bare, BARE)
    assert all(same(*pair) for pair in zip(bare.kinds, found.kinds, strict=True))
    assert same(bare.head, found.head) and same(bare.embedding, found.embedding)


@settings(max_examples=15, deadline=None)
@given(some_plans.any_plan(), st.floats(1, 3), st.floats(1, 3))
def test_factors_of_a_stack_scale_compute_and_traffic(
    plan: Plan, compute: float, traffic: float
) -> None:
    bare = layers_of(view(plan))
    scaled = some_plans.stack(
        compute_factor=compute,
        communication_factor=traffic,
        host_forward_s=0.0,
        host_backward_s=0.0,
        host_experts_s=0.0,
    )
    for before, after in zip(bare.kinds, in_stack(bare, scaled).kinds, strict=True):
        for name in PARTS:
            factor = compute if name in ("forward_s", "backward_s") else traffic
            assert getattr(after, name) == pytest.approx(factor * getattr(before, name))
        for name, column in before.module_s.items():
            assert after.module_s[name] == pytest.approx(compute * column)


@pytest.mark.parametrize("graph", ["none", "local"])
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
def test_kernels_wait_for_the_cpu_unless_a_graph_starts_them(graph: str, model: str) -> None:
    plan = changed(some_plans.legal_plans(model)[0], cuda_graph=graph)
    slow = stack(host_forward_s=10.0, host_backward_s=20.0, host_experts_s=5.0)
    bare, found = (in_stack(layers_of(view(plan)), each) for each in (BARE, slow))
    (before,), (after,) = bare.kinds, found.kinds
    if graph == "none":
        more = 5.0 if model == "mixtral-8x7b" else 0.0
        assert after.whole_forward_s == pytest.approx(10.0 + more)
        back = [getattr(after, name) for name in PARTS if name.endswith("backward_s")]
        assert sum(back, np.zeros(1)) == pytest.approx(20.0 + more)
    else:
        assert after.forward_s == pytest.approx(slow.compute_factor * before.forward_s)


@settings(max_examples=20, deadline=None)
@given(some_plans.any_plan())
def test_no_part_of_a_layer_is_negative_and_modules_are_parts_of_it(plan: Plan) -> None:
    found = layers_of(view(plan))
    for kind in found.kinds:
        for name in PARTS:
            column = getattr(kind, name)
            assert np.isfinite(column).all() and (column >= 0).all(), name
        assert (kind.backward_s > kind.forward_s).all() and (kind.forward_s > 0).all()
        inside = [kind.module_s[name] for name in ("core_attn", "layernorm", "mlp", "moe")]
        assert (sum(inside) < kind.forward_s).all()
        assert (kind.module_s["moe_act"] <= kind.module_s["moe"]).all()


def test_every_part_of_a_layer_is_gathered() -> None:
    assert {field.name for field in fields(LayerTime)} == {*PARTS, "module_s"}
