"""Launch files: what they say, and that they run."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.random_plans import random_plan
from tests.support.tiers import slow_after

from astra.errors import InputError
from astra.export.megatron import arguments, environment
from astra.export.megatron_files import program
from astra.export.targets import TARGETS, export_files
from astra.export.torchrun import launch_script, nodes_of
from astra.export.unsupported import unsupported
from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model, zoo_names
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan, Runtime
from astra.strategy.plan_file import plan_from_json
from astra.strategy.rules.registry import broken_rules

MODELS = ("llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "gemma-2-9b", "qwen3-30b-a3b")
GPUS = ("v100-32g", "a100-80g", "h100", "b200")


def plan_for(
    gpus: str = "h100:16", model: str = "llama-3-8b", runtime: Runtime = "megatron", **said: Any
) -> Plan:
    cluster, _ = parse_gpus(gpus)
    return complete(
        PlanSettings(**{"global_batch": 64} | said), find_model(model), cluster, runtime
    ).plan


def script_of(plan: Plan) -> str:
    return launch_script(plan, program(plan))


def options_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    return options_in(export_files(plan, "megatron")["args.txt"])


def options_in(text: str) -> dict[str, tuple[str, ...]]:
    """args.txt read line by line: the option and its values."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        option, *values = line.split(" ")
        assert option not in found
        found[option] = tuple(values)
    return found


@cache
def legal_plans() -> list[Plan]:
    found = []
    for seed in range(600):
        plan = random_plan(seed, find_model(MODELS[seed % len(MODELS)]), GPUS)
        if not broken_rules(plan):
            found.append(plan)
    return found


@cache
def exported() -> list[tuple[Plan, dict[str, str]]]:
    """Sixty of them with their files."""
    return [(plan, export_files(plan, "megatron")) for plan in legal_plans()[:60]]


def test_there_are_enough_legal_plans_to_speak_of() -> None:
    assert len(legal_plans()) > 60
    assert len({plan.model.name for plan in legal_plans()}) == len(MODELS)


@pytest.mark.slow
def test_every_line_of_args_is_one_option_with_its_values() -> None:
    for _, files in exported():
        text = files["args.txt"]
        assert text.endswith("\n")
        lines = text.splitlines()
        for line in lines:
            assert re.fullmatch(r"--[a-z0-9-]+( [^\s'\"\\$`;&<>#~]+)*", line), line
        names = [line.split()[0] for line in lines]
        assert len(names) == len(set(names))


@pytest.mark.slow
def test_degrees_batch_and_shape_stand_in_args() -> None:
    for plan, files in exported():
        check_degrees_batch_and_shape(plan, options_in(files["args.txt"]))


def check_degrees_batch_and_shape(plan: Plan, options: dict[str, tuple[str, ...]]) -> None:
    segment = plan.pipelines[0].segments[0]
    expected = {
        "--tensor-model-parallel-size": segment.tp,
        "--pipeline-model-parallel-size": plan.pp,
        "--context-parallel-size": plan.cp,
        "--micro-batch-size": plan.micro_batch,
        "--global-batch-size": plan.global_batch,
        "--seq-length": plan.seq_len,
        "--num-layers": plan.model.layers,
        "--hidden-size": plan.model.hidden,
        "--num-attention-heads": plan.model.heads,
    }
    for name, value in expected.items():
        assert options[name] == (str(value),)
    assert ("--sequence-parallel" in options) == plan.sequence_parallel
    assert ("--use-distributed-optimizer" in options) == (plan.sharding != "none")
    assert ("--use-megatron-fsdp" in options) == (plan.sharding in ("gradients", "parameters"))
    assert ("--overlap-grad-reduce" in options) == plan.overlap_grad_reduce
    assert ("--tp-comm-overlap" in options) == plan.overlap_tp
    assert ("--recompute-granularity" in options) == (segment.recompute != "none")
    assert ("--num-experts" in options) == (plan.model.moe is not None)
    assert ("--optimizer-cpu-offload" in options) == (plan.offload_optimizer_fraction > 0)
    cut = {"--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank"}
    assert plan.vpp == 1 or cut & set(options)
    assert not cut <= set(options)


@pytest.mark.parametrize("name", slow_after(20, zoo_names()))
def test_every_model_of_the_zoo_exports(name: str) -> None:
    plan = plan_for(model=name, seq_len=1024)
    assert options_of(plan)["--num-layers"] == (str(plan.model.layers),)
    assert all(lack and "\n" not in lack for lack in unsupported(plan))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-4-scout-17b-16e", "chunks of 8,192 positions is written as a sliding window"),
        ("gemma-2-9b", "caps on attention scores and logits"),
        ("gemma-2-9b", "4 norms per layer"),
        ("olmo-2-7b", "queries and keys of all heads"),
    ],
)
def test_what_is_written_as_something_near_it_is_told(name: str, said: str) -> None:
    """Or somebody trains another network than the one that was asked for."""
    plan = plan_for(model=name, seq_len=1024)
    assert [lack for lack in unsupported(plan) if said in lack]
    readme = export_files(plan, "megatron")["README.md"]
    before, _, after = readme.partition("## Before you train")
    assert said not in before and said in after.partition("## Start")[0]


def test_each_framework_is_told_in_its_own_words() -> None:
    model = msgspec.structs.replace(find_model("mixtral-8x7b"), rope_theta=None)
    plan = msgspec.structs.replace(plan_for(model="mixtral-8x7b"), model=model)
    words = {
        "megatron": ("--rotary-base", "--moe-aux-loss-coeff"),
        "bridge": ("model.rotary_base", "model.moe_aux_loss_coeff"),
        "flagscale": ("set rotary_base", "set moe_aux_loss_coeff"),
    }
    for target, said in words.items():
        readme = export_files(plan, target)["README.md"]
        assert all(word in readme for word in said)


def test_what_the_readme_starts_prints_what_the_check_reads() -> None:
    for launcher in ("torchrun", "slurm", "skypilot", "kubernetes"):
        files = export_files(plan_for(), "megatron", launcher=launcher)
        started = [files["README.md"], *(v for k, v in files.items() if k.endswith(".yaml"))]
        assert any(
            "NullTokenizer --log-interval 1" in text.replace('", "', " ") for text in started
        )


def test_steps_and_learning_rate_are_the_users() -> None:
    files = export_files(plan_for(), "megatron", train_iters=7, learning_rate=3e-5)
    assert "--train-iters 7\n" in files["args.txt"] and "--lr 3e-05\n" in files["args.txt"]


# ------------------------------------------------------------------ environment


@pytest.mark.parametrize(
    ("gpus", "said", "connections"),
    [
        ("h100:16", {"tp": 2}, "1"),
        ("a100:16", {}, "1"),
        ("b200:16", {"tp": 2}, None),
        ("h100:16", {"sharding": "parameters"}, "8"),
        ("b200:16", {"sharding": "gradients"}, "8"),
        ("h100:16", {"model": "mixtral-8x7b", "ep": 2, "overlap_ep": True}, "32"),
    ],
)
def test_the_number_of_queues_suits_what_is_hidden(
    gpus: str, said: dict[str, Any], connections: str | None
) -> None:
    env = environment(plan_for(gpus, **said))
    assert env.get("CUDA_DEVICE_MAX_CONNECTIONS") == connections


def test_env_lines_are_names_with_values_in_order() -> None:
    plan = plan_for(cuda_graph="transformer_engine", offload_activations=("core_attn",))
    lines = export_files(plan, "megatron")["env.txt"].splitlines()
    assert lines == sorted(lines)
    assert all(re.fullmatch(r"[A-Z0-9_]+=[A-Za-z0-9_:.-]+", line) for line in lines)
    assert "NVTE_CPU_OFFLOAD_V1=1" in lines and "NCCL_GRAPH_REGISTER=0" in lines


# ------------------------------------------------------------------ the script


def syntax_errors(script: str) -> str:
    checked = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, timeout=20, check=False
    )
    return checked.stderr


def test_the_script_is_correct_bash() -> None:
    for plan in legal_plans()[::12]:
        assert syntax_errors(script_of(plan)) == "", plan.summary()


def run_script(folder: Path, plan: Plan, **env: str) -> tuple[list[str], str]:
    """What `torchrun` gets from launch.sh: its arguments, and an environment variable."""
    for name, text in export_files(plan, "megatron").items():
        (folder / name).write_text(text, encoding="utf-8")
    stub = folder / "bin"
    stub.mkdir()
    (stub / "torchrun").write_text(
        '#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n'
        'echo "queues=${CUDA_DEVICE_MAX_CONNECTIONS-}" >&2\n'
    )
    (stub / "torchrun").chmod(0o755)
    done = subprocess.run(
        ["bash", str(folder / "launch.sh"), "--mock-data"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={"PATH": f"{stub}:/usr/bin:/bin", "NODE_RANK": "0", "MASTER_ADDR": "here", **env},
    )
    return done.stdout.splitlines(), done.stderr.strip()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_hands_over_exactly_the_arguments(tmp_path: Path) -> None:
    """Layouts hold `*`, `(` and `|`: none of them may be expanded on the way."""
    cut: dict[str, Any] = {"pp": 4, "layers_per_stage": (7, 9, 9, 7), "tp": 2}
    plan = plan_for(**cut)
    words, queues = run_script(tmp_path, plan, MEGATRON="/opt/m")
    at = words.index("/opt/m/pretrain_gpt.py")
    expected = [word for argument in arguments(plan) for word in argument]
    assert "Et*7|t*9|t*9|t*7L" in expected
    assert words[at + 1 :] == [*expected, "--mock-data"]
    assert words[2:6] == ["--nnodes", "2", "--nproc-per-node", "8"]
    assert queues == "queues=1"


def test_the_script_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_script(tmp_path, plan_for(), NODE_RANK="", MEGATRON="m")
    assert "the rank of this node" in caught.value.stderr


def test_a_model_name_cannot_smuggle_a_command_into_the_script() -> None:
    plan = plan_for()
    for name in ("x\ntouch /tmp/owned", "x\r\nexit 1", "a\u2028b", "\x1b[2J"):
        model = msgspec.structs.replace(plan.model, name=name, hf_id=f"org/{name}")
        script = script_of(msgspec.structs.replace(plan, model=model))
        body = script[script.index("set -euo pipefail") :]
        assert body == script_of(plan)[script_of(plan).index("set -euo pipefail") :]
        head = script[: script.index("set -euo pipefail")].splitlines()
        assert all(line.startswith("#") for line in head)
        assert "\x1b" not in script


def test_nodes_hold_all_gpus_of_the_plan() -> None:
    """Whole nodes, and at most one part of one behind them."""
    for plan in legal_plans():
        groups = nodes_of(plan)
        (pool,) = plan.cluster.pools
        assert {name for name, _, _ in groups} == {pool.gpu.name}
        assert sum(nodes * each for _, nodes, each in groups) == plan.gpus[pool.gpu.name]
        assert all(each == pool.gpu.node.gpus for *_, each in groups[:-1])
        assert len(groups) <= 2 and groups[-1][2] <= pool.gpu.node.gpus


def test_nodes_of_a_mixed_plan_come_in_the_order_of_its_pipeline() -> None:
    plan = plan_for("h100:16,a100-80g:8", runtime="flagscale", tp=4, pp=3)
    assert nodes_of(plan) == [("A100-80GB-SXM", 1, 8), ("H100-80GB-SXM", 2, 8)]
    assert "nodes 1 to 2: 8 x H100-80GB-SXM each" in script_of(plan)
    assert "NODE_RANK from 0 to 2" in script_of(plan)


# ------------------------------------------------------------------ what is refused


@pytest.mark.slow
def test_the_exported_plan_reads_back() -> None:
    for plan, files in exported():
        assert plan_from_json(msgspec.json.decode(files["plan.json"]), "p") == plan


@pytest.mark.parametrize("runtime", ["fsdp", "deepspeed"])
def test_a_plan_of_another_runtime_is_refused(runtime: Runtime) -> None:
    with pytest.raises(InputError, match=f"runtime {runtime} is not Megatron-LM's"):
        export_files(plan_for(runtime=runtime), "megatron")


def test_a_plan_that_megatron_refuses_is_not_written() -> None:
    plan = plan_for("h100:16,a100-80g:16", runtime="flagscale", tp=4, pp=4)
    segments = plan.pipelines[0].segments
    second = msgspec.structs.replace(segments[1], recompute="full:uniform:1")
    pipeline = msgspec.structs.replace(plan.pipelines[0], segments=(segments[0], second))
    mixed = msgspec.structs.replace(plan, pipelines=(pipeline,))
    assert broken_rules(mixed) == []
    with pytest.raises(InputError, match=r"one recompute setting.*\[rule one-recompute\]"):
        export_files(mixed, "megatron")


def test_the_command_line_knows_the_same_targets() -> None:
    from astra.cli import export

    assert tuple(TARGETS) == export.TARGETS
