"""What we export comes back as the same plan."""

from pathlib import Path

import msgspec
import pytest
from tests.support.random_plans import random_plan

from astra.api import import_job
from astra.export.targets import export_files
from astra.model.zoo import find_model
from astra.strategy.plan import Plan
from astra.strategy.rules.book import broken_rules

MODELS = (
    "llama-3-70b",
    "llama-3.2-1b",  # tied embeddings
    "gpt3-175b",  # learned positions, biases
    "mixtral-8x7b",
    "deepseek-v3",  # latent attention, dense first layers, multi-token prediction
    "gpt-oss-20b",  # windows on every second layer
    "gemma-2-9b",
)
SEEDS, PLANS = 2000, 20


def meant(plan: Plan) -> Plan:
    """Without what has no meaning in this plan, and without what no launch file says."""
    said = plan.cp_comm_type if plan.cp > 1 else "p2p"
    gone = msgspec.structs.replace(plan.cluster, name="", max_gpus=None)
    return msgspec.structs.replace(
        plan, cp_comm_type=said, overlap_p2p=plan.overlap_p2p and plan.vpp > 1, cluster=gone
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_comes_back_from_megatrons_arguments(name: str, tmp_path: Path) -> None:
    plans = (random_plan(seed, find_model(name), ("h100", "b200")) for seed in range(SEEDS))
    legal = [plan for plan in plans if not broken_rules(plan)][:PLANS]
    assert len(legal) == PLANS
    for row, plan in enumerate(legal):
        folder = tmp_path / str(row)
        folder.mkdir()
        for file in ("args.txt", "launch.sh"):
            (folder / file).write_text(export_files(plan, "megatron")[file])
        job = import_job(folder, gpus=plan.cluster.pools[0].gpu.name)
        assert job.not_understood == ()
        assert meant(job.plan) == meant(plan)
