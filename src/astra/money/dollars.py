"""Hours and dollars of runs: columns in, columns out, every term kept."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astra.money.conditions import Conditions
from astra.money.goodput import HOUR_S, Goodput, goodput

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MONTH_H = 730.5  # hours of a month: 8,766 of a year in twelve
GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """What an hour costs: a node at a time."""

    node_gpus: int
    node_usd_per_hour: float
    spot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What stands between steps and wall time on so many GPUs. (run,)"""

    nodes: Ints
    checkpoint_s: Floats
    restart_s: Floats  # with reading the checkpoint
    startup_h: float
    goodput: Goodput


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Hours and dollars of runs; the terms add up. (run,)"""

    training_h: Floats  # steps alone
    wall_h: Floats  # training / goodput + start-up
    usd_per_hour: Floats  # all nodes, idle GPUs included
    rent_usd: Floats
    storage_usd: Floats
    egress_usd: Floats
    usd: Floats


def losses(gpus: Ints, checkpoint_bytes: Floats, rent: Rent, kept: Conditions) -> Losses:
    """Failures, checkpoints and start-up of jobs of this size.

    rate = GPUs / MTBF of one + nodes x spot interruptions of one
    """
    nodes = -(-gpus // rent.node_gpus)
    speed = np.minimum(nodes * kept.storage_bytes_per_s_per_node, kept.storage_bytes_per_s_most)
    write = checkpoint_bytes / speed
    rate = gpus / (kept.gpu_mtbf_hours * HOUR_S)
    again = np.full(len(gpus), kept.restart_s)
    if rent.spot:
        rate = rate + nodes * kept.spot_interruptions_per_hour / HOUR_S
        again = np.full(len(gpus), kept.spot_restart_s)
    off = 0.0 if not kept.failures else 1.0
    return Losses(
        nodes=nodes,
        checkpoint_s=write,
        restart_s=again + write,
        startup_h=off * kept.startup_s / HOUR_S,
        goodput=goodput(write, again + write, off * rate),
    )


def bill(
    step_s: Floats, steps: float, lost: Losses, checkpoint_bytes: Floats, rent: Rent,
    kept: Conditions,
) -> Bill:  # fmt: skip
    """What runs of so many steps take and cost.

    wall = steps x step / goodput + start-up
    usd  = nodes x price x wall + GB x storage price x months + GB x egress price
    """
    training = steps * step_s / HOUR_S
    with np.errstate(divide="ignore"):
        wall = training / lost.goodput.training + lost.startup_h
    per_hour = (lost.nodes * rent.node_usd_per_hour).astype(np.float64)
    stored = _bytes(kept.storage_bytes, checkpoint_bytes) / GB
    sent = _bytes(kept.egress_bytes, checkpoint_bytes) / GB
    storage = stored * kept.storage_usd_per_gb_month * wall / MONTH_H
    egress = sent * kept.egress_usd_per_gb
    return Bill(
        training_h=training,
        wall_h=wall,
        usd_per_hour=per_hour,
        rent_usd=per_hour * wall,
        storage_usd=storage,
        egress_usd=egress,
        usd=per_hour * wall + storage + egress,
    )


def step_within(
    wall_h: Floats, usd: Floats, steps: float, lost: Losses, checkpoint_bytes: Floats,
    rent: Rent, kept: Conditions,
) -> Floats:  # fmt: skip
    """The longest steps with which runs end within both an hour and a dollar limit, or reach one
    of them later than the other. (limit, run) [s]

    The inverse of `bill` for the later of the two: a run whose steps are no shorter is neither
    done before `wall_h` nor cheaper than `usd`.
    """
    per_hour = lost.nodes * rent.node_usd_per_hour
    stored = _bytes(kept.storage_bytes, checkpoint_bytes) / GB
    per_hour = per_hour + stored * kept.storage_usd_per_gb_month / MONTH_H
    fixed = _bytes(kept.egress_bytes, checkpoint_bytes) / GB * kept.egress_usd_per_gb
    with np.errstate(divide="ignore", invalid="ignore"):
        paid = np.where(per_hour > 0, (usd[:, np.newaxis] - fixed) / per_hour, np.inf)
    free = (per_hour == 0) & (usd[:, np.newaxis] <= fixed)
    paid = np.where(free, 0.0, paid)
    latest = np.maximum(wall_h[:, np.newaxis], paid)
    return (latest - lost.startup_h) * lost.goodput.training * HOUR_S / steps


def _bytes(said: float | None, checkpoint_bytes: Floats) -> Floats:
    return checkpoint_bytes if said is None else np.full(len(checkpoint_bytes), said)
