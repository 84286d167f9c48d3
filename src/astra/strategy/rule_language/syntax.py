"""The tree of a rule, and the parser that builds it from tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from astra.strategy.rule_language.tokens import RuleText, Token

MAX_DEPTH = 100  # keeps parsing and evaluation far from Python's own limit


# The tree. `at` is the token an error points to; of an operator, the first one.


@dataclass(frozen=True, slots=True)
class Number:
    at: Token
    value: float


@dataclass(frozen=True, slots=True)
class Nothing:
    at: Token


@dataclass(frozen=True, slots=True)
class Truth:
    at: Token
    value: bool


@dataclass(frozen=True, slots=True)
class Word:
    at: Token
    text: str


@dataclass(frozen=True, slots=True)
class Name:
    at: Token
    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    at: Token
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Chain:
    """first op operand op operand ..., of one precedence, from left to right."""

    at: Token
    first: "Node"
    rest: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True, slots=True)
class RuleComparison:
    at: Token
    operator: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Not:
    at: Token
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Join:
    """All (`&&`) or any (`||`) of the terms."""

    at: Token
    operator: str
    terms: tuple["Node", ...]


Node: TypeAlias = (
    Number | Nothing | Truth | Word | Name | Negative | Chain | RuleComparison | Not | Join
)


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Negative() | Not():
            return (node.operand,)
        case Chain():
            return (node.first, *(operand for _, operand in node.rest))
        case RuleComparison():
            return (node.left, node.right)
        case Join():
            return node.terms
    return ()


def leaves(node: Node) -> Iterator[Node]:
    """Variables and constants in the order they are written."""
    todo = [node]
    while todo:
        node = todo.pop()
        below = _children(node)
        todo.extend(reversed(below))
        if not below:
            yield node


def split_name(tokens: list[Token], source: RuleText) -> tuple[str | None, list[Token]]:
    """The name before the `:`, if there is one, and the rest."""
    colon = next((i for i, token in enumerate(tokens) if token.text == ":"), None)
    if colon is None:
        return None, tokens
    if colon != 1 or tokens[0].kind != "word" or len(tokens[0].text) > 100:
        raise source.error(
            tokens[colon],
            "a : follows the name of a rule, one word of at most 100 characters at its start, "
            "as in `small-tp: $tp > 8`. A word with : in it goes in quotes.",
        )
    if len(tokens) == 3:
        raise source.error(tokens[2], f"the rule {tokens[0]} says nothing after its name.")
    return tokens[0].text, tokens[2:]


def parse(tokens: list[Token], source: RuleText) -> Node:
    """The tree of a rule without its name; the last token is an `end`."""
    return _Parser(tokens, source).rule()


# The parser climbs by precedence: operators that bind tighter have a higher level.

_OR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY, _UNARY = range(1, 8)
_LEVELS = (
    {"||": _OR, "&&": _AND}
    | dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _COMPARE)
    | dict.fromkeys("+-", _ADD)
    | dict.fromkeys("*/%", _MULTIPLY)
)
_SIGN_FOR_WORD = {"and": "&&", "or": "||", "is": "==", "equals": "==", "eq": "==", "mod": "%"}
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False}
_NOT_OPENED = "this ) closes no bracket. Remove it or add a (."


class _Parser:
    def __init__(self, tokens: list[Token], source: RuleText) -> None:
        self.tokens = tokens
        self.source = source
        self.index = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    @property
    def level(self) -> int:
        """Of the operator that comes next; 0 if none does."""
        return _LEVELS.get(self.token.text, 0)

    def take(self) -> Token:
        token = self.token
        self.index += 1
        return token

    def rule(self) -> Node:
        tree = self.expression(_OR)
        if self.token.kind != "end":
            self.fail_after_operand()
        return tree

    def expression(self, lowest: int) -> Node:
        """What follows, as far as its operators bind at least as tight as `lowest`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.source.error(
                self.token,
                f"brackets and operators are nested more than {MAX_DEPTH} deep. "
                "Write several rules: a strategy is dropped if any of them is true.",
            )
        begin = self.index
        left = self.prefixed(lowest)
        while self.level >= lowest:
            left = self.comparison(left, begin) if self.level == _COMPARE else self.chain(left)
        self.depth -= 1
        return left

    def chain(self, first: Node) -> Node:
        """A run of operators of one level, read in a loop: it may be thousands long."""
        at, level = self.token, self.level
        rest: list[tuple[str, Node]] = []
        while self.level == level:
            operator = self.take().text
            rest.append((operator, self.expression(level + 1)))
        if level in (_OR, _AND):
            return Join(at, at.text, (first, *(term for _, term in rest)))
        return Chain(at, first, tuple(rest))

    def comparison(self, left: Node, begin: int) -> Node:
        middle = self.index
        at = self.take()
        right = self.expression(_COMPARE + 1)
        if self.level == _COMPARE:
            a = self.source.text(self.tokens[begin:middle])
            b = self.source.text(self.tokens[middle + 1 : self.index])
            if len(a) + len(b) > 60:
                a, b = "a", "b"
            advice = f"Try {a} {at.text} {b} && {b} {self.token.text} ..."
            raise self.source.error(self.token, f"comparisons cannot be chained. {advice}")
        return RuleComparison(at, at.text, left, right)

    def prefixed(self, lowest: int) -> Node:
        token = self.token
        if token.text == "!":
            if lowest > _NOT:
                advice = "as in !($tp == 1). Try != or ( )."
                raise self.source.error(token, f"! stands before a whole condition, {advice}")
            return Not(self.take(), self.expression(_NOT))
        if token.text == "-":
            return Negative(self.take(), self.expression(_UNARY))
        if token.text == "(":
            return self.bracket()
        if token.kind in ("operator", "end"):
            self.fail_before_operand()
        following = self.tokens[self.index + 1]
        if token.text.lower() == "not" and (
            following.text in ("(", "!") or following.kind not in ("operator", "end")
        ):
            raise self.source.error(token, f"{token} is not an operator here. Try !.")
        return self.operand()

    def bracket(self) -> Node:
        opened = self.take()
        inside = self.expression(_OR)
        if self.token.kind == "end":
            raise self.source.error(opened, "this bracket is never closed. Add a ).")
        if self.token.text != ")":
            self.fail_after_operand()
        self.take()
        return inside

    def operand(self) -> Node:
        token = self.take()
        if token.kind == "number":
            return Number(token, float(token.text))
        if token.kind == "variable":
            return Name(token, token.text[1:])
        if token.kind == "string":
            return Word(token, token.text[1:-1])
        if token.text == "None":
            return Nothing(token)
        if token.text in _CONSTANTS:
            return Truth(token, _CONSTANTS[token.text])
        return Word(token, token.text)

    def fail_before_operand(self) -> NoReturn:
        token = self.token
        before = f" after {self.tokens[self.index - 1]}" if self.index else ""
        wanted = "a variable, a number or a word"
        if token.kind == "end":
            raise self.source.error(token, f"the rule ends{before} where {wanted} was expected.")
        if token.text == ")" and "(" not in (seen.text for seen in self.tokens[: self.index]):
            raise self.source.error(token, _NOT_OPENED)
        raise self.source.error(token, f"{token} stands{before} where {wanted} was expected.")

    def fail_after_operand(self) -> NoReturn:
        token, before = self.token, self.tokens[self.index - 1]
        word = token.text.lower() if token.kind == "word" else ""
        if word in _SIGN_FOR_WORD:
            raise self.source.error(
                token, f"{token} is not an operator here. Try {_SIGN_FOR_WORD[word]}."
            )
        if token.text == ")":
            raise self.source.error(token, _NOT_OPENED)
        advice = "Try one of && || == != < <= > >= + - * / %."
        if word == "in":
            advice = "There are no lists; write $x == a || $x == b."
        elif word and before.kind == "word":
            advice += f' If it is one word, put it in quotes: "{before} {token}".'
        raise self.source.error(
            token, f"an operator is missing between {before} and {token}. {advice}"
        )
