"""Predict every published run in `validation/runs` and write what came out, case by case.

    python -m tools.accuracy        (needs the extra `fit`)

Writes `docs/reports/accuracy.md` (families, score, memory, ranking, the worst), its pictures, and
`validation/cases.csv` (every run, signed errors).
"""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
from tools.accuracy.page import AccuracyFindings, GroupError, HeldOutScore, accuracy_page
from tools.accuracy.plots import PlottedRun, all_runs_plot, small_multiples, write

from astra.cost.price import price_plans, steps_s
from astra.cost.result import PricedPlan
from astra.files import read_toml
from astra.fit.hierarchy import FACTOR_FIELDS, Floats, held_out_errors
from astra.fit.observe import family_groups, gpu_groups, model_groups, observe, random_fifths
from astra.fit.runs import Run, Runs, read_runs
from astra.fit.score import capped_error, is_timed, score
from astra.fit.steps import TimedStep, read_steps
from astra.fit.validate import Validation, ValidationRow, validate
from astra.hardware.stack import Stack, find_stack, stack_names

ROOT = Path(__file__).parents[2]
VALIDATION, REPORTS = ROOT / "validation", ROOT / "docs" / "reports"
COLUMNS = (
    "row_id",
    "family",
    "model",
    "summary",
    "stack",
    "measured_step_s",
    "predicted_step_s",
    "error_fraction",
    "memory_kind",
    "measured_memory_bytes",
    "predicted_memory_bytes",
    "memory_error_fraction",
    "fits",
)


def priced_by_plan(found: Runs, stacks: dict[str, Stack] | None = None) -> dict[int, PricedPlan]:
    plans = [run.plan for run in found.runs]
    return dict(zip(map(id, plans), price_plans(plans, stacks=stacks), strict=True))


GROUPS: dict[str, Callable[[Sequence[Run]], list[str]]] = {
    "a fifth of the runs": random_fifths,
    "models": model_groups,
    "cluster sizes": gpu_groups,
    "whole families": family_groups,
}


def timed_runs(found: Runs) -> list[Run]:
    return [run for run in found.runs if run.measured_step_s and is_timed(run.family)]


def families_of(runs: Sequence[Run], values: Sequence[float]) -> dict[str, list[float]]:
    families: dict[str, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        families.setdefault(run.family, []).append(value)
    return families


def covered(runs: Sequence[Run], priced: dict[int, PricedPlan], logs: Floats) -> float:
    """Share of runs with these log errors inside their 80 % interval; families count alike."""
    inside = []
    for run, log in zip(runs, logs, strict=True):
        answer = priced[id(run.plan)]
        inside.append(float(abs(log) <= math.log(answer.step_s_high / answer.step_s)))
    return fmean(map(fmean, families_of(runs, inside).values()))


def shipped_logs(runs: Sequence[Run], priced: dict[int, PricedPlan]) -> Floats:
    """log(predicted / measured) as shipped."""
    return np.array([math.log(priced[id(r.plan)].step_s / (r.measured_step_s or 1)) for r in runs])


def scored(runs: Sequence[Run], logs: Floats, moe: bool | None = None) -> float:
    pairs: dict[str, list[tuple[float, float]]] = {}
    for run, log in zip(runs, logs, strict=True):
        if moe is None or (run.plan.model.moe is not None) == moe:
            pairs.setdefault(run.family, []).append((math.exp(log), 1.0))
    return score(pairs) or 0.0


def apart(
    runs: Sequence[Run], priced: dict[int, PricedPlan]
) -> tuple[tuple[HeldOutScore, ...], dict[str, Floats]]:
    """Every run predicted by stacks that were fitted without it and its like; the log errors."""
    seen = observe(runs, {name: find_stack(name) for name in stack_names()}, steps_s)
    found, errors_of = [], {}
    for what, groups in GROUPS.items():
        names = groups(runs)
        logs = errors_of[what] = held_out_errors(seen, names)
        errors = [capped_error(math.exp(log), 1.0) for log in logs]
        found.append(
            HeldOutScore(
                what=what,
                folds=len(set(names)),
                score=scored(runs, logs),
                dense=scored(runs, logs, moe=False),
                moe=scored(runs, logs, moe=True),
                inside_fraction=covered(runs, priced, logs),
                families={k: fmean(v) for k, v in families_of(runs, errors).items()},
            )
        )
    return tuple(found), errors_of


def by_gpu(runs: Sequence[Run], logs: Floats) -> tuple[GroupError, ...]:
    groups: dict[str, list[float]] = {}
    for run, log in zip(runs, logs, strict=True):
        kind = "dense" if run.plan.model.moe is None else "MoE"
        groups.setdefault(f"{next(iter(run.plan.gpus))}, {kind}", []).append(log)
    return tuple(
        GroupError(
            name=name,
            runs=len(errors),
            error=fmean(abs(math.expm1(error)) for error in errors),
            bias=fmean(map(math.expm1, errors)),
        )
        for name, errors in sorted(groups.items())
    )


def compared(found: Runs, priced: dict[int, PricedPlan]) -> Validation:
    return validate(
        found.runs, price=lambda plan: priced[id(plan)], skipped=found.skipped, worst=10
    )


def write_cases(rows: tuple[ValidationRow, ...]) -> None:
    with (VALIDATION / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_cell(getattr(row, name)) for name in COLUMNS])


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def _bare(stack: Stack) -> Stack:
    ones = dict.fromkeys(FACTOR_FIELDS, 1.0)
    return msgspec.structs.replace(stack, **ones, settings=())


def write_plots(runs: Sequence[Run], logs: Floats) -> None:
    """Predicted against measured, all runs in one square and each family and GPU in its own."""
    dots = []
    for run, log in zip(runs, logs, strict=True):
        step_s = run.measured_step_s or 1.0
        experts = run.plan.model.moe is not None
        dots.append((run, PlottedRun(run.family, step_s, step_s * math.exp(log), experts)))
    gpus = [replace(dot, group=next(iter(run.plan.gpus))) for run, dot in dots]
    figures = {
        "steps": all_runs_plot(
            [dot for _, dot in dots], f"{len(dots):,} published steps, each held back"
        ),
        "families": small_multiples([dot for _, dot in dots]),
        "gpus": small_multiples(gpus),
    }
    for name, figure in figures.items():
        write(figure, REPORTS / f"accuracy-{name}.svg")


def timed_steps(name: str) -> list[tuple[TimedStep, PricedPlan]]:
    steps = read_steps(VALIDATION / "runs" / name)
    return list(zip(steps, price_plans([step.plan for step in steps]), strict=True))


def main() -> None:
    runs = read_runs(VALIDATION / "runs" / "one-type.csv")
    timed, ours = timed_runs(runs), priced_by_plan(runs)
    names = {run.plan.stack for run in runs.runs}
    plain = {name: _bare(find_stack(name)) for name in names}
    several = read_runs(VALIDATION / "runs" / "mixed.csv")
    logs = shipped_logs(timed, ours)
    held_out, errors_of = apart(timed, ours)
    found = AccuracyFindings(
        one_type=compared(runs, ours),
        unit_factors=compared(runs, priced_by_plan(runs, plain)),
        mixed=compared(several, priced_by_plan(several)),
        steps=timed_steps("h200-steps.jsonl"),
        unseen=timed_steps("h200-unseen.jsonl"),
        inside_fraction=covered(timed, ours, logs),
        held_out=held_out,
        gpus=by_gpu(timed, logs),
        settings=sum(len(find_stack(name).settings) for name in stack_names()),
        out_of_memory=tuple(run.row_id for run in runs.runs if run.failed_for_memory),
        reasons=read_toml(VALIDATION / "reasons.toml"),
    )
    write_cases(found.one_type.runs + found.mixed.runs)
    write_plots(timed, errors_of["a fifth of the runs"])
    page = accuracy_page(found)
    (REPORTS / "accuracy.md").write_text(page, encoding="utf-8")
    held = ", ".join(f"{back.what} held back {back.score:.1%}" for back in found.held_out)
    memory = found.one_type.memory.mean_abs_error_fraction or 0
    print(f"score {found.one_type.score:.1%}; {held}; memory {memory:.1%}")


if __name__ == "__main__":
    main()
