"""What each framework is told about a plan, and what it is not."""

import ast
import json
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.cases import each_case
from tests.support.random_plans import random_plan

import astra
from astra.errors import InputError
from astra.export import bridge, deepspeed, megatron, torchtitan, tuner
from astra.export.targets import TARGETS, export_files, refusal
from astra.export.titan_models import FLAVOURS, model_of
from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan, Runtime
from astra.strategy.rules.registry import broken_rules


def plan_for(
    runtime: Runtime, gpus: str = "h100:16", model: str = "llama-3-8b", **said: Any
) -> Plan:
    cluster, _ = parse_gpus(gpus)
    return complete(
        PlanSettings(**{"global_batch": 64} | said), find_model(model), cluster, runtime
    ).plan


# ------------------------------------------------------------------ DeepSpeed


@pytest.mark.parametrize(
    ("sharding", "stage"), [("none", 0), ("optimizer", 1), ("gradients", 2), ("parameters", 3)]
)
def test_sharding_is_a_stage_of_zero(sharding: str, stage: int) -> None:
    made = deepspeed.config(plan_for("deepspeed", sharding=sharding), learning_rate=1e-4)
    assert made["zero_optimization"]["stage"] == stage


def test_deepspeed_gets_batch_cut_and_precision() -> None:
    plan = plan_for("deepspeed", micro_batch=2, cp=2, precision="fp16")
    made = json.loads(export_files(plan, "deepspeed", learning_rate=3e-5)["ds_config.json"])
    assert made["train_batch_size"] == 64
    assert made["train_micro_batch_size_per_gpu"] == 2
    assert made["gradient_accumulation_steps"] == 64 // (2 * 8)
    assert made["sequence_parallel_size"] == 2
    assert made["fp16"] == {"enabled": True} and "bf16" not in made
    assert made["optimizer"]["params"]["lr"] == 3e-5
    assert not {"tensor_parallel", "expert_parallel", "pipeline"} & set(made)


def test_with_tensor_parallelism_deepspeed_counts_the_batch_itself() -> None:
    made = deepspeed.config(plan_for("deepspeed", tp=4, sharding="gradients"), learning_rate=1e-4)
    assert made["tensor_parallel"] == {"autotp_size": 4}
    assert "train_batch_size" not in made


def test_pipelines_and_experts_have_their_sections() -> None:
    staged = plan_for("deepspeed", pp=4, sharding="optimizer", recompute="full:uniform:1")
    made = deepspeed.config(staged, learning_rate=1e-4)
    assert made["pipeline"] == {"stages": 4, "activation_checkpoint_interval": 1}
    spread = plan_for("deepspeed", model="mixtral-8x7b", ep=8, dispatcher="deepep", seq_len=2048)
    made = deepspeed.config(spread, learning_rate=1e-4)
    assert made["expert_parallel"] == {
        "enabled": True,
        "autoep_size": 8,
        "comm_backend": "deepep",
        "comm_max_tokens_per_rank": 2048,
    }


# ------------------------------------------------------------------ accelerate


def test_accelerate_gets_replicas_shards_and_degrees() -> None:
    plan = plan_for("fsdp", tp=2, cp=2, shard_group=4, sequence_parallel=False)
    files = export_files(plan, "accelerate")
    made = yaml.safe_load(files["accelerate.yaml"])
    sizes = made["parallelism_config"]
    assert sizes["parallelism_config_dp_replicate_size"] == 2
    assert sizes["parallelism_config_dp_shard_size"] == 2
    assert sizes["parallelism_config_tp_size"] == sizes["parallelism_config_cp_size"] == 2
    assert made["fsdp_config"]["fsdp_version"] == 2
    assert made["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert made["num_processes"] == 16 and made["num_machines"] == 2
    assert "--gradient_accumulation_steps 16\n" in files["args.txt"]


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ({"pp": 2}, "pipelines (pp 2)"),
        ({"tp": 2}, "sequence parallelism"),
        ({"recompute": "selective"}, "single operators"),
        ({"model": "qwen3-30b-a3b", "ep": 2}, "expert parallelism (ep 2"),
    ],
)
def test_accelerate_says_what_it_cannot_and_who_can(said: dict[str, Any], part: str) -> None:
    refused = refusal(plan_for("fsdp", **said), "accelerate")
    assert refused is not None and part in refused and "--to torchtitan" in refused


# ------------------------------------------------------------------ torchtitan


def test_torchtitan_gets_a_module_that_python_reads() -> None:
    plan = plan_for("fsdp", pp=2, vpp=2, tp=2, recompute="full:uniform:1", micro_batch=2)
    text = export_files(plan, "torchtitan", train_iters=7)["astra_plan.py"]
    tree = ast.parse(text)
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert names == {"model_spec", "model", "plan"}
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    micro_batches = plan.pipelines[0].micro_batches
    assert values["TRAINING"]["steps"] == 7
    assert values["SAMPLES"]["training"]["local_batch_size"] == 2 * micro_batches
    assert values["TOKENS"]["training"]["num_tokens_per_train_step"] == 64 * plan.seq_len
    assert values["PARALLELISM"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    parts = values["PARALLELISM"]["module_fqns_per_model_part"]
    assert len(parts) == 4 and parts[0][0] == "tok_embeddings"
    assert parts[-1][-2:] == ["norm", "lm_head"]
    assert [name for part in parts for name in part if "layers" in name] == [
        f"layers.{row}" for row in range(32)
    ]
    assert "FullAC.Config()" in text


def test_without_a_pipeline_torchtitan_accumulates() -> None:
    plan = plan_for("fsdp", micro_batch=2)
    counted = torchtitan.in_samples(plan)["training"]
    assert counted["local_batch_size"] == 2 and counted["global_batch_size"] == 64


@each_case("name", sorted(FLAVOURS))
def test_a_known_shape_is_known_by_any_name(name: str) -> None:
    model = msgspec.structs.replace(find_model(name), name="mine", hf_id=None)
    assert model_of(model) == FLAVOURS[name]
    assert model_of(msgspec.structs.replace(model, layers=model.layers + 1)) != FLAVOURS[name]


def test_a_model_like_llama_is_built_and_another_is_refused() -> None:
    plan = plan_for("fsdp", model="yi-6b", seq_len=2048)
    made = torchtitan.config_module(plan, train_iters=1, learning_rate=1e-4)
    assert "n_layers=32" in made and "hidden_dim=11008" in made
    refused = refusal(plan_for("fsdp", model="gpt3-13b"), "torchtitan")
    assert refused is not None and "the network of gpt3-13b" in refused
    assert "accelerate can: --to accelerate" in refused


def test_a_sequence_longer_than_the_network_is_refused() -> None:
    plan = plan_for("fsdp", model="deepseek-v2-lite", seq_len=32_768)
    refused = refusal(plan, "torchtitan")
    assert refused is not None and "sequences of 32,768 tokens; 16,384 are its most" in refused


def test_a_name_cannot_leave_the_docstring() -> None:
    model = msgspec.structs.replace(find_model("llama-3-8b"), name='x"""\nimport os\n\\')
    plan = msgspec.structs.replace(plan_for("fsdp"), model=model)
    text = torchtitan.config_module(plan, train_iters=1, learning_rate=1e-4)
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.Import)]
    assert not imports


# ------------------------------------------------------------------ Megatron-Bridge


def test_every_option_of_megatron_has_a_place_in_bridge() -> None:
    """Options with a place of their own, and fields of Megatron core by their own names."""
    fields = set()
    for seed in range(300):
        plan = random_plan(seed, find_model("deepseek-v3"), ("h100", "b200"))
        found = megatron.arguments(plan)
        made = bridge.settings(found)
        assert made["model.tensor_model_parallel_size"] == plan.pipelines[0].segments[0].tp
        assert made["train.global_batch_size"] == plan.global_batch
        assert made["model.num_moe_experts"] == 256
        fields |= set(made)
    sections = {name.partition(".")[0] for name in fields}
    assert sections == {
        "model", "tokenizer", "dataset", "train", "optimizer", "ddp", "dist", "checkpoint",
        "mixed_precision", "rerun_state_machine",
    }  # fmt: skip


def test_bridge_gets_a_recipe_and_overrides() -> None:
    files = export_files(plan_for("megatron", tp=2, pp=2), "bridge")
    assert "model.tensor_model_parallel_size=2\n" in files["overrides.txt"]
    assert "model.add_bias_linear=false\n" in files["overrides.txt"]
    assert "mixed_precision=bf16_mixed\n" in files["overrides.txt"]
    tree = ast.parse(files["recipe.py"])
    assert any(isinstance(n, ast.FunctionDef) and n.name == "pretrain_config" for n in tree.body)


def test_bridge_is_told_what_megatron_does_unasked() -> None:
    def lines(**said: Any) -> list[str]:
        text = export_files(plan_for("megatron", **said), "bridge")["overrides.txt"]
        return text.splitlines()

    assert "model.bias_activation_fusion=true" in lines()
    assert "model.overlap_p2p_comm=true" in lines(pp=2, vpp=2)
    assert "model.overlap_p2p_comm=true" not in lines(pp=2)
    assert "optimizer.use_distributed_optimizer=true" in lines()
    assert "optimizer.use_distributed_optimizer=false" in lines(sharding="none")
    assert not [line for line in lines(attention="unfused") if "attention_backend" in line]


def test_a_refusal_says_among_which_targets_none_can() -> None:
    plan = plan_for("fsdp", model="mixtral-8x7b", pp=2)
    said = refusal(plan, "torchtitan")
    assert said is not None
    assert said.endswith("No other target of plans for the runtime fsdp can.")


def test_bridge_refuses_what_only_megatron_takes() -> None:
    plan = msgspec.structs.replace(plan_for("megatron"), cuda_graph="local")
    with pytest.raises(InputError, match=r"CUDA graphs of the kind local.*--to megatron"):
        export_files(plan, "bridge")


def test_an_uneven_layout_is_quoted_for_hydra() -> None:
    plan = plan_for("megatron", pp=2, layers_per_stage=(15, 17))
    lines = export_files(plan, "bridge")["overrides.txt"].splitlines()
    (layout,) = [line for line in lines if "layout" in line]
    assert layout == "model.pipeline_model_parallel_layout='Et*15|t*17L'"


# ------------------------------------------------------------------ FlagScale's tuner


def test_the_tuner_gets_the_values_of_our_plans_and_no_others() -> None:
    found = astra.plan("llama-3-8b", gpus="h100:16", global_batch=64, seq_len=4096, top=8)
    plans = [priced.plan for priced in found.plans]
    made = tuner.files(plans)
    ((name, text),) = made.items()
    assert name.startswith("rank-0") and name.endswith("/tune.yaml")
    space = yaml.safe_load(text)["experiment"]["auto_tuner"]["space"]
    tunable = [plan for plan in plans if tuner.is_tunable(plan)]
    assert set(space["tensor_model_parallel_size"]) == {
        plan.pipelines[0].segments[0].tp for plan in tunable
    }
    assert set(space["micro_batch_size"]) == {plan.micro_batch for plan in tunable}
    assert yaml.safe_load(text)["action"] == "auto_tune"


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_of_another_runtime_is_sent_back(target: str) -> None:
    runtimes: tuple[Runtime, ...] = ("megatron", "fsdp", "deepspeed")
    for runtime in runtimes:
        if runtime not in TARGETS[target].takes:
            with pytest.raises(InputError, match=f"--runtime {TARGETS[target].runtime}"):
                export_files(plan_for(runtime), target)


@pytest.mark.parametrize(
    ("runtime", "target"),
    [("fsdp", "torchtitan"), ("fsdp", "accelerate"), ("deepspeed", "deepspeed")],
)
def test_expert_plans_are_legal_and_exported(runtime: Runtime, target: str) -> None:
    plan = plan_for(runtime)
    assert not broken_rules(plan)
    files = export_files(plan, target)
    assert {"launch.sh", "env.txt", "plan.json"} <= set(files)
    assert TARGETS[target].refusals(plan) == []


# ------------------------------------------------------------------ positions


@pytest.mark.parametrize("model", ["bloom-7b1", "baichuan2-13b"])
@pytest.mark.parametrize("target", ["megatron", "bridge", "flagscale"])
def test_alibi_is_written_as_no_positions_and_said(model: str, target: str) -> None:
    """Megatron-LM has learned positions, rotary ones and none."""
    files = export_files(plan_for("megatron", model=model), target)
    file, said = {
        "megatron": ("args.txt", "--position-embedding-type none"),
        "bridge": ("overrides.txt", "model.position_embedding_type=none"),
        "flagscale": ("train/plan.yaml", 'position_embedding_type: "none"'),
    }[target]
    assert said in files[file] and "rotary" not in files[file] and "rope" not in files[file]
    assert "ALiBi" in files["README.md"]
    assert "ALiBi" not in export_files(plan_for("megatron"), target)["README.md"]


def test_torchtitan_has_no_words_for_alibi() -> None:
    """All else of Baichuan 2 13B is like Llama."""
    plan = plan_for("fsdp", model="baichuan2-13b")
    assert "no words for the network of baichuan2-13b" in (refusal(plan, "torchtitan") or "")
    rotary = msgspec.structs.replace(plan.model, positions="rope")
    assert refusal(msgspec.structs.replace(plan, model=rotary), "torchtitan") is None


@pytest.mark.parametrize(
    ("target", "runtime"), [("accelerate", "fsdp"), ("deepspeed", "deepspeed")]
)
def test_scripts_that_build_their_model_are_told_its_name(target: str, runtime: Runtime) -> None:
    plan = plan_for(runtime, model="bloom-7b1", sequence_parallel=False)
    assert "must build bloom-7b1" in export_files(plan, target)["README.md"]
