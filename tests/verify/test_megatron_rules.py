"""Our rules and Megatron-LM's own code say the same of random plans, both ways."""

import random
from collections import Counter
from typing import Any

import pytest
from tests.support.frameworks import needs

needs("torch", "triton", "megatron.core", "megatron.training")

from tests.support.megatron_oracle import (  # noqa: E402
    groups_verdict,
    pipeline_ranks,
    schedule_verdict,
    verdict,
)
from tests.support.random_plans import random_plan  # noqa: E402
from tests.support.uniform_plans import (  # noqa: E402
    type_of_rank,
    types_of_replicas,
    uniform_plan,
    unlike_networks,
)

from astra.export.megatron import architecture, arguments, environment  # noqa: E402
from astra.export.targets import refusal  # noqa: E402
from astra.hardware.cluster import Cluster  # noqa: E402
from astra.model.zoo import find_model  # noqa: E402
from astra.strategy.plan import Plan  # noqa: E402
from astra.strategy.plans import plans_of, task_of  # noqa: E402
from astra.strategy.rules import megatron  # noqa: E402
from astra.strategy.rules.registry import broken_rules  # noqa: E402
from astra.strategy.rules.rule import Rule  # noqa: E402

MODELS = (
    "llama-3-8b",  # dense, 8 KV heads
    "llama-3.2-1b",  # tied embeddings
    "qwen2.5-0.5b",  # 14 heads, 2 KV heads, biases on QKV, tied
    "gpt3-175b",  # learned positions, biases everywhere
    "gpt2-xl",  # 25 heads, 1,024 positions
    "falcon-7b",  # 71 heads, one KV head
    "nemotron-4-15b",  # squared ReLU
    "gemma-2-9b",  # windows on every second layer
    "llama-3.1-405b",  # 126 layers
    "mixtral-8x7b",  # MoE
    "qwen3-30b-a3b",  # MoE, 128 experts, 4 KV heads
    "deepseek-v3",  # MLA, 61 layers, first three dense
    "deepseek-v2-lite",  # MLA without query compression
    "gpt-oss-20b",  # MoE with biases, sinks, windows
    "glm-4.5",  # 96 heads, shared experts
)
GPUS = ("v100-32g", "a100-80g", "h100", "b200")
PLANS = 12_000
CLAIMED = ("parser", "config", "layout")


def judged(seed: int) -> tuple[Plan, list[Rule], str | None]:
    """A random plan, the rules it breaks, and Megatron-LM's refusal."""
    plan = random_plan(seed, find_model(MODELS[seed % len(MODELS)]), GPUS)
    return plan, broken_rules(plan), verdict_of(plan)


def verdict_of(plan: Plan) -> str | None:
    """Megatron-LM on what we export."""
    words = [word for argument in arguments(plan) for word in argument]
    world = sum(plan.gpus.values())
    return verdict(words, environment(plan), world, architecture(plan))


def test_megatron_and_our_rules_agree_on_random_plans() -> None:
    alone: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    worlds = set()
    wrong = []
    for seed in range(PLANS):
        plan, broken, refusal = judged(seed)
        claimed = [rule.name for rule in broken if rule.layer in CLAIMED]
        worlds.add(sum(plan.gpus.values()))
        if not broken and refusal:
            wrong.append(f"{seed}: allowed, but refused by {refusal}")
        if claimed and refusal is None:
            wrong.append(f"{seed}: forbidden by {claimed}, but accepted")
        outcomes["legal" if not broken else "illegal" if claimed else "ours"] += 1
        if len(claimed) == 1:
            alone[claimed[0]] += 1
    assert not wrong, f"{len(wrong)} disagreements:\n" + "\n".join(wrong[:20])
    assert outcomes["legal"] >= 1_000 and outcomes["illegal"] >= 1_000, outcomes
    assert min(worlds) == 1 and max(worlds) >= 8_192
    ours = {rule.name for rule in megatron.RULES if rule.layer in CLAIMED}
    assert ours == set(alone), f"never the only reason: {sorted(ours - set(alone))}"


def test_process_groups_agree_with_our_rules() -> None:
    names = (
        "expert-grid-divides-world",
        "optimizer-instances-divide-expert-copies",
        "rank-order-keeps-expert-copies",
    )
    rules = [rule for rule in megatron.RULES if rule.name in names]
    seen: Counter[str] = Counter()
    for seed in range(2_000):
        plan = random_plan(seed, find_model(MODELS[9 + seed % 6]), GPUS)
        world = sum(plan.gpus.values())
        if world > 128:
            continue
        table, task = plans_of([plan]), task_of(plan)
        broken = [rule.name for rule in rules if not rule.holds(table, task)[0]]
        sharded = plan.sharding != "none"
        refusal = groups_verdict(
            world,
            tp=plan.pipelines[0].segments[0].tp,
            pp=plan.pp,
            cp=plan.cp,
            ep=plan.ep,
            etp=plan.etp,
            order=plan.rank_order,
            instances=plan.dp * plan.cp // plan.shard_group if sharded else 1,
        )
        assert bool(broken) == bool(refusal), (seed, broken, refusal)
        seen.update(broken or ["none"])
    assert set(seen) == {*names, "none"}, seen
    assert sum(seen.values()) >= 500


@pytest.mark.parametrize("seed", range(4))
def test_interleaved_schedule_agrees_with_our_rules(seed: int) -> None:
    names = ("microbatch-group-in-range", "microbatch-group-remainder")
    rules = [rule for rule in megatron.RULES if rule.name in names]
    dice = random.Random(seed)
    base = next(p for p in (judged(s)[0] for s in range(999)) if p.vpp > 1 and p.pp > 1)
    seen: Counter[str] = Counter()
    for _ in range(250):
        pp, vpp = dice.randint(2, 8), dice.randint(2, 4)
        count, group = dice.randint(1, 40), dice.randint(1, 20)
        table = plans_of([base])
        table.stages[:] = 0
        table.stages[0, 0] = pp
        table.vpp[:] = vpp
        table.micro_batches[:] = count
        table.microbatch_group[:] = group
        broken = [rule.name for rule in rules if not rule.holds(table, task_of(base))[0]]
        refusal = schedule_verdict(pp=pp, vpp=vpp, micro_batches=count, group=group)
        assert bool(broken) == bool(refusal), (pp, vpp, count, group, broken, refusal)
        seen.update(broken or ["none"])
    assert set(seen) == {*names, "none"}, seen


# Models and settings of one cut over two types: the first ranks on the first.
UNIFORM: dict[str, dict[str, Any]] = {
    "llama-3-8b": {"tp": 2, "pp": 4},
    "llama-3.2-1b": {"micro_batch": 2},
    "qwen2.5-0.5b": {"pp": 2, "vpp": 2},
    "gpt3-175b": {"tp": 4, "pp": 4, "rank_order": "tp-cp-ep-pp-dp"},
    "gpt2-xl": {"pp": 4, "seq_len": 1024},
    "nemotron-4-15b": {"tp": 4, "sharding": "parameters"},
    "gemma-2-9b": {"tp": 2, "pp": 4, "shard_group": 2},
    "llama-3.1-405b": {"tp": 8, "pp": 4, "layers_per_stage": (31, 32, 32, 31)},
    "mixtral-8x7b": {"ep": 8, "pp": 2},
    "qwen3-30b-a3b": {"tp": 2, "ep": 4, "pp": 4},
    "deepseek-v3": {"ep": 8, "pp": 4},
    "llama-3-70b": {"tp": 4, "cp": 2, "pp": 4},
}
POOLS: dict[str, str | Cluster] = {
    "h100:56,h200:8": "h100:56,h200:8",
    "a100-80g:24,h100:40": "a100-80g:24,h100:40",
    "two networks": unlike_networks(40, 24),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("model", UNIFORM)
def test_one_cut_over_two_types_is_an_ordinary_job_with_its_ranks_in_blocks(
    model: str, pool: str
) -> None:
    """Megatron-LM takes the options, and its process groups put every stage on the planned type."""
    plan = uniform_plan(POOLS[pool], model, **UNIFORM[model])
    assert len(plan.pipelines) > 1 and refusal(plan, "megatron") is None
    assert verdict_of(plan) is None
    tp, gpu = plan.pipelines[0].segments[0].tp, type_of_rank(plan)
    groups = pipeline_ranks(tp=tp, cp=plan.cp, dp=plan.dp, pp=plan.pp, order=plan.rank_order)
    found = [tuple(gpu[rank] for rank in group) for group in groups]
    assert found == [types for types in types_of_replicas(plan) for _ in range(tp * plan.cp)]
