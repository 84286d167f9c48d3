"""How measured steps answer to the factors of their stacks, by pricing them with each one moved."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from astra.fit.hierarchy import FITTED_FACTORS, Floats, Observed, RunConditions
from astra.fit.runs import Run
from astra.hardware.stack import Stack, find_stack
from astra.strategy.plan import Plan

Steps = Callable[[Sequence[Plan], Mapping[str, Stack]], Floats]
LOG_FACTOR_STEP = 0.1  # of the logarithm of a factor
FULL_WEIGHT_RUNS_PER_FAMILY = 60  # runs of a family count no more together


def run_conditions(run: Run) -> RunConditions:
    plan = run.plan
    gpu = plan.cluster.pools[0].gpu
    recipe = plan.fp8_recipe if plan.precision == "fp8" else None
    return RunConditions(
        stack=find_stack(plan.stack).timed_as,
        gpu=gpu.name,
        architecture=gpu.architecture,
        precision=recipe or plan.precision,
        release=run.release_name,
    )


def in_release(run: Run) -> Plan:
    """The plan with its release in the stack's name, whether the stack tells it apart or not."""
    return replace(run.plan, stack=f"{run.plan.stack.partition('@')[0]}@{run.release_name or ''}")


def predicted_s(runs: Sequence[Run], stacks: Mapping[str, Stack], steps: Steps) -> Floats:
    """Steps with these stacks, by plain name."""
    plans = [in_release(run) for run in runs]
    named = {}
    for plan in plans:
        name, _, release = plan.stack.partition("@")
        named[plan.stack] = replace(_timed(name, stacks), release=release or None)
    return steps(plans, named)


def _timed(name: str, stacks: Mapping[str, Stack]) -> Stack:
    """A stack with the factors of the one that it is timed as, and what is its own."""
    own = stacks.get(name) or find_stack(name)
    fitted = stacks[own.timed_as]
    factors = {f"{factor}_factor": getattr(fitted, f"{factor}_factor") for factor in FITTED_FACTORS}
    return replace(own, settings=fitted.settings, **factors)


def observe(runs: Sequence[Run], stacks: Mapping[str, Stack], steps: Steps) -> Observed:
    """The tangent of log(predicted) at the factors of these stacks."""
    base = np.log(predicted_s(runs, stacks, steps))
    slopes = np.zeros((len(runs), len(FITTED_FACTORS)))
    for column, name in enumerate(FITTED_FACTORS):
        field = f"{name}_factor"
        moved = {
            key: replace(stack, **{field: getattr(stack, field) * math.exp(LOG_FACTOR_STEP)})
            for key, stack in stacks.items()
        }
        dependent = [row for row, run in enumerate(runs) if _depends_on(run.plan, name)]
        dependent = [
            row for row in dependent if name not in stacks[run_conditions(runs[row]).stack].pinned
        ]
        if dependent:
            after = np.log(predicted_s([runs[row] for row in dependent], moved, steps))
            slopes[dependent, column] = (after - base[dependent]) / LOG_FACTOR_STEP
    base_logs = np.array([_factor_logs(run, stacks) for run in runs])
    measured = np.log([run.measured_step_s or 1.0 for run in runs])
    logs = measured - base + (slopes * base_logs).sum(axis=1)
    return Observed(tuple(map(run_conditions, runs)), logs, slopes, weights_of(runs))


def _depends_on(plan: Plan, name: str) -> bool:
    """Whether a factor can change a plan's step at all; saves pricing it."""
    tp = max(segment.tp for pipeline in plan.pipelines for segment in pipeline.segments)
    needs = {
        "attention": plan.attention == "flash",
        "experts": plan.model.moe is not None,
        "dispatch": plan.model.moe is not None,
        "context": plan.cp > 1,
        "tensor": tp > 1,
        "pipeline": plan.pp > 1,
        "data": plan.dp * plan.cp > 1,
        "host": plan.cuda_graph != "full_iteration",
    }
    return needs.get(name, True)


def weights_of(runs: Sequence[Run]) -> Floats:
    """Runs of a large family count less each."""
    members = Counter(run.family for run in runs)
    return np.array([min(1.0, FULL_WEIGHT_RUNS_PER_FAMILY / members[run.family]) for run in runs])


def _factor_logs(run: Run, stacks: Mapping[str, Stack]) -> list[float]:
    conditions = run_conditions(run)
    stack = replace(stacks[conditions.stack], release=conditions.release)
    own = stack.on(run.plan.cluster.pools[0].gpu, run.plan.precision, run.plan.fp8_recipe)
    return [math.log(getattr(own, f"{name}_factor")) for name in FITTED_FACTORS]


def model_groups(runs: Sequence[Run]) -> list[str]:
    """Each run's model, or its number of GPUs where the family has a single model."""
    return _groups(runs, _model, _size)


def gpu_groups(runs: Sequence[Run]) -> list[str]:
    """Each run's number of GPUs, or its model where the family has a single number."""
    return _groups(runs, _size, _model)


def family_groups(runs: Sequence[Run]) -> list[str]:
    """Each run's family: what is left knows its stack by relatives alone, or by other sources."""
    return [run.family for run in runs]


def _groups(
    runs: Sequence[Run], first: Callable[[Run], str], second: Callable[[Run], str]
) -> list[str]:
    """Runs of a family that are alike in the first, where it differs, else in the second."""
    known: dict[str, set[str]] = {}
    for run in runs:
        known.setdefault(run.family, set()).add(first(run))
    return [
        f"{run.family} {(first if len(known[run.family]) > 1 else second)(run)}" for run in runs
    ]


def _model(run: Run) -> str:
    return run.model_name


def _size(run: Run) -> str:
    return f"on {sum(run.plan.gpus.values())}"


def random_fifths(runs: Sequence[Run]) -> list[str]:
    """Runs dealt out at random to five groups."""
    return [str(number) for number in np.random.default_rng(0).integers(0, 5, len(runs))]
