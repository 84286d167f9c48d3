"""Interleaved pipelines over several GPU types: as good as brute force, and bounded from below."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.search.mixed_brute import MARGIN, best_step_s, every_plan, fitting, random_space

import astra
from astra.api import import_job
from astra.cost.step import step_s
from astra.export.folder import write_folder
from astra.export.targets import export_files
from astra.hardware.stack import find_stack
from astra.search.mixed.capacity import Capacity
from astra.search.mixed.chunked_plans import chunked_plans
from astra.search.mixed.interleave import interleaving
from astra.search.mixed.pipelines import best_pipelines
from astra.search.mixed.solve import MixedFinder
from astra.strategy.plan import Plan
from astra.strategy.plans import Floats, Plans, plan_at, plans_of
from astra.strategy.rules.registry import broken_rules, rules_for
from astra.strategy.space import Space
from astra.strategy.stage_view import stage_view
from astra.timing.stage import stage_times

RULES = rules_for("megatron")
STACK = find_stack("megatron")


def check(seeds: range, **options: bool) -> tuple[int, int]:
    """Raises where search and brute force differ; winners that mix types, and that take turns."""
    mixed = turned = 0
    for seed in seeds:
        space = random_space(seed, turns=True, **options)
        finder = MixedFinder(space, RULES, STACK, MARGIN, np.inf)
        best = best_pipelines(finder, RULES)
        wanted, _ = best_step_s(space, STACK)
        got = best[0].step_s if best else np.inf
        assert got == wanted or got == pytest.approx(wanted, rel=1e-9), seed
        assert np.isinf(finder.tally.open_s)
        if best:
            plan = plan_at(best[0].plans, 0, space.workload.task)
            assert not broken_rules(plan)
            assert astra.predict_plan(plan).step_s == pytest.approx(got, rel=1e-12)
            mixed, turned = mixed + (len(plan.gpus) > 1), turned + (plan.vpp > 1)
    return mixed, turned


def test_the_best_step_is_that_of_brute_force_on_small_pools() -> None:
    mixed, turned = check(range(1007, 1018))
    assert mixed >= 2
    assert turned >= 4


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1018, 1098, 20))
def test_the_best_step_is_that_of_brute_force(start: int) -> None:
    _, turned = check(range(start, start + 20))
    assert turned >= 4


def test_layers_of_several_kinds_are_cut_as_by_brute_force() -> None:
    check(range(1101, 1106), experts=True)


@pytest.mark.slow
def test_layers_of_several_kinds_on_many_pools() -> None:
    _, turned = check(range(1106, 1160), experts=True)
    assert turned >= 5


@pytest.mark.slow
def test_experts_whose_traffic_is_hidden_are_as_good_as_by_brute_force() -> None:
    _, turned = check(range(1200, 1230), experts=True, hides=True)
    assert turned >= 3


def listed(space: Space, limit_s: float = np.inf) -> tuple[Plans, Floats] | None:
    """Every interleaved pipeline that the search looks at below a limit, and how much of its step
    the bound is; None: there are none.
    """
    finder = MixedFinder(space, RULES, STACK, MARGIN, np.inf)
    finder.allow(RULES)
    finder.price()
    finder.capacity = Capacity(finder.stocks)
    search = interleaving(finder)
    if search is None:
        return None
    found = [
        each
        for row in range(len(search.groups))
        for each in search.listed(row, limit_s, 10**6) or ()
    ]
    if not found:
        return None
    bounds = np.concatenate([each.lines.bound_s for each in found])
    _, plans = chunked_plans(space, [(each, np.arange(len(each.lines))) for each in found])
    view = stage_view(plans, space.workload.task, every_stage=True)
    steps = step_s(plans, view.stages, stage_times(view, STACK))
    assert (bounds <= steps * (1 + 1e-9)).all()
    return plans, bounds / steps


def name(plan: Plan) -> tuple[object, ...]:
    (pipeline,) = plan.pipelines
    gpus = tuple(segment.gpu for segment in pipeline.segments for _ in range(segment.stages))
    cut = tuple(plan.chunks(stage) for stage in range(plan.pp))
    first = pipeline.segments[0]
    return gpus, cut, first.tp, plan.ep, plan.overlap_ep, first.recompute, plan.microbatch_group


@pytest.mark.parametrize(
    ("seed", "options"), [(1005, {}), (1009, {}), (1017, {}), (1101, {"experts": True})]
)
def test_no_bound_is_above_the_simulated_step_and_no_plan_that_fits_is_left_out(
    seed: int, options: dict[str, bool]
) -> None:
    """All that brute force lays out and that fits is listed where there is no limit."""
    space = random_space(seed, turns=True, **options)
    task = space.workload.task
    found = listed(space)
    assert found is not None
    plans, _ = found
    known = {name(plan_at(plans, row, task)) for row in range(len(plans))}
    wanted = [plan for plan in every_plan(space) if plan.vpp > 1]
    some = {name(plan) for plan in fitting(wanted, STACK)}
    assert some
    assert some <= known


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (1005, {}),
        (1017, {}),
        (1101, {"experts": True}),
        (1107, {"experts": True}),
        (1114, {"experts": True}),
        (1212, {"experts": True, "hides": True}),
        (1213, {"experts": True, "hides": True}),
        (1216, {"experts": True, "hides": True}),
    ],
)
def test_no_plan_that_fits_and_is_below_a_limit_is_left_out(
    seed: int, options: dict[str, bool]
) -> None:
    """Whatever is recomputed: bounds close settings and numbers of chunks before any is listed."""
    space = random_space(seed, turns=True, **options)
    task = space.workload.task
    wanted = fitting([plan for plan in every_plan(space) if plan.vpp > 1], STACK)
    plans = plans_of(wanted)
    view = stage_view(plans, task, every_stage=True)
    steps = step_s(plans, view.stages, stage_times(view, STACK))
    every = listed(space)
    assert every is not None
    fewer = 0
    for share in (0.1, 0.4):
        limit = float(np.quantile(steps, share))
        found = listed(space, limit)
        some = {name(plan) for plan, own in zip(wanted, steps, strict=True) if own < limit}
        known = () if found is None else range(len(found[0]))
        assert some <= {name(plan_at(found[0], row, task)) for row in known if found}
        fewer += len(known) < len(every[0])
    assert fewer


def test_no_bound_is_above_the_simulated_step_on_many_pools() -> None:
    """Lighter ends, recompute, copies that send, slow links."""
    found = [listed(random_space(seed, turns=True)) for seed in range(1020, 1050)]
    shares = np.concatenate([each[1] for each in found if each is not None])
    assert len(shares) > 1000
    assert np.median(shares) > 0.7  # and they are of use


def best(gpus: str, **options: Any) -> float:
    found = astra.plan(
        "llama-3-8b", gpus=gpus, global_batch=32, seq_len=4096, runtime="megatron", **options
    )
    assert found.mixed is None or found.mixed.gap_fraction == 0
    assert found.best
    return found.best.step_s


def test_more_gpus_are_never_slower_and_their_order_changes_nothing() -> None:
    both = best("h100:8,l40s:16")
    assert both <= best("h100:8") * (1 + 1e-12)
    assert both <= best("h100:8,l40s:8") * (1 + 1e-12)
    assert both == best("l40s:16,h100:8")
    assert best("h100:8,l40s:16,a100-80g:8") <= both * (1 + 1e-12)


def test_interleaving_can_be_narrowed() -> None:
    pool = "h100:8,l40s:16"
    plain, turned = (best(pool, settings=[f"vpp={vpp}"]) for vpp in (1, 4))
    assert best(pool) <= min(plain, turned)
    assert plain != turned


def test_flagscale_says_that_it_excludes_interleaving() -> None:
    found = astra.plan(
        "llama-3-8b", gpus="h100:8,l40s:8", global_batch=32, seq_len=4096, settings=["vpp=2"]
    )
    notes = found.request.notes
    (said,) = [note for note in notes if note.startswith("--set vpp")]
    assert "not searched for flagscale" in said and "excludes interleaving" in said
    assert {each.plan.runtime for each in found.plans} == {"megatron"}
    assert {each.plan.vpp for each in found.plans} == {2}


def test_a_mixed_interleaved_plan_goes_to_megatron_and_comes_back(tmp_path: Path) -> None:
    """Launch files do not say which GPUs; all else of the pipeline is read back."""
    found = astra.plan(
        "llama-3-8b",
        gpus="h100:8,l40s:16",
        global_batch=24,
        seq_len=4096,
        runtime="megatron",
        settings=["vpp=3,4"],
    )
    some = [each.plan for each in found.plans if len(each.plan.gpus) > 1]
    assert some
    for row, plan in enumerate(some):
        folder = tmp_path / str(row)
        write_folder(folder, export_files(plan, "megatron"))
        (folder / "plan.json").unlink()
        job = import_job(folder / "args.txt", gpus=f"h100:{sum(plan.gpus.values())}")
        back = job.plan
        assert job.not_understood == ()
        assert (back.vpp, back.pp, back.microbatch_group) == (
            plan.vpp,
            plan.pp,
            plan.microbatch_group,
        )
        stages = range(plan.pp)
        assert [back.chunks(stage) for stage in stages] == [plan.chunks(stage) for stage in stages]
