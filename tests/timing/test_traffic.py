"""Traffic inside a layer: none where nobody is there to talk to, less where it is hidden."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cost import some_plans
from tests.cost.some_plans import changed, stack, view

from astra.api import predict
from astra.cost.price import price_plans
from astra.hardware.catalogue import find_gpu
from astra.model.layer_kinds import layer_kinds
from astra.model.zoo import find_model
from astra.timing.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from astra.timing.layer import layers_of
from astra.timing.operators import LayerShape, Operator
from astra.timing.traffic import _sent_once, context_traffic, expert_traffic, tensor_traffic

GPU = find_gpu("h100")[0]
LLAMA = find_model("llama-3-8b")
MIXTRAL = find_model("mixtral-8x7b")
(DENSE,), (ROUTED,) = layer_kinds(LLAMA).kinds, layer_kinds(MIXTRAL).kinds


def keys(**degrees: float) -> LayerShape:
    given = {"micro_batch": 1, "seq_len": 4096, "domain": 8, "node": 8, **degrees}
    names = ("micro_batch", "seq_len", "tp", "cp", "sp", "ep", "etp", "capacity", "domain", "node")
    return LayerShape(**{name: np.array([float(given.get(name, 1))]) for name in names})


def work(seconds: float) -> Operator:
    """Attention, or a matrix product, of so many seconds a pass."""
    column = np.array([seconds])
    return Operator("work", "core_attn", column, column, column)


@pytest.mark.slow
def test_a_plan_has_the_traffic_of_exactly_the_degrees_it_has() -> None:
    plans = some_plans.every_plan()
    silent = {"tensor_comm": 0, "context_comm": 0, "expert_comm": 0, "data_comm": 0}
    loud = dict(silent)
    for plan, found in zip(plans, price_plans(plans), strict=True):
        ranks = {segment.tp for pipeline in plan.pipelines for segment in pipeline.segments}
        if len(ranks) > 1 or (plan.model.name == "deepseek-v3" and plan.pp > 1):
            continue  # the busiest stage may be one without
        tp, dp = max(ranks), plan.dp
        talks = {
            "tensor_comm": tp > 1,
            "context_comm": plan.cp > 1,
            "expert_comm": bool(plan.model.moe) and plan.ep * plan.etp > 1,
            "data_comm": dp * plan.cp > 1 or (bool(plan.model.moe) and tp > plan.ep * plan.etp),
        }
        for name, expected in talks.items():
            assert (found.step_parts_s[name] > 0) is expected, (name, plan.summary())
            (loud if expected else silent)[name] += 1
    assert min(loud.values()) > 5 and min(silent.values()) > 5, (loud, silent)


def test_a_stack_that_waits_exposes_every_sum_of_the_backward_pass() -> None:
    """Without it they hide behind weight gradients; either way none is shorter than forward's."""
    cut = keys(tp=4, sp=1)
    waits = tensor_traffic(LLAMA, DENSE, cut, GPU, [work(1.0)], False, 2.0, waits=True)
    hides = tensor_traffic(LLAMA, DENSE, cut, GPU, [work(1.0)], False, 2.0)
    assert waits.backward_s == waits.forward_s
    assert hides.backward_s < 0.5 * waits.backward_s


def test_a_stack_changes_traffic_over_links_and_none_through_the_host() -> None:
    for name, links in (("h100", True), ("titan-rtx", False)):
        plan = predict("llama-3-8b", gpus=f"{name}:8", tp=8, precision="fp16", global_batch=8).plan
        slow, plain = (
            layers_of(view(plan), stack(settings=(), tensor_factor=factor)).kinds[0]
            for factor in (3.0, 1.0)
        )
        ratio = slow.tensor_forward_s / plain.tensor_forward_s
        assert ratio >= 3.0 * (1 - 1e-9) if links else ratio == pytest.approx(1.0)


def test_one_rank_alone_sends_nothing() -> None:
    nothing = [
        tensor_traffic(LLAMA, DENSE, keys(), GPU, [work(1e-3)], False, 2.0),
        context_traffic(LLAMA, keys(), GPU, work(1e-3), "p2p", 2.0),
        context_traffic(LLAMA, keys(), GPU, work(1e-3), "a2a", 2.0),
        context_traffic(LLAMA, keys(), GPU, work(1e-3), "allgather", 2.0),
        expert_traffic(MIXTRAL, keys(), GPU, [], "alltoall", False, 2.0),
    ]
    assert not any(each.forward_s.any() or each.backward_s.any() for each in nothing)


def test_a_layer_all_reduces_twice_or_gathers_and_scatters_twice() -> None:
    """Korthikanti et al. 2022, section 4.2.2: the same bytes either way."""
    payload = 4096 * LLAMA.hidden * 2.0
    whole = tensor_traffic(LLAMA, DENSE, keys(tp=8), GPU, [work(0)], False, 2.0)
    shared = tensor_traffic(LLAMA, DENSE, keys(tp=8, sp=8), GPU, [work(0)], False, 2.0)
    reduce = all_reduce_s(payload, 8, 8, GPU)
    gather, scatter = all_gather_s(payload, 8, 8, GPU), reduce_scatter_s(payload, 8, 8, GPU)
    assert whole.forward_s == pytest.approx(2 * reduce)
    assert shared.forward_s == pytest.approx(2 * (gather + scatter))
    # Backward, with nothing to hide behind: the same again, and a gather of the saved inputs.
    assert whole.backward_s == pytest.approx(2 * reduce)
    assert shared.backward_s == pytest.approx(2 * (gather + scatter) + 2 * gather)


@given(st.floats(0, 0.1), st.floats(0, 0.1), st.booleans())
def test_more_compute_to_hide_behind_never_exposes_more(less: float, more: float, sp: bool) -> None:
    less, more = sorted((less, more))
    cut = keys(tp=8, sp=8 if sp else 1, cp=2)
    for seconds in (
        [tensor_traffic(LLAMA, DENSE, cut, GPU, [work(s)], False, 2.0) for s in (less, more)],
        [context_traffic(LLAMA, cut, GPU, work(s), "p2p", 2.0) for s in (less, more)],
    ):
        assert seconds[1].backward_s <= seconds[0].backward_s
        assert seconds[1].forward_s <= seconds[0].forward_s
        assert (seconds[1].backward_s > 0).all()  # what is hidden slows what hides it


@pytest.mark.parametrize("switch", ["overlap_tp", "overlap_ep"])
def test_overlap_exposes_a_part_but_not_all_of_the_traffic(switch: str) -> None:
    name = "tensor_forward_s" if switch == "overlap_tp" else "expert_forward_s"
    seen = 0
    for plan in some_plans.legal_plans("mixtral-8x7b"):
        off, on = (
            getattr(layers_of(view(changed(plan, **{switch: way})), stack()).kinds[0], name)
            for way in (False, True)
        )
        assert (on <= off).all()
        if off.any():
            assert (on > 0).all() and (on < off).all()
            seen += 1
    assert seen > 3


@given(st.integers(1, 64), st.integers(1, 16))
def test_a_token_goes_to_a_place_once(places: int, top_k: int) -> None:
    """Never more often than to each of its experts, and to one place at least."""
    (share,) = _sent_once(np.array([float(places)]), top_k)
    assert share <= 1 + 1e-12
    assert share * top_k >= 1 - 1e-12
    assert share * top_k <= min(places, top_k) + 1e-9


def test_tokens_that_share_a_rank_travel_there_as_one() -> None:
    """By drawing eight experts of 128 on eight ranks for many tokens, and counting."""
    draws = np.random.default_rng(0).random((20_000, 128)).argsort(axis=1)[:, :8] // 16
    counted = np.mean([len(set(row)) for row in draws.tolist()]) / 8
    model = find_model("qwen3-30b-a3b")
    often, once = (
        expert_traffic(model, keys(ep=8), GPU, [], dispatcher, False, 2.0).forward_s
        for dispatcher in ("alltoall", "deepep")
    )
    assert once / often == pytest.approx(counted, rel=0.05)


def test_groups_that_cross_nodes_take_longer_than_those_inside() -> None:
    inside = tensor_traffic(LLAMA, DENSE, keys(tp=8), GPU, [work(0)], False, 2.0).forward_s
    across = tensor_traffic(LLAMA, DENSE, keys(tp=16), GPU, [work(0)], False, 2.0).forward_s
    assert across > inside
    experts = [
        expert_traffic(MIXTRAL, keys(ep=ep), GPU, [], "alltoall", False, 2.0).forward_s
        for ep in (8, 16)
    ]
    assert experts[1] > experts[0]


@pytest.mark.parametrize("tp, ep", [(2, 1), (8, 1), (1, 8), (1, 64)])
def test_no_more_traffic_is_hidden_than_there_is_compute_to_hide_it(tp: int, ep: int) -> None:
    """With compute a thousand times shorter, overlap hides nothing worth the name."""
    short = np.full(1, 1e-9)
    quick = [Operator("product", "mlp", short, 2 * short, short)]
    slow = [Operator("product", "mlp", 1e9 * short, 2e9 * short, 1e9 * short)]

    def shown(operators: list[Operator], overlap: bool) -> float:
        cut = keys(tp=tp, ep=ep)
        if ep > 1:
            found = expert_traffic(MIXTRAL, cut, GPU, operators, "alltoall", overlap, 2.0)
        else:
            found = tensor_traffic(MIXTRAL, ROUTED, cut, GPU, operators, overlap, 2.0)
        return float(found.forward_s.item())

    assert shown(quick, True) == pytest.approx(shown(quick, False), rel=1e-3)
    assert shown(slow, True) < 0.6 * shown(slow, False)


def test_routed_experts_take_no_part_in_tensor_parallel_collectives() -> None:
    """Dispatch brings their tokens; shared experts are cut like any MLP (Megatron-core)."""
    routed = msgspec.structs.replace(MIXTRAL, hidden=LLAMA.hidden)
    assert routed.moe is not None
    besides = msgspec.structs.replace(routed.moe, shared_ffn=4096)
    shares = msgspec.structs.replace(routed, moe=besides)
    for cut in (keys(tp=8), keys(tp=8, sp=8)):
        whole = tensor_traffic(LLAMA, DENSE, cut, GPU, [work(0)], False, 2.0)
        half = tensor_traffic(routed, ROUTED, cut, GPU, [work(0)], False, 2.0)
        same = tensor_traffic(shares, ROUTED, cut, GPU, [work(0)], False, 2.0)
        for name in ("forward_s", "backward_s"):
            assert getattr(half, name) == pytest.approx(getattr(whole, name) / 2)
            assert getattr(same, name) == pytest.approx(getattr(whole, name))


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_a_factor_lengthens_what_is_hidden_as_well_as_what_is_exposed(factor: float) -> None:
    """Traffic no longer than the compute beside it costs no more than slowing that compute."""
    cut, behind = keys(tp=8, sp=8, ep=8), work(1.0)
    operators = [behind]

    def all_s(overlap: bool, own: float) -> list[float]:
        tensor = tensor_traffic(LLAMA, DENSE, cut, GPU, operators, overlap, 2.0, False, own)
        expert = expert_traffic(MIXTRAL, cut, GPU, operators, "alltoall", overlap, 2.0, own)
        return [float(part.forward_s.item()) for part in (tensor, expert)]

    for overlap in (False, True):  # a second of compute hides all of either
        for once, longer in zip(all_s(overlap, 1.0), all_s(overlap, factor), strict=True):
            assert longer == pytest.approx(factor * once)
    nothing = tensor_traffic(LLAMA, DENSE, cut, GPU, [work(0.0)], False, 2.0, False, factor)
    short = [work(float(nothing.backward_s.item()) / 4)]
    some, more = (
        tensor_traffic(LLAMA, DENSE, cut, GPU, short, False, 2.0, False, own).backward_s.item()
        for own in (factor, 2 * factor)
    )
    assert more > 2 * some  # all that is added shows
