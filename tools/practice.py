"""Layouts that were published against the plans that the search finds for the same question.

    python -m tools.practice                 all but the frameworks' verdict
    make practice                            with Megatron-LM's own code, as `make verify` has it

Writes `docs/reports/practice.md` and prints every published layout that is predicted to be faster
than our best although the rules allow it and it fits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from astra.cost.price import price_plan
from astra.cost.result import PricedPlan
from astra.export.megatron import architecture, arguments, environment
from astra.fit.lightest_recompute import MAX_MEMORY_FRACTION, lightest_that_fits
from astra.fit.runs import Run, read_runs
from astra.hardware.stack import find_stack
from astra.search.query import query_of_space
from astra.search.solve import solve
from astra.strategy.outside_space import outside_space
from astra.strategy.plan import Plan
from astra.strategy.plans import task_of
from astra.strategy.rules.registry import broken_rules
from astra.strategy.space import Space, Workload

ROOT = Path(__file__).parents[1]
GIB = 2**30
TOLERATED = 1.005  # times their step: nobody can tell that apart
# Who published how they train, with frameworks that the product launches.
FAMILIES = (
    "nemo-docs",
    "nemo-docs-longseq",
    "megatron-bridge",
    "dgxc-benchmarking",
    "mlperf",
    "korthikanti22",
    "megatron-sc21",
    "megatron-readme",
    "torchtitan",
    "nemo-automodel",
)
OTHER_FRAMEWORKS = ("MaxText", "Paxml")  # in the names of their models
# What the search tries only when it is asked to, and attention that is not fused: as published, so
# that both train alike.
AS_PUBLISHED = (
    "attention",
    "cuda_graph",
    "capacity_factor",
    "fp8_recipe",
    "main_grads_dtype",
    "grad_reduce_dtype",
    "master_dtype",
    "rank_order",
    "offload_activations",
)
COMPARED = (
    *("tp", "pp", "dp", "vpp", "cp", "cp_comm_type", "ep", "etp", "micro_batch", "sharding"),
    *("overlap_ep", "dispatcher", "offload_optimizer_fraction", "offload_layers"),
)
SAID = {"true": "on", "false": "off"}
MARGIN = 0.05
ALMOST = f"the least with which at most {MAX_MEMORY_FRACTION:.0%} are filled"
# Words of what a row of the runs leaves open about the cut of the layers.
CUTS_ASSUMED = ("stages filled in order", "one layer fewer beside")
WHY_NOT = {
    "layers": "a cut of the layers that is assumed was not published; another cut of as many "
    "stages and chunks is in the space",
    "sharding none": "more memory for the same traffic: what runs had before optimizers were "
    "sharded (`--set sharding=none`)",
    "recompute": "PyTorch's checkpoints are on or off for all layers; the number is the least "
    "with which the run fits",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A published layout and our answer to its question."""

    run: Run
    theirs: PricedPlan
    ours: PricedPlan | None
    broken: tuple[str, ...]  # rules
    outside: tuple[str, ...]  # what of it the space does not hold
    otherwise: tuple[str, ...]  # what follows from other settings in the space, and does not here
    accepted: str  # by the framework's own code

    @property
    def ratio(self) -> float | None:
        return self.ours.step_s / self.theirs.step_s if self.ours else None

    @property
    def faster_than_ours(self) -> bool:
        """Allowed and fitting, yet predicted to be faster than our best: must not be."""
        allowed = self.theirs.memory.fits and not self.broken
        return allowed and (self.ratio is None or self.ratio > TOLERATED)


def space_of(plan: Plan) -> Space:
    """The whole space of the question that a published layout answers."""
    chosen: dict[str, tuple[Any, ...]] = {}
    for name in AS_PUBLISHED:
        value = getattr(plan, name)
        chosen[name] = (np.nan if value is None and name == "capacity_factor" else value,)
    first, second = plan.moment_dtypes
    chosen |= {"first_moment_dtype": (first,), "second_moment_dtype": (second,)}
    workload = Workload(
        task_of(plan), plan.global_batch, plan.seq_len, plan.mtp_layers, plan.precision
    )
    return Space(workload, chosen)


def outside(plan: Plan, space: Space) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What of a layout its space does not hold, and what it sets otherwise, in words."""
    said: dict[bool, list[str]] = {True: [], False: []}
    for each in outside_space(plan, space):
        said[each.facts["how"] == "follows"] += [
            f"{name} {SAID.get(value, value)}" for name, value in each.facts["settings"].items()
        ]
    return tuple(said[False]), tuple(said[True])


def answered(run: Run, accepts: Callable[[Plan], str]) -> Pair:
    space = space_of(run.plan)
    missing, otherwise = outside(run.plan, space)
    return Pair(
        run=run,
        theirs=price_plan(run.plan),
        ours=solve(query_of_space(space, find_stack(run.plan.stack), top=1)).best,
        broken=tuple(rule.name for rule in broken_rules(run.plan)),
        outside=missing,
        otherwise=otherwise,
        accepted=accepts(run.plan),
    )


def megatron_accepts() -> Callable[[Plan], str]:
    """Megatron-LM's own verdict on a plan, where its code is at hand."""
    if find_spec("megatron") is None:
        return lambda _: "not asked"
    from tests.support.megatron_oracle import verdict

    def accepts(plan: Plan) -> str:
        if plan.runtime != "megatron":
            return "not asked"
        words = [word for argument in arguments(plan) for word in argument]
        refusal = verdict(words, environment(plan), sum(plan.gpus.values()), architecture(plan))
        return "yes" if refusal is None else f"no: {' '.join(refusal.split())[:160]}"

    return accepts


def chosen_runs() -> list[Run]:
    """Of every model, GPU, precision and length, on the middle number of GPUs that they published,
    the run that was measured to be fastest.
    """
    runs = [
        run
        for run in read_runs(ROOT / "validation" / "runs" / "one-type.csv").runs
        if run.family in FAMILIES
        and run.measured_step_s is not None
        and not any(name in run.model_name for name in OTHER_FRAMEWORKS)
        and not any(said.startswith("precision not stated") for said in run.assumed)
    ]
    questions: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        plan = run.plan
        key = (run.family, run.model_name, *plan.gpus, plan.precision, plan.seq_len)
        questions.setdefault(key, []).append(run)
    return [_of_middle_size(same) for same in questions.values()]


def _of_middle_size(runs: list[Run]) -> Run:
    counts = sorted({sum(run.plan.gpus.values()) for run in runs})
    middle = counts[len(counts) // 2]
    same = [run for run in runs if sum(run.plan.gpus.values()) == middle]
    return min(same, key=lambda run: (run.measured_step_s or 0.0) / run.plan.global_batch)


def held(pair: Pair) -> str:
    """Whether the published layout is in the space, else why not."""
    said = [f"no: breaks {', '.join(pair.broken)}"] if pair.broken else []
    if pair.outside:
        assumed = any(text.startswith(CUTS_ASSUMED) for text in pair.run.assumed)
        what = "; ".join(pair.outside)
        said.append(f"no: {what.replace('layers', 'assumed layers', 1) if assumed else what}")
    if not said:
        said = [f"but for {', '.join(pair.otherwise)}" if pair.otherwise else "yes"]
    return "; ".join(said)


def filled(pair: Pair) -> float:
    """What it needs of the usable memory of its fullest GPU."""
    memory = pair.theirs.memory
    return memory.reserved_bytes / memory.usable_bytes


def why_unfit(pair: Pair) -> str:
    """What the run did not publish about its memory, and what it may have done."""
    parts = ["fits with nothing kept free"] if filled(pair) <= 1 else []
    if any(said.startswith("recompute not stated") for said in pair.run.assumed):
        now = pair.run.plan.pipelines[0].segments[0].recompute
        more, said = lightest_that_fits(pair.run.plan, 1 - MARGIN)
        parts.append(f"recompute is not published: {now} is assumed, {ALMOST}")
        heavier = more.pipelines[0].segments[0].recompute
        helps = said is not None and price_plan(more).memory.fits
        parts.append(f"with {heavier} it fits" if helps else "nothing more would help")
    return "; ".join(parts) or "not explained"


def fits(pair: Pair) -> str:
    """Whether it fits, else how full it would be."""
    memory = pair.theirs.memory
    if memory.fits:
        return f"{memory.fit_probability:.0%}"
    return f"no: {filled(pair):.1%} of {memory.usable_bytes / GIB:.0f} GiB"


def row_of(pair: Pair) -> str:
    run, plan = pair.run, pair.run.plan
    ((gpu, count),) = plan.gpus.items()
    cells = [
        f"{run.model_name} ({run.row_id})",
        f"{count} {gpu}, {plan.precision}, batch {plan.global_batch} x {plan.seq_len}",
        pair.theirs.summary,
        f"{run.measured_step_s:.3g}",
        f"{pair.theirs.step_s:.3g}",
        held(pair),
        fits(pair),
        pair.accepted,
        pair.ours.summary if pair.ours else "nothing fits",
        f"{pair.ours.step_s:.3g}" if pair.ours else "",
        f"{pair.ratio:.3f}" if pair.ratio else "",
        differences(pair),
    ]
    return f"| {' | '.join(cells)} |"


def differences(pair: Pair) -> str:
    """What our plan sets otherwise."""
    if pair.ours is None:
        return ""
    theirs, ours = (_settings(each.plan) for each in (pair.theirs, pair.ours))
    return ", ".join(name for name in theirs if theirs[name] != ours[name]) or "nothing"


def _settings(plan: Plan) -> dict[str, Any]:
    found = {name: getattr(plan, name) for name in COMPARED}
    pipeline = plan.pipelines[0]
    found["layers"] = [plan.chunks(stage) for stage in range(plan.pp)]
    return found | {"recompute": pipeline.segments[0].recompute}


def page(pairs: list[Pair], asked: bool) -> str:
    inside = [pair for pair in pairs if not pair.broken and not pair.outside]
    fitting = [pair for pair in pairs if pair.theirs.memory.fits and not pair.broken]
    faster = [pair for pair in fitting if pair.faster_than_ours]
    unfit = [pair for pair in pairs if not pair.theirs.memory.fits]
    refused = [pair for pair in pairs if pair.accepted.startswith("no:")]
    accepted = [pair for pair in pairs if pair.accepted == "yes"]
    least, most = min(map(filled, unfit)), max(map(filled, unfit))
    alone = [name for name in WHY_NOT if any(name in held(pair) for pair in pairs if pair.outside)]
    ratios = [pair.ratio for pair in fitting if pair.ratio]
    verdicts = f"accepts {len(accepted)} and refuses {len(refused)}" if asked else "was not asked"
    text = f"""Written by `make practice`. For questions that NVIDIA, Meta and others answered in
public (`validation/runs`), the layout they chose and the fastest plan of our whole space
(`--risk none`), both predicted. What changes the result of the training (dtypes of states, dropped
tokens, the recipe of FP8), how attention is written, and CUDA graphs, which need static shapes, are
as published in both. Ratio: our step over theirs; below 1, ours is predicted to be faster. None of
our plans was run: a gain of a few per cent is within the error of the predictions
([accuracy](accuracy.md)).

Of {len(pairs)} published layouts {len(inside)} lie in the space ("but for": what follows from other
settings there, overlaps that can only help, was set otherwise). {len(fitting)} break no rule and
fit by our memory model with 5 % kept free. Of these, {len(faster)} are predicted to be faster than
ours by more than {TOLERATED - 1:.1%}; the median ratio is {np.median(ratios):.2f}. {len(unfit)} ran
and are called unfit: they are predicted to fill {least:.1%} to {most:.1%} of their GPUs, where
memory is off by 6.7 % in the typical case and 5 % are kept free ([fitting](../recommend.md));
each below. Megatron-LM's own code {verdicts}.
"""
    lines = [
        "# Published layouts and ours",
        "",
        text,
        "| model | question | published | measured s | predicted s | in the space | fits "
        "| accepted | ours | s | ratio | differs in |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *map(row_of, pairs),
        "",
        "## Not in the space",
        "",
        *(f"- {name}: {WHY_NOT[name]}" for name in alone),
        "",
        "## Ran, and called unfit",
        "",
        "| model | filled | why |",
        "|---|---|---|",
        *(
            f"| {p.run.model_name} ({p.run.row_id}) | {filled(p):.1%} | {why_unfit(p)} |"
            for p in unfit
        ),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    accepts = megatron_accepts()
    pairs = []
    for run in chosen_runs():
        pair = answered(run, accepts)
        pairs.append(pair)
        print(row_of(pair), flush=True)
    asked = any(pair.accepted != "not asked" for pair in pairs)
    (ROOT / "docs" / "reports" / "practice.md").write_text(page(pairs, asked), encoding="utf-8")
    wrong = [pair for pair in pairs if pair.faster_than_ours]
    print(f"\n{len(wrong)} published layouts are predicted to be faster than our best")
    for pair in wrong:
        print(row_of(pair))
    unfit = [pair for pair in pairs if not pair.theirs.memory.fits]
    print(f"{len(unfit)} published layouts ran, but are called unfit")


if __name__ == "__main__":
    main()
