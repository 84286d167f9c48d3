"""Answers over several GPU types: never worse for more GPUs, and what they say besides the plan."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.answers import planned

import astra
from astra.api import import_job
from astra.errors import InputError
from astra.export.folder import write_folder
from astra.export.targets import export_files
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.model.zoo import find_model
from astra.strategy.rules.registry import broken_rules

SMALL: dict[str, Any] = {"global_batch": 64, "seq_len": 4096}
SAME = 1 + 1e-12
WITHIN = 1.004  # what a search that is not proven may lose on a larger pool


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["flagscale", "megatron"])
def test_candidates_are_counted_on_while_types_are_searched_alone_and_together(
    runtime: Any,
) -> None:
    told: list[int] = []
    pools: dict[str, Any] = {"gpus": "h100:8,a100-80g:8", "runtime": runtime}
    answer = astra.plan(
        "llama-3-8b", **pools, **SMALL, progress=lambda each: told.append(each.candidates)
    )
    assert told == sorted(told) and told[-1] <= answer.search.candidates
    assert len(set(told)) > 2, "not only when a type is done"


@pytest.mark.slow
def test_the_order_of_types_on_the_command_line_changes_nothing() -> None:
    one = planned("llama-3-8b", gpus="h100:8,a100-80g:16", **SMALL)
    other = astra.plan("llama-3-8b", gpus="a100-80g:16,h100:8", **SMALL)
    assert [plan.plan for plan in one.plans] == [plan.plan for plan in other.plans]


@pytest.mark.slow
def test_a_mixed_answer_is_never_slower_than_any_type_alone_and_says_what_it_is_worth() -> None:
    answer = planned("llama-3-8b", gpus="h100:8,a100-80g:16", **SMALL)
    assert answer.best is not None and answer.mixed is not None
    mixed = answer.mixed
    assert answer.search.status == "searched"
    assert mixed.gap_fraction is None or 0 <= mixed.gap_fraction < 0.1
    assert set(mixed.alone_step_s) == {"H100-80GB-SXM", "A100-80GB-SXM"}
    for name, count in (("h100", 8), ("a100-80g", 16)):
        alone = astra.plan("llama-3-8b", gpus=f"{name}:{count}", runtime="flagscale", **SMALL)
        assert alone.best is not None
        told = mixed.alone_step_s[next(iter(alone.best.gpus))]
        assert told == pytest.approx(alone.best.step_s)
        assert answer.best.step_s <= alone.best.step_s * SAME
    assert mixed.even_split_step_s is None or mixed.even_split_step_s >= answer.best.step_s
    assert len(mixed.stages) == answer.best.plan.pp
    assert all(stage.busy_s < answer.best.step_s for stage in mixed.stages)
    full = max(stage.filled_fraction for stage in mixed.stages)
    memory = answer.best.memory
    assert full == pytest.approx(memory.reserved_bytes / memory.usable_bytes)
    used = dict.fromkeys(mixed.alone_step_s, 0) | answer.best.gpus
    for name, count in answer.best.gpus.items():  # of every stage, in all replicas
        own = [stage for stage in mixed.stages if stage.gpu == name]
        assert sum(stage.gpus for stage in own) == count
        assert all(stage.nodes == -(-stage.gpus // 8) for stage in own)
    assert answer.search.bound_s is None  # nothing is proven of all of them
    idle = {"H100-80GB-SXM": 8, "A100-80GB-SXM": 16}
    assert mixed.idle == {n: idle[n] - used[n] for n in idle if idle[n] > used[n]}
    assert all(plan.memory.fits and not broken_rules(plan.plan) for plan in answer.plans)


def test_a_type_without_the_precision_is_left_out_and_says_what_it_lacks() -> None:
    answer = astra.plan("llama-3.2-1b", gpus="h100:8,t4:8", global_batch=64, seq_len=2048)
    assert answer.mixed is not None
    (note,) = answer.mixed.left_out
    assert note == "T4 is left out: it has no bf16 units; --precision fp16 would use it"


@pytest.mark.slow
def test_a_type_that_cannot_hold_a_layer_is_left_out_with_a_note() -> None:
    answer = astra.plan("llama-3.1-405b", gpus="h100:512,t4:1", global_batch=512, seq_len=4096)
    assert answer.mixed is not None and answer.best is not None
    assert answer.mixed.left_out == (
        "T4 is left out: it has no bf16 units; --precision fp16 would use it",
    )
    assert set(answer.best.gpus) == {"H100-80GB-SXM"}


@pytest.mark.slow
def test_the_cap_on_all_gpus_holds() -> None:
    asked: dict[str, Any] = {"gpus": "h100:8,a100-80g:8", "settings": ["tp=1,2", "mb=1"]}
    answer = astra.plan("llama-3-8b", max_gpus=12, **asked, **SMALL)
    assert answer.best is not None
    assert all(sum(plan.gpus.values()) <= 12 for plan in answer.plans)


@pytest.mark.slow
def test_a_mixed_pool_that_holds_nothing_says_so() -> None:
    answer = astra.plan("llama-2-70b", gpus="h100:2,a100-80g:2", **SMALL)
    assert answer.best is None and answer.nothing_fits is not None
    assert "no mixed plan fits" in answer.nothing_fits.binding
    (change,) = answer.nothing_fits.tries
    count, name = change.split()
    assert f"closest is {name}:" in answer.nothing_fits.binding, "GPUs of which type"
    assert astra.plan("llama-2-70b", gpus=f"{name}:{count}", **SMALL).best is not None


@pytest.mark.slow
def test_the_answer_for_megatron_has_one_cut_and_is_faster_by_interleaving_alone() -> None:
    pools = "h100:8,a100-80g:16"
    asked: dict[str, Any] = {"gpus": pools, "runtime": "megatron", **SMALL}
    one = astra.plan("llama-3-8b", settings=["tp=1,2", "mb=1", "vpp=1"], **asked)
    turns = astra.plan("llama-3-8b", settings=["tp=1,2", "mb=1"], **asked)
    free = planned("llama-3-8b", gpus=pools, **SMALL)
    assert one.best is not None and free.best is not None and turns.best is not None
    assert turns.best.step_s <= one.best.step_s * SAME
    (pipeline,) = one.best.plan.pipelines
    assert len({(s.tp, s.dp, s.micro_batch, s.recompute) for s in pipeline.segments}) == 1
    assert one.best.plan.runtime == "megatron" and not broken_rules(one.best.plan)
    assert free.best.step_s <= one.best.step_s * SAME


@pytest.mark.slow
def test_the_fewest_gpus_of_all_types_reach_a_throughput() -> None:
    asked = SMALL | {"gpus": "h100:2,a100-80g:4", "settings": ["tp=2", "mb=1"]}
    found = astra.plan("llama-3-8b", objective="gpus", min_tokens_per_s=25_000, **asked)
    assert found.best is not None and found.best.tokens_per_s >= 25_000
    assert len(found.best.gpus) == 2
    total = sum(found.best.gpus.values())
    less = astra.plan("llama-3-8b", max_gpus=total - 1, **asked)
    assert less.best is not None and less.best.tokens_per_s < 25_000


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


@pytest.mark.slow
def test_what_every_plan_has_anyway_may_be_asked_for_over_several_types() -> None:
    pool = "h100:8,a100-80g:8"
    plain, asked = (
        astra.plan(
            "llama-3-8b",
            gpus=pool,
            settings=["tp=1", "mb=1", "dp=8", "recompute=none", *more],
            **SMALL,
        )
        for more in ((), ("attention=flash", "cuda_graph=none"))
    )
    assert plain.best is not None and asked.best is not None
    assert len(plain.best.gpus) == 2 and asked.best.step_s == plain.best.step_s


def test_plans_over_several_types_have_no_context_parallelism_under_flagscale() -> None:
    """FlagScale refuses it, however long sequences are; on one type it is Megatron-LM's."""
    answer = astra.plan("llama-3-8b", runtime="flagscale", **LONG)
    assert answer.best is not None and len(answer.best.gpus) == 2
    mixed = [plan.plan for plan in answer.plans if len(plan.gpus) > 1 and plan.plan.pp > 1]
    assert mixed and all(plan.cp == 1 for plan in mixed)
    assert not any(broken_rules(plan.plan) for plan in answer.plans)


@pytest.mark.slow
def test_context_parallelism_asked_for_over_several_types_says_who_refuses_it() -> None:
    answer = astra.plan("llama-3-8b", settings=["cp=2"], **LONG)
    assert answer.best is not None and len(answer.best.gpus) == 2
    assert {plan.plan.runtime for plan in answer.plans} == {"megatron"}
    notes = answer.request.notes
    (said,) = [note for note in notes if note.startswith("cp=2 leaves no pipeline")]
    assert "flagscale, which excludes context parallelism" in said


@pytest.mark.slow
def test_one_dp_for_all_is_no_faster_than_one_for_each() -> None:
    pools = "h100:8,a100-80g:16"
    one = astra.plan("llama-3-8b", gpus=pools, settings=["mesh_dp=false"], **SMALL)
    own = planned("llama-3-8b", gpus=pools, **SMALL)
    assert one.best is not None and own.best is not None
    assert own.best.step_s <= one.best.step_s * SAME
    (pipeline,) = one.best.plan.pipelines
    assert len({segment.dp for segment in pipeline.segments}) == 1


@pytest.mark.slow
def test_every_runtime_trains_as_many_prediction_layers_as_predict_counts() -> None:
    """Multi-token prediction of DeepSeek-V3, cut down to four layers."""
    model = msgspec.structs.replace(
        find_model("deepseek-v3"), layers=4, mtp_layers=1, parameters=None, active_parameters=None
    )
    asked: dict[str, Any] = {"gpus": "h100:8,h200:8", "global_batch": 32, "seq_len": 2048}
    settings = ["tp=8", "ep=8", "etp=1", "cp=1", "micro_batch=1", "sharding=optimizer"]
    for runtime in ("megatron", "flagscale"):
        told = astra.predict(model, tp=8, ep=8, runtime=runtime, **asked)
        assert told.plan.mtp_layers == 1
        found = astra.plan(model, runtime=runtime, settings=settings, **asked)
        assert {priced.plan.mtp_layers for priced in found.plans} == {1}


def best_s(gpus: str, **options: Any) -> float:
    """For Megatron-LM, which may interleave."""
    job: dict[str, Any] = {"global_batch": 32, "seq_len": 4096, "runtime": "megatron"}
    found = planned("llama-3-8b", gpus=gpus, **job, **options)
    assert found.best
    return found.best.step_s


@pytest.mark.slow
def test_more_gpus_are_never_slower_and_their_order_changes_nothing() -> None:
    few = {"settings": ["mb=1", "cp=1", "sharding=optimizer"]}
    both = best_s("h100:8,l40s:16", **few)
    assert both <= best_s("h100:8", **few) * SAME
    assert both <= best_s("h100:8,l40s:8", **few) * WITHIN
    assert both == best_s("l40s:16,h100:8", **few)
    assert best_s("h100:8,l40s:16,a100-80g:8", **few) <= both * WITHIN


@pytest.mark.slow
def test_interleaving_can_be_narrowed() -> None:
    pool = "h100:8,l40s:16"
    plain, turned = (best_s(pool, settings=["mb=1", f"vpp={vpp}"]) for vpp in (1, 4))
    assert best_s(pool) <= min(plain, turned) * WITHIN
    assert plain != turned


@pytest.mark.slow
def test_flagscale_says_that_it_excludes_interleaving() -> None:
    found = astra.plan(
        "llama-3-8b", gpus="h100:8,l40s:8", global_batch=32, seq_len=4096, settings=["vpp=2"]
    )
    notes = found.request.notes
    (said,) = [note for note in notes if note.startswith("--set vpp")]
    assert "not searched for flagscale" in said and "excludes interleaving" in said
    assert {each.plan.runtime for each in found.plans} == {"megatron"}
    assert {each.plan.vpp for each in found.plans} == {2}


@pytest.mark.slow
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
        for name in ("vpp", "pp", "microbatch_group"):
            assert getattr(back, name) == getattr(plan, name)
        stages = range(plan.pp)
        assert [back.chunks(stage) for stage in stages] == [plan.chunks(stage) for stage in stages]
