"""Recommended plans beside the fastest on paper and the careful pick: what safety costs.

    python -m tools.recommended

Writes `docs/reports/recommended.md`: 42 questions, one GPU type each.
"""

from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import astra
from astra.report.priced_plan import seconds

REPORT = Path(__file__).parents[1] / "docs" / "reports" / "recommended.md"
MODELS = {  # batch, sequence, GPUs
    "llama-3-8b": (256, 8192, (16, 64)),
    "llama-3-70b": (1024, 4096, (64, 512)),
    "llama-3.1-405b": (1024, 8192, (256, 1024)),
    "mixtral-8x7b": (256, 4096, (32, 128)),
    "mixtral-8x22b": (512, 4096, (64, 256)),
    "qwen3-30b-a3b": (512, 4096, (16, 64)),
    "deepseek-v3": (4096, 4096, (512, 2048)),
}
GPUS = ("h100", "a100-80g", "h200")


def row_of(model: str, gpus: dict[str, int], global_batch: int, seq_len: int) -> tuple[str, float]:
    """A line of the table, and what the recommended plan loses."""
    asked: dict[str, Any] = {"gpus": gpus, "global_batch": global_batch, "seq_len": seq_len}
    answer = astra.plan(model, **asked)
    careful = astra.plan(model, **asked, risk="careful").best
    best, paper = answer.best, answer.fastest_on_paper
    assert best is not None and paper is not None and careful is not None
    loss, more = best.step_s / paper.step_s - 1, careful.step_s / paper.step_s - 1
    cells = [model, " + ".join(f"{count} {name}" for name, count in gpus.items())]
    cells += [f"{seconds(best.step_s)}, {best.memory.fit_probability:.0%}", best.summary]
    cells += [f"{loss:.1%}", f"{paper.memory.fit_probability:.0%}", paper.summary]
    cells += [f"{more:.1%}, {careful.memory.fit_probability:.0%}"]
    return f"| {' | '.join(cells)} |", loss


def main() -> None:
    lines, losses = [], []
    for (model, (batch, length, counts)), gpu in product(MODELS.items(), GPUS):
        for count in counts:
            line, loss = row_of(model, {gpu: count}, batch, length)
            lines.append(line)
            losses.append(loss)
            print(line, flush=True)
    table = "\n".join(lines)
    text = f"""\
# Recommended plans beside the fastest on paper

Written by `tools/recommended.py`. {len(losses)} questions; the recommended plan is
{fmean(losses):.1%} slower than the fastest on paper in the mean, {max(losses):.1%} at most. Each
plan with its chance of fitting; the careful pick (`--risk careful`) with what it loses.

| model | GPUs | recommended | plan | loses | on paper | plan | careful |
|---|---|---|---|---|---|---|---|
{table}
"""
    REPORT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
