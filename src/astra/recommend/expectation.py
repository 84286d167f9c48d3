"""The expected step of a plan: what its settings must save, and what a failed start would cost.

    expected = step x (1 + what its settings must save + failed start x chance that it does not fit)

The weights are data (`recommendation.toml`).
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from astra.cost.host import is_offloading
from astra.cost.result import PricedPlan
from astra.files import Source, convert, parse_toml
from astra.strategy.plans import Flags, Floats, Ints, Plans, code, plans_of
from astra.strategy.recompute import MODULES

FILE = Path(__file__).parent.parent / "data" / "recommendation.toml"


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of a step."""

    gpus: float
    gpu_type: float
    doubled_chunks: float
    uneven_stages: float
    offload: float
    unusual_recompute: float
    sharded_parameters: float
    failed_start: float


class Recommendation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    weights: Weights
    risk: dict[str, float]  # word to the least chance of fitting
    source: Source


@cache
def recommendation() -> Recommendation:
    text = FILE.read_text(encoding="utf-8")
    return convert(parse_toml(text, FILE.name), Recommendation, FILE.name)


def gpus_cost(gpus: Ints, there: int) -> Floats:
    """What so many of the GPUs that there are must save. (plan,)"""
    return recommendation().weights.gpus * gpus / there


def settings_cost(plans: Plans) -> Floats:
    """What the settings of plans must save, but for their GPUs: a share of the step. (plan,)"""
    weights = recommendation().weights
    cost = weights.doubled_chunks * np.log2(plans.vpp)
    cost += weights.uneven_stages * _is_uneven(plans)
    cost += weights.offload * is_offloading(plans)
    cost += weights.unusual_recompute * _recomputes_unusually(plans)
    cost += weights.sharded_parameters * (plans.sharding == code("sharding", "parameters"))
    return np.asarray(cost, np.float64)


def _is_uneven(plans: Plans) -> Flags:
    """Whether stages or chunks have different numbers of layers."""
    most = np.where(plans.used, plans.layers, 0).max(axis=(0, 1))
    least = np.where(plans.used, plans.layers, most).min(axis=(0, 1))
    found: Flags = (most != least) | (plans.chunking >= 0)
    return found


def _recomputes_unusually(plans: Plans) -> Flags:
    """Neither nothing, nor core attention, nor all layers one by one, alike on all stages."""
    mode, used = plans.recompute, plans.used
    usual = (mode == code("recompute", "none")) | ~used
    usual |= (mode == code("recompute", "selective")) & (
        plans.recompute_modules == 1 << MODULES.index("core_attn")
    )
    usual |= (mode == code("recompute", "full:uniform")) & (plans.recompute_layers == 1)
    first = np.where(used, mode, mode[:1, :1])
    found: Flags = ~usual.all(axis=(0, 1)) | (first != mode[:1, :1]).any(axis=(0, 1))
    return found


def expected_steps_s(plans: Sequence[PricedPlan]) -> list[float]:
    """What they are ranked by. [s]"""
    if not plans:
        return []
    weights, found = recommendation().weights, []
    for each, cost in zip(plans, settings_cost(plans_of([p.plan for p in plans])), strict=True):
        there = sum(pool.count for pool in each.plan.cluster.pools)
        cost += weights.gpus * sum(each.gpus.values()) / there
        cost += weights.gpu_type * (len(each.gpus) - 1)
        cost += weights.failed_start * (1 - each.memory.fit_probability)
        found.append(float(each.step_s * (1 + cost)))
    return found
