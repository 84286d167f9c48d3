"""The chance that a plan fits, from how far measured memory lies from the predicted.

The log of measured over predicted has a Student t distribution with four degrees of freedom: most
runs lie near, a few far off (a normal one calls those impossible). With x = t / sqrt(4 + t^2) its
distribution function is 1/2 + 3/4 x - 1/4 x^3, and x = 2 sin(asin(2 P - 1) / 3) turns it round.
"""

from math import asin, exp, log, sin, sqrt

from astra.memory.constants import memory_constants


def fit_probability(need_bytes: float, usable_bytes: float) -> float:
    """That a GPU holds what is predicted to be needed of it.

    >>> round(fit_probability(80e9, 80e9), 3), round(fit_probability(60e9, 80e9), 3)
    (0.5, 0.994)
    """
    t = log(usable_bytes / need_bytes) / memory_constants().spread.scale
    x = t / sqrt(4 + t * t)
    return 0.5 + 0.75 * x - 0.25 * x**3


def margin_of(probability: float) -> float:
    """The share of the memory that must be left free for a plan to fit with this probability.

    >>> round(fit_probability(1 - margin_of(0.97), 1.0), 6)
    0.97
    """
    x = 2 * sin(asin(2 * probability - 1) / 3)
    return 1 - exp(-memory_constants().spread.scale * 2 * x / sqrt(1 - x * x))
