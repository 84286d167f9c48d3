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

    def nodes(self, gpus: Ints) -> Ints:
        """Whole nodes that hold so many GPUs."""
        return -(-gpus // self.node_gpus)

    def usd_per_hour(self, gpus: Ints) -> Floats:
        found: Floats = self.nodes(gpus).astype(np.float64) * self.node_usd_per_hour
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What stands between steps and wall time on so many GPUs. (run,)"""

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


def losses(
    gpus: Ints, nodes: Ints, spot_nodes: Ints, checkpoint_bytes: Floats, conditions: Conditions
) -> Losses:
    """Failures, checkpoints and start-up of jobs of this size.

    rate = GPUs / MTBF of one + spot nodes x interruptions of one
    """
    speed = np.minimum(
        nodes * conditions.storage_bytes_per_s_per_node, conditions.storage_bytes_per_s_most
    )
    write = checkpoint_bytes / speed
    rate = (
        gpus / conditions.gpu_mtbf_hours + spot_nodes * conditions.spot_interruptions_per_hour
    ) / HOUR_S
    again = np.where(spot_nodes > 0, conditions.spot_restart_s, conditions.restart_s) + write
    on = 1.0 if conditions.failures else 0.0
    return Losses(
        checkpoint_s=write,
        restart_s=again,
        startup_h=on * conditions.startup_s / HOUR_S,
        goodput=goodput(write, again, on * rate),
    )


def rented_losses(
    gpus: Ints, checkpoint_bytes: Floats, rent: Rent, conditions: Conditions
) -> Losses:
    """The same for jobs on one kind of node."""
    nodes = rent.nodes(gpus)
    return losses(gpus, nodes, nodes * rent.spot, checkpoint_bytes, conditions)


def bill(
    step_s: Floats,
    steps: float,
    lost: Losses,
    usd_per_hour: Floats,
    checkpoint_bytes: Floats,
    conditions: Conditions,
) -> Bill:
    """What runs of so many steps take and cost.

    wall = steps x step / goodput + start-up
    usd  = price of an hour x wall + GB x storage price x months + GB x egress price

    GPUs of one's own that stand idle are paid for, too: they are in the price of an hour.
    """
    usd_per_hour = usd_per_hour + conditions.owned_usd_per_hour
    training = steps * step_s / HOUR_S
    with np.errstate(divide="ignore"):
        wall = training / lost.goodput.training + lost.startup_h
    stored = _bytes(conditions.storage_bytes, checkpoint_bytes) / GB
    storage = stored * conditions.storage_usd_per_gb_month * wall / MONTH_H
    egress = _bytes(conditions.egress_bytes, checkpoint_bytes) / GB * conditions.egress_usd_per_gb
    return Bill(
        training_h=training,
        wall_h=wall,
        usd_per_hour=usd_per_hour,
        rent_usd=usd_per_hour * wall,
        storage_usd=storage,
        egress_usd=egress,
        usd=usd_per_hour * wall + storage + egress,
    )


def usd_by_cause(paid: Bill, lost: Losses) -> dict[str, Floats]:
    """What the dollars of a bill are paid for; they add up to it. (run,)

    The rent is shared by hours, GPUs of one's own that stand idle among it.
    """
    usd_per_run_hour = paid.rent_usd / paid.wall_h
    running = usd_per_run_hour * (paid.wall_h - lost.startup_h)
    return {
        "training": running * lost.goodput.training,
        "checkpoints": running * lost.goodput.writing,
        "lost_work": running * lost.goodput.lost,
        "restarts": running * lost.goodput.restarting,
        "startup": usd_per_run_hour * lost.startup_h,
        "storage": paid.storage_usd,
        "egress": paid.egress_usd,
    }


def step_within(
    wall_h: Floats,
    usd: Floats,
    steps: float,
    lost: Losses,
    usd_per_hour: Floats,
    checkpoint_bytes: Floats,
    conditions: Conditions,
) -> Floats:
    """The steps from which on runs are dominated by points of hours and dollars. (point, run) [s]

    The inverse of `bill` for the later of the two: a run with steps no shorter than this is
    neither done before `wall_h` nor cheaper than `usd`; one with shorter steps is one of them.
    """
    stored = _bytes(conditions.storage_bytes, checkpoint_bytes) / GB
    usd_per_hour = usd_per_hour + conditions.owned_usd_per_hour
    rate = usd_per_hour + stored * conditions.storage_usd_per_gb_month / MONTH_H
    fixed = _bytes(conditions.egress_bytes, checkpoint_bytes) / GB * conditions.egress_usd_per_gb
    due = usd[:, np.newaxis]
    with np.errstate(divide="ignore", invalid="ignore"):
        paid = np.where(rate > 0, (due - fixed) / rate, np.where(due <= fixed, 0.0, np.inf))
    latest = np.maximum(wall_h[:, np.newaxis], paid)
    return (latest - lost.startup_h) * lost.goodput.training * HOUR_S / steps


def tokens_within(
    tokens: float,
    wall_h: float,
    usd: float,
    startup_h: float,
    egress_usd: float,
    deadline_h: float | None,
    budget_usd: float | None,
) -> float:
    """The most tokens of a run that keep a deadline and a budget, by what it takes for `tokens`.

    As in `bill`, wall time is start-up and a part that grows with tokens, and dollars are egress
    and a part that grows with wall time; so the inverse of both:

        wall  = min(deadline, wall' x (budget - egress) / (usd' - egress))
        tokens = tokens' x (wall - start-up) / (wall' - start-up)

    Nothing where starting up alone takes or costs too much.
    """
    latest = np.inf if deadline_h is None else deadline_h
    if budget_usd is not None and usd > egress_usd:
        latest = min(latest, wall_h * (budget_usd - egress_usd) / (usd - egress_usd))
    elif budget_usd is not None and budget_usd < egress_usd:
        latest = 0.0
    return float(max(tokens * (latest - startup_h) / (wall_h - startup_h), 0.0))


def _bytes(said: float | None, checkpoint_bytes: Floats) -> Floats:
    return checkpoint_bytes if said is None else np.full(len(checkpoint_bytes), said)
