"""Rules that a user wrote, as rules like any other."""

from collections.abc import Sequence
from pathlib import Path

from astra.strategy.plans import Task
from astra.strategy.rule_language import CompiledRule, parse_rules, read_rules
from astra.strategy.rules.rule import Rule
from astra.strategy.variables import rule_variables


def read_user_rules(path: Path, task: Task) -> tuple[Rule, ...]:
    """The rules of a file; a plan that makes one true is dropped."""
    return tuple(map(_rule, read_rules(path, rule_variables(task))))


def parse_user_rules(texts: Sequence[str], task: Task) -> tuple[Rule, ...]:
    """The same of rules that were given one by one."""
    return tuple(map(_rule, parse_rules("\n".join(texts), rule_variables(task), "rules")))


def _rule(compiled: CompiledRule) -> Rule:
    return Rule(
        name=compiled.name,
        layer="ours",
        reason=f"your rule: {compiled.text}",
        settings=tuple(compiled.variables),
        where=compiled.where,
        holds=lambda plans, _: ~compiled.holds(plans),
    )
