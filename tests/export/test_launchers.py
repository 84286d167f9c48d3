"""How nodes get their part of a job: what the files of each launcher say."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.launch_plans import job_of, mixed_plan, plain_plan

from astra.cli import export as command
from astra.errors import InputError
from astra.export.launchers import LAUNCHERS, skypilot_files, slurm_files
from astra.export.rents import rents_of_document
from astra.export.targets import export_files
from astra.files import read_json
from astra.money.rented import RentedNodes


def test_the_command_line_knows_the_launchers() -> None:
    assert tuple(LAUNCHERS) == command.LAUNCHERS


def test_slurm_gives_every_node_its_rank(tmp_path: Path) -> None:
    """Run with stand-ins for SLURM's commands: each task gets its number and the first host."""
    files = export_files(plain_plan(), "megatron", launcher="slurm")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "launch.sh").write_text(
        '#!/bin/bash\necho "$NODE_RANK $MASTER_ADDR $MEGATRON $*"\n'
    )
    (tmp_path / "launch.sh").chmod(0o755)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(  # more than a pipe holds
        '#!/bin/bash\necho node-a\nfor i in {1..20000}; do echo "node-$i"; done\n'
    )
    (tools / "srun").write_text(
        '#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\n'
        'for i in 0 1; do SLURM_PROCID=$i "$@"; done\n'
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "job.sbatch"), "--mock-data"],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_NODELIST": "node-[a-b]",
            "HOME": "/home/me",
        },
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "0 node-a /home/me/Megatron-LM --mock-data",
        "1 node-a /home/me/Megatron-LM --mock-data",
    ]


def test_slurm_asks_for_whole_nodes_and_for_parts() -> None:
    text = slurm_files(job_of(plain_plan("h100:16")))["job.sbatch"]
    assert "#SBATCH --nodes=2\n" in text and "#SBATCH --gpus-per-node=8\n" in text
    assert "#SBATCH --exclusive\n" in text and "hetjob" not in text and "--het-group" not in text
    text = slurm_files(job_of(plain_plan("h100:4")))["job.sbatch"]
    assert "#SBATCH --nodes=1\n" in text and "#SBATCH --gpus-per-node=4\n" in text
    assert "--exclusive" not in text


def test_a_mixed_cluster_is_one_group_of_nodes_per_type_in_rank_order() -> None:
    job = job_of(mixed_plan())
    text = slurm_files(job)["job.sbatch"]
    first, second = text.split("#SBATCH hetjob\n")
    assert "H100-80GB-SXM" in first and "--nodes=2\n" in first
    assert "A100-80GB-SXM" in second and "--nodes=1\n" in second
    assert "srun --het-group=0,1 " in text
    assert job.offsets() == [0, 2]
    assert list(skypilot_files(job)) == ["sky-h100-80gb-sxm.yaml", "sky-a100-80gb-sxm.yaml"]


def test_skypilot_runs_the_script_with_rank_and_address(tmp_path: Path) -> None:
    texts = list(skypilot_files(job_of(mixed_plan())).values())
    (tmp_path / "launch.sh").write_text('#!/bin/bash\necho "$NODE_RANK $MASTER_ADDR $MEGATRON"\n')
    (tmp_path / "launch.sh").chmod(0o755)
    lines = texts[1].partition("run: |\n")[2].splitlines()
    script = "\n".join(line.removeprefix("  ") for line in lines)
    env = {"NODE_OFFSET": "2", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8"}
    env |= {"MEGATRON": "~/Megatron-LM", "HOME": "/home/me", "PATH": os.environ["PATH"]}

    def run(**more: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=env | more,
        )
        return done.stdout.strip()

    assert run(MASTER_ADDR="") == "2 10.0.0.7 /home/me/Megatron-LM"
    assert run(MASTER_ADDR="10.9.9.9") == "2 10.9.9.9 /home/me/Megatron-LM"


def test_a_type_that_skypilot_does_not_know_is_an_error() -> None:
    with pytest.raises(InputError, match="no name for MI250X"):
        skypilot_files(job_of(plain_plan("mi250x:8")))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_readme_names_every_file_and_the_commands(launcher: str) -> None:
    files = export_files(plain_plan(), "megatron", launcher=launcher)
    text = files["README.md"]
    assert all(f"`{name}`" in text for name in files if name != "README.md")
    command_of = {
        "torchrun": "./launch.sh --mock-data",
        "slurm": "sbatch job.sbatch",
        "skypilot": "sky launch",
        "kubernetes": "kubectl apply -f jobset.yaml",
    }
    assert command_of[launcher] in text and "python3 check.py job.log" in text
    assert "## Expected" in text and "GiB" in text


def test_the_readme_says_which_nodes_are_of_which_type() -> None:
    text = export_files(mixed_plan(), "megatron")["README.md"]
    script = export_files(mixed_plan(), "megatron")["launch.sh"]
    lines = [line for line in text.splitlines() if line.startswith("- node")]
    assert len(lines) == 2 and lines[0].startswith("- nodes 0")
    assert all(line.removeprefix("- ") in script for line in lines)
    assert "- node" not in export_files(plain_plan(), "megatron")["README.md"]


def test_a_price_makes_dollars() -> None:
    plan = plain_plan()
    (pool,) = plan.cluster.pools
    priced = msgspec.structs.replace(pool, usd_per_hour=2.5)
    cluster = msgspec.structs.replace(plan.cluster, pools=(priced,))
    text = export_files(msgspec.structs.replace(plan, cluster=cluster), "megatron")["README.md"]
    assert "$40.00 an hour" in text and "for a billion tokens" in text


def test_flagscale_has_a_launcher_of_its_own() -> None:
    with pytest.raises(InputError, match="FlagScale starts its hosts by ssh"):
        export_files(plain_plan(), "flagscale", launcher="slurm")


def rented(**more: Any) -> RentedNodes:
    said: dict[str, Any] = {
        "gpu": "H100-80GB-SXM",
        "cloud": "aws",
        "region": "us-east-2",
        "instance": "p5.48xlarge",
        "spot": True,
        "nodes": 2,
        "node_gpus": 8,
        "idle_gpus": 0,
        "node_usd_per_hour": 55.04,
        "usd_per_gpu_hour": 6.88,
        "price_date": "2026-05-01",
        "price_source": "a list",
        "network_certainty": "high",
    }
    return RentedNodes(**said | more)


def test_skypilot_rents_what_the_search_for_money_chose(tmp_path: Path) -> None:
    plan = plain_plan()
    text = export_files(plan, "megatron", launcher="skypilot", rents=(rented(),))["sky.yaml"]
    for line in ('cloud: "aws"', 'region: "us-east-2"', 'instance_type: "p5.48xlarge"'):
        assert f"  {line}\n" in text
    assert "  use_spot: true\n" in text and "$55.04 an hour for a node" in text
    assert "accelerators" not in text  # the machine says them
    own = export_files(plan, "megatron", launcher="skypilot", rents=(rented(cloud="given"),))
    assert "instance_type" not in own["sky.yaml"] and "use_spot: false" in own["sky.yaml"]
    entry = {"plan": msgspec.to_builtins(plan), "money": {"rents": [msgspec.to_builtins(rented())]}}
    (tmp_path / "found.json").write_text(json.dumps({"plans": [{"plan": {}}, entry]}))
    assert rents_of_document(read_json(tmp_path / "found.json"), "found") == [(), (rented(),)]
    assert rents_of_document(read_json(tmp_path / "found.json"), "found", 2) == [(rented(),)]
    (tmp_path / "plan.json").write_text(json.dumps(entry["plan"]))
    assert rents_of_document(read_json(tmp_path / "plan.json"), "plan", 1) == [()]


def test_skypilot_names_the_gpus_that_a_host_gets_added() -> None:
    rent = rented(gpu="T4", cloud="gcp", instance="n1-standard-64", region="any")
    job = replace(job_of(plain_plan()), groups=[("T4", 2, 4)], rents=(rent,))
    text = skypilot_files(job)["sky.yaml"]
    assert '  accelerators: "T4:4"\n' in text and "region" not in text


def test_a_cloud_where_skypilot_starts_no_machines_is_an_error() -> None:
    job = replace(job_of(plain_plan()), rents=(rented(cloud="coreweave"),))
    with pytest.raises(InputError, match="starts no machines at coreweave"):
        skypilot_files(job)
