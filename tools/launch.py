"""Recommended plans by the frameworks' own code: who accepts what we would have people launch.

    ASTRA_VERIFY=1 PYTHONPATH=... .verify/venv/bin/python -m tools.launch

Needs what `make verify` installs, with the paths it sets. Writes `docs/reports/launch.md`.
"""

import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from tests.support.flagscale_oracle import Judge
from tests.support.recommended import MIXED, ONE_TYPE, outcome_of

REPORT = Path(__file__).parents[1] / "docs" / "reports" / "launch.md"


def main() -> None:
    judge, lines, refused, start = Judge(), [], 0, perf_counter()
    for question in (*ONE_TYPE, *MIXED):
        with tempfile.TemporaryDirectory() as folder:
            outcome = outcome_of(question, judge, Path(folder))
        refused += bool(outcome.refusals)
        said = ("REFUSED", *outcome.refusals) if outcome.refusals else outcome.checked_by
        cells = [question.model, question.gpus.replace(":", " ").replace(",", " + ")]
        cells += [f"{question.global_batch} x {question.seq_len}"]
        cells += [outcome.summary.replace("|", "\\|") or "nothing fits", ", ".join(said)]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    judge.process.communicate(timeout=60)
    table = "\n".join(lines)
    text = f"""\
# Recommended plans by the frameworks' own code

Written by `tools/launch.py` on {datetime.now(UTC).date()} in {perf_counter() - start:.0f} s. The
first plan at the usual risk of {len(ONE_TYPE)} questions on one GPU type and {len(MIXED)} on
several, exported and given to the code that would launch it: Megatron-LM (megatron-core
{version("megatron-core")}) or FlagScale ({version("flag-scale")}). Refused: {refused}.
`make verify` asks a sample of these, `ASTRA_VERIFY_ALL=1 make verify` all.

Megatron-LM is asked for its parser, `validate_args` and configuration classes, for the process
groups of its `initialize_model_parallel`, and where chunks are interleaved for the checks of its
schedule; FlagScale for its own arguments and ParallelContext, on the first rank of every mesh.

| model | GPUs | batch | recommended | accepted by |
|---|---|---|---|---|
{table}
"""
    REPORT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
