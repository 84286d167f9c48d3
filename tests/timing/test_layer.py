"""Layers are priced once per distinct cut, and a stack adds what it adds."""

from dataclasses import fields

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost import some_plans
from tests.cost.some_plans import changed, stack, view
from tests.support.cases import each_case

from astra.hardware.stack import KERNEL_FACTORS, TRAFFIC_FACTORS, StackSetting
from astra.strategy.plan import Plan
from astra.timing.gemm import misaligned
from astra.timing.layer import PARTS, LayerTime, layers_of

FACTORS = {f"{name}_factor": 1.0 for name in (*KERNEL_FACTORS, *TRAFFIC_FACTORS)}
BARE = stack(
    **FACTORS,
    settings=(),
    host_forward_s=0.0,
    host_backward_s=0.0,
    host_experts_s=0.0,
    host_expert_kernel_s=0.0,
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(some_plans.any_plan(), st.floats(1, 3))
def test_a_factor_of_all_kernels_scales_compute_and_leaves_bare_traffic(
    plan: Plan, compute: float
) -> None:
    plan = changed(plan, overlap_tp=False, overlap_ep=False, cp_comm_type="allgather")
    bare = layers_of(view(plan), BARE)
    slower = layers_of(view(plan), msgspec.structs.replace(BARE, compute_factor=compute))
    for before, after in zip(bare.kinds, slower.kinds, strict=True):
        for name in ("forward_s", "backward_s"):
            assert getattr(after, name) == pytest.approx(compute * getattr(before, name))
        for name in ("expert_forward_s", "context_forward_s", "tensor_forward_s"):
            assert getattr(after, name) == pytest.approx(getattr(before, name))
        for name, column in before.module_s.items():
            assert after.module_s[name] == pytest.approx(compute * column)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(some_plans.any_plan(), st.floats(1, 3))
def test_factors_of_traffic_scale_theirs_and_no_other(plan: Plan, factor: float) -> None:
    """What hides behind compute in part shows more than so many times as much."""
    hides = ["tensor_backward_s"] + ["tensor_forward_s"] * plan.overlap_tp
    hides += ["expert_forward_s", "expert_backward_s"] * plan.overlap_ep
    if plan.cp_comm_type == "p2p":
        hides += ["context_forward_s", "context_backward_s"]
    bare = layers_of(view(plan), BARE)
    for kind in ("tensor", "context", "dispatch"):
        own = msgspec.structs.replace(BARE, **{f"{kind}_factor": factor})
        part = "expert" if kind == "dispatch" else kind
        for before, after in zip(bare.kinds, layers_of(view(plan), own).kinds, strict=True):
            for name in PARTS:
                scale = factor if name.startswith(part) else 1.0
                least = scale * getattr(before, name)
                if name in hides and scale > 1:
                    assert (getattr(after, name) >= least * (1 - 1e-9)).all()
                else:
                    assert getattr(after, name) == pytest.approx(least)


def test_widths_that_tensor_cores_dislike_take_longer() -> None:
    widths = np.array([1728.0, 1800.0, 216.0, 108.0, 150.0])
    slow = misaligned(widths)
    assert slow[0] == 1 and 1 < slow[1] == slow[2] < slow[3] < slow[4]
    assert (misaligned(widths, widths[::-1].copy()) >= slow).all()


def test_settings_multiply_where_all_that_they_name_holds() -> None:
    plan = changed(some_plans.legal_plans("llama-3-8b")[0], precision="bf16")
    gpu = plan.cluster.pools[0].gpu.name
    rows = (
        StackSetting(gpu=gpu, compute_factor=2.0, runs=1),
        StackSetting(gpu=gpu, precision="bf16", compute_factor=1.5, runs=1),
        StackSetting(gpu=gpu, precision="fp8", compute_factor=7.0, runs=1),
        StackSetting(release="24.07", compute_factor=5.0, runs=1),
    )
    (before,) = layers_of(view(plan), BARE).kinds
    for release, factor in ((None, 3.0), ("24.07", 15.0), ("25.02", 3.0)):
        own = msgspec.structs.replace(BARE, settings=rows, release=release)
        (after,) = layers_of(view(plan), own).kinds
        assert after.forward_s == pytest.approx(factor * before.forward_s)


@pytest.mark.parametrize("graph", ["none", "local", "full_iteration"])
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
def test_kernels_wait_for_the_cpu_unless_a_graph_starts_them(graph: str, model: str) -> None:
    plan = changed(some_plans.legal_plans(model)[0], cuda_graph=graph)
    host = {"host_forward_s": 10.0, "host_backward_s": 20.0, "host_experts_s": 5.0}
    slow = msgspec.structs.replace(BARE, **host, host_factor=1.0)
    (before,), (after,) = (layers_of(view(plan), each).kinds for each in (BARE, slow))
    routed = 5.0 if model == "mixtral-8x7b" and graph != "full_iteration" else 0.0
    started = (10.0, 20.0) if graph == "none" else (0.0, 0.0)
    back = [getattr(after, name) for name in PARTS if name.endswith("backward_s")]
    if started[0] + routed:
        assert after.whole_forward_s == pytest.approx(started[0] + routed)
        assert sum(back, np.zeros(1)) == pytest.approx(started[1] + routed)
    else:
        assert after.forward_s == pytest.approx(before.forward_s)


@each_case("ep", [1, 2, 8])
@each_case("recipe, kernels", [(None, 4.0), ("tensorwise", 8.0), ("mxfp8", 14.0)])
def test_the_cpu_starts_kernels_expert_by_expert(
    ep: int, recipe: str | None, kernels: float
) -> None:
    """As many as the GPU has experts: 8 / ep of Mixtral's."""
    given = {"precision": "fp8" if recipe else "bf16", "fp8_recipe": recipe}
    plan = changed(some_plans.legal_plans("mixtral-8x7b")[0], ep=ep, cuda_graph="none", **given)
    slow = msgspec.structs.replace(BARE, host_expert_kernel_s=10.0, host_factor=1.0)
    (after,) = layers_of(view(plan), slow).kinds
    back = sum((getattr(after, n) for n in PARTS if n.endswith("backward_s")), np.zeros(1))
    assert back == pytest.approx(10.0 * kernels * 8 / ep)


@settings(max_examples=20, deadline=None)
@given(some_plans.any_plan())
def test_no_part_of_a_layer_is_negative_and_modules_are_parts_of_it(plan: Plan) -> None:
    found = layers_of(view(plan), BARE)
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
