"""The share of the wall time that trains: checkpoints, failures, restarts. Columns in and out.

Failures come as a Poisson process with rate f. The job trains for t seconds, writes a checkpoint
in C seconds, and goes on; a failure throws it back to the last checkpoint, and a restart takes R
seconds, in which it may fail again. A job whose GPUs fail with rate f has M = 1 / f seconds
between failures.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
HOUR_S = 3600.0


def young_daly_s(checkpoint_s: Floats, failures_per_s: Floats) -> Floats:
    """The seconds of training between two checkpoints that lose least. [s]

        t = sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C    for C < 2 M, else M

    Young 1974, doi:10.1145/361147.361115, to first order; Daly 2006,
    doi:10.1016/j.future.2004.11.016, equation 37. Infinite without failures; without a cost of
    writing them, checkpoints follow each other at once.
    """
    checkpoint_s, failures_per_s = np.broadcast_arrays(checkpoint_s, failures_per_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        between_s = 1.0 / failures_per_s
        part = checkpoint_s / (2 * between_s)
        first = np.sqrt(2 * checkpoint_s * between_s)
        daly = first * (1 + np.sqrt(part) / 3 + part / 9) - checkpoint_s
        found = np.where(part < 1, daly, between_s)
    return np.where(failures_per_s > 0, found, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What each second of the wall time is spent on; the four fractions sum to one."""

    interval_s: Floats  # of training between two checkpoints; infinite without failures
    failures_per_s: Floats
    training: Floats  # the goodput
    writing: Floats  # checkpoints
    lost: Floats  # work since the last checkpoint, done again
    restarting: Floats


def goodput(checkpoint_s: Floats, restart_s: Floats, failures_per_s: Floats) -> Goodput:
    """The share of the wall time that trains, and where the rest goes.

    Wall seconds of t seconds of training and its checkpoint, a = t + C:

        W = (exp(f a) - 1) exp(f R) / f

    A try of length a succeeds with probability exp(-f a), so exp(f a) - 1 tries fail; each is
    followed by restarts until one lasts R seconds: (exp(f R) - 1) / f. Daly 2006, section 3.
    The last stretch of a run is taken to be as long as the others.
    """
    checkpoint_s, restart_s, failures_per_s = np.broadcast_arrays(
        np.asarray(checkpoint_s, np.float64),
        np.asarray(restart_s, np.float64),
        np.asarray(failures_per_s, np.float64),
    )
    interval = young_daly_s(checkpoint_s, failures_per_s)
    fails = (failures_per_s > 0) & (interval > 0)
    rate = np.where(fails, failures_per_s, 1.0)
    train = np.where(fails, interval, 1.0)
    write = np.where(fails, checkpoint_s, 0.0)
    with np.errstate(over="ignore"):
        tries = np.expm1(rate * (train + write))
        again = tries * np.expm1(rate * np.where(fails, restart_s, 0.0)) / rate
        whole = tries / rate + again
    never = ~np.isfinite(whole)  # fails so often that no stretch of work is ever finished
    whole = np.where(fails, whole, 1.0)
    again = np.where(fails & ~never, again, 0.0)
    free = (failures_per_s > 0) & (interval <= 0)  # checkpoints cost nothing: only restarts do
    up = np.exp(-failures_per_s * restart_s)
    training = np.minimum(np.where(free, up, train / whole), 1.0)
    restarting = np.where(free, 1 - up, again / whole)
    writing = np.where(free, 0.0, write / whole)
    return Goodput(
        interval_s=interval,
        failures_per_s=failures_per_s,
        training=training,
        writing=writing,
        lost=np.maximum(1 - training - writing - restarting, 0.0),
        restarting=restarting,
    )
