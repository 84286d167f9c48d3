"""How layers are cut where nobody said, and what chunks of unlike size take."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.cases import each_case

import astra
from astra.cost.price import price_plan
from astra.strategy.complete import run_lengths
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.stage_view import stage_view
from astra.strategy.stages import recomputed_fraction
from astra.timing.chunks import chunk_shares

JOBS: dict[str, dict[str, Any]] = {
    "llama-3-70b": {"gpus": {"h100": 128}, "global_batch": 128, "seq_len": 4096},
    "llama-3-8b": {"gpus": {"h100": 16}, "global_batch": 64, "seq_len": 4096},
    "deepseek-v3": {"gpus": {"b200": 256}, "global_batch": 512, "seq_len": 4096, "ep": 8},
}


def with_chunks(plan: Plan, chunks: tuple[int, ...]) -> Plan:
    """The plan with its layers in these chunks."""
    (pipeline,) = plan.pipelines
    (segment,) = pipeline.segments
    layers = tuple(sum(chunks[stage :: plan.pp]) for stage in range(plan.pp))
    segment = msgspec.structs.replace(segment, layers=layers)
    pipeline = msgspec.structs.replace(pipeline, segments=(segment,))
    return msgspec.structs.replace(plan, pipelines=(pipeline,), chunk_layers=chunks)


def random_question(seed: int) -> tuple[str, dict[str, Any]]:
    """A model, and all that may be chosen but for the layers."""
    dice = random.Random(seed)
    model = dice.choice(list(JOBS))
    job = JOBS[model] | {
        "tp": dice.choice((1, 2, 4, 8)),
        "pp": dice.choice((2, 4, 8)),
        "vpp": dice.choice((1, 1, 2, 3, 4, 7, 8, 10)),
        "micro_batch": dice.choice((1, 2)),
        "recompute": dice.choice(("none", "selective:layernorm", "full:uniform:1", "full:block:1")),
    }
    fixed = {"cp": 1, "etp": 1, "sharding": "optimizer", "offload_optimizer_fraction": 0.0}
    return model, {"ep": 1, "overlap_ep": False} | fixed | job


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.soak) for block in range(1, 6))]
)
def test_layers_are_cut_as_the_search_would_cut_them(block: int) -> None:
    """All other settings given, the search has nothing else to choose."""
    compared = 0
    for seed in range(20 * block, 20 * block + (20 if block else 10)):
        model, asked = random_question(seed)
        best = astra.plan(model, risk="none", top=1, use_all=True, **asked).best
        if best is None:  # a rule forbids it, or it does not fit
            continue
        found = astra.predict(model, **asked)
        assert found.step_s == pytest.approx(best.step_s, rel=1e-12)
        assert found.plan.pipelines[0].layers == best.plan.pipelines[0].layers
        assert found.plan.chunk_layers == best.plan.chunk_layers
        compared += 1
    assert compared > 2


def test_what_was_assumed_of_the_layers_is_said() -> None:
    job = JOBS["llama-3-70b"] | {"tp": 8, "pp": 4, "vpp": 10}
    found = astra.predict("llama-3-70b", **job)
    assert found.plan.chunk_layers is not None
    assert f"chunks of {run_lengths(found.plan.chunk_layers)} layers" in found.assumed
    said = astra.predict("llama-3-70b", **job, layers_per_stage=(20, 20, 20, 20))
    assert said.plan.pipelines[0].layers == (20, 20, 20, 20) and said.step_s > found.step_s


def test_an_empty_chunk_takes_what_its_embedding_or_head_does() -> None:
    job = JOBS["llama-3-8b"] | {"tp": 2, "pp": 2, "vpp": 2}
    plan = with_chunks(astra.predict("llama-3-8b", **job).plan, (0, 16, 16, 0))
    view = stage_view(plans_of([plan]), task_of(plan), every_stage=True)
    shares = chunk_shares(view.plans, view.stages)[:, 0, :, 0]
    assert shares.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    priced = price_plan(plan)
    heavy = price_plan(with_chunks(plan, (16, 0, 0, 16)))
    assert priced.step_s < heavy.step_s  # which fills the pipeline with half of the model


def test_multi_token_prediction_lies_on_the_last_chunk() -> None:
    plan = astra.predict("llama-3-8b", **JOBS["llama-3-8b"], tp=2, pp=2, vpp=2).plan
    plan = msgspec.structs.replace(with_chunks(plan, (8, 8, 8, 8)), mtp_layers=1)
    view = stage_view(plans_of([plan]), task_of(plan), every_stage=True)
    shares = chunk_shares(view.plans, view.stages)[:, 0, :, 0]
    assert shares[:, 0].tolist() == [0.5, 0.5]
    assert shares[:, 1].tolist() == pytest.approx([8 / 17, 9 / 17])


@each_case(
    "recompute, fractions, checkpoints",
    [
        ("full:block:2", (4 / 14, 3 / 18), (1.0, 1.0)),
        ("full:block:8", (12 / 14, 9 / 18), (1.0, 1.0)),
        ("full:uniform:4", (1.0, 1.0), (4 / 14, 6 / 18)),
    ],
)
def test_whole_layers_are_recomputed_chunk_by_chunk(
    recompute: str, fractions: tuple[float, float], checkpoints: tuple[float, float]
) -> None:
    """Of chunks of 4 and 10 layers on one stage, 17 and 1 on the other."""
    job = JOBS["llama-3-8b"] | {"tp": 2, "pp": 2, "vpp": 2, "recompute": recompute}
    plan = with_chunks(astra.predict("llama-3-8b", **job).plan, (4, 17, 10, 1))
    view = stage_view(plans_of([plan]), task_of(plan), every_stage=True)
    fraction, saved = recomputed_fraction(view.plans, view.stages)
    assert np.allclose(fraction[0, :, 0], fractions)
    assert np.allclose(saved[0, :, 0], checkpoints)
