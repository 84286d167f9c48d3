"""Layers of OPT-350M and GPT-Neo 2.7B against what Sailor's authors timed: kernels and curves, no
stack's factor.

eth-easl/sailor @cf2c8e3 (MIT), layer profiles: one layer in fp32, sequences of 2048, forward and
backward milliseconds by GPU, tensor-parallel degree and micro-batch.
"""

from statistics import fmean

import numpy as np
import pytest
from msgspec.structs import replace
from tests.cost.some_plans import view
from tests.support.published import published_runs

from astra.hardware.catalogue import find_gpu
from astra.hardware.stack import FACTOR_NAMES, find_stack
from astra.strategy.plan import Plan
from astra.timing.stage import stage_times

OPT = {
    ("A100-40GB-SXM", 1, 8): (16.21, 44.96),
    ("A100-40GB-SXM", 2, 8): (9.28, 23.89),
    ("A100-40GB-SXM", 4, 8): (5.63, 13.38),
    ("GH200-96GB", 1, 8): (6.99, 21.51),
    ("GH200-96GB", 4, 8): (2.68, 6.47),
    ("RTX-2080-Ti", 4, 8): (59.62, 85.70),
    ("RTX-2080-Ti", 8, 8): (55.28, 69.03),
    ("RTX-3090", 1, 2): (8.85, 23.57),
    ("RTX-3090", 2, 2): (5.60, 13.04),
    ("RTX-3090", 4, 8): (49.81, 65.49),
    ("Titan-RTX", 4, 8): (58.46, 83.10),
    ("Titan-RTX", 8, 2): (13.89, 17.41),
    ("Titan-RTX", 8, 8): (54.82, 67.80),
    ("V100-16GB-SXM2", 2, 2): (8.29, 18.65),
    ("V100-16GB-SXM2", 4, 8): (19.00, 39.49),
}


NEO = {
    ("A100-40GB-SXM", 1, 2): (9.39, 22.79),
    ("A100-40GB-SXM", 1, 8): (39.29, 93.05),
    ("A100-40GB-SXM", 4, 4): (6.86, 14.23),
    ("A100-40GB-SXM", 4, 8): (13.41, 27.87),
    ("A100-80GB-SXM", 1, 4): (17.90, 43.40),
    ("V100-16GB-SXM2", 2, 4): (60.51, 124.54),
    ("V100-16GB-SXM2", 4, 8): (65.84, 130.50),
}


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    """By stack: OPT-350M runs as the one, GPT-Neo as the other."""
    runs = [run.plan for run in published_runs().runs if run.family == "sailor-gh200"]
    return {plan.stack.partition("@")[0]: plan for plan in runs}


def on(opt: Plan, name: str, tp: int, micro_batch: int) -> Plan:
    """The model on one node of eight; NVLink joins all of it, bridges only pairs."""
    gpu = find_gpu(name)[0]
    domain = gpu.link.domain_gpus if "bridge" in gpu.link.kind else 8
    gpu = replace(gpu, node=replace(gpu.node, gpus=8), link=replace(gpu.link, domain_gpus=domain))
    (pipeline,) = opt.pipelines
    segment = replace(pipeline.segments[0], gpu=name, tp=tp, stages=1, layers=(opt.model.layers,))
    alone = replace(pipeline, segments=(segment,), replicas=1, micro_batches=1)
    pool = replace(opt.cluster.pools[0], gpu=gpu, count=tp)
    return replace(
        opt,
        cluster=replace(opt.cluster, pools=(pool,)),
        pipelines=(alone,),
        micro_batch=micro_batch,
        global_batch=micro_batch,
    )


def layer_ms(plan: Plan) -> tuple[float, float]:
    """Forward and backward, with traffic and without a factor."""
    plain = replace(find_stack(plan.stack), settings=(), host_forward_s=0.0, host_backward_s=0.0)
    plain = replace(plain, **{f"{name}_factor": 1.0 for name in FACTOR_NAMES})
    times = stage_times(view(plan), plain)
    forward, backward = (
        times.part(f"{way}_s") - times.part(f"head_{way}_s") - times.part(f"embedding_{way}_s")
        + times.part(f"tensor_{way}_s")
        for way in ("forward", "backward")
    )  # fmt: skip
    layers = plan.model.layers
    return 1e3 * float(np.sum(forward)) / layers, 1e3 * float(np.sum(backward)) / layers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "measured", "most", "mean"),
    [("sailor", OPT, 0.2, 0.06), ("sailor-gpt-neo", NEO, 0.1, 0.05)],
)
def test_layers_take_what_was_timed(
    plans: dict[str, Plan],
    stack: str,
    measured: dict[tuple[str, int, int], tuple[float, float]],
    most: float,
    mean: float,
) -> None:
    errors, passes = {}, {}
    for place, timed_ms in measured.items():
        ours = layer_ms(on(plans[stack], *place))
        errors[place] = sum(ours) / sum(timed_ms) - 1
        passes[place] = [a / b - 1 for a, b in zip(ours, timed_ms, strict=True)]
    assert max(map(abs, errors.values())) < most, errors
    assert fmean(map(abs, errors.values())) < mean, errors
    assert fmean(abs(off) for pair in passes.values() for off in pair) < 0.1, passes
