"""Our rules for plain PyTorch and torchtitan's own code say the same of random plans, both ways."""

import pytest
from tests.support.frameworks import needs

needs("torch", "torchtitan")

from tests.support.agreement import Agreement  # noqa: E402
from tests.support.titan_oracle import read_module, verdict  # noqa: E402
from tests.support.torch_plans import random_torch_plan  # noqa: E402

from astra.export.torchtitan import config_module  # noqa: E402
from astra.model.zoo import find_model  # noqa: E402
from astra.strategy.rules import fsdp  # noqa: E402
from astra.strategy.rules.registry import broken_rules  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, not of ours
MODELS = (
    "llama-3-8b",  # dense, 8 KV heads
    "llama-3.2-1b",  # tied embeddings
    "qwen3-4b",  # tied, heads wider than hidden
    "llama-2-7b",  # built of Llama 3's layers
    "qwen3-30b-a3b",  # MoE, 4 KV heads
    "gpt-oss-20b",  # MoE
    "deepseek-v2-lite",  # MLA, 27 layers, the first one dense
)
PLANS = 1_700
LARGEST = 256  # GPUs; larger meshes take their time
# Rules of the running program that its schedules check on the way.
SCHEDULED = ("rounds-are-equal", "pipeline-is-filled")


def test_torchtitan_and_our_rules_agree_on_random_plans() -> None:
    claims = {rule.name for rule in fsdp.RULES if rule.layer == "config"} | {*SCHEDULED}
    found = Agreement()
    for seed in range(PLANS):
        plan = random_torch_plan(seed, find_model(MODELS[seed % len(MODELS)]), "fsdp")
        world = sum(plan.gpus.values())
        broken = {rule.name for rule in broken_rules(plan)}
        if broken - claims or world > LARGEST:
            continue  # forbidden by what only we know, or not to be said in its words
        text = config_module(plan, train_iters=10, learning_rate=1e-4)
        refused = verdict(read_module(text).plan, world, build=False)
        found.add(seed, plan, broken, refused)
    found.check(claims - {"dp-fits-shard-group"})
