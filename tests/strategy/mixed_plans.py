"""Random plans of mixed clusters: segments with settings of their own, replicas that differ."""

import random
from typing import Any

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.model.shape import Model, Moe
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.plans import OFFLOAD_MODULES
from astra.strategy.recompute import MODULES

GPUS = ("h100", "a100-80g", "v100-32g")
RECOMPUTES = ("none", "selective", "selective:layernorm+mlp", "full:uniform:1", "full:block:2")
RUNTIMES = ("megatron", "flagscale", "fsdp", "deepspeed", "any")


def small_model(layers: int = 12, experts: int = 0, **changes: Any) -> Model:
    """Llama in small, with experts in every layer where asked for."""
    moe = Moe(experts=experts, top_k=2, moe_ffn=256) if experts else None
    fields: dict[str, Any] = {
        "name": "small",
        "layers": layers,
        "hidden": 512,
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 64,
        "ffn": 1024,
        "vocab": 32_000,
        "moe": moe,
    }
    return Model(**fields | changes)


def mixed_cluster(count: int = 512) -> Cluster:
    pools = tuple(Pool(gpu=find_gpu(name)[0], count=count) for name in GPUS)
    return Cluster(name="mixed", pools=pools)


def mixed_plan(seed: int) -> Plan:
    """One plan of one to three pipelines, each of one to four segments."""
    dice = random.Random(seed)
    experts = dice.choice((0, 8))
    model = small_model(experts=experts)
    cluster = mixed_cluster()
    pipelines = tuple(_pipeline(dice, cluster, model) for _ in range(dice.choice((1, 1, 2, 3))))
    vpp = dice.choice((1, 1, 2, 3))
    return Plan(
        model=model,
        cluster=cluster,
        runtime=dice.choice(RUNTIMES),  # type: ignore[arg-type]
        stack=dice.choice(("megatron", "torch-eager")),
        pipelines=pipelines,
        chunk_layers=_chunks(dice, pipelines, vpp),
        mtp_layers=dice.choice((0, 0, 1)),
        micro_batch=dice.choice((1, 2)),
        global_batch=dice.choice((16, 64, 100)),
        seq_len=dice.choice((1024, 4096)),
        cp=dice.choice((1, 1, 2)),
        ep=dice.choice((1, 2, 4)) if experts else 1,
        etp=dice.choice((1, 2)) if experts else 1,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        microbatch_group=dice.choice((None, pipelines[0].stages, 7)) if vpp > 1 else None,
        shard_group=dice.choice((1, 2, 4)),
        moment_dtypes=dice.choice((("fp32", "fp32"), ("bf16", "fp16"))),
        offload_optimizer_fraction=dice.choice((0.0, 0.25)),
        offload_activations=tuple(dice.sample(OFFLOAD_MODULES, dice.choice((0, 0, 2)))),  # type: ignore[arg-type]
        dispatcher="alltoall" if experts else None,
        capacity_factor=dice.choice((None, 1.25)) if experts else None,
    )


def _pipeline(dice: random.Random, cluster: Cluster, model: Model) -> Pipeline:
    segments = tuple(_segment(dice, cluster, model) for _ in range(dice.choice((1, 2, 3, 4))))
    return Pipeline(
        replicas=dice.choice((1, 2, 4)),
        micro_batches=dice.choice((1, 4, 8)),
        segments=segments,
    )


def _segment(dice: random.Random, cluster: Cluster, model: Model) -> Segment:
    stages = dice.choice((1, 2, 3))
    own: dict[str, Any] = {}
    for name in ("dp", "ep", "etp", "micro_batch"):
        if dice.random() < 0.4 and (model.moe or name in ("dp", "micro_batch")):
            own[name] = dice.choice((1, 2, 4))
    recompute = dice.choice((*RECOMPUTES, f"selective:{dice.choice(MODULES)}"))
    return Segment(
        gpu=dice.choice(cluster.pools).gpu.name,
        stages=stages,
        layers=tuple(dice.choice((0, 1, 2, 2, 3)) for _ in range(stages)),
        tp=dice.choice((1, 2, 4)),
        recompute=recompute,
        **own,
    )


def _chunks(
    dice: random.Random, pipelines: tuple[Pipeline, ...], vpp: int
) -> tuple[int, ...] | None:
    """Chunks that add up to the layers of every stage, dealt out at random."""
    if len(pipelines) > 1 or vpp == 1 or dice.random() < 0.5:
        return None
    stages = pipelines[0].layers
    chunks = [0] * (vpp * len(stages))
    for stage, layers in enumerate(stages):
        for _ in range(layers):
            chunks[dice.randrange(vpp) * len(stages) + stage] += 1
    return tuple(chunks)
