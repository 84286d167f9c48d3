"""Predict every published run in `validation/runs` and write what came out, case by case.

    python validation/report.py

Writes `docs/accuracy.md` (families, score, memory, ranking, the worst) and `validation/cases.csv`
(every run, signed errors).
"""

import csv
from pathlib import Path
from statistics import fmean

import msgspec

from astra.fit.runs import Runs, read_runs
from astra.fit.score import is_timed
from astra.fit.steps import read_steps
from astra.fit.validate import Row, Validation, validate
from astra.hardware.stack import Stack, find_stack, stack_names
from astra.report.accuracy import accuracy_page
from astra.search.price import price_many
from astra.search.priced import Priced

HERE = Path(__file__).parent
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


def priced_by_plan(found: Runs, stacks: dict[str, Stack] | None = None) -> dict[int, Priced]:
    plans = [run.plan for run in found.runs]
    return dict(zip(map(id, plans), price_many(plans, stacks=stacks), strict=True))


def covered(found: Runs, priced: dict[int, Priced]) -> float:
    """Share of measured steps inside their 80 % interval; each family counts alike."""
    families: dict[str, list[bool]] = {}
    for run in found.runs:
        if run.measured_step_s and is_timed(run.family):
            answer = priced[id(run.plan)]
            inside = answer.step_s_low <= run.measured_step_s <= answer.step_s_high
            families.setdefault(run.family, []).append(inside)
    return fmean(fmean(inside) for inside in families.values())


def compared(found: Runs, priced: dict[int, Priced]) -> Validation:
    return validate(
        found.runs, price=lambda plan: priced[id(plan)], skipped=found.skipped, worst=15
    )


def write_cases(rows: tuple[Row, ...]) -> None:
    with (HERE / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_cell(getattr(row, name)) for name in COLUMNS])


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def _bare(stack: Stack) -> Stack:
    return msgspec.structs.replace(stack, compute_factor=1.0)


def main() -> None:
    runs = read_runs(HERE / "runs" / "one-type.csv")
    ours = priced_by_plan(runs)
    one = compared(runs, ours)
    plain = {name: _bare(find_stack(name)) for name in stack_names()}
    bare = compared(runs, priced_by_plan(runs, plain))
    several = read_runs(HERE / "runs" / "mixed.csv")
    mixed = compared(several, priced_by_plan(several))
    write_cases(one.runs + mixed.runs)
    steps = read_steps(HERE / "runs" / "h200-steps.jsonl")
    priced = price_many([step.plan for step in steps])
    timed = list(zip(steps, priced, strict=True))
    page = accuracy_page(one, bare, mixed, timed, covered(runs, ours))
    (HERE.parent / "docs" / "accuracy.md").write_text(page, encoding="utf-8")
    print(f"score {one.score:.1%}, memory {one.memory.mean_abs_error_fraction or 0:.1%}")


if __name__ == "__main__":
    main()
