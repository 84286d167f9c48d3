"""FlagScale's own searcher arrives at every plan that its tuner is told to try."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import yaml
from tests.support.frameworks import needs

needs("hydra", "flag_scale")

import astra  # noqa: E402
from astra.export import tuner  # noqa: E402
from astra.export.targets import export_files, refusal  # noqa: E402

SEARCH = """
import json, sys
sys.path.insert(0, sys.argv[1])
from omegaconf import OmegaConf
from flagscale.runner.auto_tuner.search.searcher import Searcher
found = Searcher(OmegaConf.create(json.load(sys.stdin))).strategies
print(json.dumps(found))
"""
QUESTIONS = (
    ("llama-3-8b", "h100:16", 64, ()),
    ("llama-3-70b", "h100:64", 128, ("vpp=1,2,4", "recompute=none,full:block:4")),
    ("mixtral-8x7b", "h100:16", 64, ("cp=1", "etp=1", "tp=1")),
)


@pytest.mark.parametrize(("model", "gpus", "batch", "settings"), QUESTIONS)
def test_the_searcher_arrives_at_our_plans(
    model: str, gpus: str, batch: int, settings: tuple[str, ...]
) -> None:
    answer = astra.plan(
        model, gpus=gpus, global_batch=batch, seq_len=4096, settings=settings, top=12, use_all=True
    )
    plans = [p.plan for p in answer.plans if refusal(p.plan, "flagscale") is None]
    tunable = [plan for plan in plans if tuner.is_tunable(plan)]
    assert tunable
    ((_, text),) = tuner.files(plans).items()
    config = yaml.safe_load(text)
    config["train"] = yaml.safe_load(export_files(tunable[0], "flagscale")["train/plan.yaml"])
    runner = config["experiment"]["runner"]
    config["experiment"]["auto_tuner"] |= {
        "platform": {},  # as the tuner itself fills in
        "nproc_per_node": runner["nproc_per_node"],
        "cards": runner["nnodes"] * runner["nproc_per_node"],
    }
    spec = importlib.util.find_spec("flag_scale")
    assert spec is not None and spec.submodule_search_locations is not None
    (root,) = spec.submodule_search_locations
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, root],
        input=json.dumps(config),
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-500:]
    found = json.loads(done.stdout.splitlines()[-1])
    for plan in tunable:
        wanted = {
            "data_parallel_size": plan.dp,
            "tensor_model_parallel_size": plan.pipelines[0].segments[0].tp,
            "pipeline_model_parallel_size": plan.pp,
            "context_parallel_size": plan.cp,
            "expert_model_parallel_size": plan.ep,
            "micro_batch_size": plan.micro_batch,
            "num_layers_per_virtual_pipeline_stage": tuner.DIMENSIONS[
                "num_layers_per_virtual_pipeline_stage"
            ](plan)
            or None,
            "use_recompute": plan.pipelines[0].segments[0].recompute != "none",
        }
        assert any(wanted.items() <= strategy.items() for strategy in found), plan.summary()
    assert len(found) <= 40 * len(tunable)  # it runs them all
