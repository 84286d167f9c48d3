"""The accuracy report as a Markdown page: every family, the score, memory, ranking, the worst."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p
from statistics import fmean

from astra.cost.result import PricedPlan
from astra.fit.steps import TimedStep
from astra.fit.validate import Sweep, Validation, ValidationRow
from astra.memory.constants import memory_constants

PAGE_HEAD = """\
# Accuracy

Written by `python -m tools.accuracy` from the published runs in `validation/runs`; every run
with its signed error is in `validation/cases.csv`. Error is predicted / measured - 1.

How it is counted: |log(predicted / measured)| of each run, capped at log 2 and turned back into a
fraction; the mean per family (families of fewer than ten runs pooled); the mean over families.

"""


TimedSteps = Sequence[tuple[TimedStep, PricedPlan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScore:
    """Errors of runs that were predicted by stacks fitted on the others."""

    what: str  # was left out together
    folds: int
    score: float
    dense: float
    moe: float
    inside_fraction: float  # of the 80 % intervals
    families: dict[str, float]  # mean capped error


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupError:
    """Errors of a group of runs."""

    name: str
    runs: int
    error: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyFindings:
    """All that the page shows."""

    one_type: Validation
    unit_factors: Validation  # the same with every stack's factors at 1
    mixed: Validation
    steps: TimedSteps
    unseen: TimedSteps  # the same, of what nothing was fitted on
    inside_fraction: float  # of runs, of their 80 % intervals
    held_out: tuple[HeldOutScore, ...]
    gpus: tuple[GroupError, ...]
    settings: int  # in all stack files
    out_of_memory: tuple[str, ...]  # runs that failed for it
    reasons: dict[str, str]  # what is believed of the worst runs


def accuracy_page(findings: AccuracyFindings) -> str:
    one_type = findings.one_type
    parts = [
        PAGE_HEAD,
        _scores(findings),
        _families(one_type, findings.held_out),
        _gpus(findings.gpus),
        _memory(findings),
    ]
    parts += [
        _steps(findings.steps, findings.unseen),
        _ranking(one_type.sweeps),
        _worst(one_type.worst, findings.reasons),
    ]
    return "\n".join([*parts, _mixed(findings.mixed), _skipped(one_type)])


def _percent(value: float | None, sign: bool = False) -> str:
    return "-" if value is None else f"{value:+.1%}" if sign else f"{value:.1%}"


def _scores(findings: AccuracyFindings) -> str:
    shipped, unfitted = findings.one_type, findings.unit_factors
    inside = _percent(findings.inside_fraction)
    families = shipped.families
    timed = sum(family.runs for family in families.values())
    rows = "\n".join(
        f"| {held_out.what} held back ({held_out.folds} fits) | {_percent(held_out.score)} "
        f"| {_percent(held_out.dense)} | {_percent(held_out.moe)} "
        f"| {_percent(held_out.inside_fraction)} |"
        for held_out in findings.held_out
    )
    return f"""\
## Step time

| | score | dense | MoE | inside the 80 % interval |
|---|---|---|---|---|
| as shipped: factors of stacks fitted on these runs | {_percent(shipped.score)} \
| {_percent(shipped.score_dense)} | {_percent(shipped.score_moe)} | {inside} |
{rows}
| with all those factors at 1: kernels, links and schedules as measured alone | \
{_percent(unfitted.score)} | {_percent(unfitted.score_dense)} | {_percent(unfitted.score_moe)} | |

{timed:,} runs of {len(families)} families. The first line has seen these runs; the lines below
it fit all stacks again without the runs they predict (steps by their tangent in the factors); the
last has seen no step, only single kernels and collectives (but for links of T4 boards, which
amp-t4's steps had to tell). A stack has up to eleven factors, and
settings that multiply some of them on a GPU, in a number format or in a release
({findings.settings} over all stacks, with the number of runs behind each in its file). None belongs
to a model, a family or a run. Where models are held back, a family of a single model has its
numbers of GPUs held back instead, and the other way round. Where a whole family is held back, most
stacks are strangers, priced by their relatives alone: so far off may a framework be that nobody has
measured. `astra calibrate` makes a stack of your own from three runs or more.

What the lines of runs held back have seen all the same, and so flatters them: how strongly factors
are drawn to 1 and to each other (some twenty numbers in `fit/hierarchy.py`) was chosen by these
very lines; the time lost per doubling of the GPUs, how much longer products of odd widths take,
how each framework's rows are read, and the host's seconds (by vTrain's small models; of an expert's
kernels by two runs of Qwen3-30B; the fixed part of Sailor's steps) were chosen while looking at all
runs; so was what to look for in InternEvo's optimizer (owners that take turns), under FSDP (layers
as PyTorch runs them; copies and casts around its tensor-parallel collectives) and in Sailor's fork
(the CPU's seconds and attention by its layer profiles, sends that are waited for), though no number
there was fitted to steps. Far runs are weighed as in the fit of all. Compute factors of
`torch-compile` and `torch-eager` are set by the steps below. Intervals are as wide as 80 % of a
stack's runs need with their model or their number of GPUs held back, so that they are right there
by construction, but for stacks of few runs; a run like those already seen mostly lies inside.

Every step beside its prediction by stacks that have not seen it (a fifth of the runs held back at
a time; the band is 10 % either way; in brackets runs and mean error):

![all runs](accuracy-steps.svg)

![by family](accuracy-families.svg)

![by GPU](accuracy-gpus.svg)
"""


def _families(one_type: Validation, held_out: tuple[HeldOutScore, ...]) -> str:
    titles = " | ".join(f"{each.what} held back" for each in held_out)
    lines = [
        f"| family | runs | mean absolute error | {titles} | median | worst | worst run |",
        "|---" * (6 + len(held_out)) + "|",
    ]
    for name, family in one_type.families.items():
        held_out_errors = " | ".join(_percent(each.families[name]) for each in held_out)
        lines.append(
            f"| {name} | {family.runs} | {_percent(family.mean_abs_error_fraction)} "
            f"| {held_out_errors} "
            f"| {_percent(family.median_error_fraction, sign=True)} "
            f"| {family.worst.error_fraction:+.0%} | {family.worst.row_id} |"
        )
    return "\n".join(lines) + "\n"


def _gpus(parts: tuple[GroupError, ...]) -> str:
    lines = [
        "By GPU, dense models and mixtures of experts apart:",
        "",
        "| GPU | runs | mean absolute error | mean |",
        "|---|---|---|---|",
    ]
    for part in parts:
        lines.append(
            f"| {part.name} | {part.runs} | {_percent(part.error)} | {_percent(part.bias, True)} |"
        )
    return "\n".join(lines) + "\n"


def _memory(findings: AccuracyFindings) -> str:
    one_type = findings.one_type
    by_kind: dict[tuple[str, str], list[float]] = {}
    for row in one_type.runs:
        if row.memory_error_fraction is not None:
            by_kind.setdefault((row.family, row.memory_kind), []).append(row.memory_error_fraction)
    lines = ["| family | kind | runs | mean absolute error | mean |", "|---|---|---|---|---|"]
    for (family, kind), errors in sorted(by_kind.items()):
        lines.append(
            f"| {family} | {kind} | {len(errors)} | {_percent(fmean(map(abs, errors)))} "
            f"| {_percent(fmean(errors), sign=True)} |"
        )
    table = "\n".join(lines)
    memory = one_type.memory
    ran = Counter(row.family for row in one_type.runs if row.fits is False and row.measured_step_s)
    unfit = ", ".join(f"{family} {count}" for family, count in ran.most_common())
    return f"""\
## Memory

{_percent(memory.mean_abs_error_fraction)} mean absolute error over {memory.runs} runs that
measured allocated memory. {memory.called_unfit_but_ran} runs that ran are called unfit,
{memory.called_fit_but_failed} that failed for memory are called fit. Unfit by family: {unfit}.
`validation/cases.csv` has each of them. Failed, and called fit:

{_failed(findings)}

`fit_probability` takes the log of measured over predicted need of a whole GPU to have a Student t
distribution with four degrees of freedom and a scale of {memory_constants().spread.scale:g}
(`tools/fit_memory_spread.py`). Of the runs that measured reserved or device memory,
{_inside(by_kind)} lie within its ranges of 50, 80 and 95 %, families counted alike.

{table}
"""


def _failed(findings: AccuracyFindings) -> str:
    """The runs that ran out of memory where we say they fit, and what is believed of them."""
    rows = [
        row for row in findings.one_type.runs if row.row_id in findings.out_of_memory and row.fits
    ]
    lines = [
        f"- {row.row_id}: {row.model}, {row.summary}: "
        f"{findings.reasons.get(row.row_id, 'not known')}"
        for row in rows
    ]
    return "\n".join(lines) or "none"


def _inside(by_kind: dict[tuple[str, str], list[float]]) -> str:
    """Shares of runs within three ranges of the scatter that is taken for whole GPUs."""
    spread = memory_constants().spread.scale
    whole = [errors for (_, kind), errors in by_kind.items() if kind in ("reserved", "device")]
    shares = []
    for deviations in (0.741, 1.533, 2.776):  # of Student's t with four degrees of freedom
        near = [[abs(log1p(error)) <= deviations * spread for error in errors] for errors in whole]
        shares.append(fmean(map(fmean, near)) if near else 0.0)
    return "{:.0%}, {:.0%} and {:.0%}".format(*shares)


def _steps(steps: TimedSteps, unseen: TimedSteps) -> str:
    errors = [abs(priced.step_s / step.step_s - 1) for step, priced in unseen]
    return f"""\
## Steps timed on one H200

Plain PyTorch. What Hugging Face's layers launch, move and keep was counted, and the few factors of
the stacks `torch-compile` and `torch-eager` were fitted, with these in view. The farthest off wait
for the CPU: the same step (`llama3.2-1b-1k`) took 43 ms on one host and 57 ms on another of its
kind. OLMo 2 turns queries and keys in fp32 where others do in bf16.

{_timed(steps)}

Models and shapes that were predicted before they were timed: {fmean(errors):.1%} off in the mean,
{max(errors):.1%} at most. After the first twelve (then 1.6 % in the mean, 4.5 % at most) the memory
of ReLU (`opt-6.7b`, 4.6 % too high) and what the gates of eager experts move were counted; nothing
was changed after the next eight. The last thirteen, from `llama8b-32k-r` on, ran on another H200
and were all slower than predicted, 2.7 % in the mean and 4.7 % at most; products were then taken to
be 0.7 % slower.

{_timed(unseen)}
"""


def _timed(steps: TimedSteps) -> str:
    lines = [
        "| model | recompute | step | error | allocated | error |",
        "|---|---|---|---|---|---|",
    ]
    for step, priced in steps:
        plan = step.plan
        memory = priced.memory.allocated_bytes / step.allocated_bytes - 1
        lines.append(
            f"| {step.name}, {plan.micro_batch} x {plan.seq_len} "
            f"| {plan.pipelines[0].segments[0].recompute} | {step.step_s:.3f} s "
            f"| {priced.step_s / step.step_s - 1:+.1%} "
            f"| {step.allocated_bytes / 2**30:.1f} GiB | {memory:+.1%} |"
        )
    return "\n".join(lines)


def _ranked(sweeps: Sequence[Sweep]) -> tuple[str, str]:
    """Mean regret and mean tau, in words."""
    taus = [sweep.kendall_tau for sweep in sweeps if sweep.kendall_tau is not None]
    regret = fmean(sweep.regret_fraction for sweep in sweeps)
    return f"{regret:.1%}", f"{fmean(taus):.2f}" if taus else "-"


def _ranking(sweeps: tuple[Sweep, ...]) -> str:
    by_family: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        by_family.setdefault(sweep.name.split()[0], []).append(sweep)
    families = ["| family | sweeps | mean regret | mean tau |", "|---|---|---|---|"]
    for name, members in sorted(by_family.items()):
        families.append(f"| {name} | {len(members)} | {' | '.join(_ranked(members))} |")
    others = [sweep for sweep in sweeps if not sweep.name.startswith("vtrain-single")]
    rest = " and ".join(_ranked(others or sweeps))
    regret, tau = _ranked(sweeps)
    lines = ["| sweep | layouts | regret | Kendall's tau |", "|---|---|---|---|"]
    for sweep in sorted(sweeps, key=lambda sweep: -sweep.runs)[:20]:
        lines.append(f"| {sweep.name} | {sweep.runs} | {' | '.join(_ranked([sweep]))} |")
    table, parts = "\n".join(lines), "\n".join(families)
    return f"""\
## Ranking

{len(sweeps)} sweeps of five or more layouts of one model on one cluster: our pick is on average
{regret} slower than the best measured; Kendall's tau is {tau} on average. Without vTrain's single
node it is {rest}. Steps of that source are exactly linear in the number of
micro-batches, and jump by up to 40 % either way from one tensor-parallel degree or micro-batch to
the next: each combination seems to have been timed once, with the noise of a host that is too
slow for the GPU, and the step put together from it. That noise is what is lost there.

{parts}

The largest:

{table}
"""


def _worst(rows: tuple[ValidationRow, ...], reasons: dict[str, str]) -> str:
    lines = [
        "## The farthest off",
        "",
        "| error | run | model | plan | believed reason |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        error = row.error_fraction or 0.0
        why = reasons.get(row.row_id, "not known")
        lines.append(f"| {error:+.0%} | {row.row_id} | {row.model} | {row.summary} | {why} |")
    return "\n".join(lines) + "\n"


def _mixed(mixed: Validation) -> str:
    lines = [
        "## Mixed GPU types",
        "",
        f"Score {_percent(mixed.score)} over {len(mixed.runs)} runs.",
        "",
        "| run | plan | error |",
        "|---|---|---|",
    ]
    for row in mixed.runs:
        lines.append(f"| {row.row_id} | {row.summary} | {_percent(row.error_fraction, True)} |")
    return "\n".join(lines) + "\n"


def _skipped(one_type: Validation) -> str:
    lines = [f"- {row.row_id}: {row.reason}" for row in one_type.skipped]
    return "## Skipped\n\n" + "\n".join(lines) + "\n"
