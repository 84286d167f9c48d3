"""Dollars, hours and tokens in few digits."""

import math
from collections.abc import Mapping

DAY_H = 24.0


def usd(value: float) -> str:
    """Dollars with as many digits as they are worth.

    >>> usd(861324.4), usd(2.491), usd(0.00861)
    ('$861,324', '$2.49', '$0.00861')
    """
    if value >= 1000:
        return f"${value:,.0f}"
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.3g}"


def hours(value: float) -> str:
    """Hours, and days where there are several.

    >>> hours(3.5), hours(229.4), hours(33135.2)
    ('3.5 h', '229 h (9.56 days)', '33,135 h (1,381 days)')
    """
    short = f"{value:,.0f} h" if value >= 100 else f"{value:.3g} h"
    days = value / DAY_H
    long = f"{days:,.0f}" if days >= 100 else f"{days:.3g}"
    return f"{short} ({long} days)" if value >= 2 * DAY_H else short


def usd_rate(value: float) -> str:
    """USD for an hour, with all its digits up to four.

    >>> usd_rate(184.8), usd_rate(22.0325), usd_rate(3.85)
    ('$184.80', '$22.0325', '$3.85')
    """
    digits = next((n for n in (2, 3) if abs(value - round(value, n)) < 5e-8), 4)
    return f"${value:,.{digits}f}"


def minutes(value_s: float) -> str:
    """Minutes, or hours where they are many."""
    return f"{value_s / 60:.0f} min" if value_s < 36_000 else f"{value_s / 3600:.3g} h"


def tokens(value: float) -> str:
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:,.3g}{unit}"
    return f"{value:,.0f}"


def tokens_down(value: float) -> str:
    """Tokens in few digits, never more than there are.

    >>> tokens_down(1_919_600_000.0), tokens_down(999_999.0), tokens_down(42.0)
    ('1.91B', '999,000', '42')
    """
    step = 10.0 ** max(math.floor(math.log10(max(value, 1.0))) - 2, 0)
    return tokens(math.floor(value / step) * step)


def gpus_text(gpus: Mapping[str, int]) -> str:
    return " + ".join(f"{count} {name}" for name, count in gpus.items())


def usd_short(value: float) -> str:
    """Dollars for axes and labels, in three digits.

    >>> usd_short(904567.1), usd_short(2430502.5), usd_short(2400), usd_short(12)
    ('$905k', '$2.43M', '$2.4k', '$12')
    """
    for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale * (1 - 5e-4):
            return f"${value / scale:.3g}{unit}"
    return f"${value:.3g}"
