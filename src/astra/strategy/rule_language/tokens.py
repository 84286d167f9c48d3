"""The words and signs of a rule, and where each stands in the text."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from astra.errors import InputError, shorten

MAX_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # number, variable, word, string, operator, end
    text: str
    line: int  # from 1
    column: int  # from 1

    def __str__(self) -> str:
        return plain(self.text)

    @property
    def next_column(self) -> int:
        return self.column + len(self.text)


def plain(text: str, most: int = 40) -> str:
    """User text inside a sentence: no control characters, not too long, no quotes added."""
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, slots=True)
class RuleText:
    """The text being read, for errors that show the place."""

    where: str
    lines: tuple[str, ...]

    def error(self, at: Token, message: str) -> InputError:
        line = self.lines[at.line - 1]
        width = len(line) if len(line) <= 55 else 50
        start = max(0, min(at.column - 25, len(line) - width))
        shown = line[start : start + width]
        before, after = "..." * (start > 0), "..." * (start + width < len(line))
        quoted = shorten(f"{before}{shown.strip()}{after}", 120)
        return InputError(f"{self.where}:{at.line}:{at.column}: {quoted}: {message}")

    def text(self, tokens: list[Token]) -> str:
        """What the user wrote, comments and line ends left out."""
        parts = []
        for line, group in groupby(tokens, key=lambda token: token.line):
            row = list(group)
            parts.append(self.lines[line - 1][row[0].column - 1 : row[-1].next_column - 1])
        return " ".join(parts)


_TOKEN = re.compile(
    r"""
      (?P<blank> \s+ | \#.* )
    | (?P<continued> \\ \s* $ )
    | (?P<number> (?: [0-9]+ (?:\.[0-9]*)? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? )
    | (?P<variable> \$ [A-Za-z_][A-Za-z0-9_]* (?: -[A-Za-z_][A-Za-z0-9_]* )* )
    | (?P<word> [A-Za-z_][A-Za-z0-9_]* (?: [.-]+[A-Za-z0-9_]+ )* )
    | (?P<string> "[^"]*" | '[^']*' )
    | (?P<foreign> === | !== | <> | => | =< | \*\* | // | << | >> )
    | (?P<operator> \|\| | && | [=!<>]= | [-+*/%<>!():] )
    | (?P<unknown> . )
    """,
    re.VERBOSE,
)
_LETTERS = re.compile(r"[A-Za-z0-9_.]+(?:-[A-Za-z0-9_.]+)*")
_BRACED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

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


def rules_as_tokens(source: RuleText) -> Iterator[list[Token]]:
    """The tokens of each rule, closed by an `end`; lines joined where a `\\` says so."""
    tokens: list[Token] = []
    for number, text in enumerate(source.lines, 1):
        continued = _add_tokens(tokens, number, text, source)
        if len(tokens) > MAX_TOKENS:
            raise source.error(
                tokens[MAX_TOKENS],
                f"the rule is longer than {MAX_TOKENS:,} words and signs. "
                "Write several rules: a strategy is dropped if any of them is true.",
            )
        if continued and number < len(source.lines):
            continue
        if continued:
            at = Token("end", "", number, text.rindex("\\") + 1)
            raise source.error(at, "the rule goes on after \\, but there is no further line.")
        if tokens:
            last = tokens[-1]
            yield [*tokens, Token("end", "", last.line, last.next_column)]
            tokens = []


def _add_tokens(tokens: list[Token], line: int, text: str, source: RuleText) -> bool:
    """Adds the tokens of one line; True if the rule goes on in the next."""
    for match in _TOKEN.finditer(text):
        token = Token(str(match.lastgroup), match[0], line, match.start() + 1)
        if token.kind == "continued":
            return True
        if token.kind == "blank":
            continue
        wrong = _what_is_wrong(token, text)
        if wrong:
            raise source.error(token, wrong)
        tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            break
    return False


def _what_is_wrong(token: Token, line: str) -> str | None:
    if token.kind in ("foreign", "unknown"):
        braced = _BRACED.match(line, token.column)
        if token.text == "$" and braced:
            return f"braces are not used. Try ${plain(braced[1])}."
        advice = _INSTEAD.get(token.text, "Put words with unusual characters in quotes.")
        return f"{token} is not part of the language here. {advice}"
    if token.kind == "number":
        letters = _LETTERS.match(line, token.next_column - 1)
        if letters:
            shown = plain(token.text + letters[0])
            advice = f'If it is a word, put it in quotes: "{shown}".'
            return f"{shown} is a number followed by letters. {advice}"
        if math.isinf(float(token.text)):
            return f"the number {token} is too large. Try one below 1e308."
    return None
