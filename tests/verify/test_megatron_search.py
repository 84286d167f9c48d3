"""Megatron-LM's own code accepts every plan that the search recommends."""

import os
from itertools import product

import pytest
from tests.support.frameworks import needs

needs("torch", "triton", "megatron.core", "megatron.training")

from tests.support.megatron_oracle import schedule_verdict, verdict  # noqa: E402

import astra  # noqa: E402
from astra.export.megatron import architecture, arguments, environment  # noqa: E402

# Model and sequence length.
MODELS = {
    "llama-3-8b": 8192,  # dense, 8 KV heads
    "llama-3-70b": 4096,
    "llama-3.1-405b": 8192,  # 126 layers
    "llama-3.2-1b": 4096,  # tied embeddings
    "qwen2.5-0.5b": 4096,  # 14 heads, 2 KV heads, biases on QKV, tied
    "gpt3-175b": 2048,  # learned positions, biases everywhere
    "gpt2-xl": 1024,  # 25 heads, learned positions, tied
    "gemma-2-9b": 4096,  # 42 layers, windows on every second one
    "mixtral-8x7b": 4096,  # MoE
    "qwen3-30b-a3b": 4096,  # MoE, 128 experts, 4 KV heads
    "deepseek-v2-lite": 4096,  # MLA, 27 layers, the first one dense
    "deepseek-v3": 4096,  # MLA, 61 layers, the first three dense, predicts two tokens
}
SIZES = (8, 64, 256, 1024)
PRECISIONS = ("bf16", "fp8")
TOP = 50
NARROWED = {"deepseek-v3": ("micro_batch=1", "cp=1", "pp=1,2,4,8,16")}  # else a minute for one
EVERY = 11  # one combination of so many is checked, unless all are asked for
COMBINATIONS = tuple(product(MODELS, SIZES, PRECISIONS))
WHOLE = os.environ.get("ASTRA_VERIFY_ALL") == "1"  # minutes instead of one
CHECKED = COMBINATIONS if WHOLE else COMBINATIONS[4::EVERY]


@pytest.mark.parametrize(("model", "gpus", "precision"), CHECKED)
def test_megatron_accepts_the_best_plans(model: str, gpus: int, precision: str) -> None:
    found = astra.plan(
        model,
        gpus=f"h100:{gpus}",
        global_batch=2 * gpus,
        seq_len=MODELS[model],
        precision=precision,
        settings=NARROWED.get(model, ()),
        top=TOP,
    )
    refused = []
    for priced in found.plans:
        plan = priced.plan
        words = [word for argument in arguments(plan) for word in argument]
        world = sum(plan.gpus.values())
        refusal = verdict(words, environment(plan), world, architecture(plan))
        if refusal:
            refused.append(f"{priced.rank}. {priced.summary}: {refusal}")
    assert not refused, "\n".join(refused)
    assert found.plans or found.nothing_fits


@pytest.mark.parametrize(
    ("model", "gpus", "batch"), [("llama-3-70b", "h100:640", 1024), ("gpt3-175b", "a100:96", 64)]
)
def test_megatron_runs_stages_that_do_not_divide_the_micro_batches(
    model: str, gpus: str, batch: int
) -> None:
    """Its arguments and its schedule accept the group, and would refuse one per stage."""
    found = astra.plan(model, gpus=gpus, global_batch=batch, seq_len=MODELS[model])
    grouped = [
        (each.plan, own) for each in found.plans if (own := each.plan.explicit_microbatch_group)
    ]
    assert len(grouped) >= 3
    for plan, own in grouped:
        words = [word for argument in arguments(plan) for word in argument]
        at = words.index("--microbatch-group-size-per-virtual-pipeline-stage")
        assert words[at + 1] == str(own)
        world, count = sum(plan.gpus.values()), plan.pipelines[0].micro_batches
        assert verdict(words, environment(plan), world, architecture(plan)) is None
        for group in (own, plan.pp):
            refusal = schedule_verdict(pp=plan.pp, vpp=plan.vpp, micro_batches=count, group=group)
            assert (refusal is None) == (group == own), plan.summary()


def test_the_checked_combinations_have_plans_of_every_size_and_precision() -> None:
    assert {gpus for _, gpus, _ in CHECKED} == set(SIZES)
    assert {precision for _, _, precision in CHECKED} == set(PRECISIONS)
