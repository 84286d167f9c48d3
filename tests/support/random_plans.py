"""Random plans, legal and illegal, for comparing our rules with a runtime's own."""

import random
from dataclasses import dataclass
from typing import Any

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.model.shape import Model
from astra.strategy.complete import split_layers
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.plans import OFFLOAD_MODULES
from astra.strategy.recompute import MODULES, Recompute

DTYPES = ("fp32", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class Dice:
    """Choices with a bias: mostly what is sensible, now and then anything."""

    random: random.Random
    care: float  # 0: as often as said; towards 1: ever more seldom

    def often(self, common: Any, *rare: Any, chance: float = 0.85) -> Any:
        return self.random.choice(rare) if self.rarely(1 - chance) else common

    def rarely(self, chance: float) -> bool:
        return self.random.random() < chance * (1 - self.care)

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def power(self, most: int) -> int:
        return 2 ** self.random.randint(0, most)


def random_plan(seed: int, model: Model, gpu_names: tuple[str, ...]) -> Plan:
    """One plan of a world of 1 to 16,384 GPUs; the same seed, the same plan."""
    dice = Dice(random.Random(seed), care=(0.0, 0.8, 0.95)[seed % 3])
    gpu, _ = find_gpu(dice.pick(*gpu_names))
    tp = dice.often(dice.power(3), 3, 5, 6, 16, 7)
    cp = dice.often(1, 2, 4, 8, chance=0.7)
    pp = dice.often(dice.pick(1, 2, 4, 8), 3, 5, 6, 16, chance=0.8)
    most = max(16_384 // (tp * cp * pp), 1)
    dp = min(dice.often(dice.power(5), 3, 6, 12, 128, 512), most)
    vpp = dice.often(dice.pick(1, 2, 3) if pp > 1 else 1, 2, 3, 4, 5, chance=0.8)
    ep, etp = _expert_sizes(dice, model, tp)
    micro_batch = dice.often(dice.power(2), 3, 5)
    micro_batches = dice.often(pp * dice.power(3), 1, 2, 3, 7, 10)
    batch = micro_batch * micro_batches * dp + dice.often(0, 1, micro_batch, chance=0.95)
    stages, chunks = _layers(dice, model, pp, vpp)
    segment = Segment(
        gpu=gpu.name, stages=pp, layers=stages, tp=tp, recompute=str(_recompute(dice, model))
    )
    sharding = dice.pick("optimizer", "optimizer", "optimizer", "none", "gradients", "parameters")
    group = 1 if sharding == "none" else dice.often(dp * cp, *_divisors(dp * cp), chance=0.8)
    return Plan(
        model=model,
        cluster=Cluster(name="random", pools=(Pool(gpu=gpu, count=tp * cp * pp * dp),)),
        pipelines=(
            Pipeline(replicas=dp, micro_batches=batch // (micro_batch * dp), segments=(segment,)),
        ),
        chunk_layers=chunks,
        mtp_layers=dice.often(0, 1, 2),
        micro_batch=micro_batch,
        global_batch=batch,
        seq_len=dice.often(2048, 4096, 8192, 1000, 1024, 2050, chance=0.7),
        cp=cp,
        cp_comm_type=dice.pick("p2p", "p2p", "a2a", "allgather"),
        ep=ep,
        etp=etp,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        microbatch_group=dice.often(pp, pp + 1, 2 * pp, 1) if vpp > 1 else None,
        rank_order=dice.often("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
        sharding=sharding,
        shard_group=group,
        sequence_parallel=dice.often(tp > 1, tp <= 1),
        attention=dice.often("flash", "unfused"),
        **_switches(dice, model, vpp, sharding != "none"),
    )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _expert_sizes(dice: Dice, model: Model, tp: int) -> tuple[int, int]:
    if model.moe is None:
        return dice.often(1, 2, 4, chance=0.95), 1
    return dice.often(dice.power(3), 3, 5, 6, 12, 64), dice.often(dice.pick(1, tp), 2, 3)


def _layers(
    dice: Dice, model: Model, pp: int, vpp: int
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Even, uneven or wrong: layers of each stage, and of each chunk where they are uneven."""
    stages = list(split_layers(model.layers, pp))
    if pp > 1 and dice.random.random() < 0.4:
        give, take = dice.random.sample(range(pp), 2)
        if stages[give] > 0:
            stages[give] -= 1
            stages[take] += 1
    if dice.rarely(0.05):
        stages[-1] += 1
    if vpp == 1 or (len(set(stages)) == 1 and stages[0] % vpp == 0 and dice.often(True, False)):
        return tuple(stages), None
    chunks = [layers // vpp + (chunk < layers % vpp) for chunk in range(vpp) for layers in stages]
    return tuple(stages), tuple(chunks)


def _recompute(dice: Dice, model: Model) -> Recompute:
    mode = dice.pick("none", "none", "selective", "full:uniform", "full:block")
    if mode == "selective":
        modules = ["moe"] if model.moe and dice.random.random() < 0.3 else ["layernorm", "mlp"]
        if dice.rarely(0.7 if model.moe else 0.3):
            modules = dice.random.sample(MODULES, dice.pick(1, 1, 2, 3))
        return Recompute(mode, 0, tuple(m for m in MODULES if m in modules))
    return Recompute(mode, 0 if mode == "none" else dice.pick(1, 1, 2, 3))


def _switches(dice: Dice, model: Model, vpp: int, sharded: bool) -> dict[str, Any]:
    """Overlaps, dtypes, offload, graphs and experts: most are as an expert would set them."""
    precision = dice.often("bf16", "fp16", "fp8", "fp8", "fp4", "fp32", "fp32", chance=0.5)
    recipe = dice.pick("delayed", "tensorwise", "blockwise", "mxfp8")
    offloaded = dice.random.sample(OFFLOAD_MODULES, dice.pick(1, 2, 3))
    narrow = dice.rarely(0.1)
    reduce = dice.often("fp32", "bf16", "fp16")
    return {
        "precision": precision,
        "fp8_recipe": recipe if precision == "fp8" else None,
        "main_grads_dtype": dice.pick(*DTYPES) if narrow else "fp32",
        "grad_reduce_dtype": reduce,
        "master_dtype": dice.pick(*DTYPES) if narrow else "fp32",
        "moment_dtypes": (dice.pick(*DTYPES), dice.pick(*DTYPES)) if narrow else ("fp32", "fp32"),
        "overlap_grad_reduce": dice.often(True, False),
        "overlap_param_gather": dice.often(sharded, True, False),
        "overlap_p2p": dice.often(vpp > 1, vpp <= 1),
        "overlap_tp": dice.often(False, True, chance=0.8),
        "overlap_ep": dice.often(False, True, chance=0.85 if model.moe else 0.97),
        "offload_optimizer_fraction": dice.often(0.0, 0.5, 1.0, chance=0.9),
        "offload_activations": tuple(offloaded) if dice.rarely(0.12) else (),
        "offload_layers": dice.pick(1, model.layers - 1, model.layers) if dice.rarely(0.1) else 0,
        "dispatcher": dice.pick("alltoall", "alltoall", "allgather", "deepep", "hybridep")
        if model.moe
        else None,
        "capacity_factor": dice.often(None, 1.0, 1.25, chance=0.95) if model.moe else None,
        "cuda_graph": dice.often(
            "none", "local", "transformer_engine", "full_iteration", chance=0.85
        ),
    }
