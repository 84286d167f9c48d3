"""Plans of one cut over several GPU types as launch files: one job, whose nodes have an order."""

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.flagscale_rules import broken, flat, hosts_in
from tests.support.uniform_plans import uniform_plan, unlike_networks

from astra.errors import InputError
from astra.export import megatron, torchtitan, tuner
from astra.export.check_job import advice
from astra.export.launchers import LAUNCHERS
from astra.export.targets import TARGETS, export_files, next_steps, refusal
from astra.export.torchrun import nodes_of
from astra.strategy.plan import Plan, Runtime

H100, H200 = "H100-80GB-SXM", "H200-SXM"
OWN: dict[str, Runtime] = {name: target.runtime for name, target in TARGETS.items()}
# Settings of a plan for each target that has data-parallel ranks on both types.
SAID: dict[str, dict[str, Any]] = {
    "megatron": {"tp": 4, "pp": 4},
    "bridge": {"tp": 4, "pp": 4},
    "flagscale": {"tp": 4, "pp": 4},
    "torchtitan": {"tp": 4, "pp": 4},
    "accelerate": {},
    "deepspeed": {"pp": 4},
}


def plan_for(target: str, gpus: str = "h100:56,h200:8", **more: Any) -> Plan:
    return uniform_plan(gpus, runtime=OWN[target], **{**SAID[target], **more})


def words_of(plan: Plan) -> dict[str, str]:
    """Options of Megatron-LM that have a value."""
    return {option: values[0] for option, *values in megatron.arguments(plan) if values}


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_takes_a_plan_whose_replicas_lie_on_two_types(target: str) -> None:
    plan = plan_for(target)
    assert len(plan.pipelines) == 2 and len(plan.gpus) == 2
    assert refusal(plan, target) is None
    files = export_files(plan, target)
    assert msgspec.json.decode(files["plan.json"], type=Plan) == plan


@pytest.mark.parametrize("target", TARGETS)
def test_settings_are_those_of_as_many_gpus_of_one_type(target: str) -> None:
    """Nothing in them speaks of types: only the nodes do."""
    both, one = plan_for(target), plan_for(target, "h100:64")
    told = ("README.md", "expected.json", "plan.json", "launch.sh", "hostfile")
    files, plain = export_files(both, target), export_files(one, target)
    assert files.keys() == plain.keys()

    def settings(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("# expected")]

    for name in files.keys() - set(told):
        assert settings(files[name]) == settings(plain[name]), name


def test_shards_are_counted_over_the_replicas_of_all_types() -> None:
    plan = uniform_plan("h100:48,h200:16", sharding="optimizer", shard_group=16)
    assert words_of(plan)["--num-distributed-optimizer-instances"] == "4"
    torch = uniform_plan("h100:48,h200:16", runtime="fsdp", shard_group=16)
    made = torchtitan.sections(torch, train_iters=1)["parallelism"]
    assert (made["data_parallel_replicate_degree"], made["data_parallel_shard_degree"]) == (4, 16)
    text = export_files(torch, "accelerate")["accelerate.yaml"]
    sizes = yaml.safe_load(text)["parallelism_config"]
    assert sizes["parallelism_config_dp_replicate_size"] == 4
    assert sizes["parallelism_config_dp_shard_size"] == 16


def test_batches_are_counted_over_the_replicas_of_all_types() -> None:
    plan = uniform_plan("h100:48,h200:16", runtime="deepspeed")
    made = json.loads(export_files(plan, "deepspeed")["ds_config.json"])
    assert made["train_batch_size"] == 256 and made["gradient_accumulation_steps"] == 4
    staged = uniform_plan("h100:48,h200:16", runtime="fsdp", pp=4)
    text = export_files(staged, "torchtitan")["astra_plan.py"]
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert values["SAMPLES"]["training"]["local_batch_size"] == 256 // 16
    assert values["TOKENS"]["parallelism"]["num_pp_microbatches"] == 16


def test_an_uneven_split_holds_for_all_replicas() -> None:
    plan = uniform_plan("h100:56,h200:8", tp=4, pp=4, layers_per_stage=(7, 9, 9, 7))
    assert len(plan.pipelines) == 2
    assert words_of(plan)["--pipeline-model-parallel-layout"] == "Et*7|t*9|t*9|t*7L"


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("target", ["megatron", "flagscale"])
def test_replicas_that_differ_in_more_than_their_gpus_are_refused(target: str) -> None:
    plan = plan_for("megatron")
    first, second = plan.pipelines
    for other in (
        msgspec.structs.replace(second, micro_batches=second.micro_batches + 1),
        msgspec.structs.replace(
            second,
            segments=tuple(msgspec.structs.replace(s, recompute="none") for s in second.segments),
        ),
    ):
        unlike = msgspec.structs.replace(plan, pipelines=(first, other), runtime="any")
        with pytest.raises(InputError, match=r"\[rule one-job\].*No other target can"):
            export_files(unlike, target)


def test_flagscale_has_no_meshes_over_several_types() -> None:
    plan = plan_for("flagscale", "h100:48,h200:16", tp=1, pp=2)
    parted = tuple(
        msgspec.structs.replace(
            each,
            segments=tuple(
                msgspec.structs.replace(
                    each.segments[0],
                    gpu=each.segment_at(stage).gpu,
                    stages=1,
                    layers=each.layers[stage : stage + 1],
                    recompute=recompute,
                )
                for stage, recompute in enumerate(("none", "full:uniform:1"))
            ),
        )
        for each in plan.pipelines
    )
    unlike = msgspec.structs.replace(plan, pipelines=parted)
    assert unlike.is_one_job and len(unlike.pipelines) == 2
    with pytest.raises(InputError, match="stages that differ and whose replicas lie on several"):
        export_files(unlike, "flagscale")


# ------------------------------------------------------------------ nodes


def test_nodes_come_in_blocks_by_type_whole_ones_first() -> None:
    assert nodes_of(plan_for("megatron")) == [(H100, 7, 8), (H200, 1, 8)]
    odd = uniform_plan("h100:20,h200:12", tp=4)
    assert nodes_of(odd) == [(H100, 2, 8), (H100, 1, 4), (H200, 1, 8), (H200, 1, 4)]


def test_a_type_in_two_places_of_the_pipeline_has_its_nodes_in_both() -> None:
    """They were counted together, at the first place."""
    plan = uniform_plan("h100:16,h200:8", tp=8, pp=3)
    (pipeline,) = plan.pipelines
    types = (H100, H200, H100)
    segments = tuple(
        msgspec.structs.replace(pipeline.segments[0], gpu=gpu, stages=1, layers=(layers,))
        for gpu, layers in zip(types, pipeline.layers, strict=True)
    )
    parted = msgspec.structs.replace(pipeline, segments=segments)
    between = msgspec.structs.replace(plan, pipelines=(parted,))
    assert nodes_of(between) == [(H100, 1, 8), (H200, 1, 8), (H100, 1, 8)]
    script = export_files(between, "megatron")["launch.sh"]
    assert "#   node 2: 8 x H100-80GB-SXM" in script


def test_with_the_other_order_of_ranks_types_take_turns() -> None:
    plan = uniform_plan("h100:16,h200:16", tp=8, pp=2, rank_order="tp-cp-ep-dp-pp")
    turned = msgspec.structs.replace(plan, rank_order="tp-cp-ep-pp-dp")
    assert nodes_of(plan) == [(H100, 2, 8), (H200, 2, 8)]
    assert nodes_of(turned) == [(H100, 1, 8), (H200, 1, 8), (H100, 1, 8), (H200, 1, 8)]


def started(folder: Path, plan: Plan, target: str, tool: str, node: int) -> list[str]:
    """The words that a node hands to torchrun or accelerate."""
    folder.mkdir(exist_ok=True)
    for name, text in export_files(plan, target).items():
        (folder / name).write_text(text)
    (folder / tool).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (folder / tool).chmod(0o755)
    done = subprocess.run(
        ["bash", str(folder / "launch.sh")],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "NODE_RANK": str(node),
            "MASTER_ADDR": "here",
            "MEGATRON": "/m",
            "TRAIN_SCRIPT": "t.py",
        },
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_every_node_starts_as_many_processes_as_it_has_gpus(tmp_path: Path) -> None:
    plan = uniform_plan("h100:20,h200:12", tp=4)
    each = []
    for node in range(5):
        words = started(tmp_path, plan, "megatron", "torchrun", node)
        assert words[words.index("--nnodes") + 1] == "5"
        each.append(int(words[words.index("--nproc-per-node") + 1]))
    assert each == [8, 8, 4, 8, 4]
    torch = uniform_plan("h100:12,h200:4", runtime="fsdp")
    each = []
    for node in range(3):
        words = started(tmp_path / "accelerate", torch, "accelerate", "accelerate", node)
        total, machines = (
            int(words[words.index(name) + 1]) for name in ("--num_processes", "--num_machines")
        )
        each.append(total // machines)  # which it reckons itself
    assert each == [8, 4, 4]


def test_where_nodes_are_alike_the_script_says_a_number() -> None:
    script = export_files(plan_for("megatron"), "megatron")["launch.sh"]
    assert "--nnodes 8 --nproc-per-node 8 \\\n" in script


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_folder_says_which_nodes_are_of_which_type(launcher: str) -> None:
    files = export_files(plan_for("megatron"), "megatron", launcher=launcher)
    lines = [f"nodes 0 to 6: 8 x {H100} each", f"node 7: 8 x {H200}"]
    for line in lines:
        assert f"\n- {line}\n" in files["README.md"]
        assert f"#   {line}\n" in files["launch.sh"]
    assert json.loads(files["expected.json"])["nodes"] == lines
    plain = export_files(plan_for("megatron", "h100:64"), "megatron", launcher=launcher)
    assert "In the order of ranks" not in plain["README.md"]
    assert json.loads(plain["expected.json"])["nodes"] == []


def test_a_run_that_strays_is_told_the_order_of_nodes() -> None:
    expected = json.loads(export_files(plan_for("megatron"), "megatron")["expected.json"])
    measured = {"step_s": 2 * expected["step_s"]}
    said = f"Or nodes out of order; the plan has nodes 0 to 6: 8 x {H100} each; node 7: 8 x {H200}"
    assert any(line.startswith(said) for line in advice(measured, expected))
    assert not any("out of order" in line for line in advice(measured, expected | {"nodes": []}))


def test_launchers_ask_for_each_type_in_the_order_of_ranks() -> None:
    plan = uniform_plan("h100:20,h200:12", tp=4)
    text = export_files(plan, "megatron", launcher="slurm")["job.sbatch"]
    parts = text.split("#SBATCH hetjob\n")
    asked = [
        (said, f"--nodes={nodes}\n", f"--gpus-per-node={each}\n")
        for said, nodes, each in (
            (f"nodes 0 to 1: 8 x {H100}", 2, 8),
            (f"node 2: 4 x {H100}", 1, 4),
            (f"node 3: 8 x {H200}", 1, 8),
            (f"node 4: 4 x {H200}", 1, 4),
        )
    ]
    assert len(parts) == 4
    for part, words in zip(parts, asked, strict=True):
        assert all(word in part for word in words)
    made = export_files(plan, "megatron", launcher="kubernetes")
    names = re.findall(r'^    - name: "(.*)"$', made["jobset.yaml"], re.MULTILINE)
    assert names == ["h100-80gb-sxm", "h100-80gb-sxm-2", "h200-sxm", "h200-sxm-2"]
    assert f"(astra/gpu={H100} or astra/gpu={H200})" in made["README.md"]
    tasks = export_files(plan, "megatron", launcher="skypilot")
    texts = [text for name, text in tasks.items() if name.startswith("sky")]
    offsets = [re.findall(r'NODE_OFFSET: "(\d)"', text) for text in texts]
    assert offsets == [["0"], ["2"], ["3"], ["4"]]


def test_the_command_says_which_nodes_are_of_which_type() -> None:
    lines = next_steps(plan_for("megatron"), "megatron", "job/launch.sh")
    assert f"  node 7: 8 x {H200}" in lines


def test_flagscale_gets_an_ordinary_task_and_hosts_in_the_order_of_ranks() -> None:
    plan = plan_for("flagscale", "h100:20,h200:12", tp=4, pp=2)
    assert len(plan.pipelines) == 2
    files = export_files(plan, "flagscale")
    task = yaml.safe_load(files["train/plan.yaml"])
    assert not any(name.startswith("hetero") for name in flat(task))
    assert broken(task, files["hostfile"]) == []
    hosts = [(slots, kind) for _, slots, kind in hosts_in(files["hostfile"])]
    assert hosts == [(8, H100), (8, H100), (4, H100), (8, H200), (4, H200)]
    assert f"- hosts 0 to 1: 8 x {H100} each" in files["README.md"]


@pytest.mark.parametrize("said", [{"vpp": 2}, {"cp": 2, "tp": 2}, {"shard_group": 2}])
def test_what_meshes_exclude_flagscale_takes_of_one_cut_over_several_types(
    said: dict[str, Any],
) -> None:
    """An ordinary job of Megatron-LM's; where one pipeline lies on two types there are meshes."""
    settings = {"tp": 4, "pp": 4, "layers_per_stage": (8, 8, 8, 8), **said}
    plan = uniform_plan("h100:56,h200:8", runtime="flagscale", **settings)
    assert len(plan.pipelines) == 2 and refusal(plan, "flagscale") is None
    meshes = uniform_plan("h100:32,h200:32", runtime="flagscale", **settings)
    refused = refusal(meshes, "flagscale")
    assert len(meshes.pipelines) == 1 and refused is not None and "meshes that differ" in refused


def test_flagscales_tuner_gets_plans_on_hosts_of_one_kind_alone() -> None:
    pools = ("h100:64", "h100:48,h200:16", "h100:12")
    plans = [
        plan_for("flagscale", gpus, tp=1, pp=1, recompute="none", global_batch=192)
        for gpus in pools
    ]
    assert [tuner.is_tunable(plan) for plan in plans] == [True, False, False]


def test_a_pool_with_two_networks_is_two_types() -> None:
    plan = uniform_plan(unlike_networks(24, 8), tp=4, pp=2)
    assert nodes_of(plan) == [(H100, 3, 8), ("H100-slow-network", 1, 8)]
    assert "node 3: 8 x H100-slow-network" in export_files(plan, "megatron")["launch.sh"]
