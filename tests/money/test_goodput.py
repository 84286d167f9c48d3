"""Goodput and dollars against independent arithmetic and against dice."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.money.conditions import conditions, defaults
from astra.money.dollars import Rent, bill, rented_losses, step_within
from astra.money.goodput import goodput, young_daly_s


def one(value: float) -> np.ndarray:
    return np.array([value])


def simulated_s(train: float, write: float, restart: float, rate: float, seed: int) -> float:
    """Wall seconds of one stretch of work with its checkpoint, by dice. No formula is shared."""
    dice = random.Random(seed)
    clock = 0.0
    while True:
        failure = dice.expovariate(rate)
        if failure >= train + write:
            return clock + train + write
        clock += failure
        while (failure := dice.expovariate(rate)) < restart:
            clock += failure
        clock += restart


@pytest.mark.parametrize(
    ("write", "restart", "mtbf"),
    [(60, 600, 20_000), (200, 900, 4_000), (30, 120, 1_000), (300, 0, 100_000)],
)
def test_the_wall_time_is_what_dice_say(write: float, restart: float, mtbf: float) -> None:
    found = goodput(one(write), one(restart), one(1 / mtbf))
    train = float(found.interval_s[0])
    tries = 20_000
    clock = sum(simulated_s(train, write, restart, 1 / mtbf, seed) for seed in range(tries))
    assert found.training[0] == pytest.approx(train * tries / clock, rel=0.02)


@pytest.mark.parametrize(("write", "mtbf"), [(60, 20_000), (200, 4_000), (30, 1_000), (5, 90_000)])
def test_no_other_interval_does_better_by_dice(write: float, mtbf: float) -> None:
    """The Young-Daly interval against a fine sweep of the expected wall time."""
    best = float(young_daly_s(one(write), one(1 / mtbf))[0])

    def lost(train: float) -> float:
        return math.expm1((train + write) / mtbf) * mtbf / train

    others = [best * 1.02**power for power in range(-120, 120)]
    assert lost(best) <= min(map(lost, others)) * 1.0005
    assert best == pytest.approx(math.sqrt(2 * write * mtbf), rel=0.15)


def test_without_failures_every_second_trains() -> None:
    found = goodput(one(100), one(100), one(0))
    assert found.training[0] == 1 and found.writing[0] == found.lost[0] == found.restarting[0] == 0
    assert np.isinf(found.interval_s[0])


def test_a_job_that_fails_all_the_time_never_ends() -> None:
    found = goodput(one(1e4), one(1e6), one(1.0))
    assert found.training[0] == 0 and np.isfinite(found.lost[0])


rates = st.just(0.0) | st.floats(1e-12, 1e-2)


@given(st.floats(0, 1e4), st.floats(0, 1e4), rates, st.floats(1.0, 5.0))
def test_the_parts_are_one_whole_and_more_failures_are_worse(
    write: float, restart: float, rate: float, more: float
) -> None:
    found, worse = (goodput(one(write), one(restart), one(r)) for r in (rate, rate * more))
    parts = found.training + found.writing + found.lost + found.restarting
    assert parts[0] == pytest.approx(1, abs=1e-6)
    assert worse.training[0] <= found.training[0] * (1 + 5e-3)
    assert 0 <= found.training[0] <= 1


def test_every_default_says_where_it_comes_from() -> None:
    known = defaults()
    assert set(known) >= {"gpu_mtbf_hours", "restart_s", "startup_s"}
    assert known["gpu_mtbf_hours"].value == pytest.approx(16384 * 54 * 24 / 419, rel=1e-3)
    assert all(default.source.where for default in known.values())


@given(
    step=st.floats(0.1, 100),
    gpus=st.integers(1, 4096),
    size=st.floats(1e9, 1e13),
    price=st.floats(0.5, 100),
    spot=st.booleans(),
    storage=st.floats(0, 0.1),
    egress=st.floats(0, 0.1),
)
def test_a_bill_is_its_terms(
    step: float, gpus: int, size: float, price: float, spot: bool, storage: float, egress: float
) -> None:
    kept = conditions(storage_usd_per_gb_month=storage, egress_usd_per_gb=egress)
    rent = Rent(node_gpus=8, node_usd_per_hour=price, spot=spot)
    count = np.array([gpus])
    lost, hourly = rented_losses(count, one(size), rent, kept), rent.usd_per_hour(count)
    found = bill(one(step), 1000.0, lost, hourly, one(size), kept)
    nodes = math.ceil(gpus / 8)
    wall = 1000 * step / 3600 / lost.goodput.training[0] + 0.5
    assert found.wall_h[0] == pytest.approx(wall)
    assert found.usd_per_hour[0] == pytest.approx(nodes * price)
    due = nodes * price * wall + size / 1e9 * (storage * wall / 730.5 + egress)
    assert found.usd[0] == pytest.approx(due)
    again = step_within(found.wall_h, found.usd, 1000.0, lost, hourly, one(size), kept)
    assert again[0, 0] == pytest.approx(step)


def test_spot_nodes_stop_more_often_and_no_failures_stop_nothing() -> None:
    gpus, size = np.array([512]), one(1e12)
    own, spot = (Rent(node_gpus=8, node_usd_per_hour=1.0, spot=flag) for flag in (False, True))
    kept = conditions()
    shares = [rented_losses(gpus, size, rent, kept).goodput.training[0] for rent in (own, spot)]
    assert shares[1] < shares[0] < 1
    free = rented_losses(gpus, size, spot, conditions(failures=False))
    assert free.goodput.training[0] == 1 and free.startup_h == 0
