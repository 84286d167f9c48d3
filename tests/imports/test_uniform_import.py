"""Jobs whose ranks lie on several GPU types: `--gpus` says which, in the order of ranks."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.uniform_plans import uniform_plan

from astra.api import import_job, predict
from astra.cli.main import run
from astra.errors import InputError
from astra.export.folder import write_folder
from astra.export.targets import export_files
from astra.hardware.catalogue import find_gpu
from astra.imports.read import ImportedJob
from astra.strategy.plan import Plan, Runtime
from astra.strategy.plan_file import read_plan

H100, H200, A100 = "H100-80GB-SXM", "H200-SXM", "A100-80GB-SXM"
# Target, GPUs in the order of ranks, and what the plan is set to.
JOBS: list[tuple[str, str, dict[str, Any]]] = [
    ("megatron", "h100:256,h200:64", {"global_batch": 640}),
    ("megatron", "h100:56,h200:8", {"tp": 4, "pp": 4}),
    ("megatron", "h100:56,h200:8", {"tp": 4, "pp": 4, "layers_per_stage": (7, 9, 9, 7)}),
    ("megatron", "h100:56,h200:8", {"tp": 4, "pp": 4, "vpp": 2}),
    ("megatron", "h100:32,h200:32", {"tp": 4, "pp": 4}),  # one pipeline, layers by speed
    ("megatron", "h100:20,h200:12", {"tp": 4}),  # parts of nodes
    ("megatron", "h100:40,h200:24", {"tp": 4, "pp": 4, "rank_order": "tp-cp-ep-pp-dp"}),
    ("megatron", "a100-80g:16,h100:32,h200:16", {"tp": 2, "pp": 2, "shard_group": 8}),
    ("megatron", "h100:48,h200:16", {"model": "mixtral-8x7b", "ep": 8, "etp": 1}),
    ("flagscale", "h100:56,h200:8", {"tp": 4, "pp": 4}),
    ("torchtitan", "h100:48,h200:16", {"shard_group": 16}),
    ("torchtitan", "h100:56,h200:8", {"tp": 4, "pp": 4}),
    ("deepspeed", "h100:48,h200:16", {"recompute": "none"}),
    ("deepspeed", "h100:56,h200:8", {"pp": 4}),
]
RUNTIMES: dict[str, Runtime] = {"torchtitan": "fsdp", "deepspeed": "deepspeed"}
# What these frameworks decide by themselves.
UNSAID: dict[str, dict[str, Any]] = {
    "fsdp": {"cp_comm_type": "p2p", "overlap_grad_reduce": False, "overlap_param_gather": False},
    "deepspeed": {"overlap_grad_reduce": False, "overlap_param_gather": False},
}


def said(plan: Plan) -> Plan:
    """Without what no launch file of its framework says."""
    return msgspec.structs.replace(plan, **UNSAID.get(plan.runtime, {}))


@pytest.mark.parametrize(("target", "gpus", "settings"), JOBS)
def test_a_plan_over_several_types_comes_back(
    target: str, gpus: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    runtime = RUNTIMES.get(target, "megatron")
    plan = uniform_plan(gpus, runtime=runtime, **settings)
    assert len(plan.gpus) > 1
    write_folder(tmp_path / "job", export_files(plan, target))
    (tmp_path / "job" / "plan.json").unlink()
    told: dict[str, Any] = {} if runtime == "megatron" else {"model": plan.model.name}
    job = import_job(tmp_path / "job", gpus=gpus, seq_len=2048, **told)
    assert job.not_understood == () and job.refused == ()
    read = msgspec.structs.replace(job.plan, stack=plan.stack)
    assert said(read) == said(plan)


def megatron_job(folder: Path, gpus: str = "h100:16", **settings: Any) -> Path:
    """The exported job of so many GPUs, whatever they are."""
    write_folder(folder, export_files(uniform_plan(gpus, **settings), "megatron"))
    return folder


def types(job: ImportedJob) -> list[tuple[int, list[str]]]:
    return [
        (each.replicas, [each.segment_at(stage).gpu for stage in range(each.stages)])
        for each in job.plan.pipelines
    ]


def test_ranks_lie_in_the_order_that_gpus_are_named_in(tmp_path: Path) -> None:
    """A100 comes before H100 by name; the order of ranks is as it is given."""
    folder = megatron_job(tmp_path / "job", tp=4)
    first, second = (import_job(folder, gpus=g) for g in ("h100:8,a100-80g:8", "a100-80g:8,h100:8"))
    assert first.plan.rank_blocks == ((H100, 8), (A100, 8))
    assert second.plan.rank_blocks == ((A100, 8), (H100, 8))
    assert first.plan.cluster == second.plan.cluster


def test_layers_of_the_file_stay_where_stages_lie_on_unlike_types(tmp_path: Path) -> None:
    """A person's words would be settled by GPU speed; the file's are kept."""
    folder = megatron_job(tmp_path / "job", tp=4, pp=2)
    job = import_job(folder, gpus="h100:8,a100-80g:8")
    assert job.plan.pipelines[0].layers == (16, 16)
    assert types(job) == [(2, [H100, A100])]
    uneven = megatron_job(tmp_path / "uneven", tp=4, pp=2, layers_per_stage=(20, 12))
    assert import_job(uneven, gpus="h100:8,a100-80g:8").plan.pipelines[0].layers == (20, 12)


def test_a_replica_may_lie_on_two_types(tmp_path: Path) -> None:
    folder = megatron_job(tmp_path / "job", tp=2, pp=2)
    assert types(import_job(folder, gpus="h100:12,h200:4")) == [
        (2, [H100, H100]),
        (2, [H100, H200]),
    ]


def test_a_type_may_come_again_behind_another(tmp_path: Path) -> None:
    folder = megatron_job(tmp_path / "job", tp=4, pp=2, dp=2)
    job = import_job(folder, gpus="h100:4,h200:8,h100:4")
    assert types(job) == [(1, [H100, H200]), (1, [H200, H100])]
    assert job.plan.rank_blocks == ((H100, 4), (H200, 8), (H100, 4))
    assert job.plan.gpus == {H100: 8, H200: 8}


@pytest.mark.parametrize(
    ("gpus", "given", "words"),
    [
        ("h100:8,h200:4", {}, r"it starts 16 GPUs, and --gpus h100:8,h200:4 are 12.*agree"),
        ("h100:8,h200:8", {"world_size": 32}, r"--gpus h100:8,h200:8 and --world-size 32 differ"),
        ("h100:14,h200:2", {}, r"14 H100-80GB-SXM do not divide into stages of 4.*Try 12 or 16"),
        ("h100,h200:8", {}, r"entry 1 'h100': the count is missing"),
        ("h100:8,h900:8", {}, r"entry 2 'h900:8'"),
    ],
)
def test_what_does_not_lie_on_these_gpus_is_refused(
    gpus: str, given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = megatron_job(tmp_path / "job", tp=4)
    with pytest.raises(InputError, match=words):
        import_job(folder, gpus=gpus, **given)


def test_a_script_that_is_started_on_more_gpus_than_it_says_can_be_read(tmp_path: Path) -> None:
    folder = megatron_job(tmp_path / "job", tp=4)
    job = import_job(folder, gpus="h100:24,h200:8", world_size=32)
    assert job.plan.gpus == {H100: 24, H200: 8} and job.plan.dp == 8


def test_a_folder_with_a_part_of_a_node_says_its_gpus_in_the_plan(tmp_path: Path) -> None:
    folder = megatron_job(tmp_path / "job", "h100:12", tp=4, global_batch=12)
    job = import_job(folder, gpus="h100")
    assert job.plan.gpus == {H100: 12} and not any("at most" in note for note in job.assumed)
    with pytest.raises(InputError, match="it starts 12 GPUs, and --gpus h100:4,h200:4 are 8"):
        import_job(folder, gpus="h100:4,h200:4")
    (folder / "plan.json").unlink()
    with pytest.raises(InputError, match=r"how many GPUs.*--world-size"):
        import_job(folder, gpus="h100")


def test_the_command_reads_and_writes_such_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    priced = predict("llama-3-8b", gpus="h100:56,h200:8", tp=4, pp=4, global_batch=64)
    write_folder(tmp_path / "job", export_files(priced.plan, "megatron"))
    out = tmp_path / "plan.json"
    words = ["import", str(tmp_path / "job"), "--gpus", "h100:56,h200:8", "--out", str(out)]
    assert run(words) == 0
    assert f"on 56 x {H100} + 8 x {H200}" in capsys.readouterr().out
    assert read_plan(out, 1) == priced.plan


def test_a_gpu_itself_may_stand_for_its_name(tmp_path: Path) -> None:
    h100, _ = find_gpu("h100")
    own = msgspec.structs.replace(h100, name="own", memory_bytes=60e9, usable_bytes=59e9)
    slow = msgspec.structs.replace(h100, bf16_flops_per_s=500e12)  # under the catalogue's name
    job = tmp_path / "job"
    for gpu in (h100, own, slow):
        priced = predict("llama-3-8b", gpus={gpu: 16}, tp=2, global_batch=64, seq_len=4096)
        priced.export("megatron", job)
        ways: tuple[Any, ...] = (gpu, {gpu: 16}, [(gpu, 16)], {gpu: None})
        for gpus in ways:
            assert import_job(job, gpus=gpus).plan == priced.plan, gpus
    blocks = import_job(job, gpus=[(own, 8), ("h200", 8)]).plan
    assert [pool.gpu for pool in blocks.cluster.pools] == [find_gpu("h200")[0], own]
    assert blocks.gpus == {H200: 8, "own": 8}
    with pytest.raises(InputError, match="two different GPUs are called H100-80GB-SXM"):
        import_job(job, gpus=[(h100, 8), (slow, 8)])
