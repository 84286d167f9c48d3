"""One factor per source of runs, and what it is worth on models it has not seen."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from msgspec.structs import replace

from astra.fit.score import error_fraction, score
from astra.fit.validate import ValidationRow, pairs_of


def fit_family_factors(rows: Iterable[ValidationRow]) -> dict[str, float]:
    """Geometric mean of measured / predicted step time in each family."""
    return {
        family: math.exp(fmean(math.log(measured / predicted) for predicted, measured in pairs))
        for family, pairs in pairs_of(rows).items()
    }


def scaled(row: ValidationRow, factor: float) -> ValidationRow:
    """The row as it would be predicted with a factor."""
    if row.predicted_step_s is None:
        return row
    step_s = row.predicted_step_s * factor
    error = error_fraction(step_s, row.measured_step_s) if row.measured_step_s else None
    return replace(row, predicted_step_s=step_s, error_fraction=error)


def cross_validated_rows(
    rows: Sequence[ValidationRow], group_of: Callable[[ValidationRow], str] = lambda row: row.model
) -> list[ValidationRow]:
    """Each row with its family's factor, fitted on the family's other models.

    A family of a single model has no other to learn from: its rows stay as predicted.
    """
    families: dict[str, list[ValidationRow]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    factors: dict[tuple[str, str], float] = {}
    for family, members in families.items():
        for group in {group_of(row) for row in members}:
            others = [row for row in members if group_of(row) != group]
            factors[family, group] = fit_family_factors(others).get(family, 1.0)
    return [scaled(row, factors[row.family, group_of(row)]) for row in rows]


def cross_validated(rows: Sequence[ValidationRow]) -> float | None:
    """The score with family factors, each model predicted without having been seen."""
    return score(pairs_of(cross_validated_rows(rows)))
