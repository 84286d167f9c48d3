"""Energy of a plan: the power limit of its GPUs, with their hosts and their site, by its seconds.

A limit is no measured draw: GPUs that wait or exchange draw less, so it is an upper estimate.
"""

import msgspec

from astra.hardware.cluster import Gpu
from astra.money.goodput import HOUR_S
from astra.money.options import MoneyOptions, goals_of, power_usage_effectiveness
from astra.money.user_prices import HOST_FRACTION, PUE, site_w


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan draws from the grid, and of what it is reckoned."""

    step_kwh: float
    tokens: float | None  # of the whole run
    run_kwh: float | None  # of its steps; what failures lose comes on top
    gpu_w: float  # power limit of one GPU
    host_fraction: float = HOST_FRACTION
    pue: float
    source: str  # of the power limit


def energy_of(
    gpu: Gpu, gpu_seconds: float, tokens_per_step: int, options: MoneyOptions | None
) -> Energy:
    """The energy of a step that takes so many GPU-seconds on one GPU type, and of all tokens where
    they are known.
    """
    pue = PUE if options is None else power_usage_effectiveness(options)
    tokens = None if options is None else goals_of(options).tokens
    watts = site_w(gpu, pue, "--objective energy cannot be used. Try time")
    step_kwh = gpu_seconds * watts / HOUR_S / 1e3
    return Energy(
        step_kwh=step_kwh,
        tokens=tokens,
        run_kwh=None if tokens is None else step_kwh * tokens / tokens_per_step,
        gpu_w=gpu.power_w or 0.0,
        pue=pue,
        source=f"{gpu.source.kind}: {gpu.source.where}",
    )


def without_energy(options: MoneyOptions | None) -> MoneyOptions | None:
    """The options without a PUE that was said of the energy alone: no dollar depends on it."""
    if options is None or options.owned:
        return options
    return msgspec.structs.replace(options, pue=None)
