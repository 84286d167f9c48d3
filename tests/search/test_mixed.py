"""The search over several GPU types: as good as brute force, and never worse for more GPUs."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.search.mixed_brute import MARGIN, best_step_s, random_space

import astra
from astra.errors import InputError
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.stack import find_stack
from astra.model.zoo import find_model
from astra.search.mixed import naive, speed
from astra.search.mixed.cells import PER_STAGE, Kind, cells_of, legal_kinds
from astra.search.mixed.loads import FIRST, INSIDE, LAST, loads_of
from astra.search.mixed.pipelines import best_pipelines
from astra.search.mixed.pricing import stage_tables
from astra.search.mixed.small import AGAIN, Asked, Pricer, priced
from astra.search.mixed.solve import MixedFinder
from astra.strategy.plans import Plans, code, plan_at
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import broken_rules, rules_for
from astra.strategy.space import Space
from astra.strategy.stage_view import stage_view
from astra.timing.layer import LayerCache
from astra.timing.stage import stage_times

RULES = rules_for("flagscale")
SMALL: dict[str, Any] = {"global_batch": 64, "seq_len": 4096}


def searched(space: Space) -> MixedFinder:
    """A search that knows nothing to begin with."""
    finder = MixedFinder(space, RULES, find_stack("megatron"), MARGIN, np.inf)
    best_pipelines(finder, RULES)
    return finder


def check_against_brute_force(seeds: range, **options: bool) -> int:
    """Raises where they differ; how many winners mix types."""
    stack, mixed = find_stack("megatron"), 0
    for seed in seeds:
        space = random_space(seed, **options)
        rules = rules_for(space.workload.task.runtime)
        finder = MixedFinder(space, rules, stack, MARGIN, np.inf)
        finder.modes = [PER_STAGE]
        best = best_pipelines(finder, rules)
        wanted, _ = best_step_s(space, stack)
        got = best[0].step_s if best else np.inf
        assert got == pytest.approx(wanted, rel=1e-9) or (got == wanted), seed
        assert np.isinf(finder.tally.open_s)
        if best:
            plan = plan_at(best[0].plans, 0, space.workload.task)
            assert not broken_rules(plan)
            assert astra.predict_plan(plan).step_s == pytest.approx(got, rel=1e-12)
            mixed += len(plan.gpus) > 1
    return mixed


def test_the_best_step_is_that_of_brute_force_on_small_pools() -> None:
    assert check_against_brute_force(range(6)) >= 1


def test_stages_that_wait_for_their_sends_are_laid_as_by_brute_force() -> None:
    """The bounds know nothing of it, and need not: waiting never makes a step shorter."""
    plain = find_stack("megatron")
    waits, longer = msgspec.structs.replace(plain, holds_sends=True), 0
    for seed in (1, 2, 4, 7):
        space = random_space(seed)
        rules = rules_for(space.workload.task.runtime)
        finder = MixedFinder(space, rules, waits, MARGIN, np.inf)
        finder.modes = [PER_STAGE]
        best = best_pipelines(finder, rules)
        wanted, _ = best_step_s(space, waits)
        assert best[0].step_s == pytest.approx(wanted, rel=1e-9)
        longer += wanted > best_step_s(space, plain)[0] * 1.001
    assert longer >= 3


@pytest.mark.slow
@pytest.mark.parametrize("start", range(6, 106, 25))
def test_the_best_step_is_that_of_brute_force(start: int) -> None:
    assert check_against_brute_force(range(start, start + 25)) >= 4


def test_the_simulator_on_lower_ends_rules_out_no_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astra.search.mixed.rounds.FEW", 1)
    monkeypatch.setattr("astra.search.mixed.rounds.GROWN", 0.0)
    assert check_against_brute_force(range(6, 10)) >= 1


@pytest.mark.slow
def test_tied_ends_get_one_tp() -> None:
    check_against_brute_force(range(200, 212), tied=True)
    check_against_brute_force(range(212, 215), tied=True, meshes=True)


def test_layers_of_several_kinds_are_placed_as_by_brute_force() -> None:
    assert check_against_brute_force(range(400, 404), experts=True) >= 1


def test_types_with_a_dp_of_their_own_are_as_good_as_brute_force() -> None:
    assert check_against_brute_force(range(500, 504), meshes=True) >= 1


@pytest.mark.slow
def test_layers_of_several_kinds_on_many_pools() -> None:
    assert check_against_brute_force(range(412, 420), experts=True) >= 1


@pytest.mark.slow
def test_own_dp_on_many_pools() -> None:
    assert check_against_brute_force(range(504, 512), meshes=True) >= 1


@pytest.mark.slow
def test_all_gpus_are_used_as_by_brute_force() -> None:
    check_against_brute_force(range(700, 717), use_all=True)


@pytest.mark.slow
def test_one_cut_for_megatron_is_as_good_as_brute_force() -> None:
    assert check_against_brute_force(range(800, 830), megatron=True) >= 4
    check_against_brute_force(range(830, 838), megatron=True, meshes=True)


@pytest.mark.slow
def test_own_dp_and_experts_together() -> None:
    check_against_brute_force(range(600, 606), meshes=True, experts=True)


def smaller(space: Space, cluster: Cluster) -> Space:
    task = msgspec.structs.replace(space.workload.task, cluster=cluster)
    return Space(replace(space.workload, task=task), space.settings)


@pytest.mark.parametrize("seed", range(300, 303))
def test_a_larger_pool_is_never_slower(seed: int) -> None:
    space = random_space(seed)
    cluster = space.workload.task.cluster
    whole = least_s(space)
    for row, pool in enumerate(cluster.pools):
        others = tuple(p for at, p in enumerate(cluster.pools) if at != row)
        if len(others) > 1:
            less = msgspec.structs.replace(cluster, pools=others)
            assert whole <= least_s(smaller(space, less)) * (1 + 1e-9)
        half = msgspec.structs.replace(pool, count=max(pool.count // 2, 1))
        pools = tuple(half if at == row else p for at, p in enumerate(cluster.pools))
        less = msgspec.structs.replace(cluster, pools=pools)
        assert whole <= least_s(smaller(space, less)) * (1 + 1e-9)


def least_s(space: Space) -> float:
    return min((found.step_s for found in searched(space).found.values()), default=np.inf)


def kind_at(kinds: list[Kind], plans: Plans, stage: int) -> int:
    """Which kind a stage of the plan is of."""
    names = ("gpu", "tp", "dp", "segment_ep", "segment_etp")
    cut = tuple(int(getattr(plans, name)[0, stage, 0]) for name in names)
    count = int(((plans.gpu[0, :, 0] == cut[0]) * plans.stages[0, :, 0]).sum())
    (found,) = [
        at
        for at, each in enumerate(kinds)
        if (each.pool, each.tp, each.dp, each.ep, each.etp) == cut and count in each.stages
    ]
    return found


@pytest.mark.parametrize(("seed", "sharded"), [(2, False), (5, False), (9, False), (17, True)])
def test_a_stage_takes_the_same_seconds_in_the_tables_as_in_a_plan(
    seed: int, sharded: bool
) -> None:
    """Every stage of every plan found: its passes, its link and what it recomputes."""
    space, stack = random_space(seed, sharded=sharded), find_stack("megatron")
    kinds = dict(legal_kinds(space, cells_of(space), RULES))
    task, checked = space.workload.task, 0
    loads = loads_of(task.model)
    pricer = Pricer(space, stack, MARGIN, LayerCache(), loads, loads.weights(None))
    for cell, found in searched(space).found.items():
        most = np.full(len(kinds[cell]), task.model.layers - 1)
        (tables,) = stage_tables(pricer, [(cell, kinds[cell], most)])
        view = stage_view(found.plans, task, every_stage=True)
        times = stage_times(view, stack)
        plans, depth = found.plans, int(found.plans.pp[0, 0])
        held = np.cumsum(plans.layers[0, :depth, 0])
        at_kind = [kind_at(kinds[cell], plans, stage) for stage in range(depth)]
        for stage, kind in enumerate(at_kind):
            load = loads.at[held[stage], plans.layers[0, stage, 0]]
            place = FIRST if stage == 0 else LAST if stage == depth - 1 else INSIDE
            chosen = tables.at(place, min(cell.micro_batches, depth - stage))
            assert chosen.mode[kind, load] == plans.recompute[0, stage, 0]
            at = (0, stage, 0)
            assert chosen.forward_s[kind, load] == pytest.approx(times.whole_forward_s[at])
            assert chosen.backward_s[kind, load] == pytest.approx(times.whole_backward_s[at])
            if place != LAST:
                link = tables.link_s[kind, at_kind[stage + 1]]
                assert link == pytest.approx(times.part("link_s")[at])
            if place == FIRST:
                after = times.step_end_s()[at] - times.tied_s()[at]
                waited = tables.wait_s[place, kind, load] * np.log2(plans.gpus[0])
                assert 0 < waited < after
                assert tables.after_s[place, kind, load] + waited <= after * (1 + 1e-9)
            checked += 1
    assert checked


@pytest.mark.parametrize("text", ["full:block:1", "full:block:2", "full:uniform", "full:uniform:2"])
def test_whole_layers_of_every_stage_are_priced_as_in_a_plan(text: str) -> None:
    """All places, kinds and loads: what is done again, kept and worked on."""
    space, setting = random_space(820, megatron=True, experts=True), Recompute.parse(text)
    cell, kinds = legal_kinds(space, cells_of(space), rules_for("megatron"))[0]
    cell, loads = replace(cell, recompute=setting), loads_of(space.workload.task.model)
    stack, book = find_stack("megatron"), LayerCache()
    pricer = Pricer(space, stack, MARGIN, book, loads, loads.weights(None))
    most = np.full(len(kinds), loads.layers - 1)
    (tables,) = stage_tables(pricer, [(cell, kinds, most)])
    for place in (FIRST, INSIDE, LAST):
        there = np.flatnonzero(loads.starts[place] >= 0)
        kind, load = np.repeat(np.arange(len(kinds)), len(there)), np.tile(there, len(kinds))
        mode, one = np.full(len(load), code("recompute", setting.mode)), np.zeros_like(load)
        number = np.minimum(setting.layers, loads.sizes[load])
        asked = Asked(one, kind, load, mode, number, one)
        found = priced(pricer, [cell], kinds, asked, place, (*AGAIN, "backward_s"))
        at = (0, place, kind, load)
        assert tables.backward_s[at] == pytest.approx(found["backward_s"] + found["again_s"])
        assert tables.kept_bytes[at] == pytest.approx(found["kept_bytes"])
        assert tables.working_bytes[at] == pytest.approx(found["working_bytes"])


@pytest.mark.parametrize("options", [{}, {"experts": True}, {"meshes": True, "sharded": True}])
def test_what_stages_can_hold_rules_out_no_plan_that_was_found(options: dict[str, bool]) -> None:
    """Whatever is recomputed or sharded: a cell's bound is no higher than its plan, and the kinds
    of the plan stay usable.
    """
    checked = 0
    for seed in (900, 901, 902):
        space = random_space(seed, **options)
        finder = searched(space)
        kinds = dict(legal_kinds(space, cells_of(space), RULES))
        for cell, found in finder.found.items():
            limit, rows = found.step_s * (1 + 1e-9), np.arange(len(kinds[cell]))
            for high in (limit, np.inf):
                (bound,) = finder.capacity.bounds_s([cell], np.array([1e-6]), high)
                assert 1e-6 <= bound <= found.step_s
            usable = set(finder.capacity.usable([cell], [rows], limit)[0].tolist())
            depth = int(found.plans.pp[0, 0])
            assert {kind_at(kinds[cell], found.plans, stage) for stage in range(depth)} <= usable
            checked += 1
    assert checked


@pytest.mark.parametrize("options", [{}, {"experts": True}, {"meshes": True, "sharded": True}])
def test_cells_can_hold_together_what_each_can_hold_alone(options: dict[str, bool]) -> None:
    """Cells that share kinds are looked at together, also where one of them lacks some kinds."""
    together = lacking = closed = 0
    for seed in (900, 902, 905):
        finder = searched(random_space(seed, **options))
        kinds = {family.doing(m): own for family, own in finder.legal or () for m in finder.modes}
        cells, capacity = list(kinds), finder.capacity
        rows = [np.arange(len(kinds[cell])) for cell in cells]
        limit = 1.1 * min((each.step_s for each in finder.found.values()), default=1.0)
        low = np.full(len(cells), limit / 4)
        bounds, can = capacity.bounds_s(cells, low, limit), capacity.open(cells, limit)
        usable = capacity.usable(cells, rows, limit)
        for at, cell in enumerate(cells):
            (own,) = capacity.usable([cell], [rows[at]], limit)
            assert own.tolist() == usable[at].tolist()
            assert capacity.bounds_s([cell], low[:1], limit)[0] == pytest.approx(bounds[at])
            assert capacity.open([cell], limit)[0] == can[at]
            assert can[at] or not len(own)
            together += len(own)
            lacking += bool((capacity.cuts[finder.stocks.stock(cell).cell][1] < 0).any())
        families = [family for family, _ in finder.legal or ()]
        for share in (1.0, 0.7, 0.4, 0.2):
            somehow = capacity.open_somehow(families, share * limit)
            each = capacity.open(cells, share * limit).reshape(len(families), -1).any(axis=1)
            assert (each <= somehow).all()  # no family is closed that has an open cell
            closed += int((~somehow).sum())
    assert together and lacking and closed


def test_the_least_even_split_is_that_of_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bound, a few at a time, or all at once."""
    stack, checked = find_stack("megatron"), 0
    for seed in range(900, 912):
        space = random_space(seed)
        monkeypatch.setattr(naive, "FEW", 1)
        monkeypatch.setattr(naive, "BLOCK", 3)
        few = naive.even_split_s(space, stack, MARGIN, LayerCache())
        monkeypatch.setattr(naive, "FEW", 1 << 20)
        monkeypatch.setattr(naive, "BLOCK", 1 << 20)
        assert naive.even_split_s(space, stack, MARGIN, LayerCache()) == pytest.approx(few)
        checked += few is not None
    assert checked


def test_layers_take_the_same_seconds_a_few_cells_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack, seen = find_stack("megatron"), 0
    for seed in range(900, 906):
        space = random_space(seed)
        cells = legal_kinds(space, cells_of(space), rules_for("flagscale"))
        found = []
        for many in (1, 5, 1 << 20):
            monkeypatch.setattr(speed, "MANY", many)
            found.append(speed.layer_seconds(space, cells, stack, LayerCache()))
        for few, some, every in zip(*found, strict=True):
            for name in ("whole_s", "forward_s", "head_s", "compute_s"):
                np.testing.assert_array_equal(getattr(few, name), getattr(every, name))
                np.testing.assert_array_equal(getattr(some, name), getattr(every, name))
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("runtime", ["flagscale", "megatron"])
def test_candidates_are_counted_on_while_types_are_searched_alone_and_together(
    runtime: Any,
) -> None:
    told: list[int] = []
    pools: dict[str, Any] = {"gpus": "h100:16,a100-80g:16", "runtime": runtime}
    answer = astra.plan("llama-3-8b", **pools, **SMALL, progress=told.append)
    assert told == sorted(told) and told[-1] <= answer.search.candidates
    assert len(set(told)) > 2, "not only when a type is done"


def test_the_order_of_types_on_the_command_line_changes_nothing() -> None:
    one = astra.plan("llama-3-8b", gpus="h100:16,a100-80g:16", **SMALL)
    other = astra.plan("llama-3-8b", gpus="a100-80g:16,h100:16", **SMALL)
    assert [plan.plan for plan in one.plans] == [plan.plan for plan in other.plans]


def test_a_mixed_answer_is_never_slower_than_any_type_alone_and_says_what_it_is_worth() -> None:
    answer = astra.plan("llama-3-8b", gpus="h100:8,a100-80g:16", **SMALL)
    assert answer.best is not None and answer.mixed is not None
    mixed = answer.mixed
    assert mixed.gap_fraction == 0.0
    assert set(mixed.alone_step_s) == {"H100-80GB-SXM", "A100-80GB-SXM"}
    for name, count in (("h100", 8), ("a100-80g", 16)):
        alone = astra.plan("llama-3-8b", gpus=f"{name}:{count}", runtime="flagscale", **SMALL)
        assert alone.best is not None
        told = mixed.alone_step_s[next(iter(alone.best.gpus))]
        assert told == pytest.approx(alone.best.step_s)
        assert answer.best.step_s <= alone.best.step_s * (1 + 1e-12)
    assert mixed.even_split_step_s is None or mixed.even_split_step_s >= answer.best.step_s
    assert len(mixed.stages) == answer.best.plan.pp
    assert all(stage.busy_s < answer.best.step_s for stage in mixed.stages)
    full = max(stage.filled_fraction for stage in mixed.stages)
    memory = answer.best.memory
    assert full == pytest.approx(memory.reserved_bytes / memory.usable_bytes)
    used = dict.fromkeys(mixed.alone_step_s, 0) | answer.best.gpus
    idle = {"H100-80GB-SXM": 8, "A100-80GB-SXM": 16}
    assert mixed.idle == {n: idle[n] - used[n] for n in idle if idle[n] > used[n]}
    assert all(plan.memory.fits and not broken_rules(plan.plan) for plan in answer.plans)


def test_a_type_without_the_precision_is_left_out_and_says_what_it_lacks() -> None:
    answer = astra.plan("llama-3.2-1b", gpus="h100:8,t4:8", global_batch=64, seq_len=2048)
    assert answer.mixed is not None
    (note,) = answer.mixed.left_out
    assert note == "T4 is left out: it has no bf16 units; --precision fp16 would use it"


def test_a_type_that_cannot_hold_a_layer_is_left_out_with_a_note() -> None:
    answer = astra.plan("llama-3.1-405b", gpus="h100:512,t4:1", global_batch=512, seq_len=4096)
    assert answer.mixed is not None and answer.best is not None
    assert answer.mixed.left_out == (
        "T4 is left out: it has no bf16 units; --precision fp16 would use it",
    )
    assert set(answer.best.gpus) == {"H100-80GB-SXM"}


def test_the_cap_on_all_gpus_holds() -> None:
    answer = astra.plan("llama-3-8b", gpus="h100:8,a100-80g:16", max_gpus=16, **SMALL)
    assert answer.best is not None
    assert all(sum(plan.gpus.values()) <= 16 for plan in answer.plans)


def test_a_mixed_pool_that_holds_nothing_says_so() -> None:
    answer = astra.plan("llama-3.1-405b", gpus="h100:8,a100-80g:8", **SMALL)
    assert answer.best is None and answer.nothing_fits is not None
    assert "no mixed plan fits" in answer.nothing_fits.binding
    (change,) = answer.nothing_fits.tries
    count, name = change.split()
    assert f"closest is {name}:" in answer.nothing_fits.binding, "GPUs of which type"
    assert astra.plan("llama-3.1-405b", gpus=f"{name}:{count}", **SMALL).best is not None


def test_the_answer_for_megatron_has_one_cut_and_is_faster_by_interleaving_alone() -> None:
    pools = "h100:8,a100-80g:16"
    plain: dict[str, Any] = {"settings": ["vpp=1"]}
    one = astra.plan("llama-3-8b", gpus=pools, runtime="megatron", **SMALL, **plain)
    turns = astra.plan("llama-3-8b", gpus=pools, runtime="megatron", **SMALL)
    free = astra.plan("llama-3-8b", gpus=pools, **SMALL)
    assert one.best is not None and free.best is not None and turns.best is not None
    assert turns.best.step_s <= one.best.step_s * (1 + 1e-12)
    (pipeline,) = one.best.plan.pipelines
    assert len({(s.tp, s.dp, s.micro_batch, s.recompute) for s in pipeline.segments}) == 1
    assert one.best.plan.runtime == "megatron" and not broken_rules(one.best.plan)
    assert free.best.step_s <= one.best.step_s * (1 + 1e-12)


def test_the_fewest_gpus_of_all_types_reach_a_throughput() -> None:
    pools = "h100:8,a100-80g:8"
    found = astra.plan("llama-3-8b", gpus=pools, objective="gpus", min_tokens_per_s=60_000, **SMALL)
    assert found.best is not None and found.best.tokens_per_s >= 60_000
    total = sum(found.best.gpus.values())
    less = astra.plan("llama-3-8b", gpus=pools, max_gpus=total - 1, **SMALL)
    assert less.best is not None and less.best.tokens_per_s < 60_000


def test_a_type_under_two_names_is_its_sum() -> None:
    gpu = find_gpu("h100")[0]
    twin = msgspec.structs.replace(gpu, name="mine", aliases=())
    pools = (Pool(gpu=gpu, count=8), Pool(gpu=twin, count=8))
    twins = astra.plan("llama-3-8b", cluster=Cluster(name="some", pools=pools), **SMALL)
    whole = astra.plan("llama-3-8b", gpus="h100:16", **SMALL)
    assert twins.best is not None and whole.best is not None
    assert twins.best.step_s == whole.best.step_s


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("h100:8,h100:8", "given twice"),
        ("h100:8,a100-80g:0", "no GPUs at all"),
    ],
)
def test_bad_pools_are_told_in_words(gpus: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        astra.plan("llama-3-8b", gpus=gpus, **SMALL)


def test_runtimes_and_settings_that_are_not_searched_are_told() -> None:
    plain = astra.plan("llama-3-8b", gpus="h100:8,a100-80g:8", settings=["pp=1"], **SMALL)
    notes = plain.request.notes
    assert len([note for note in notes if note.startswith("--set pp: pipelines")]) == 2
    assert {plan.plan.pp for plan in plain.plans} == {1}
    with pytest.raises(InputError, match="mesh_dp"):
        astra.plan("llama-3-8b", gpus="h100:8", settings=["mesh_dp=false"], **SMALL)


LONG: dict[str, Any] = {"gpus": "h100:8,a100-80g:8", "global_batch": 64, "seq_len": 16_384}


def test_plans_over_several_types_have_no_context_parallelism_under_flagscale() -> None:
    """FlagScale refuses it, however long sequences are; on one type it is Megatron-LM's."""
    answer = astra.plan("llama-3-8b", runtime="flagscale", **LONG)
    assert answer.best is not None and len(answer.best.gpus) == 2
    mixed = [plan.plan for plan in answer.plans if len(plan.gpus) > 1 and plan.plan.pp > 1]
    assert mixed and all(plan.cp == 1 for plan in mixed)
    assert not any(broken_rules(plan.plan) for plan in answer.plans)


def test_context_parallelism_asked_for_over_several_types_says_who_refuses_it() -> None:
    answer = astra.plan("llama-3-8b", settings=["cp=2"], **LONG)
    assert answer.best is not None and len(answer.best.gpus) == 2
    assert {plan.plan.runtime for plan in answer.plans} == {"megatron"}
    notes = answer.request.notes
    (said,) = [note for note in notes if note.startswith("cp=2 leaves no pipeline")]
    assert "flagscale, which excludes context parallelism" in said


def test_one_dp_for_all_is_no_faster_than_one_for_each() -> None:
    pools = "h100:16,a100-80g:16"
    one = astra.plan("llama-3-8b", gpus=pools, settings=["mesh_dp=false"], **SMALL)
    own = astra.plan("llama-3-8b", gpus=pools, **SMALL)
    assert one.best is not None and own.best is not None
    assert own.best.step_s <= one.best.step_s * (1 + 1e-12)
    (pipeline,) = one.best.plan.pipelines
    assert len({segment.dp for segment in pipeline.segments}) == 1


def test_every_runtime_trains_as_many_prediction_layers_as_predict_counts() -> None:
    """Multi-token prediction of DeepSeek-V3, cut down to four layers."""
    model = msgspec.structs.replace(
        find_model("deepseek-v3"), layers=4, mtp_layers=1, parameters=None, active_parameters=None
    )
    asked: dict[str, Any] = {"gpus": "h100:16,h200:16", "global_batch": 32, "seq_len": 2048}
    settings = ["tp=8", "ep=8", "etp=1", "cp=1", "micro_batch=1", "sharding=optimizer"]
    for runtime in ("megatron", "flagscale"):
        told = astra.predict(model, tp=8, ep=8, runtime=runtime, **asked)
        assert told.plan.mtp_layers == 1
        found = astra.plan(model, runtime=runtime, settings=settings, **asked)
        assert {priced.plan.mtp_layers for priced in found.plans} == {1}
