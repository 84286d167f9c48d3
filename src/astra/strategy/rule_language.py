"""The language of user rules: a strategy that makes a rule true is dropped.

The notation is that of arXiv 2502.13480. A file holds one rule a line; `#` begins a comment,
a `\\` at the end of a line continues the rule on the next one, and a rule may have a name:

    $tensor_model_parallel_size > 8
    no-flash-selective: $use_flash_attn != None && $recompute_granularity == selective
    $tp * $pp > 64 || !($micro_batch == 1)    # brackets, arithmetic

    rule       = [ NAME ":" ] or
    or         = and { "||" and }
    and        = not { "&&" not }
    not        = { "!" } comparison
    comparison = sum [ ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) sum ]
    sum        = product { ( "+" | "-" ) product }
    product    = unary { ( "*" | "/" | "%" ) unary }
    unary      = { "-" } operand
    operand    = NUMBER | "None" | "true" | "false" | WORD | STRING | VARIABLE | "(" or ")"

    NUMBER     = 8, 0.5, 1e9
    WORD, NAME = letters, digits and "_", with "-" or "." inside; a letter first: A100-80GB-SXM
    STRING     = any text in "double" or 'single' quotes; the same as a word
    VARIABLE   = "$" and a name

What a rule means:

- A variable is a number, a word of a known vocabulary, or a flag. Numbers compare with numbers,
  words with words (capitals do not matter) by `==` and `!=`, flags with `true`, `false` and flags.
- `None` is a value that is not set. `$x == None` asks just that. An unset value equals only
  another unset one; every `<`, `<=`, `>`, `>=` with it is false. Arithmetic on it is unset.
- A flag alone is a condition. One that is off is an option nobody gave, so for flags
  `!= None` means on and `== None` means off.
- A variable may have one value per segment. A comparison is true if it is for any segment in
  use; variables of one comparison are taken segment by segment. So `$tp <= 4` says "some
  segment has at most 4", and `!($tp > 4)` says "every segment has".
- `/` divides without rounding; `%` has the sign of its right side. Dividing by zero leaves no
  value, and every comparison with that, even `!=`, is false.

Text is parsed into a small tree, checked, and compiled into column operations; a rule never runs
as Python.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from astra.errors import InputError, did_you_mean, either, near, shorten
from astra.files import read_text

MOST_BYTES = 1 << 20
MOST_RULES = 1_000
MOST_TOKENS = 10_000
MOST_DEPTH = 100  # keeps parsing and evaluation far from Python's own limit

Bools: TypeAlias = NDArray[np.bool_]
Kind: TypeAlias = Literal["number", "word", "flag"]


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one variable for all plans. The plan axis is last, segments go in front."""

    values: NDArray[Any]
    is_set: Bools | None = None  # where not, the value is `None`; no mask: all are set
    exists: Bools | None = None  # where not, the slot is unused and never matches; no mask: all do


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A name that rules may use, and how to read its column from a table of plans."""

    name: str
    kind: Kind
    read: Callable[[Any], Column]
    meaning: str
    words: tuple[str, ...] | None = None  # of a word column: its values are rows of this
    alias: Callable[[str], str | None] | None = None
    """The true word for another spelling of it (`h100`), or None. It may name a word outside
    the vocabulary: then no plan has it."""

    def __post_init__(self) -> None:
        assert (self.words is not None) == (self.kind == "word"), self.name


Read: TypeAlias = Callable[[str], Column]
Condition: TypeAlias = Callable[[Read], Bools]
Operand: TypeAlias = Callable[[Read], Column]


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
        columns: dict[str, Column] = {}

        def read(name: str) -> Column:
            if name not in columns:
                columns[name] = self.variables[name].read(plans)
            return columns[name]

        with np.errstate(all="ignore"):  # what has no value is told apart by us
            return self.condition(read)


def read_rules(path: Path, variables: Mapping[str, Variable]) -> tuple[CompiledRule, ...]:
    """The rules of a file, in its order."""
    return parse_rules(read_text(path), variables, str(path))


def compile_rule(text: str, variables: Mapping[str, Variable], where: str) -> CompiledRule:
    """The one rule that `text` holds."""
    rules = parse_rules(text, variables, where)
    if len(rules) != 1:
        found = f"{len(rules)} rules" if rules else "no rule"
        raise InputError(f"{where}: {shorten(text)}: one rule was expected, {found} found.")
    return rules[0]


def parse_rules(
    text: str, variables: Mapping[str, Variable], where: str
) -> tuple[CompiledRule, ...]:
    """All rules of a text; errors call it `where`."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise InputError(f"{where}: larger than {MOST_BYTES >> 20} MiB. Is this a file of rules?")
    source = _Source(where, tuple(text.removeprefix("\ufeff").split("\n")))
    rules: dict[str, CompiledRule] = {}
    places: dict[str, int] = {}
    for tokens in _rules_as_tokens(source):
        first = tokens[0]
        if len(rules) == MOST_RULES:
            raise source.error(first, f"more than {MOST_RULES:,} rules. Join some with ||.")
        rule = _compiled(tokens, variables, source)
        if rule.name in rules:
            raise source.error(
                first,
                f"line {places[rule.name]} already has a rule named {rule.name}. Try another name.",
            )
        rules[rule.name] = rule
        places[rule.name] = first.line
    return tuple(rules.values())


def _compiled(
    tokens: list["_Token"], variables: Mapping[str, Variable], source: "_Source"
) -> CompiledRule:
    line = tokens[0].line
    name, tokens = _split_name(tokens, source)
    tree = _Parser(tokens, source).rule()
    compiler = _Compiler(variables, source)
    used = compiler.used_variables(tree)
    return CompiledRule(
        name=name or f"rule-{line}",
        text=source.text(tokens),
        where=f"{source.where}:{line}",
        variables=used,
        condition=compiler.condition(tree),
    )


# Tokens


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, variable, word, string, operator, end
    text: str
    line: int  # from 1
    column: int  # from 1

    def __str__(self) -> str:
        return _plain(self.text)


def _plain(text: str, most: int = 40) -> str:
    """User text inside a sentence: no control characters, not too long, no quotes added."""
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, slots=True)
class _Source:
    """The text being read, for errors that show the place."""

    where: str
    lines: tuple[str, ...]

    def error(self, at: _Token, message: str) -> InputError:
        line = self.lines[at.line - 1]
        start = max(0, min(at.column - 25, len(line) - 50)) if len(line) > 55 else 0
        shown = line[start : start + 50] if len(line) > 55 else line
        before, after = "..." * (start > 0), "..." * (start + len(shown) < len(line))
        quoted = shorten(f"{before}{shown.strip()}{after}", 120)
        return InputError(f"{self.where}:{at.line}:{at.column}: {quoted}: {message}")

    def text(self, tokens: list[_Token]) -> str:
        """What the user wrote, comments and line ends left out."""
        ends: dict[int, list[int]] = {}
        for token in tokens:
            if token.kind != "end":
                last = token.column - 1 + len(token.text)
                ends.setdefault(token.line, [token.column - 1, last])[1] = last
        return " ".join(self.lines[line - 1][start:end] for line, (start, end) in ends.items())


_TOKEN = re.compile(
    r"""
      (?P<blank> \s+ | \#.* )
    | (?P<continued> \\ \s* $ )
    | (?P<number> (?: [0-9]+ (?:\.[0-9]*)? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? )
    | (?P<variable> \$ [A-Za-z_][A-Za-z0-9_]* (?: -[A-Za-z_][A-Za-z0-9_]* )* )
    | (?P<word> [A-Za-z_][A-Za-z0-9_]* (?: [.-]+[A-Za-z0-9_]+ )* )
    | (?P<string> "[^"]*" | '[^']*' )
    | (?P<wrong> === | !== | <> | => | =< | \*\* | // | << | >> )
    | (?P<operator> \|\| | && | [=!<>]= | [-+*/%<>!():] )
    """,
    re.VERBOSE,
)

_NUMBER_AND_LETTERS = re.compile(r"[A-Za-z0-9_.]+(?:-[A-Za-z0-9_.]+)*")

_INSTEAD = (
    {
        "&": "Try && for and.",
        "|": "Try || for or.",
        "=": "Try == to compare.",
        "===": "Try ==.",
        "!==": "Try !=.",
        "<>": "Try !=.",
        "=>": "Try >=.",
        "=<": "Try <=.",
        "~": "Try ! for not.",
        "≠": "Try !=.",
        "≤": "Try <=.",
        "≥": "Try >=.",
        "×": "Try *.",
        "**": "There are no powers; multiply with *.",
        "//": "A comment begins with #; / divides.",
        "<<": "Try < or <=.",
        ">>": "Try > or >=.",
        "$": "A variable is $ and its name, with nothing between: $tp.",
        '"': "The quotes are not closed on this line.",
        "'": "The quotes are not closed on this line.",
        "\\": "A \\ continues a rule and has to be the last character of its line.",
        ";": "Write one rule a line.",
        ",": "There are no lists; write $x == a || $x == b.",
        "[": "Brackets are round: ( ).",
        "{": "Brackets are round: ( ).",
    }
    | dict.fromkeys("–—−", "Try a plain minus: -.")
    | dict.fromkeys("“”‘’„", 'Try plain quotes: ".')
)


def _rules_as_tokens(source: _Source) -> Iterator[list[_Token]]:
    """The tokens of each rule, closed by an `end`; lines joined where a `\\` says so."""
    tokens: list[_Token] = []
    for number, text in enumerate(source.lines, 1):
        continued = _add_tokens(tokens, number, text, source)
        if len(tokens) > MOST_TOKENS:
            raise source.error(
                tokens[MOST_TOKENS],
                f"the rule is longer than {MOST_TOKENS:,} words and signs. "
                "Write several rules: a strategy is dropped if any of them is true.",
            )
        if continued and number < len(source.lines):
            continue
        if continued:
            at = _Token("end", "", number, text.rindex("\\") + 1)
            raise source.error(at, "the rule goes on after \\, but there is no further line.")
        if tokens:
            last = tokens[-1]
            end = _Token("end", "", last.line, last.column + len(last.text))
            yield [*tokens, end]
            tokens = []


def _add_tokens(tokens: list[_Token], line: int, text: str, source: _Source) -> bool:
    """Adds the tokens of one line; True if the rule goes on in the next."""
    position = 0
    while position < len(text) and len(tokens) <= MOST_TOKENS:
        match = _TOKEN.match(text, position)
        kind = match.lastgroup if match else "wrong"
        token = _Token(str(kind), match[0] if match else text[position], line, position + 1)
        if kind == "wrong":
            raise source.error(token, _wrong_sign(token, text[position + 1 :]))
        if kind == "continued":
            return True
        position += len(token.text)
        if kind == "number":
            _check_number(token, text, position, source)
        if kind != "blank":
            tokens.append(token)
    return False


def _wrong_sign(token: _Token, rest: str) -> str:
    braced = re.match(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", rest)
    if token.text == "$" and braced:
        return f"braces are not used. Try ${_plain(braced[1])}."
    advice = _INSTEAD.get(token.text, "Put words with unusual characters in quotes.")
    return f"{token} is not part of the language here. {advice}"


def _check_number(token: _Token, text: str, end: int, source: _Source) -> None:
    if re.match(r"[A-Za-z0-9_.]", text[end : end + 1]):
        whole = _NUMBER_AND_LETTERS.match(text, token.column - 1)
        shown = _plain(whole[0] if whole else token.text)
        raise source.error(
            token,
            f"{shown} is a number followed by letters. "
            f'If it is a word, put it in quotes: "{shown}".',
        )
    if float(token.text) == float("inf"):
        raise source.error(
            token, f"the number {_plain(token.text)} is too large. Try one below 1e308."
        )


def _split_name(tokens: list[_Token], source: _Source) -> tuple[str | None, list[_Token]]:
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


# The tree. `at` is the token an error points to.


@dataclass(frozen=True, slots=True)
class _Number:
    at: _Token
    value: float


@dataclass(frozen=True, slots=True)
class _Nothing:
    at: _Token


@dataclass(frozen=True, slots=True)
class _Truth:
    at: _Token
    value: bool


@dataclass(frozen=True, slots=True)
class _Word:
    at: _Token
    text: str


@dataclass(frozen=True, slots=True)
class _Name:
    at: _Token
    name: str


@dataclass(frozen=True, slots=True)
class _Negative:
    at: _Token
    operand: "_Node"


@dataclass(frozen=True, slots=True)
class _Chain:
    """first op operand op operand ..., of one precedence, from left to right."""

    at: _Token
    first: "_Node"
    rest: tuple[tuple[str, "_Node"], ...]


@dataclass(frozen=True, slots=True)
class _Comparison:
    at: _Token
    operator: str
    left: "_Node"
    right: "_Node"


@dataclass(frozen=True, slots=True)
class _Not:
    at: _Token
    operand: "_Node"


@dataclass(frozen=True, slots=True)
class _Join:
    """All (`&&`) or any (`||`) of the terms."""

    at: _Token
    operator: str
    terms: tuple["_Node", ...]


_Node: TypeAlias = (
    _Number | _Nothing | _Truth | _Word | _Name | _Negative | _Chain | _Comparison | _Not | _Join
)


def _children(node: _Node) -> tuple[_Node, ...]:
    match node:
        case _Negative() | _Not():
            return (node.operand,)
        case _Chain():
            return (node.first, *(operand for _, operand in node.rest))
        case _Comparison():
            return (node.left, node.right)
        case _Join():
            return node.terms
    return ()


def _leaves(node: _Node) -> Iterator[_Node]:
    """Variables and constants in the order they are written."""
    todo = [node]
    while todo:
        node = todo.pop()
        below = _children(node)
        todo.extend(reversed(below))
        if not below:
            yield node


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


class _Parser:
    def __init__(self, tokens: list[_Token], source: _Source) -> None:
        self.tokens = tokens  # the last one is `end`
        self.source = source
        self.index = 0
        self.depth = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.index]

    def take(self) -> _Token:
        token = self.token
        self.index += 1
        return token

    def sees(self, *texts: str) -> bool:
        return self.token.kind == "operator" and self.token.text in texts

    def rule(self) -> _Node:
        tree = self.expression(_OR)
        if self.token.kind != "end":
            self.fail_after_operand()
        return tree

    def expression(self, lowest: int) -> _Node:
        """What follows, as far as its operators bind at least as tight as `lowest`."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self.source.error(
                self.token,
                f"brackets and operators are nested more than {MOST_DEPTH} deep. "
                "Write several rules: a strategy is dropped if any of them is true.",
            )
        begin = self.index
        left = self.prefixed(lowest)
        while self.token.kind == "operator":
            level = _LEVELS.get(self.token.text, 0)
            if level < lowest:
                break
            left = self.comparison(left, begin) if level == _COMPARE else self.chain(left, level)
        self.depth -= 1
        return left

    def chain(self, first: _Node, level: int) -> _Node:
        """A run of operators of one level, read in a loop: it may be thousands long."""
        at = self.token
        rest: list[tuple[str, _Node]] = []
        while self.token.kind == "operator" and _LEVELS.get(self.token.text) == level:
            operator = self.take().text
            rest.append((operator, self.expression(level + 1)))
        if level in (_OR, _AND):
            return _Join(at, at.text, (first, *(term for _, term in rest)))
        return _Chain(at, first, tuple(rest))

    def comparison(self, left: _Node, begin: int) -> _Node:
        middle = self.index + 1
        at = self.take()
        right = self.expression(_COMPARE + 1)
        if self.token.kind == "operator" and _LEVELS.get(self.token.text) == _COMPARE:
            a = self.source.text(self.tokens[begin : middle - 1])
            b = self.source.text(self.tokens[middle : self.index])
            if len(a) + len(b) > 60:
                a, b = "a", "b"
            raise self.source.error(
                self.token,
                "comparisons cannot be chained. "
                f"Try {a} {at.text} {b} && {b} {self.token.text} ...",
            )
        return _Comparison(at, at.text, left, right)

    def prefixed(self, lowest: int) -> _Node:
        token = self.token
        if self.sees("!"):
            if lowest > _NOT:
                raise self.source.error(
                    token, "! stands before a whole condition, as in !($tp == 1). Try != or ( )."
                )
            return _Not(self.take(), self.expression(_NOT))
        if self.sees("-"):
            return _Negative(self.take(), self.expression(_UNARY))
        if self.sees("("):
            return self.bracket()
        if token.kind in ("operator", "end"):
            self.fail_before_operand()
        following = self.tokens[self.index + 1]
        if token.text.lower() == "not" and (
            following.text in ("(", "!") or following.kind not in ("operator", "end")
        ):
            raise self.source.error(token, f"{token} is not an operator here. Try !.")
        return self.operand()

    def bracket(self) -> _Node:
        opened = self.take()
        inside = self.expression(_OR)
        if self.token.kind == "end":
            raise self.source.error(opened, "this bracket is never closed. Add a ).")
        if not self.sees(")"):
            self.fail_after_operand()
        self.take()
        return inside

    def operand(self) -> _Node:
        token = self.take()
        if token.kind == "number":
            return _Number(token, float(token.text))
        if token.kind == "variable":
            return _Name(token, token.text[1:])
        if token.kind == "string":
            return _Word(token, token.text[1:-1])
        if token.text == "None":
            return _Nothing(token)
        if token.text in _CONSTANTS:
            return _Truth(token, _CONSTANTS[token.text])
        return _Word(token, token.text)

    def fail_before_operand(self) -> NoReturn:
        token = self.token
        before = f" after {self.tokens[self.index - 1]}" if self.index else ""
        wanted = "a variable, a number or a word"
        if token.kind == "end":
            raise self.source.error(token, f"the rule ends{before} where {wanted} was expected.")
        if token.text == ")" and "(" not in (seen.text for seen in self.tokens[: self.index]):
            raise self.source.error(token, "this ) closes no bracket. Remove it or add a (.")
        raise self.source.error(token, f"{token} stands{before} where {wanted} was expected.")

    def fail_after_operand(self) -> NoReturn:
        token, before = self.token, self.tokens[self.index - 1]
        sign = _SIGN_FOR_WORD.get(token.text.lower()) if token.kind == "word" else None
        if sign:
            raise self.source.error(token, f"{token} is not an operator here. Try {sign}.")
        if token.text == ")":
            raise self.source.error(token, "this ) closes no bracket. Remove it or add a (.")
        advice = "Try one of && || == != < <= > >= + - * / %."
        if token.kind == before.kind == "word":
            advice += f' If it is one word, put it in quotes: "{before} {token}".'
        if token.kind == "word" and token.text.lower() == "in":
            advice = "There are no lists; write $x == a || $x == b."
        raise self.source.error(
            token, f"an operator is missing between {before} and {token}. {advice}"
        )


# The compiler: checks kinds, turns words into codes, and the tree into column operations.

_ARTICLE = {"number": "a number", "word": "a word", "flag": "a flag", "none": "None"}
_NOTHING = Column(np.asarray(0), is_set=np.asarray(False))
_NO_CODE = -1
_SHOWN = 12  # names or words listed in an error


class _Compiler:
    def __init__(self, variables: Mapping[str, Variable], source: _Source) -> None:
        self.variables = variables
        self.source = source

    def used_variables(self, tree: _Node) -> dict[str, Variable]:
        """The variables of a rule; an error if one is unknown or if there is none."""
        used: dict[str, Variable] = {}
        for leaf in _leaves(tree):
            if isinstance(leaf, _Name):
                if leaf.name not in self.variables:
                    raise self.source.error(leaf.at, self.unknown_variable(leaf.name))
                used[leaf.name] = self.variables[leaf.name]
        if not used:
            self.fail_constant(tree, "the rule")
        return used

    def unknown_variable(self, wanted: str) -> str:
        close = near(wanted.replace("-", "_"), self.variables)
        known = sorted(self.variables)
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        advice = f"There are: {', '.join(f'${name}' for name in known[:_SHOWN])}{more}."
        if close:
            advice = f"Did you mean {either(f'${name}' for name in close)}?"
        return f"there is no variable ${_plain(wanted)}. {advice}"

    def condition(self, node: _Node) -> Condition:
        match node:
            case _Join():
                return _joined(node.operator, [self.condition(term) for term in node.terms])
            case _Not():
                inner = self.condition(node.operand)
                return lambda read: ~inner(read)
            case _Comparison():
                return self.comparison(node)
            case _Name() if self.variables[node.name].kind == "flag":
                name = node.name
                return lambda read: _any_segment(_on(read(name)), read(name).exists)
            case _Number() | _Truth() | _Word() | _Nothing():
                self.fail_constant(node, "this condition")
        kind = self.kind(node)
        raise self.error(
            node,
            f"{_shown(node)} is {_ARTICLE[kind]}, not a condition. "
            "Compare it with something: == != < <= > >=.",
        )

    def comparison(self, node: _Comparison) -> Condition:
        left, right = self.kind(node.left), self.kind(node.right)
        if not any(isinstance(leaf, _Name) for leaf in _leaves(node)):
            self.fail_constant(node, "this comparison")
        kinds = {left, right} - {"none"}
        if len(kinds) > 1:
            self.fail_kinds(node, left, right)
        if node.operator not in ("==", "!=") and (kinds != {"number"} or "none" in (left, right)):
            self.fail_order(node, left, right)
        if kinds == {"number"}:
            a, b = self.numbers(node.left), self.numbers(node.right)
        elif kinds == {"flag"}:
            a, b = self.flags(node.left), self.flags(node.right)
        else:
            a, b = self.words(node)
        operator = node.operator
        return lambda read: _compare(operator, a(read), b(read))

    def kind(self, node: _Node) -> str:
        match node:
            case _Number() | _Negative() | _Chain():
                return "number"
            case _Word():
                return "word"
            case _Truth():
                return "flag"
            case _Nothing():
                return "none"
            case _Name():
                return self.variables[node.name].kind
        raise self.error(
            node,
            "a condition cannot be compared or counted. Join conditions with && || and !; "
            "as a number or word it has no value.",
        )

    def numbers(self, node: _Node) -> Operand:
        """A number of each plan; `None` counts as an unset number."""
        match node:
            case _Number():
                column = Column(_constant(node.value))
                return lambda _: column
            case _Nothing():
                return lambda _: _NOTHING
            case _Name():
                name = node.name
                return lambda read: read(name)
            case _Negative():
                operand = self.term(node.operand)
                return lambda read: _negative(operand(read))
            case _Chain():
                first = self.term(node.first)
                rest = [(operator, self.term(operand)) for operator, operand in node.rest]
                return lambda read: _folded(first, rest, read)
        raise AssertionError(node)

    def term(self, node: _Node) -> Operand:
        """A number inside arithmetic."""
        kind = self.kind(node)
        if kind != "number":
            what = "not a value" if kind == "none" else _ARTICLE[kind]
            raise self.error(
                node,
                f"{_shown(node)} is {what}; arithmetic needs numbers. {self.dollar(node)}",
            )
        return self.numbers(node)

    def flags(self, node: _Node) -> Operand:
        """Booleans; a flag that is not set is off."""
        if isinstance(node, _Name):
            name = node.name
            return lambda read: Column(_on(read(name)), exists=read(name).exists)
        column = Column(np.asarray(isinstance(node, _Truth) and node.value))
        return lambda _: column

    def words(self, node: _Comparison) -> tuple[Operand, Operand]:
        """Both sides as codes of one vocabulary: that of the first variable."""
        name = next(side for side in (node.left, node.right) if isinstance(side, _Name))
        variable = self.variables[name.name]
        return self.codes(node.left, name, variable), self.codes(node.right, name, variable)

    def codes(self, node: _Node, name: _Name, variable: Variable) -> Operand:
        if isinstance(node, _Nothing):
            return lambda _: _NOTHING
        if isinstance(node, _Word):
            code = Column(np.asarray(self.code(node, name, variable)))
            return lambda _: code
        assert isinstance(node, _Name)
        other, words = node.name, self.variables[node.name].words or ()
        if words == variable.words:
            return lambda read: read(other)
        known = [_find(word, variable.words or ()) for word in words]
        table = np.asarray([_NO_CODE if row is None else row for row in known] or [_NO_CODE])
        return lambda read: _translated(read(other), table)

    def code(self, node: _Word, name: _Name, variable: Variable) -> int:
        words = variable.words or ()
        row = _find(node.text, words)
        if row is None and variable.alias is not None:
            true_word = variable.alias(node.text)
            if true_word is not None:
                row = _find(true_word, words)
                row = _NO_CODE if row is None else row
        if row is None:
            advice = self.dollar(node) or did_you_mean(
                node.text, words, f"It can be {_some(words)}." if words else ""
            )
            raise self.error(node, f"${name.name} is never {_shown(node)}. {advice}")
        return row

    def dollar(self, node: _Node) -> str:
        """Advice for a word that looks like a variable without its `$`, or like None."""
        if not isinstance(node, _Word) or node.at.kind == "string":
            return ""
        if node.text.lower() in ("none", "null", "nil", "unset"):
            return "A value that is not set is None."
        whole = node.text.replace("-", "_")
        for name in (whole, whole.lower(), node.text.split("-")[0]):
            if name in self.variables:
                return f"A variable has a $. Try ${name}."
        return ""

    def error(self, node: _Node, message: str) -> InputError:
        return self.source.error(node.at, message.rstrip())

    def fail_constant(self, node: _Node, what: str) -> NoReturn:
        leaves = list(_leaves(node))
        guilty = next(filter(self.dollar, leaves), leaves[0])
        advice = self.dollar(guilty) or "Compare a variable with something, as in $tp > 8."
        effect = "the same for every strategy: it would drop all or none"
        raise self.error(guilty, f"{what} has no variable, so it is {effect}. {advice}")

    def fail_kinds(self, node: _Comparison, left: str, right: str) -> NoReturn:
        """One side is a number, word or flag and the other is not."""
        advice = self.dollar(node.left) or self.dollar(node.right)
        sides = (node.left, node.right)
        variable = next((side for side in sides if isinstance(side, _Name)), None)
        odd = node.right if variable is node.left else node.left
        if not advice and variable is not None:
            known = self.variables[variable.name]
            if known.kind == "flag":
                advice = "A flag is true or false."
            elif known.words:
                advice = f"${variable.name} can be {_some(known.words)}."
            elif isinstance(odd, _Word) and re.fullmatch(r"[0-9.]+", odd.text):
                advice = "Leave out the quotes."
            else:
                advice = f"Compare ${variable.name} with a number."
        raise self.error(
            odd,
            f"{_shown(node.left)} is {_ARTICLE[left]}; "
            f"{_shown(node.right)} is {_ARTICLE[right]}. {advice}",
        )

    def fail_order(self, node: _Comparison, left: str, right: str) -> NoReturn:
        odd, kind = (node.left, left) if left != "number" else (node.right, right)
        what = "no value" if kind == "none" else _ARTICLE[kind]
        raise self.error(
            node,
            f"{_shown(odd)} is {what}; {node.operator} orders numbers only. "
            f"Try == or !=. {self.dollar(odd)}",
        )


def _shown(node: _Node) -> str:
    if isinstance(node, _Number | _Nothing | _Truth | _Word | _Name):
        return str(node.at)
    return "the arithmetic"


def _some(words: tuple[str, ...]) -> str:
    if len(words) <= _SHOWN:
        return either(words)
    return f"{', '.join(words[:_SHOWN])} and {len(words) - _SHOWN} more"


def _find(word: str, words: tuple[str, ...]) -> int | None:
    """The row of a word; capitals matter only between words that differ by nothing else."""
    if word in words:
        return words.index(word)
    small = [known.lower() for known in words]
    return small.index(word.lower()) if word.lower() in small else None


# Columns

_COMPARE_ARRAYS: dict[str, np.ufunc] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_ARITHMETIC: dict[str, np.ufunc] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.mod,
}


def _constant(value: float) -> NDArray[Any]:
    """Whole numbers as integers, so that comparing an integer column needs no conversion."""
    whole = value.is_integer() and abs(value) < 2**53
    return np.asarray(int(value) if whole else value)


def _compare(operator: str, left: Column, right: Column) -> Bools:
    """(plan,) True where the comparison is true for any existing entry."""
    result = _compare_set(operator, left.values, right.values)
    if left.is_set is not None or right.is_set is not None:
        a = np.True_ if left.is_set is None else left.is_set
        b = np.True_ if right.is_set is None else right.is_set
        result = result & a & b
        if operator == "==":
            result = result | ~(a | b)
        if operator == "!=":
            one = (a & _has_value(left.values) & ~b) | (b & _has_value(right.values) & ~a)
            result = result | one
    return _any_segment(result, _both(left.exists, right.exists))


def _compare_set(operator: str, a: NDArray[Any], b: NDArray[Any]) -> Bools:
    """The comparison where both are set; not-a-number is what division by zero leaves."""
    result: Bools = _COMPARE_ARRAYS[operator](a, b)
    return result & _has_value(a) & _has_value(b) if operator == "!=" else result


def _has_value(values: NDArray[Any]) -> Bools | np.bool_:
    return ~np.isnan(values) if values.dtype.kind == "f" else np.True_


def _any_segment(result: Bools, exists: Bools | None) -> Bools:
    if exists is not None:
        result = result & exists
    return np.any(result, axis=tuple(range(result.ndim - 1))) if result.ndim > 1 else result


def _joined(operator: str, terms: list[Condition]) -> Condition:
    join = np.logical_and if operator == "&&" else np.logical_or

    def condition(read: Read) -> Bools:
        result = terms[0](read)  # a fresh array, as every condition gives
        for term in terms[1:]:
            join(result, term(read), out=result)
        return result

    return condition


def _on(column: Column) -> Bools:
    on = column.values.astype(np.bool_)
    return on if column.is_set is None else on & column.is_set


def _translated(column: Column, table: NDArray[np.int64]) -> Column:
    """Codes of one vocabulary as those of another; an unused slot may hold anything."""
    return Column(np.take(table, column.values, mode="clip"), column.is_set, column.exists)


def _folded(first: Operand, rest: list[tuple[str, Operand]], read: Read) -> Column:
    total = first(read)
    for operator, operand in rest:
        total = _arithmetic(operator, total, operand(read))
    return total


def _arithmetic(operator: str, left: Column, right: Column) -> Column:
    """In floating point: exact for whole numbers below 2^53, and it cannot wrap around."""
    a, b = left.values, right.values
    if operator != "%" or not a.dtype.kind == b.dtype.kind == "i":  # whole remainders are faster
        a, b = a.astype(np.float64), b.astype(np.float64)
    values = np.asarray(_ARITHMETIC[operator](a, b))
    if operator in "/%":
        values = np.where(b == 0, np.nan, values)
    return Column(values, _both(left.is_set, right.is_set), _both(left.exists, right.exists))


def _negative(column: Column) -> Column:
    return Column(np.asarray(-column.values.astype(np.float64)), column.is_set, column.exists)


def _both(a: Bools | None, b: Bools | None) -> Bools | None:
    if a is None or b is None:
        return a if b is None else b
    return a & b
