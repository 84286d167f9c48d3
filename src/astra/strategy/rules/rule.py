"""What a rule is, and the few words that rules are written in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from astra.strategy.plans import WORDS, Flags, Ints, Plans, Task
from astra.strategy.recompute import MODULES
from astra.strategy.replica_groups import replicas_of_segment

# Who refuses a plan that breaks the rule: the runtime's command line and its validation, its
# configuration classes, its pipeline layout, the running program, or only we.
Layer = Literal["parser", "config", "layout", "runtime", "ours"]
LAYERS: tuple[Layer, ...] = ("parser", "config", "layout", "runtime", "ours")

Holds = Callable[[Plans, Task], Flags]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition every plan must meet. The same rule filters a million rows and explains one."""

    name: str
    layer: Layer
    reason: str
    settings: tuple[str, ...]  # the fields of a plan it speaks of: ("tp", "model.heads")
    where: str  # the place in the runtime's source that enforces it
    holds: Holds  # (plan,) True: the plan may stay


def every_slot(condition: NDArray[np.bool_]) -> Flags:
    """True for a plan where the condition holds in all pipelines and slots."""
    return np.logical_and.reduce(condition, axis=tuple(range(condition.ndim - 1)))


def every_pipeline(condition: NDArray[np.bool_], plans: Plans) -> Flags:
    """True for a plan where a (pipeline, plan) condition holds in all pipelines it has."""
    if len(condition) == 1:
        return condition[0]
    return every_slot(condition | (plans.replicas == 0))


def any_slot(condition: NDArray[np.bool_]) -> Flags:
    """True for a plan where the condition holds in any pipeline or slot."""
    return np.logical_or.reduce(condition, axis=tuple(range(condition.ndim - 1)))


def constant(plans: Plans, value: bool) -> Flags:
    return np.full(len(plans), value)


def is_word(plans: Plans, column: str, *words: str) -> NDArray[np.bool_]:
    """Where a coded column holds one of these words."""
    values: NDArray[Any] = getattr(plans, column)
    found = values == WORDS[column].index(words[0])
    for word in words[1:]:
        found = found | (values == WORDS[column].index(word))
    return found


def one_value(plans: Plans, column: str) -> Flags:
    """True for a plan where a column has one value in all used slots of all pipelines."""
    values: NDArray[Any] = getattr(plans, column)
    return every_slot((values == values[:1, :1]) | ~plans.used)


def recomputes(plans: Plans, module: str) -> Flags:
    """Plans that recompute this module selectively somewhere."""
    return any_slot(plans.recompute_modules & (1 << MODULES.index(module)) != 0)


def first_tp(plans: Plans) -> Ints:
    return plans.tp[0, 0]


def first_pp(plans: Plans) -> Ints:
    return plans.pp[0]


def first_dp(plans: Plans) -> Ints:
    """Replicas of the first stage, over all pipelines with the same shards."""
    return replicas_of_segment(plans)[0, 0]
