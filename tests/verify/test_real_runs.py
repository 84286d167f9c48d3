"""Exported plans really train: tiny models on CPU, laid out as the plan says."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.frameworks import needs
from tests.support.uniform_plans import type_of_rank

needs("torch", "triton", "megatron.core", "megatron.training", "accelerate")

import msgspec  # noqa: E402

from astra.api import predict  # noqa: E402
from astra.cost.result import PricedPlan  # noqa: E402
from astra.export.folder import write_folder  # noqa: E402
from astra.export.pipeline_layout import layers_of_chunks  # noqa: E402
from astra.export.targets import export_files, plan_json  # noqa: E402
from astra.export.torchrun import nodes_of  # noqa: E402
from astra.model.parameters import parameters  # noqa: E402
from astra.model.shape import Model  # noqa: E402
from astra.strategy.plan import Runtime  # noqa: E402

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600
TINY = Model(
    name="tiny",
    layers=4,
    hidden=64,
    heads=4,
    kv_heads=4,
    head_dim=16,
    ffn=128,
    vocab=256,
    max_positions=32,
    rope_theta=10000.0,
    norm="layernorm",  # Megatron-LM's own, without Transformer Engine, has no other
)
# GPUs, and the plans that one start of so many processes trains.
JOBS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"tp": 2, "global_batch": 4},
        {"pp": 2, "global_batch": 4},
        {"pp": 2, "global_batch": 4, "layers_per_stage": (1, 3)},
    ],
    4: [
        {"tp": 2, "pp": 2, "global_batch": 8},
        {"pp": 2, "vpp": 2, "global_batch": 8},
        {"pp": 4, "global_batch": 8, "layers_per_stage": (0, 1, 3, 0)},
        # the second replica begins on one type and ends on the other
        {"gpus": "h100:3,h200:1", "pp": 2, "global_batch": 8},
        {"gpus": "h100:3,h200:1", "pp": 2, "global_batch": 8, "layers_per_stage": (3, 1)},
    ],
}
PLAIN: dict[str, Any] = {  # what tensor parallelism needs a GPU for, or the optimizer's own kernels
    "seq_len": 32,
    "sequence_parallel": False,
    "overlap_tp": False,
    "sharding": "none",
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
}


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def started(module: str, world: int, files: list[Path]) -> list[list[dict[str, Any]]]:
    """What every rank of so many processes printed, a line a job."""
    env = os.environ | {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)]),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, *map(str, files)],
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        told = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert not any(rank.returncode for rank in ranks), told[0][1][-2000:]
    return [[json.loads(line) for line in out.splitlines() if line[:1] == "{"] for out, _ in told]


def falls(losses: list[float]) -> bool:
    return len(losses) > 1 and losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("world", JOBS)
def test_megatron_trains_as_the_exported_plan_says(world: int, tmp_path: Path) -> None:
    found = [predict(TINY, **{"gpus": f"h100:{world}", **PLAIN, **job}) for job in JOBS[world]]
    files = []
    for row, priced in enumerate(found):
        files.append(tmp_path / f"args-{row}.txt")
        files[-1].write_text(export_files(priced.plan, "megatron")["args.txt"])
    ranks = started("tests.support.megatron_run", world, files)
    for row, priced in enumerate(found):
        compare(priced, [rank[row] for rank in ranks])


def compare(priced: PricedPlan, ranks: list[dict[str, Any]]) -> None:
    """GPU type, layers, parameters and micro-batches of each rank, and a loss that falls."""
    plan = priced.plan
    chunks = layers_of_chunks(plan)
    tp = plan.pipelines[0].segments[0].tp
    assert len(ranks) == tp * plan.pp * plan.dp
    groups = [row for row, each in enumerate(plan.pipelines) for _ in range(each.replicas)]
    stages = {(row.pipeline, row.stage): row for row in priced.memory.stages}
    for gpu, rank in zip(type_of_rank(plan), ranks, strict=True):
        stage = stages[groups[rank["dp"]], rank["pp"]]
        assert stage.gpu == gpu
        assert rank["layers"] == list(chunks[rank["pp"] :: plan.pp])
        assert rank["parameters"] == stage.weights_bytes / 2  # bf16 in the plan
        assert rank["micro_batches"] == plan.pipelines[0].micro_batches
        assert falls(rank["losses"]) == (rank["pp"] == plan.pp - 1)


@pytest.mark.parametrize(("target", "runtime"), [("megatron", "megatron"), ("accelerate", "fsdp")])
def test_ranks_of_unlike_nodes_are_numbered_in_the_order_of_types(
    target: str, runtime: Runtime, tmp_path: Path
) -> None:
    """`launch.sh` as it is exported, with a program that tells where it runs."""
    gpus = "h100:3,h200:2"
    plan = predict(TINY, gpus=gpus, runtime=runtime, global_batch=5, seq_len=32).plan
    (tmp_path / "pretrain_gpt.py").write_text(
        "import json, os, sys\n"
        "names = ('RANK', 'GROUP_RANK', 'LOCAL_RANK', 'WORLD_SIZE')\n"
        "told = [*(int(os.environ[name]) for name in names), len(sys.argv[1:])]\n"
        "os.write(1, (json.dumps(told) + '\\n').encode())\n"
    )
    files = export_files(plan, target)
    write_folder(tmp_path / "job", files)
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MEGATRON": str(tmp_path),
        "TRAIN_SCRIPT": str(tmp_path / "pretrain_gpt.py"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    nodes = [
        subprocess.Popen(
            [str(tmp_path / "job" / "launch.sh"), "--mock-data"],
            env=env | {"NODE_RANK": str(node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        told = [node.communicate(timeout=PATIENCE_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert not any(node.returncode for node in nodes), told[0][1][-2000:]
    words = 1 + len(files["args.txt"].split())
    lines = sorted(json.loads(line) for out, _ in told for line in out.splitlines())
    assert lines == [
        [rank, node, local, 5, words]
        for rank, (node, local) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)])
    ]
    assert [gpu for gpu, _, _ in nodes_of(plan)] == ["H100-80GB-SXM", "H200-SXM"]


@pytest.mark.parametrize(
    ("world", "settings"),
    [(2, {"global_batch": 8}), (4, {"global_batch": 8, "micro_batch": 2, "shard_group": 2})],
)
def test_fsdp2_trains_as_the_plan_says(
    world: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    shape = msgspec.structs.replace(TINY, norm="rmsnorm")
    priced = predict(shape, gpus=f"h100:{world}", runtime="fsdp", seq_len=32, **settings)
    plan = priced.plan
    file = tmp_path / "plan.json"
    file.write_text(plan_json(plan))
    for (told,) in started("tests.support.fsdp_run", world, [file]):
        assert told["whole"] == parameters(shape).total
        assert told["held"] == parameters(shape).total / plan.shard_group
        assert told["micro_batches"] == plan.pipelines[0].micro_batches
        assert falls(told["losses"])
