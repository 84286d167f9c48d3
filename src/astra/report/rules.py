"""Rules for people and for programs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.model.zoo import zoo_model
from astra.strategy.plans import Task
from astra.strategy.rule_language import CompiledRule, Variable
from astra.strategy.rules.rule import Rule
from astra.strategy.variables import rule_variables

if TYPE_CHECKING:
    from rich.console import RenderableType


def all_variables() -> dict[str, Variable]:
    """The names for user rules, apart from any one question: all GPU types are known words."""
    from astra.hardware.catalogue import gpu_names

    pools = tuple(Pool(gpu=find_gpu(name)[0], count=1) for name in gpu_names())
    task = Task(model=zoo_model("llama-3-8b"), cluster=Cluster(name="all", pools=pools))
    return rule_variables(task)


def rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "layer": rule.layer,
        "reason": rule.reason,
        "about": list(rule.settings),
        "where": rule.where,
    }


def rules_json(rules: Sequence[Rule], runtime: str) -> dict[str, Any]:
    return {"runtime": runtime, "rules": [rule_json(rule) for rule in rules]}


def rules_table(rules: Sequence[Rule], runtime: str) -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{len(rules)} rules of the runtime {runtime}",
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    table.add_column("rule", no_wrap=True)
    table.add_column("layer", no_wrap=True)
    table.add_column("reason", ratio=1)
    for rule in rules:
        table.add_row(rule.name, rule.layer, rule.reason)
    return table


def rule_page(rule: Rule) -> str:
    return (
        f"{rule.name}\n"
        f"  {rule.reason}.\n"
        f"  refused by  {rule.layer}: {rule.where}\n"
        f"  speaks of   {', '.join(rule.settings)}"
    )


def variables_json(variables: Mapping[str, Variable]) -> dict[str, Any]:
    return {
        "names": [
            {
                "name": name,
                "same_as": variable.name if variable.name != name else None,
                "kind": variable.kind,
                "words": variable.words,
                "meaning": variable.meaning,
            }
            for name, variable in variables.items()
        ]
    }


def variables_table(variables: Mapping[str, Variable]) -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("name", "kind", "meaning, or the words it may be"):
        table.add_column(column, no_wrap=column != "meaning, or the words it may be")
    for name, variable in variables.items():
        words = ", ".join(variable.words or ())
        if variable.name == "gpu":
            words = "a GPU's name or alias (`astra gpus`)"
        meaning = words or variable.meaning
        same = f"the same as ${variable.name}" if variable.name != name else meaning
        table.add_row(f"${name}", variable.kind, same)
    return table


def user_rules_json(rules: Sequence[CompiledRule]) -> dict[str, Any]:
    return {
        "rules": [
            {"name": r.name, "text": r.text, "where": r.where, "about": list(r.variables)}
            for r in rules
        ]
    }


def user_rules_table(rules: Sequence[CompiledRule], file: str) -> "RenderableType":
    from rich import box
    from rich.table import Table

    count = "1 rule" if len(rules) == 1 else f"{len(rules)} rules"
    title = f"{file}: {count}; a plan that makes one true is dropped"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("rule", no_wrap=True)
    table.add_column("text", ratio=1)
    for rule in rules:
        table.add_row(rule.name, rule.text)
    return table
