"""Factors of stacks out of measured runs: few, shared, and drawn towards what is common.

The logarithm of a stack's factor is a sum of effects: of all stacks, of its relatives, its own,
and of the conditions that hold (GPU, number format, release). Every effect is drawn to zero as
if one had believed in zero with a known spread, so it leaves it only where runs insist; no effect
belongs to a row, a model or a family of runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from astra.hardware.stack import Stack, StackSetting

Floats = NDArray[np.float64]

# What is fitted, and how far from 1 it was believed to be for all stacks together. These and the
# spreads below were chosen by the errors of models and numbers of GPUs held back: kernels were
# measured and need little (how fast products run is a matter of each number format, below), while
# what is counted in bytes or hidden behind other work may be off by as much again.
FACTOR_SPREADS = {
    "compute": 0.01,
    "attention": 0.25,
    "elementwise": 0.5,
    "experts": 0.06,
    "tensor": 0.3,
    "context": 0.15,
    "dispatch": 0.02,
    "data": 0.15,
    "pipeline": 0.5,
    "host": 0.4,
    "optimizer": 0.15,
}
FAMILY_SPREAD = 0.05  # of that: how far families of stacks lie apart
STACK_SPREAD = 0.35  # and each stack from its family
STACK_CONDITION_SPREAD = 0.25  # the same of what a condition changes in a stack that has relatives
FITTED_FACTORS = tuple(FACTOR_SPREADS)
FACTOR_FIELDS = tuple(f"{name}_factor" for name in FITTED_FACTORS)
# Conditions, the factors they may change, and the spread believed in.
CONDITIONS: tuple[tuple[tuple[str, ...], dict[str, float]], ...] = (
    (
        ("architecture",),
        {
            "compute": 0.02,
            "attention": 0.15,
            "elementwise": 0.06,
            "experts": 0.02,
            "tensor": 0.15,
            "data": 0.05,
            "host": 0.3,
        },
    ),
    (("precision",), {"compute": 0.16, "experts": 0.02}),
    (("gpu", "precision"), {"compute": 0.006, "experts": 0.03}),
    (
        ("release",),
        {
            "compute": 0.015,
            "attention": 0.05,
            "elementwise": 0.15,
            "experts": 0.035,
            "tensor": 0.2,
            "host": 0.1,
        },
    ),
    (("release", "gpu"), {"compute": 0.004}),
)
STACK_ONLY_CONDITIONS = ("release",)  # conditions that only mean something within one stack
REWEIGHTING_ROUNDS = 6  # of weighing
NOISE = 0.004  # of a measured step; whoever is farther off counts the less
STACK_FAMILIES = {
    "megatron": "megatron",
    "nemo": "megatron",
    "bridge": "megatron",
    "mlperf": "megatron",
    "megatron-deepspeed": "megatron-2021",
    "bigscience": "megatron-2021",
    "deepspeed-3d": "megatron-2021",
    "sailor": "megatron-2021",
    "torch-fsdp": "torch",
    "torch-fsdp-eager": "torch",
    "llm-foundry": "torch",
    "nemo-automodel": "torch",
}


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Where a run was made, in the words of a setting."""

    stack: str
    gpu: str
    architecture: str | None
    precision: str  # with the recipe of fp8, where there is one
    release: str | None

    def matches(self, columns: tuple[str, ...]) -> tuple[str, ...] | None:
        """The values of these columns; None where one is not known."""
        values = tuple(getattr(self, column) for column in columns)
        return None if None in values else values


@dataclass(frozen=True, slots=True)
class Effect:
    """One unknown: what a group of stacks adds to a factor, perhaps under a condition."""

    group: str  # a stack, a family of stacks, or `all`
    name: str
    columns: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """Runs, and how their steps answer to the factors around a point."""

    conditions: tuple[RunConditions, ...]
    logs: Floats  # log(measured / predicted), all factors at 1, by the tangent at the point
    slopes: Floats  # (run, name): change of log(predicted) with the log of a factor
    weights: Floats

    def take(self, rows: Floats | Sequence[int]) -> "Observed":
        index = np.asarray(rows, np.int64)
        conditions = tuple(self.conditions[row] for row in index)
        return Observed(conditions, self.logs[index], self.slopes[index], self.weights[index])


@dataclass(slots=True)
class Fit:
    """Effects and their values."""

    effects: dict[Effect, float] = field(default_factory=dict)

    def logs(self, condition: RunConditions) -> Floats:
        """The log of every factor at a place."""
        found = dict.fromkeys(FITTED_FACTORS, 0.0)
        for effect in effects_of(condition):
            found[effect.name] += self.effects.get(effect, 0.0)
        return np.array([found[name] for name in FITTED_FACTORS])


def groups_of(stack: str) -> tuple[str, ...]:
    family = STACK_FAMILIES.get(stack)
    return ("all", stack) if family is None else ("all", f"family {family}", stack)


def effects_of(condition: RunConditions) -> list[Effect]:
    """All effects that a run at this place can feel."""
    groups = groups_of(condition.stack)
    found = [Effect(group, name) for group in groups for name in FITTED_FACTORS]
    for columns, names in CONDITIONS:
        values = condition.matches(columns)
        if values is None:
            continue
        own = any(column in STACK_ONLY_CONDITIONS for column in columns)
        for group in groups[-1:] if own else groups[1:]:
            found += [Effect(group, name, columns, values) for name in names]
    return found


def spread_of(effect: Effect) -> float:
    if not effect.columns:
        family = FAMILY_SPREAD if effect.group.startswith("family") else STACK_SPREAD
        return FACTOR_SPREADS[effect.name] * (1.0 if effect.group == "all" else family)
    found = dict(CONDITIONS)[effect.columns][effect.name]
    shared = effect.group in STACK_FAMILIES and not set(effect.columns) & set(STACK_ONLY_CONDITIONS)
    return found * (STACK_CONDITION_SPREAD if shared else 1.0)


def fit(runs: Observed) -> Fit:
    """The effects of all runs together."""
    effects, matrix = _design(runs)
    values, _ = _solved(effects, matrix, runs)
    return Fit(dict(zip(effects, values.tolist(), strict=True)))


def held_out_errors(runs: Observed, groups: Sequence[str]) -> Floats:
    """log(predicted / measured) of every run, factors fitted on the runs of all other groups.

    Without fitting again: where H carries the measured logs of a group to its fitted ones, what
    the group is off by when held back is (I - H)^-1 times what it is off by in the fit of all.
    How much a far run counts is taken from that fit.
    """
    effects, matrix = _design(runs)
    values, weight = _solved(effects, matrix, runs)
    scaled = matrix * weight[:, np.newaxis]
    carried = np.linalg.solve(matrix.T @ scaled + _penalty(effects), scaled.T)
    off = matrix @ values - runs.logs
    names, found = np.array(groups), np.zeros(len(groups))
    for group in sorted(set(groups)):
        inside = np.flatnonzero(names == group)
        own = matrix[inside] @ carried[:, inside]
        found[inside] = np.linalg.solve(np.eye(len(inside)) - own, off[inside])
    return found


def _design(runs: Observed) -> tuple[list[Effect], Floats]:
    """The effects that runs feel, and how much each run feels each."""
    felt = {condition: effects_of(condition) for condition in set(runs.conditions)}
    effects = sorted({effect for found in felt.values() for effect in found}, key=repr)
    column = {effect: index for index, effect in enumerate(effects)}
    name = np.array([FITTED_FACTORS.index(effect.name) for effect in effects])
    matrix = np.zeros((len(runs.conditions), len(effects)))
    for row, condition in enumerate(runs.conditions):
        at = [column[effect] for effect in felt[condition]]
        matrix[row, at] = runs.slopes[row, name[at]]
    return effects, matrix


def _solved(effects: list[Effect], matrix: Floats, runs: Observed) -> tuple[Floats, Floats]:
    """Penalised least squares, made robust by weighing far runs down: values and weights."""
    values: Floats = np.zeros(len(effects))
    weight: Floats = runs.weights
    for _ in range(REWEIGHTING_ROUNDS):
        left = np.abs(runs.logs - matrix @ values)
        weight = runs.weights / (NOISE * np.maximum(left, NOISE))
        scaled = matrix * weight[:, np.newaxis]
        whole = matrix.T @ scaled + _penalty(effects)
        values = np.asarray(np.linalg.solve(whole, scaled.T @ runs.logs), np.float64)
    return values, weight


def _penalty(effects: list[Effect]) -> Floats:
    return np.diag([1 / spread_of(effect) ** 2 for effect in effects])


def stack_of(
    base: Stack, found: Fit, conditions: Sequence[RunConditions], least: float = 0.004
) -> Stack:
    """A stack with the factors of a fit: its own, and a setting for every condition seen.

    Settings are for `conditions`; what changes a factor by less than `least` is left out.
    """
    groups = groups_of(base.name)
    fields: dict[str, float] = {}
    for name in set(FITTED_FACTORS) - set(base.pinned):
        log = sum(found.effects.get(Effect(group, name), 0.0) for group in groups)
        fields[f"{name}_factor"] = round(float(np.exp(log)), 3)
    settings = _settings(groups, found, conditions, least, base.pinned)
    own = sum(condition.stack == base.name for condition in conditions)
    return msgspec.structs.replace(base, **fields, settings=settings, runs=own)


def _settings(
    groups: tuple[str, ...],
    found: Fit,
    conditions: Sequence[RunConditions],
    least: float,
    pinned: tuple[str, ...],
) -> tuple[StackSetting, ...]:
    changes: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, float]] = {}
    for effect, value in found.effects.items():
        if effect.columns and effect.group in groups and effect.name not in pinned:
            row = changes.setdefault((effect.columns, effect.values), {})
            row[effect.name] = row.get(effect.name, 0.0) + value
    rows = []
    for (columns, values), logs in sorted(changes.items()):
        factors = {
            f"{name}_factor": round(float(np.exp(log)), 3)
            for name, log in logs.items()
            if abs(log) >= least
        }
        felt = [
            p
            for p in conditions
            if p.matches(columns) == values and groups_of(p.stack)[1] in groups
        ]
        where = dict(zip(columns, values, strict=True))
        if factors:
            rows.append(StackSetting(**where, **factors, runs=len(felt)))  # type: ignore[arg-type]
    return tuple(rows)
