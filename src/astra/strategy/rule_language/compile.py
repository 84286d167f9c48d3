"""Checks the tree of a rule and turns it into column operations.

Each node becomes a function that, given a way to read columns, computes the node's own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn, TypeAlias

import numpy as np

from astra.errors import InputError, did_you_mean, either, near
from astra.strategy.rule_language.columns import (
    NOTHING,
    Bools,
    Variable,
    VariableColumn,
    any_segment,
    arithmetic,
    compare,
    constant,
    negative,
    switched_on,
    translated,
)
from astra.strategy.rule_language.syntax import (
    Chain,
    Join,
    Name,
    Negative,
    Node,
    Not,
    Nothing,
    Number,
    RuleComparison,
    Truth,
    Word,
    leaves,
    parse,
    split_name,
)
from astra.strategy.rule_language.tokens import RuleText, Token, plain

Read: TypeAlias = Callable[[str], VariableColumn]
Condition: TypeAlias = Callable[[Read], Bools]  # a fresh array (plan,)
Operand: TypeAlias = Callable[[Read], VariableColumn]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRule:
    """One rule, ready for tables of any length."""

    name: str
    text: str
    where: str  # FILE:LINE
    variables: Mapping[str, Variable]  # those it reads
    condition: Condition = field(repr=False)

    def holds(self, plans: Any) -> Bools:
        """(plan,) True where the rule is true, so that the strategy is to be dropped."""

        @cache
        def read(name: str) -> VariableColumn:
            return self.variables[name].read(plans)

        with np.errstate(all="ignore"):  # what has no value is told apart by us
            return self.condition(read)


def compile_tokens(
    tokens: list[Token], variables: Mapping[str, Variable], source: RuleText
) -> CompiledRule:
    line = tokens[0].line
    name, tokens = split_name(tokens, source)
    tree = parse(tokens, source)
    compiler = _Compiler(variables, source)
    return CompiledRule(
        name=name or f"rule-{line}",
        text=source.text(tokens),
        where=f"{source.where}:{line}",
        variables=compiler.used_variables(tree),
        condition=compiler.condition(tree),
    )


_A_KIND = {"number": "a number", "word": "a word", "flag": "a flag"}
_NO_CODE = -1  # of a word outside the vocabulary
_SHOWN = 12  # names or words listed in an error


class _Compiler:
    def __init__(self, variables: Mapping[str, Variable], source: RuleText) -> None:
        self.variables = variables
        self.source = source

    def used_variables(self, tree: Node) -> dict[str, Variable]:
        """The variables of a rule; an error if one is unknown or if there is none."""
        used: dict[str, Variable] = {}
        for leaf in leaves(tree):
            if isinstance(leaf, Name):
                if leaf.name not in self.variables:
                    self.fail_unknown(leaf)
                used[leaf.name] = self.variables[leaf.name]
        if not used:
            self.fail_constant(tree, "the rule")
        return used

    def condition(self, node: Node) -> Condition:
        match node:
            case Join():
                return _joined(node.operator, [self.condition(term) for term in node.terms])
            case Not():
                inner = self.condition(node.operand)
                return lambda read: ~inner(read)
            case RuleComparison():
                return self.comparison(node)
            case Name() if self.variables[node.name].kind == "flag":
                flag = self.flags(node)
                return lambda read: any_segment(flag(read))
            case Number() | Truth() | Word() | Nothing():
                self.fail_constant(node, "this condition")
        raise self.error(
            node,
            f"{_shown(node)} is {_A_KIND[self.kind(node)]}, not a condition. "
            "Compare it with something: == != < <= > >=.",
        )

    def comparison(self, node: RuleComparison) -> Condition:
        left, right = self.kind(node.left), self.kind(node.right)
        if not any(isinstance(leaf, Name) for leaf in leaves(node)):
            self.fail_constant(node, "this comparison")
        kinds = {left, right} - {"none"}
        if len(kinds) > 1:
            self.fail_kinds(node, left, right)
        operator = node.operator
        if operator not in ("==", "!=") and not left == right == "number":
            self.fail_order(node, left, right)
        if kinds == {"number"}:
            a, b = self.numbers(node.left), self.numbers(node.right)
        elif kinds == {"flag"}:
            a, b = self.flags(node.left), self.flags(node.right)
        else:
            a, b = self.words(node)
        return lambda read: compare(operator, a(read), b(read))

    def kind(self, node: Node) -> str:
        match node:
            case Number() | Negative() | Chain():
                return "number"
            case Word():
                return "word"
            case Truth():
                return "flag"
            case Nothing():
                return "none"
            case Name():
                return self.variables[node.name].kind
        raise self.error(
            node,
            "a condition cannot be compared or counted. Join conditions with && || and !; "
            "as a number or word it has no value.",
        )

    def numbers(self, node: Node) -> Operand:
        """A number of each plan; `None` counts as an unset number."""
        match node:
            case Number():
                return _always(constant(node.value))
            case Nothing():
                return _always(NOTHING)
            case Name():
                return _column_of(node)
            case Negative():
                operand = self.term(node.operand)
                return lambda read: negative(operand(read))
            case Chain():
                first = self.term(node.first)
                rest = [(operator, self.term(operand)) for operator, operand in node.rest]
                return _folded(first, rest)
        raise AssertionError(node)

    def term(self, node: Node) -> Operand:
        """A number inside arithmetic."""
        kind = self.kind(node)
        if kind != "number":
            what = _A_KIND.get(kind, "not a value")
            advice = self.dollar(node)
            raise self.error(node, f"{_shown(node)} is {what}; arithmetic needs numbers. {advice}")
        return self.numbers(node)

    def flags(self, node: Node) -> Operand:
        """Booleans; `None` is off."""
        if isinstance(node, Name):
            flag = _column_of(node)
            return lambda read: switched_on(flag(read))
        return _always(VariableColumn(np.asarray(isinstance(node, Truth) and node.value)))

    def words(self, node: RuleComparison) -> tuple[Operand, Operand]:
        """Both sides as codes of one vocabulary: that of the first variable."""
        name = next(side for side in (node.left, node.right) if isinstance(side, Name))
        return self.codes(node.left, name), self.codes(node.right, name)

    def codes(self, node: Node, name: Name) -> Operand:
        if isinstance(node, Nothing):
            return _always(NOTHING)
        if isinstance(node, Word):
            return _always(VariableColumn(np.asarray(self.code(node, name))))
        assert isinstance(node, Name)
        column = _column_of(node)
        words, vocabulary = self.vocabulary(node), self.vocabulary(name)
        if words == vocabulary:
            return column
        table = np.asarray([_find(word, vocabulary) for word in words] or [_NO_CODE])
        return lambda read: translated(column(read), table)

    def code(self, node: Word, name: Name) -> int:
        words = self.vocabulary(name)
        row = _find(node.text, words)
        if row != _NO_CODE:
            return row
        alias = self.variables[name.name].alias
        true_word = alias(node.text) if alias else None
        if true_word is not None:
            return _find(true_word, words)
        listing = f"It can be {_choices(words)}." if words else ""
        advice = self.dollar(node) or did_you_mean(node.text, words, listing)
        raise self.error(node, f"${name.name} is never {_shown(node)}. {advice}")

    def vocabulary(self, name: Name) -> tuple[str, ...]:
        return self.variables[name.name].words or ()

    def dollar(self, node: Node) -> str:
        """Advice for a word that looks like a variable without its `$`, or like None."""
        if not isinstance(node, Word) or node.at.kind == "string":
            return ""
        if node.text.lower() in ("none", "null", "nil", "unset"):
            return "A value that is not set is None."
        whole = node.text.replace("-", "_")
        for name in (whole, whole.lower(), node.text.split("-")[0]):
            if name in self.variables:
                return f"A variable has a $. Try ${name}."
        return ""

    def error(self, node: Node, message: str) -> InputError:
        return self.source.error(node.at, message.rstrip())

    def fail_unknown(self, node: Name) -> NoReturn:
        close = near(node.name.replace("-", "_"), self.variables)
        if close:
            advice = f"Did you mean {either(f'${name}' for name in close)}?"
        else:
            advice = f"There are: {_listed([f'${name}' for name in sorted(self.variables)])}."
        raise self.error(node, f"there is no variable ${plain(node.name)}. {advice}")

    def fail_constant(self, node: Node, what: str) -> NoReturn:
        constants = list(leaves(node))
        guilty = next(filter(self.dollar, constants), constants[0])
        advice = self.dollar(guilty) or "Compare a variable with something, as in $tp > 8."
        effect = "the same for every strategy: it would drop all or none"
        raise self.error(guilty, f"{what} has no variable, so it is {effect}. {advice}")

    def fail_kinds(self, node: RuleComparison, left: str, right: str) -> NoReturn:
        """One side is a number, word or flag and the other is not."""
        advice = self.dollar(node.left) or self.dollar(node.right)
        sides = (node.left, node.right)
        variable = next((side for side in sides if isinstance(side, Name)), None)
        odd = node.right if variable is node.left else node.left
        if not advice and variable is not None:
            known = self.variables[variable.name]
            if known.kind == "flag":
                advice = "A flag is true or false."
            elif known.words:
                advice = f"${variable.name} can be {_choices(known.words)}."
            elif isinstance(odd, Word) and re.fullmatch(r"[0-9.]+", odd.text):
                advice = "Leave out the quotes."
            else:
                advice = f"Compare ${variable.name} with a number."
        raise self.error(
            odd,
            f"{_shown(node.left)} is {_A_KIND[left]}; "
            f"{_shown(node.right)} is {_A_KIND[right]}. {advice}",
        )

    def fail_order(self, node: RuleComparison, left: str, right: str) -> NoReturn:
        odd, kind = (node.left, left) if left != "number" else (node.right, right)
        raise self.error(
            node,
            f"{_shown(odd)} is {_A_KIND.get(kind, 'no value')}; {node.operator} orders numbers "
            f"only. Try == or !=. {self.dollar(odd)}",
        )


def _always(column: VariableColumn) -> Operand:
    return lambda _: column


def _column_of(node: Name) -> Operand:
    return lambda read: read(node.name)


def _joined(operator: str, terms: list[Condition]) -> Condition:
    join = np.logical_and if operator == "&&" else np.logical_or

    def condition(read: Read) -> Bools:
        result = terms[0](read)
        for term in terms[1:]:
            join(result, term(read), out=result)
        return result

    return condition


def _folded(first: Operand, rest: list[tuple[str, Operand]]) -> Operand:
    def total(read: Read) -> VariableColumn:
        result = first(read)
        for operator, operand in rest:
            result = arithmetic(operator, result, operand(read))
        return result

    return total


def _shown(node: Node) -> str:
    return "the arithmetic" if isinstance(node, Negative | Chain) else str(node.at)


def _choices(words: tuple[str, ...]) -> str:
    return either(words) if len(words) <= _SHOWN else _listed(words)


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return f"{', '.join(words[:_SHOWN])}{more}"


def _find(word: str, words: tuple[str, ...]) -> int:
    """The row of a word; capitals matter only between words that differ by nothing else."""
    if word in words:
        return words.index(word)
    small = [known.lower() for known in words]
    return small.index(word.lower()) if word.lower() in small else _NO_CODE
