"""Rules that a user wrote, as rules like any other."""

from pathlib import Path

from astra.strategy.plans import Task
from astra.strategy.rule_language import CompiledRule, read_rules
from astra.strategy.rules.rule import Rule
from astra.strategy.variables import rule_variables


def read_user_rules(path: Path, task: Task) -> tuple[Rule, ...]:
    """The rules of a file; a plan that makes one true is dropped."""
    return tuple(_rule(compiled) for compiled in read_rules(path, rule_variables(task)))


def _rule(compiled: CompiledRule) -> Rule:
    return Rule(
        name=compiled.name,
        layer="ours",
        reason=f"your rule: {compiled.text}",
        settings=tuple(compiled.variables),
        where=compiled.where,
        holds=lambda plans, _: ~compiled.holds(plans),
    )
