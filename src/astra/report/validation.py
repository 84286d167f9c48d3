"""Predictions against measured runs, for people and for programs."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from astra.fit.calibrate import MAX_STEP_RATIO
from astra.fit.factors import cross_validated
from astra.fit.validate import Sweep, Validation, ValidationRow
from astra.report.priced_plan import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

GIB = 2**30
MAX_SWEEPS_SHOWN = 12
MAX_REASONS_SHOWN = 12


def validation_json(validation: Validation) -> dict[str, Any]:
    """The comparison in the words of the schema."""
    table: dict[str, Any] = msgspec.to_builtins(validation)
    return table | {"score_cross_validated": cross_validated(validation.runs)}


def validation_page(validation: Validation) -> list["RenderableType"]:
    """The whole answer, part by part."""
    parts: list[RenderableType] = [_sentence(validation), ""]
    if validation.families:
        parts += [_families(validation), ""]
    parts += [_scores(validation), _memory(validation)]
    if validation.sweeps:
        count = len(validation.sweeps)
        sweeps = "1 sweep" if count == 1 else f"{count} sweeps"
        parts += ["", f"Ranking: {sweeps} of five layouts or more"]
        parts += [_sweeps(validation.sweeps)]
    if validation.worst:
        parts += [
            "",
            f"The {_count(validation.worst, 'run')} farthest off",
            _worst(validation.worst),
        ]
        parts += _other_units(validation)
    if validation.skipped:
        parts += ["", *_skipped(validation)]
    return parts


def _sentence(validation: Validation) -> str:
    timed = sum(family.runs for family in validation.families.values())
    return (
        f"{_count(validation.runs, 'run')} compared, {timed:,} of them in step time; "
        f"{_count(validation.skipped, 'row')} skipped."
    )


def _families(validation: Validation) -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("family", no_wrap=True)
    for name in ("runs", "mean |error|", "median", "worst"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("worst run", no_wrap=True)
    for name, family in validation.families.items():
        table.add_row(
            name,
            f"{family.runs:,}",
            f"{family.mean_abs_error_fraction:.1%}",
            f"{family.median_error_fraction:+.1%}",
            f"{family.worst.error_fraction:+.0%}",
            family.worst.row_id,
        )
    return table


def _scores(validation: Validation) -> str:
    if validation.score is None:
        return "score    no step time was both measured and predicted"
    parts = [f"score    {validation.score:.1%}"]
    for words, value in (("dense", validation.score_dense), ("MoE", validation.score_moe)):
        if value is not None:
            parts.append(f"{words} {value:.1%}")
    apart = cross_validated(validation.runs)
    if apart is not None:
        parts.append(f"{apart:.1%} with one factor per family, each model left out in turn")
    return "; ".join(parts)


def _memory(validation: Validation) -> str:
    memory = validation.memory
    verdicts = (
        f"{memory.called_unfit_but_ran} runs called unfit, {memory.called_fit_but_failed} "
        "failures called fit"
    )
    if memory.mean_abs_error_fraction is None:
        return f"memory   no allocated memory was both measured and predicted; {verdicts}"
    return (
        f"memory   {memory.mean_abs_error_fraction:.1%} off on {memory.runs} runs "
        f"that measured allocated memory; {verdicts}"
    )


def _sweeps(sweeps: tuple[Sweep, ...]) -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("runs", "regret", "tau"):
        table.add_column(name, justify="right", no_wrap=True, min_width=6)
    table.add_column("sweep", overflow="ellipsis", no_wrap=True)
    largest = sorted(sweeps, key=lambda sweep: -sweep.runs)
    for sweep in largest[:MAX_SWEEPS_SHOWN]:
        tau = "-" if sweep.kendall_tau is None else f"{sweep.kendall_tau:.2f}"
        table.add_row(str(sweep.runs), f"{sweep.regret_fraction:.1%}", tau, sweep.name)
    regrets = [sweep.regret_fraction for sweep in sweeps]
    taus = [sweep.kendall_tau for sweep in sweeps if sweep.kendall_tau is not None]
    tau = f"{sum(taus) / len(taus):.2f}" if taus else "-"
    table.add_row(
        str(sum(sweep.runs for sweep in sweeps)),
        f"{sum(regrets) / len(regrets):.1%}",
        tau,
        f"mean of all {len(sweeps)}",
    )
    return table


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things):,} {name}{'s' * (len(things) != 1)}"


def _worst(rows: Sequence[ValidationRow]) -> "RenderableType":
    from rich.table import Table

    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right", no_wrap=True, min_width=6)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(
            f"{row.error_fraction or 0:+.0%}",
            f"{row.row_id}: {row.model}, {row.summary}: {seconds(row.predicted_step_s or 0)} for "
            f"{seconds(row.measured_step_s or 0)}",
        )
        if row.assumed:
            table.add_row("", f"assumed: {'; '.join(row.assumed)}")
    return table


def _other_units(validation: Validation) -> list[str]:
    """Steps so far off that they may not be seconds."""
    far = [
        row
        for row in validation.runs
        if row.measured_step_s
        and row.predicted_step_s
        and not 1 / MAX_STEP_RATIO <= row.predicted_step_s / row.measured_step_s <= MAX_STEP_RATIO
    ]
    if not far:
        return []
    which = f"{_count(far, 'run')}, {far[0].row_id} among them," if len(far) > 1 else far[0].row_id
    verb = "are" if len(far) > 1 else "is"
    return [
        f"{which} {verb} off more than {MAX_STEP_RATIO:g} times: "
        "measured_step_time_s counts seconds."
    ]


def _skipped(validation: Validation) -> list[str]:
    reasons = Counter(row.reason for row in validation.skipped)
    first = {row.reason: row.row_id for row in reversed(validation.skipped)}
    lines = [f"Skipped {_count(validation.skipped, 'row')}"]
    for reason, count in reasons.most_common(MAX_REASONS_SHOWN):
        which = first[reason] if count == 1 else f"{count:,} rows, first {first[reason]}"
        lines.append(f"  {which}: {reason}")
    if len(reasons) > MAX_REASONS_SHOWN:
        lines.append(
            f"  ... and {len(reasons) - MAX_REASONS_SHOWN} other reasons (--json lists all)"
        )
    return lines
