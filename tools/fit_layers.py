"""Layers timed alone, forward and backward, beside ours: what the stacks of Sailor rest on.

    python -m tools.fit_layers FOLDER

FOLDER holds Sailor's layer profiles (eth-easl/sailor, MIT): seconds of a layer by micro-batch and
tensor-parallel degree, in fp32 with sequences of 2048. Prints every layer's error, the mean of each
GPU, and how fast a GH200 is of what its peak and bandwidth would make of Hopper's kernels.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from astra.fit.runs import read_runs
from astra.hardware.catalogue import find_gpu
from astra.hardware.stack import FACTOR_NAMES, Stack, find_stack
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.stage_view import stage_view
from astra.timing.efficiency import _kernels
from astra.timing.stage import stage_times

RUNS = Path(__file__).parents[1] / "validation" / "runs" / "one-type.csv"
GPUS = {
    "A100-40": "A100-40GB-SXM",
    "A100-80": "A100-80GB-SXM",
    "V100-16": "V100-16GB-SXM2",
    "GH-96": "GH200-96GB",
    "RTX-3090": "RTX-3090",
    "Titan-RTX": "Titan-RTX",
    "RTX-2080": "RTX-2080-Ti",
}
LARGEST = 32  # samples: longer ones say nothing new
# Copies of another file, and one without tf32.
ODD = {("GPT-Neo-2.7", "GH-96"), ("OPT-30", "A100-40")}


def models() -> dict[str, Plan]:
    """Plans of the profiled models; OPT-30B is made of the small one."""
    runs = [run for run in read_runs(RUNS).runs if run.family == "sailor-gh200"]
    opt = next(run.plan for run in runs if run.model_name == "OPT-350M" and run.plan.pp == 1)
    neo = next(run.plan for run in runs if run.model_name == "GPT-Neo-2.7B")
    wide = {"hidden": 7168, "heads": 56, "kv_heads": 56, "head_dim": 128, "ffn": 28672}
    large = replace(opt, model=replace(opt.model, **wide))
    return {"OPT-350": opt, "OPT-30": large, "GPT-Neo-2.7": neo}


def alone(plan: Plan, name: str, tp: int, micro_batch: int) -> Plan:
    """One stage of one copy on a node of eight; NVLink joins all of it, bridges only pairs."""
    gpu = find_gpu(name)[0]
    domain = gpu.link.domain_gpus if "bridge" in gpu.link.kind else 8
    gpu = replace(gpu, node=replace(gpu.node, gpus=8), link=replace(gpu.link, domain_gpus=domain))
    segment = replace(
        plan.pipelines[0].segments[0], gpu=name, tp=tp, stages=1, layers=(plan.model.layers,)
    )
    pipeline = replace(plan.pipelines[0], segments=(segment,), replicas=1, micro_batches=1)
    return replace(
        plan,
        cluster=replace(plan.cluster, pools=(replace(plan.cluster.pools[0], gpu=gpu, count=tp),)),
        pipelines=(pipeline,),
        micro_batch=micro_batch,
        global_batch=micro_batch,
    )


def layer_s(plan: Plan) -> tuple[float, float]:
    """Seconds of a layer, forward and backward, with its traffic and no factor of a stack."""
    plain: Stack = replace(find_stack(plan.stack), settings=())
    plain = replace(plain, **{f"{name}_factor": 1.0 for name in FACTOR_NAMES})
    times = stage_times(stage_view(plans_of([plan]), task_of(plan), every_stage=True), plain)

    def seconds(way: str) -> float:
        whole = times.part(f"{way}_s") + times.part(f"tensor_{way}_s")
        ends = times.part(f"head_{way}_s") + times.part(f"embedding_{way}_s")
        return float(np.sum(whole - ends)) / plan.model.layers

    return seconds("forward"), seconds("backward")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    errors: dict[str, list[float]] = defaultdict(list)
    uncut = []
    for model, plan in models().items():
        for gpu, name in GPUS.items():
            path = Path(sys.argv[1]) / f"{model}_{gpu}_profile.json"
            if not path.exists() or (model, gpu) in ODD:
                continue
            for samples, degrees in json.loads(path.read_text()).items():
                for tp, layers in degrees.items():
                    if int(samples) > LARGEST:
                        continue
                    timed = layers["2"][:2]
                    ours = layer_s(alone(plan, name, int(tp), int(samples)))
                    off = [a / b - 1 for a, b in zip(ours, timed, strict=True)]
                    both = sum(ours) / sum(timed)
                    errors[f"{model} on {name}"].append(abs(both - 1))
                    if gpu == "GH-96" and tp == "1":
                        uncut.append(np.log(both))
                    print(
                        f"{model:11} {name:14} tp {tp} x {samples:>2}: {1e3 * sum(timed):7.2f} ms, "
                        f"forward {off[0]:+.0%}, backward {off[1]:+.0%}, both {both - 1:+.0%}"
                    )
    for name, found in errors.items():
        print(f"{name}: {np.mean(found):.1%} of {len(found)} layers")
    speed = next(row.gemm for row in _kernels().scaled if row.gpu == "GH200-96GB")
    print(f"GH200-96GB: {speed * np.exp(np.mean(uncut)):.3f} of Hopper (now {speed})")


if __name__ == "__main__":
    main()
