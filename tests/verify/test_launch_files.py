"""Launch files of every target and launcher: shellcheck, YAML, and what the clusters ask for."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.frameworks import needs

needs("yaml", "kubernetes_validate", "kubeflow_trainer_api")

import yaml  # noqa: E402
from tests.support.cluster_schemas import jobset_errors  # noqa: E402
from tests.support.launch_plans import job_of, mixed_plan, plain_plan  # noqa: E402
from tests.support.uniform_plans import uniform_plan  # noqa: E402

from astra.export.launchers import LAUNCHERS, kubernetes_files, skypilot_files  # noqa: E402
from astra.export.targets import TARGETS, export_files  # noqa: E402
from astra.hardware.gpus_option import parse_gpus  # noqa: E402
from astra.model.zoo import find_model  # noqa: E402
from astra.strategy.complete import PlanSettings, complete  # noqa: E402
from astra.strategy.plan import Plan  # noqa: E402


def read(text: str) -> Any:
    return yaml.safe_load(text)


def shellcheck() -> str:
    beside = Path(sys.executable).with_name("shellcheck")
    found = str(beside) if beside.exists() else shutil.which("shellcheck")
    if found is None:
        needs("shellcheck")
    assert found is not None
    return found


def plan_of(target: str) -> Plan:
    runtime = TARGETS[target].runtime
    cluster, _ = parse_gpus("h100:16")
    settings = PlanSettings(global_batch=64, seq_len=2048)
    return complete(settings, find_model("llama-3-8b"), cluster, runtime).plan


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("target", TARGETS)
def test_scripts_pass_shellcheck(target: str, launcher: str, tmp_path: Path) -> None:
    if target == "flagscale" and launcher != "torchrun":
        pytest.skip("FlagScale has a launcher of its own")
    _check(export_files(plan_of(target), target, launcher=launcher), tmp_path)


@pytest.mark.parametrize("plan", [mixed_plan(), uniform_plan("h100:20,h200:12", tp=4)])
def test_the_script_of_a_mixed_cluster_passes_shellcheck(plan: Plan, tmp_path: Path) -> None:
    _check(export_files(plan, "megatron", launcher="slurm"), tmp_path)


def test_the_script_of_unlike_nodes_passes_shellcheck(tmp_path: Path) -> None:
    plan = uniform_plan("h100:12,h200:4", runtime="fsdp")
    _check(export_files(plan, "accelerate", launcher="skypilot"), tmp_path)


def _check(files: dict[str, str], folder: Path) -> None:
    scripts = []
    for name, text in files.items():
        if name.endswith((".sh", ".sbatch")):
            (folder / name).write_text(text)
            scripts.append(str(folder / name))
    for name, text in files.items():
        if name.startswith("sky"):
            (folder / f"{name}.sh").write_text(f"#!/usr/bin/env bash\n{read(text)['run']}")
            scripts.append(str(folder / f"{name}.sh"))
    assert scripts
    done = subprocess.run(
        [shellcheck(), "--shell=bash", *scripts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("mixed", [False, True])
def test_skypilot_tasks_know_their_ranks(mixed: bool) -> None:
    job = job_of(mixed_plan() if mixed else plain_plan())
    offset = 0
    for text in skypilot_files(job).values():
        task = read(text)
        assert task["envs"]["NODE_OFFSET"] == str(offset)
        assert "./launch.sh --mock-data" in task["run"]
        offset += task["num_nodes"]
    assert offset == sum(count for _, count, _ in job.groups)


@pytest.mark.parametrize(
    ("plan", "mixed"),
    [
        (plain_plan(model="llama-3.1-8b"), False),
        (plain_plan("h100:12", global_batch=12), False),
        (mixed_plan(), True),
        (uniform_plan("h100:20,h200:12", tp=4), True),
    ],
)
def test_the_jobset_holds_what_kubernetes_asks_for(plan: Plan, mixed: bool) -> None:
    job = job_of(plan)
    made = read(kubernetes_files(job)["jobset.yaml"])
    assert jobset_errors(made) == []
    jobs = made["spec"]["replicatedJobs"]
    assert [j["template"]["spec"]["parallelism"] for j in jobs] == [n for _, n, _ in job.groups]
    for (gpu, _, each), entry in zip(job.groups, jobs, strict=True):
        pod = entry["template"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": each}
        assert pod.get("nodeSelector") == ({"astra/gpu": gpu} if mixed else None)
        (address,) = [e["value"] for e in pod["containers"][0]["env"] if e["name"] == "MASTER_ADDR"]
        first = jobs[0]["name"]
        assert address == f"{made['metadata']['name']}-{first}-0-0.{made['metadata']['name']}"


def test_a_spoiled_jobset_is_refused() -> None:
    """The check can say no: to a wrapper's key, a pod's key, a type and a name."""
    text = kubernetes_files(job_of(plain_plan()))["jobset.yaml"]
    for good, bad in (
        ("maxRestarts: 0", "maxRestartz: 0"),
        ("restartPolicy:", "restartPolice:"),
        ("parallelism: 2", 'parallelism: "two"'),
        ("containerPort:", "port:"),
        ('name: "train"', 'name: "Train"'),
        ('mountPath: "/job"', "mountPath: 7"),
    ):
        assert good in text, good
        assert jobset_errors(read(text.replace(good, bad))), bad
