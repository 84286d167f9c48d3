"""How sure a plan is to fit its GPUs, in a word."""

from typing import Literal

from astra.recommend.expectation import recommendation

Risk = Literal["safe", "tight", "risky"]
TIGHT = 0.8  # guessed: below it more than one start in five runs out of memory


def safe_from() -> float:
    """The chance of fitting that is asked of plans where nobody says otherwise."""
    return recommendation().risk["normal"]


def risk_of(fit_probability: float) -> Risk:
    """The word.

    >>> risk_of(0.97), risk_of(0.9), risk_of(0.5)
    ('safe', 'tight', 'risky')
    """
    if fit_probability >= safe_from():
        return "safe"
    return "tight" if fit_probability >= TIGHT else "risky"
