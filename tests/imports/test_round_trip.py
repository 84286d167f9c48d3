"""What we export comes back as the same plan."""

from itertools import islice
from pathlib import Path

import msgspec
import pytest
from tests.support.random_plans import random_plan
from tests.support.tiers import slow_after

from astra.api import import_job
from astra.api import plan as plan_for
from astra.errors import InputError
from astra.export.folder import write_folder
from astra.export.targets import export_files, refusal
from astra.model.zoo import find_model
from astra.strategy.plan import Plan, Runtime
from astra.strategy.rules.registry import broken_rules

MODELS = (
    "llama-3-70b",
    "mixtral-8x7b",
    "llama-3.2-1b",  # tied embeddings
    "gpt3-175b",  # learned positions, biases
    "deepseek-v3",  # latent attention, dense first layers, multi-token prediction
    "gpt-oss-20b",  # windows on every second layer
    "gemma-2-9b",
)
SEEDS, PLANS = 2000, 12


def meant(plan: Plan) -> Plan:
    """Without what has no meaning in this plan, and without what no launch file says."""
    said = plan.cp_comm_type if plan.cp > 1 else "p2p"
    pools = [
        msgspec.structs.replace(pool, count=plan.gpus[pool.gpu.name]) for pool in plan.cluster.pools
    ]
    gone = msgspec.structs.replace(plan.cluster, name="", max_gpus=None, pools=tuple(pools))
    return msgspec.structs.replace(
        plan, cp_comm_type=said, overlap_p2p=plan.overlap_p2p and plan.vpp > 1, cluster=gone
    )


@pytest.mark.parametrize("name", slow_after(1, MODELS))
def test_a_plan_comes_back_from_megatrons_arguments(name: str, tmp_path: Path) -> None:
    plans = (random_plan(seed, find_model(name), ("h100", "b200")) for seed in range(SEEDS))
    legal = list(islice((plan for plan in plans if not broken_rules(plan)), PLANS))
    assert len(legal) == PLANS
    for row, plan in enumerate(legal):
        folder = tmp_path / str(row)
        folder.mkdir()
        files = export_files(plan, "megatron")
        for file in ("args.txt", "launch.sh"):
            (folder / file).write_text(files[file])
        job = import_job(folder, gpus=plan.cluster.pools[0].gpu.name)
        assert job.not_understood == ()
        assert meant(job.plan) == meant(plan)


@pytest.mark.parametrize(
    ("target", "file", "said"),
    [
        ("megatron", "args.txt", "--microbatch-group-size-per-virtual-pipeline-stage 4"),
        ("flagscale", "train/plan.yaml", "microbatch_group_size_per_virtual_pipeline_stage: 4"),
        ("bridge", None, "model.microbatch_group_size_per_vp_stage=4"),  # written, never read
    ],
)
def test_a_searched_micro_batch_group_comes_back(
    target: str, file: str | None, said: str, tmp_path: Path
) -> None:
    """Three stages do not divide the micro-batches: groups of pp would be refused."""
    found = plan_for(
        "llama-3-8b",
        gpus="h100:24",
        global_batch=64,
        seq_len=4096,
        settings=["pp=3", "vpp=2,3,4", "micro_batch=1"],
    )
    plan = found.plans[0].plan
    assert plan.explicit_microbatch_group == 4 and plan.pipelines[0].micro_batches % 3
    assert "group 4" in found.plans[0].summary
    files = export_files(plan, target)
    assert any(said in text for text in files.values())
    write_folder(tmp_path / "job", files)
    (tmp_path / "job" / "plan.json").unlink()
    if file is None:
        return
    job = import_job(tmp_path / "job" / file, gpus=f"h100:{sum(plan.gpus.values())}")
    assert job.plan.microbatch_group == 4 and not broken_rules(job.plan)
    assert job.plan.vpp == plan.vpp and job.plan.pipelines == plan.pipelines


# Model, runtime, GPUs and what narrows the search to plans of another kind.
SEARCHED: list[tuple[str, Runtime, str, list[str]]] = [
    ("llama-3-8b", "fsdp", "h100:16", []),
    ("llama-3-8b", "fsdp", "h100:16", ["tp=2", "recompute=full:uniform:1"]),
    ("llama-3-8b", "fsdp", "h100:16", ["pp=4", "micro_batch=1"]),
    ("llama-3-8b", "fsdp", "h100:16", ["pp=2", "vpp=2", "micro_batch=1"]),
    ("qwen3-30b-a3b", "fsdp", "h100:16", ["ep=8"]),
    ("llama-3-8b", "deepspeed", "h100:16", []),
    ("llama-3-8b", "deepspeed", "h100:16", ["sharding=gradients", "recompute=none"]),
    ("llama-3-8b", "deepspeed", "h100:16", ["tp=2", "recompute=none"]),
    ("llama-3-8b", "deepspeed", "h100:16", ["pp=2"]),
]


def cost(plan: Plan) -> Plan:
    """Without what these frameworks decide by themselves, and without what no file says."""
    return msgspec.structs.replace(
        meant(plan), cp_comm_type="p2p", overlap_grad_reduce=False, overlap_param_gather=False
    )


@pytest.mark.parametrize("searched", slow_after(1, SEARCHED[::-1]))
def test_a_plan_comes_back_from_torchtitan_and_deepspeed(
    searched: tuple[str, Runtime, str, list[str]], tmp_path: Path
) -> None:
    name, runtime, gpus, settings = searched
    found = plan_for(
        name, gpus=gpus, runtime=runtime, settings=settings, global_batch=64, seq_len=4096, top=5
    )
    assert found.plans
    target = {"fsdp": "torchtitan", "deepspeed": "deepspeed"}[runtime]
    for row, priced in enumerate(found.plans):
        plan = priced.plan
        recomputes = plan.pipelines[0].segments[0].recompute != "none"
        if target == "deepspeed" and plan.pp == 1 and recomputes:
            continue  # the training script's to say
        folder = tmp_path / str(row)
        write_folder(folder, export_files(plan, target))
        (folder / "plan.json").unlink()
        alone = folder / "args.txt"  # flags without the module beside them
        sources = [folder, alone] if target == "torchtitan" else [folder]
        for source in sources:
            count = sum(plan.gpus.values())
            job = import_job(
                source, gpus=f"{gpus.partition(':')[0]}:{count}", model=name, seq_len=4096
            )
            assert job.not_understood == ()
            assert cost(job.plan) == cost(plan)


@pytest.mark.parametrize(
    ("name", "gpus"), [("llama-3-8b", "h100:16"), ("qwen3-30b-a3b", "b200:16")]
)
def test_fp8_comes_back_from_torchtitan(name: str, gpus: str, tmp_path: Path) -> None:
    found = plan_for(
        name, gpus=gpus, runtime="fsdp", precision="fp8", global_batch=64, seq_len=4096, top=2
    )
    for row, priced in enumerate(found.plans):
        folder = tmp_path / str(row)
        write_folder(folder, export_files(priced.plan, "torchtitan"))
        (folder / "plan.json").unlink()
        count = sum(priced.plan.gpus.values())
        for source in (folder, folder / "astra_plan.py"):
            job = import_job(source, gpus=f"{gpus.partition(':')[0]}:{count}", model=name)
            assert job.not_understood == ()
            assert cost(job.plan) == cost(priced.plan)


@pytest.mark.parametrize("name", slow_after(2, MODELS))
def test_a_plan_comes_back_from_flagscales_folder(name: str, tmp_path: Path) -> None:
    """Experiment, task and hostfile: the settings, and how many GPUs there are."""
    plans = (random_plan(seed, find_model(name), ("h100",)) for seed in range(SEEDS))
    told = (plan for plan in plans if not broken_rules(plan) and not refusal(plan, "flagscale"))
    some = list(islice(told, 5))
    assert len(some) == 5
    for row, plan in enumerate(some):
        folder = tmp_path / str(row)
        write_folder(folder, export_files(plan, "flagscale"))
        (folder / "plan.json").unlink()
        job = import_job(folder, gpus="h100")
        assert job.framework == "FlagScale"
        assert job.not_understood == ()
        assert meant(job.plan) == meant(plan)
        assert import_job(folder / "train.yaml", gpus="h100").plan == job.plan


@pytest.mark.parametrize(
    ("target", "settings"), [("bridge", []), ("accelerate", ["tp=1", "pp=1", "ep=1"])]
)
def test_a_folder_that_is_not_read_names_the_plan_in_it(
    target: str, settings: list[str], tmp_path: Path
) -> None:
    runtime: Runtime = "megatron" if target == "bridge" else "fsdp"
    found = plan_for(
        "llama-3-8b", gpus="h100:8", runtime=runtime, settings=settings, global_batch=16,
        seq_len=2048, top=1,
    )  # fmt: skip
    write_folder(tmp_path / "job", export_files(found.plans[0].plan, target))
    with pytest.raises(InputError, match=r"astra predict --plan .*plan\.json"):
        import_job(tmp_path / "job", gpus="h100")


def test_a_deepspeed_folder_says_its_model_in_the_plan_beside(tmp_path: Path) -> None:
    found = plan_for(
        "llama-3-8b", gpus="h100:8", runtime="deepspeed", settings=["recompute=none"],
        global_batch=16, seq_len=2048, top=1,
    )  # fmt: skip
    plan = found.plans[0].plan
    write_folder(tmp_path / "job", export_files(plan, "deepspeed"))
    read = import_job(tmp_path / "job", gpus="h100").plan
    assert (read.model.name, read.seq_len, cost(read)) == ("llama-3-8b", 2048, cost(plan))


@pytest.mark.slow
def test_a_job_over_several_types_is_not_read_as_one_over_one(tmp_path: Path) -> None:
    found = plan_for(
        "llama-3-8b", gpus="h100:8,a100-80g:8", runtime="flagscale", global_batch=64,
        seq_len=2048, top=1,
    )  # fmt: skip
    plan = found.plans[0].plan
    assert len(plan.gpus) == 2
    write_folder(tmp_path / "job", export_files(plan, "flagscale"))
    with pytest.raises(InputError, match="several GPU types"):
        import_job(tmp_path / "job", gpus="h100")
