"""A calibrated stack, for people and for programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.fit.calibrate import Calibration
from astra.fit.runs import Skipped
from astra.report.stacks import FIELD_MEANINGS

if TYPE_CHECKING:
    from rich.console import RenderableType

MIN_SHOWN_CHANGE = 0.005  # a factor that moved by less is not worth a line
ERROR_KINDS = ("before", "after", "left_out")
MAX_RUNS_SHOWN = 30
MAX_ASSUMED_SHOWN = 8


def calibration_json(fitted: Calibration, skipped: Sequence[Skipped], path: Path) -> dict[str, Any]:
    """The fit in the words of the schema."""
    cases = [
        msgspec.to_builtins(case)
        | {f"{which}_error_fraction": case.error(which) for which in ERROR_KINDS}
        for case in fitted.cases
    ]
    return {
        "name": fitted.stack.name,
        "base": fitted.base,
        "file": str(path),
        "factors": fitted.factors,
        "stack": msgspec.to_builtins(fitted.stack),
        "runs": cases,
        "mean_abs_error_fraction": {which: fitted.mean_abs_error(which) for which in ERROR_KINDS},
        "assumed": fitted.assumed,
        "skipped": [{"row_id": row.row_id, "reason": row.reason} for row in skipped],
    }


def calibration_page(
    fitted: Calibration, skipped: Sequence[Skipped], path: Path
) -> list["RenderableType"]:
    """The whole answer, part by part."""
    before, after, left_out = (fitted.mean_abs_error(which) for which in ERROR_KINDS)
    name, count = fitted.stack.name, len(fitted.cases)
    parts: list[RenderableType] = [
        f"{name}: {fitted.base} moved to {count} runs. Mean error {before:.1%} before, {after:.1%} "
        f"after, {left_out:.1%} on runs that it had not seen.",
        "",
        _cases(fitted),
        "",
    ]
    parts += _factors(fitted)
    if not fitted.helps:
        parts.append(
            f"Runs left out are predicted no better than by {fitted.base}: more runs, of other "
            "models and layouts, would tell more."
        )
    if fitted.assumed:
        parts.append(f"Assumed of what the rows do not say: {_assumed(fitted)}.")
    parts += [f"Left out: {row.row_id}: {row.reason}." for row in skipped[:10]]
    if len(skipped) > 10:
        parts.append(f"and {len(skipped) - 10} more rows that could not be read.")
    parts += [
        f"80 % of steps are expected within {fitted.stack.spread_fraction:.0%} "
        f"({fitted.stack.moe_spread_fraction:.0%} with experts).",
        "",
        f"Kept in {path}. Next: astra plan ... --stack {name}, or astra stacks {name}.",
    ]
    return parts


def _assumed(fitted: Calibration) -> str:
    """Each once, with the number of runs where it is not all of them."""
    runs = len(fitted.cases)
    assumptions = [
        text if n == runs else f"{text} ({n} of {runs})" for text, n in fitted.assumed.items()
    ]
    more = [f"{len(assumptions) - MAX_ASSUMED_SHOWN} more, which `astra validate` tells run by run"]
    return "; ".join(
        assumptions[:MAX_ASSUMED_SHOWN] + (more if len(assumptions) > MAX_ASSUMED_SHOWN else [])
    )


def _cases(fitted: Calibration) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("run", "measured", "before", "after", "left out"):
        table.add_column(title, justify="left" if title == "run" else "right")
    ordered = sorted(fitted.cases, key=lambda case: -abs(case.error("left_out")))
    for case in ordered[:MAX_RUNS_SHOWN]:
        errors = (f"{case.error(which):+.1%}" for which in ERROR_KINDS)
        table.add_row(case.row_id, f"{case.measured_step_s:.4g} s", *errors)
    if len(ordered) > MAX_RUNS_SHOWN:
        table.add_row(f"and {len(ordered) - MAX_RUNS_SHOWN} nearer ones", "", "", "", "")
    return table


def _factors(fitted: Calibration) -> list[str]:
    """What moved, in words."""
    moved = {
        name: value for name, value in fitted.factors.items() if abs(value - 1) >= MIN_SHOWN_CHANGE
    }
    if not moved:
        return [f"No factor of {fitted.base} moved by {MIN_SHOWN_CHANGE:.1%}."]
    return [
        f"{name} x {value:.3f}  ({FIELD_MEANINGS[f'{name}_factor']})"
        for name, value in moved.items()
    ]
