"""Errors on what was held back, line by line, and the page they fill."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from astra.timing.gemm import Floats

DOCS = Path(__file__).parents[2] / "docs" / "reports" / "efficiency.md"


@dataclass(slots=True)
class Report:
    """Errors on what was held back, line by line."""

    lines: list[tuple[str, str, str, str, int, float, float]] = field(default_factory=list)

    def add(self, gpu: str, dtype: str, what: str, base: str, ratio: Floats) -> None:
        """`ratio` is predicted over measured time."""
        if len(ratio):
            error = np.abs(ratio - 1)
            line = (gpu, dtype, what, base, len(ratio), float(error.mean()), float(error.max()))
            self.lines.append(line)
            print(f"{gpu:26} {dtype:5} {what:34} {len(ratio):6d} {line[5]:7.1%} {line[6]:7.1%}")


PAGE = """\
# Measured efficiencies

Made by `python -m tools.efficiency_tables`; do not edit. Numbers are errors of predicted kernel
time, |predicted / measured - 1|, on the rows named under *checked on*. "Held back" means a fifth of
the shapes (for products whole (n, k) pairs) that the fit did not see; "one factor" means that the
shape response came from elsewhere and a single number was fitted on the rows shown, so that their
mean is flattered a little. Kernels under 30 us (grouped 60, attention backward 150) of our own and
of SimuMax are left out: the host shows in them.

| GPU | format | operator | checked on | rows | mean | worst |
| --- | --- | --- | --- | ---: | ---: | ---: |
"""


def write_page(report: Report) -> None:
    lines = [
        f"| {gpu} | {dtype} | {what} | {base} | {rows:,} | {mean:.1%} | {worst:.0%} |"
        for gpu, dtype, what, base, rows, mean, worst in report.lines
    ]
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(PAGE + "\n".join(lines) + "\n" + NOTES)


NOTES = """
## What the numbers rest on

- Products: TensorRT-LLM and vLLM timed 6,000 to 25,000 bf16 shapes on each of nine GPUs. The two
  libraries differ by 2 to 12 % on the same shape, 20 % on the largest of L40S, and the tables are
  fitted on their mean. Grid and smoothing were chosen while looking at these errors. Those are
  short bursts; training is slower (clocks fall under steady load with random data), by a factor
  that `kernels.toml` names for each GPU with its source.
- "Smooth" is a table of 1,000 corners through the measurements, "trees" one of 15,000 that
  gradient-boosted trees on the roofline's residual fill in (`boosted.py` there). Trees ship
  where they lower the error at training sizes by a third: A100 and RTX PRO 6000, for GPUs of the
  same chip. With them, training kernels on an A100 (SimuMax) are off by 3.0, 2.5 and 3.9 % instead
  of 4.3, 3.5 and 4.9 %. Elsewhere the gain is one of inference kernels: trees for the H200 left our
  own timings where they were (5.7, 3.9 and 6.2 % instead of 5.8, 3.7 and 5.8 %), and lent to
  other chips (V100, RTX 3090) the A100's trees are worse than its smooth table by 2 to 4 points.
- The other directions run like the forward product, but for tf32, whose operands Hopper's tensor
  cores read along the depth only; a weight gradient summed in fp32 adds traffic.
- fp8, fp4, tf32 and fp32 take the bf16 response at their own peak. Casts are not in it.
- Attention follows a formula of four numbers per pass, fitted on training kernels where there are
  any (H200: our own; A100 and B200: SimuMax; H100: charts), else on an inference engine. Without
  a mask only the H200 was timed; the others follow in its proportions.
- Expert layers of inference engines use kernels of another kind (one fused kernel, Triton on the
  A100); they are shown for scale and nothing was fitted on them.
- Other GPUs borrow the response of their nearest relative at their own peak and bandwidth; the
  `source` of every answer says from whom, and `[[scaled]]` in `kernels.toml` lists speeds that were
  fitted or guessed for them.
"""
