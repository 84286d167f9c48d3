"""Plans for FlagScale: found by the search, and made by hand where meshes differ in more."""

import random
from functools import cache
from itertools import islice
from typing import Any

import msgspec
from tests.support.answers import planned

from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.rules.registry import broken_rules

# Model, GPUs, global batch, sequence length, further settings.
QUESTIONS = (
    ("llama-3-8b", "h100:8,a100-80g:8", 64, 4096, ()),
    ("llama-3.2-1b", "h100:8,a100-80g:16,l40s:8", 64, 4096, ()),  # tied embeddings
    ("llama-3-70b", "h100:16,a100-80g:16", 128, 8192, ()),  # stages recompute apart
    ("mixtral-8x7b", "h100:16,a100-80g:16", 128, 4096, ()),
    ("llama-3-8b", "h100:16", 64, 4096, ()),
    ("mixtral-8x7b", "h100:16", 64, 4096, ("cp=1", "recompute=none,full:block:4")),
    ("deepseek-v2-lite", "a100-80g:8", 64, 4096, ("cp=1",)),
    ("gpt3-175b", "h100:64,a100-80g:64", 128, 2048, ()),
    ("qwen3-30b-a3b", "h100:8,a100-80g:8,h200:8", 64, 4096, ("tp=1,2",)),
    ("llama-3-70b", "h100:16,a100-80g:16", 64, 4096, ()),
    ("llama-2-13b", "h100:16,a100-80g:16,h200:8", 128, 4096, ()),
    ("llama-2-7b", "a100-80g:16,l40s:16", 128, 4096, ()),
)
MODELS = ("llama-3-8b", "llama-3.2-1b", "mixtral-8x7b", "gpt3-13b", "deepseek-v3")


def searched_plans(questions: int = len(QUESTIONS)) -> list[Plan]:
    """The best plans of every question."""
    found = []
    for model, gpus, batch, seq_len, settings in QUESTIONS[:questions]:
        asked = {"global_batch": batch, "seq_len": seq_len, "settings": settings, "top": 12}
        answer = planned(model, gpus=gpus, runtime="flagscale", **asked)
        found += [priced.plan for priced in answer.plans]
    return found


def handmade(seed: int) -> Plan | None:
    """Two or three meshes with their own tp, dp, ep and recompute; None where rules forbid it."""
    dice = random.Random(seed)
    model = find_model(dice.choice(MODELS))
    pools = dice.sample(("h100", "a100-80g", "l40s", "h200"), dice.choice((2, 3)))
    cluster, _ = parse_gpus(",".join(f"{name}:256" for name in pools))
    dp = dice.choice((1, 2, 4, 8))
    stages = [dice.choice((1, 1, 2, 3)) for _ in pools]
    cuts = sorted(dice.sample(range(1, model.layers), sum(stages) - 1))
    layers = [b - a for a, b in zip([0, *cuts], [*cuts, model.layers], strict=True)]
    size = dice.choice((1, 2, 4))
    segments: list[Segment] = []
    start = 0
    for row, pool in enumerate(cluster.pools):
        own: dict[str, Any] = {}
        if row and dice.random() < 0.5:
            own["dp"] = dice.choice([n for n in (1, 2, 4, 8, 16) if dp * size % n == 0])
            own["micro_batch"] = dp * size // own["dp"]
        if model.moe and dice.random() < 0.5:
            own["ep"] = dice.choice((1, 2, 4))
        for _ in range(stages[row]):
            recompute = dice.choice(("none", "none", "full:block:1", "full:uniform:1"))
            segments.append(
                Segment(
                    gpu=pool.gpu.name,
                    stages=1,
                    layers=(layers[start],),
                    tp=segments[-1].tp if segments and not own else dice.choice((1, 2, 4)),
                    recompute=recompute,
                    **own,
                )
            )
            start += 1
    count = dice.choice((4, 8, 16))
    base = complete(
        PlanSettings(global_batch=dp * size * count, seq_len=2048, micro_batch=size),
        model,
        parse_gpus(f"{pools[0]}:{dp * size}")[0],
        "flagscale",
    ).plan
    plan = msgspec.structs.replace(
        base,
        cluster=cluster,
        pipelines=(Pipeline(replicas=dp, micro_batches=count, segments=tuple(segments)),),
        global_batch=dp * size * count,
        micro_batch=size,
        shard_group=1,
        sharding="none",
        overlap_grad_reduce=dp > 1,
        overlap_param_gather=False,
        sequence_parallel=any(segment.tp > 1 for segment in segments),
        overlap_tp=False,
    )
    return plan if not broken_rules(plan) else None


@cache
def handmade_plans(count: int = 120) -> tuple[Plan, ...]:
    made = (handmade(seed) for seed in range(20 * count))
    return tuple(islice((plan for plan in made if plan is not None), count))
