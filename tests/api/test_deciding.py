"""Answers say which library their best plan needs, and what dtypes that are off would buy."""

from typing import Any

import pytest
from tests.strategy.mixed_plans import small_model

import astra
from astra.export.targets import export_files
from astra.model.shape import Model, Moe
from astra.notes import NoteCode

JOB: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 2048}


def facts_of(answer: astra.Answer, code: NoteCode) -> list[dict[str, Any]]:
    return [note.facts for note in answer.request.note_codes if note.code is code]


def model() -> Model:
    return small_model(layers=4, hidden=2048, moe=Moe(experts=64, top_k=8, moe_ffn=1024))


def test_the_library_is_named_with_the_step_of_the_same_plan_without_it() -> None:
    answer = astra.plan(model(), ep=[8], **JOB)
    assert answer.best is not None and answer.best.plan.dispatcher == "deepep"
    (facts,) = facts_of(answer, NoteCode.NEEDS_LIBRARY)
    plan = answer.best.plan
    same: dict[str, Any] = {
        name: [getattr(plan, name)] for name in ("tp", "pp", "dp", "cp", "micro_batch", "vpp")
    }
    same |= {name: [getattr(plan, name)] for name in ("etp", "sharding", "overlap_ep")}
    same["recompute"] = [plan.pipelines[0].segments[0].recompute]
    plain = astra.plan(model(), ep=[8], dispatcher=["alltoall"], **same, **JOB)
    assert plain.best is not None and plain.best.step_s > answer.best.step_s
    assert facts["step_s"] == pytest.approx(plain.best.step_s)
    assert facts["more_fraction"] == pytest.approx(plain.best.step_s / answer.best.step_s - 1)
    assert facts_of(plain, NoteCode.NEEDS_LIBRARY) == []
    assert any("DeepEP" in text for text in answer.request.notes)


@pytest.mark.parametrize("target", ["megatron", "bridge", "flagscale"])
def test_launch_files_name_the_library_and_switch_it_on(target: str) -> None:
    answer = astra.plan("mixtral-8x7b", ep=[8], **JOB)
    assert answer.best is not None and answer.best.plan.dispatcher == "deepep"
    files = export_files(answer.best.plan, target)
    assert "DeepEP must be installed on all nodes" in files["README.md"]
    assert any("flex" in text and "deepep" in text for text in files.values())


def test_dtypes_that_would_save_more_than_a_per_cent_do_so_when_asked_for() -> None:
    job: dict[str, Any] = {"gpus": {"h100": 64}, "global_batch": 64, "seq_len": 4096}
    answer = astra.plan("llama-3-70b", risk="none", top=3, **job)
    assert answer.best is not None
    told = facts_of(answer, NoteCode.DTYPES_SAVE)
    assert told
    for facts in told:
        asked = dict(word.split("=") for word in facts["settings"])
        other = astra.plan("llama-3-70b", risk="none", top=1, settings=asked, **job)
        assert other.best is not None
        saved = 1 - other.best.step_s / answer.best.step_s
        assert saved >= facts["saved_fraction"] - 1e-9 > 0.01
        assert facts_of(other, NoteCode.DTYPES_SAVE) == []


def test_dtypes_are_suggested_where_they_decide_whether_anything_fits() -> None:
    job: dict[str, Any] = {
        "gpus": {"h100": 16},
        "global_batch": 16,
        "seq_len": 4096,
        "offload_optimizer": [0],
    }
    answer = astra.plan("llama-3-70b", **job)
    assert answer.nothing_fits is not None
    tried = [n.facts for n in answer.nothing_fits.suggestions if n.code is NoteCode.TRY_DTYPES]
    assert tried
    for facts in tried:
        asked = dict(word.split("=") for word in facts["settings"])
        assert astra.plan("llama-3-70b", risk="none", settings=asked, **job).best is not None
