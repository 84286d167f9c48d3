"""Questions over the zoo, and what a framework's own code says of the plan that is recommended."""

import random
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.support.flagscale_oracle import Judge, written
from tests.support.megatron_oracle import groups_verdict, schedule_verdict, verdict

import astra
from astra.export.megatron import architecture, arguments, environment
from astra.export.targets import export_files, refusal
from astra.strategy.plan import Plan

SMALL, LARGE, HUGE = (8, 16, 64, 256), (64, 128, 256, 1024), (256, 512, 1024, 2048)
MODELS = {  # GPUs that each is asked on
    "qwen2.5-0.5b": SMALL,  # 14 heads, 2 KV heads, tied embeddings
    "llama-3.2-1b": SMALL,
    "llama-3-8b": SMALL,  # grouped queries
    "gemma-2-9b": SMALL,  # 42 layers, windows on every second one
    "llama-3-70b": LARGE,
    "gpt3-175b": LARGE,  # learned positions, biases
    "llama-3.1-405b": HUGE,  # 126 layers
    "mixtral-8x7b": SMALL,  # 8 experts
    "qwen3-30b-a3b": SMALL,  # 128 experts
    "gpt-oss-20b": SMALL,  # experts with biases
    "deepseek-v2-lite": SMALL,  # latent attention, 27 layers
    "deepseek-v3": HUGE,  # latent attention, 256 experts
}
GPUS = ("h100", "gb200")


@dataclass(frozen=True)
class Question:
    """A model on a pool."""

    model: str
    gpus: str
    global_batch: int

    @property
    def seq_len(self) -> int:
        return 2048 if self.model == "gpt3-175b" else 4096

    def __str__(self) -> str:
        return f"{self.model} on {self.gpus}"


ONE_TYPE = [
    Question(model, f"{gpu}:{count}", 4 * count)
    for (model, counts), gpu in product(MODELS.items(), GPUS)
    for count in counts
]
MIXED = [
    Question("llama-3-8b", "h100:8,a100-80g:8", 64),
    Question("llama-3-70b", "h100:32,a100-80g:32", 256),
    Question("llama-3-70b", "h200:16,l40s:32", 128),
    Question("mixtral-8x7b", "h100:16,a100-80g:16", 128),
    Question("qwen3-30b-a3b", "h100:16,h200:16", 128),
    Question("gpt3-175b", "h100:64,a100-80g:64", 256),
]
SAMPLE = [*random.Random(12).sample(ONE_TYPE, 4), MIXED[0], MIXED[3]]


@dataclass(frozen=True)
class Outcome:
    """What is recommended, and who was asked about it."""

    summary: str  # empty: nothing fits
    checked_by: tuple[str, ...]
    refusals: tuple[str, ...]


def outcome_of(question: Question, judge: Judge, folder: Path) -> Outcome:
    """The first plan at the usual risk, exported, by the code of its framework."""
    best = astra.plan(
        question.model,
        gpus=question.gpus,
        global_batch=question.global_batch,
        seq_len=question.seq_len,
    ).best
    if best is None:
        return Outcome("", (), ())
    asked = _by_flagscale if best.plan.runtime == "flagscale" else _by_megatron
    checked_by, refusals = asked(best.plan, judge, folder)
    return Outcome(best.summary, checked_by, tuple(each for each in refusals if each))


def _by_flagscale(
    plan: Plan, judge: Judge, folder: Path
) -> tuple[tuple[str, ...], list[str | None]]:
    """Its arguments and ParallelContext on the first rank of every mesh."""
    if refused := refusal(plan, "flagscale"):
        return ("FlagScale",), [refused]
    answer = judge.ask(written(folder, export_files(plan, "flagscale")), architecture(plan))
    return ("FlagScale: arguments", "ParallelContext"), [answer.get("refused")]


def _by_megatron(plan: Plan, _: Judge, folder: Path) -> tuple[tuple[str, ...], list[str | None]]:
    """Parser, `validate_args` and configuration; process groups; the interleaved schedule."""
    if refused := refusal(plan, "megatron"):
        return ("Megatron-LM",), [refused]
    files = written(folder, export_files(plan, "megatron"))
    words = (files / "args.txt").read_text(encoding="utf-8").split()
    assert words == [word for argument in arguments(plan) for word in argument]
    world, tp = sum(plan.gpus.values()), plan.pipelines[0].segments[0].tp
    found = [verdict(words, environment(plan), world, architecture(plan))]
    copies = plan.dp * plan.cp
    instances = copies // plan.shard_group if plan.sharding != "none" else 1
    found.append(
        groups_verdict(
            world,
            tp=tp,
            pp=plan.pp,
            cp=plan.cp,
            ep=plan.ep,
            etp=plan.etp if plan.model.moe else tp,
            order=plan.rank_order,
            instances=instances,
        )
    )
    checked_by = ("Megatron-LM: arguments", "groups")
    if plan.vpp == 1:
        return checked_by, found
    count, group = plan.pipelines[0].micro_batches, plan.microbatch_group or plan.pp
    found.append(schedule_verdict(pp=plan.pp, vpp=plan.vpp, micro_batches=count, group=group))
    return (*checked_by, "schedule"), found
