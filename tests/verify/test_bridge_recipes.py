"""Megatron-Bridge's own code takes our recipes, and ends up where Megatron-LM does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.frameworks import needs

needs("torch", "triton", "megatron.core", "megatron.training", "megatron.bridge")

from tests.support.random_plans import random_plan  # noqa: E402

from astra.export import bridge, megatron  # noqa: E402
from astra.model.zoo import find_model  # noqa: E402
from astra.strategy.plan import Plan  # noqa: E402
from astra.strategy.rules.registry import broken_rules  # noqa: E402

MODELS = (
    "llama-3-8b",  # dense, 8 KV heads
    "qwen2.5-0.5b",  # tied, biases on QKV
    "gpt3-175b",  # learned positions, biases everywhere
    "gemma-2-9b",  # windows on every second layer
    "mixtral-8x7b",  # MoE
    "qwen3-30b-a3b",  # MoE, 128 experts, norms on Q and K
    "gpt-oss-20b",  # MoE, sinks, windows
    "deepseek-v3",  # MLA, the first three layers dense
)
Judged = tuple[Plan, dict[str, Any]]
EACH = 12  # legal plans of a model
# Settings that Megatron-LM fills in though nothing reads them for such a job.
IDLE = {
    "ddp.data_parallel_sharding_strategy": "read by Megatron-FSDP alone",
    "ddp.use_custom_fsdp": "an old name of use_megatron_fsdp",
    "model.add_qkv_bias": "read as: this or add_bias_linear",
    "model.cp_comm_type": "read with context parallelism alone",
    "model.expert_tensor_parallel_num_weight_shards": "None is the tensor parallel size",
    "model.tensor_parallel_num_weight_shards": "None is the tensor parallel size",
    "model.fp8_recipe": "read with fp8 alone",
    "optimizer.fp8_recipe": "read with fp8 alone",
    "model.inference_sampling_seed": "of inference",
    "model.num_layers_at_end_in_bf16": "read with first_last_layers_bf16 alone",
    "model.num_layers_at_start_in_bf16": "read with first_last_layers_bf16 alone",
    "model.pipeline_dtype": "read with stages alone",
    "model.use_cpu_initialization": "None is False",
    "model.vocab_size": "None is the tokenizer's, which is set",
    "optimizer.barrier_with_L1_time": "of timers",
    "optimizer.muon_momentum": "of another optimizer",
    "optimizer.optimizer_offload_fraction": "read with offload alone",
    "optimizer.adam_beta2": "the user's",
    "optimizer.weight_decay": "the user's",
}


def legal_plans(model: str) -> list[Plan]:
    """Random plans that our rules allow, of H100 and B200."""
    found: list[Plan] = []
    for seed in range(100_000):
        plan = random_plan(seed, find_model(model), ("h100", "b200"))
        allowed = not broken_rules(plan) and not bridge.refusals(plan)
        if allowed and sum(plan.gpus.values()) <= 4_096:
            found.append(plan)
        if len(found) == EACH:
            break
    return found


def asked(root: Path, plans: list[Plan]) -> list[dict[str, Any]]:
    """What Bridge's and Megatron-LM's code say of plans, in one process of theirs."""
    jobs = []
    for row, plan in enumerate(plans):
        folder = root / str(row)
        folder.mkdir()
        files = bridge.files(plan, (), train_iters=100, learning_rate=1e-4)
        words = [word for argument in megatron.arguments(plan) for word in argument]
        for name, text in {**files, "args.txt": " ".join(words)}.items():
            (folder / name).write_text(text)
        jobs.append((str(folder), sum(plan.gpus.values()), megatron.architecture(plan)))
    here = Path(__file__).parents[2]
    paths = [str(here), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.bridge_oracle"],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def refused_plans() -> list[Plan]:
    """Plans that our rules for Megatron-LM allow and Bridge refuses: one for each reason."""
    found: dict[str, Plan] = {}
    for seed in range(100_000):
        plan = random_plan(seed, find_model("qwen2.5-0.5b"), ("h100",))
        reasons = bridge.refusals(plan)
        if len(reasons) == 1 and not broken_rules(plan):
            found.setdefault(reasons[0].split()[0], plan)
        if len(found) == 2:
            break
    return [found["CUDA"], found["the"]]  # graphs, rank order


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """Legal plans of every model and those that Bridge refuses, with the verdicts."""
    plans = [plan for model in MODELS for plan in legal_plans(model)] + refused_plans()
    return list(zip(plans, asked(tmp_path_factory.mktemp("bridge"), plans), strict=True))


@pytest.fixture
def judged(verdicts: list[Judged]) -> list[Judged]:
    return verdicts[:-2]


def test_bridge_takes_every_recipe(judged: list[Judged]) -> None:
    refused = [f"{p.model.name} {p.summary()}: {said['refused']}" for p, said in judged]
    refused = [line for line in refused if not line.endswith(": None")]
    assert not refused, f"{len(refused)}:\n" + "\n".join(refused[:30])
    assert len(judged) == EACH * len(MODELS)


def test_every_setting_is_a_field_of_bridge(judged: list[Judged]) -> None:
    assert {path for _, said in judged for path in said["unknown"]} == set()


def test_a_recipe_means_what_the_options_mean_to_megatron(
    judged: list[Judged],
) -> None:
    wrong = [
        f"{plan.model.name} {plan.summary()}: {name} is {is_}, not {wanted}"
        for plan, said in judged
        for name, (is_, wanted) in said.get("differ", {}).items()
        if name not in IDLE or _is_read(name, plan)
    ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:30])
    for plan, said in judged:
        assert said["world"] == [plan.dp, plan.global_batch]


def _is_read(name: str, plan: Plan) -> bool:
    """Whether such a job reads what others leave idle."""
    return (
        (name.endswith("sharding_strategy") and megatron.is_fsdp(plan))
        or (name.endswith("pipeline_dtype") and plan.pp > 1)
        or (name.endswith("cp_comm_type") and plan.cp > 1)
        or (name.endswith("fp8_recipe") and plan.precision == "fp8")
        or (name.endswith("offload_fraction") and plan.offload_optimizer_fraction > 0)
    )


def test_overrides_on_the_base_are_the_recipe(
    judged: list[Judged],
) -> None:
    wrong = [
        f"{plan.model.name} {plan.summary()}: {said['other']}"
        for plan, said in judged
        if isinstance(said["other"], str)
        or any(
            name not in bridge.IN_PYTHON and wanted != "torch.uint8"  # fp8
            for name, (_, wanted) in said["other"].items()
        )
    ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:30])


def test_bridge_refuses_what_we_say_it_refuses(verdicts: list[Judged]) -> None:
    (_, graphs), (_, order) = verdicts[-2:]
    assert "cuda_graph" in graphs["refused"] and "mapping" in order["refused"]
