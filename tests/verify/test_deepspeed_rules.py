"""Our rules for DeepSpeed and DeepSpeed's own code say the same of random plans, both ways."""

from itertools import pairwise

import pytest
from tests.support.frameworks import needs

needs("torch", "deepspeed")

from tests.support.agreement import Agreement  # noqa: E402
from tests.support.deepspeed_oracle import deepspeed, verdict  # noqa: E402
from tests.support.torch_plans import random_torch_plan  # noqa: E402

from astra.export.deepspeed import config  # noqa: E402
from astra.model.zoo import find_model  # noqa: E402
from astra.strategy.complete import deepspeed_split  # noqa: E402
from astra.strategy.plan import Plan  # noqa: E402
from astra.strategy.rules import deepspeed as rules  # noqa: E402
from astra.strategy.rules.registry import broken_rules  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, not of ours
MODELS = (
    "llama-3-8b",
    "qwen2.5-0.5b",  # 14 heads, 2 KV heads
    "gpt2-xl",  # 25 heads
    "mixtral-8x7b",  # 8 experts
    "qwen3-30b-a3b",  # 128 experts
    "deepseek-v2-lite",  # MLA
)
PLANS = 2_400
LARGEST = 4_096
# Rules of the running program whose code runs without a model.
RUN = ("pipeline-excludes-zero-2", "ulysses-divides-heads", "zero-3-experts-exclude-ulysses")


def judged(plan: Plan) -> str | None:
    """DeepSpeed on what we export."""
    model = plan.model
    return verdict(
        config(plan, learning_rate=1e-4),
        sum(plan.gpus.values()),
        heads=model.heads,
        kv_heads=model.heads if model.mla else model.kv_heads,
        experts=model.moe.experts if model.moe else 1,
        layers=model.layers,
    )


def test_deepspeed_and_our_rules_agree_on_random_plans() -> None:
    claims = {rule.name for rule in rules.RULES if rule.layer == "config"} | {*RUN}
    found = Agreement()
    for seed in range(PLANS):
        plan = random_torch_plan(seed, find_model(MODELS[seed % len(MODELS)]), "deepspeed")
        broken = {rule.name for rule in broken_rules(plan)}
        if plan.pipelines[0].segments[0].tp > 1:
            broken.discard("batch-adds-up")  # the batch is then left to DeepSpeed
        if broken - claims or sum(plan.gpus.values()) > LARGEST:
            continue  # forbidden by what only we know, or not to be said in its words
        found.add(seed, plan, broken, judged(plan))
    found.check(claims)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("layers", [16, 27, 61, 80, 126])
def test_stages_hold_what_pipelinemodule_gives_them(layers: int, stages: int) -> None:
    weights = [0, *[1] * layers, 0, 0]  # embedding, layers of one class, norm, head
    ends = deepspeed().partition_balanced(weights, stages)
    held = tuple(sum(weights[a:b]) for a, b in pairwise(ends))
    assert held == deepspeed_split(layers, stages)
