"""The rules of a runtime, applied to a table of plans or explained for one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from astra.strategy.plan import Plan, Runtime
from astra.strategy.plans import Flags, Plans, Task, plans_of, task_of
from astra.strategy.rules import deepspeed, flagscale, fsdp, megatron, our_rules
from astra.strategy.rules.rule import Rule


@cache
def rules_for(runtime: Runtime) -> tuple[Rule, ...]:
    """All rules that plans of a runtime obey: ours first, then the runtime's."""
    if runtime == "any":  # FlagScale's words, and replicas that differ
        return (*our_rules.RULES, *flagscale.RULES)
    of_runtime = {
        "megatron": megatron.RULES,
        "flagscale": flagscale.RULES,
        "fsdp": fsdp.RULES,
        "deepspeed": deepspeed.RULES,
    }[runtime]
    return (*our_rules.RULES, our_rules.ONE_JOB, *of_runtime)


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """Which plans of a table the rules allow."""

    allowed: Flags  # (plan,)
    removed_by_rule: dict[str, int]  # each plan counted once, at the first rule it breaks


def check(plans: Plans, task: Task, rules: Sequence[Rule]) -> RuleCheck:
    """Which plans may stay, and how many each rule removed."""
    allowed = np.ones(len(plans), np.bool_)
    removed: dict[str, int] = {}
    left = len(plans)
    for rule in rules:
        allowed &= rule.holds(plans, task)
        now = int(np.count_nonzero(allowed))
        if now < left:
            removed[rule.name] = left - now
            left = now
        if left == 0:
            break
    return RuleCheck(allowed, removed)


def broken_rules(plan: Plan, rules: Sequence[Rule] | None = None) -> list[Rule]:
    """The rules that one plan breaks."""
    table, task = plans_of([plan]), task_of(plan)
    chosen = rules_for(plan.runtime) if rules is None else rules
    return [rule for rule in chosen if not bool(rule.holds(table, task)[0])]
