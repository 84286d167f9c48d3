"""Errors as JSON: which word of the question, what is wrong with it, what may have been meant."""

import re
from collections.abc import Collection, Sequence

import msgspec

from astra.errors import BrokenRule, InputError, RefusedPlanError

OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
TURNED_OFF = {"no_mixed": "mixed = false", "no_failures": "failures = false"}


class SettingToTry(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one setting that mend a rule and break no other, all else equal."""

    setting: str
    values: tuple[object, ...]


class RefusedBy(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that a plan breaks."""

    rule: str
    sentence: str
    source: str  # where the runtime enforces it
    tries: tuple[SettingToTry, ...] = msgspec.field(default=(), name="try")


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a person can mend."""

    message: str
    field: str | None = None  # the word of the question, where it is one word
    suggestions: tuple[str, ...] = ()
    refused: tuple[RefusedBy, ...] = ()  # where a plan breaks rules


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is none."""

    error: ErrorFacts


def refusal(error: InputError, words: Collection[str], *, as_typed: bool = False) -> ErrorFacts:
    """What is wrong with a question, in its words; `as_typed`: the message in those of a command.

    >>> said = "question: seqlen: there is no such field. Did you mean seq_len?"
    >>> found = refusal(InputError(said), ["model"])
    >>> found.field, found.suggestions
    ('seqlen', ('seq_len',))
    >>> refusal(InputError("--seq-len 8q: not a whole number of tokens."), ["seq_len"]).field
    'seq_len'
    """
    text = OPTION.sub(_word, str(error))
    unknown = re.match(r"question: ([^ :]+): there is no such field", text)
    meant = re.search(r"(?:Did you mean|Use one of|Use) ((?:(?!: )[^?])+?)(?:\?|\.(?: |$))", text)
    rules = error.rules if isinstance(error, RefusedPlanError) else ()
    return ErrorFacts(
        message=str(error) if as_typed else text,
        field=unknown[1] if unknown else _mended(rules, words) if rules else _named(error, words),
        suggestions=tuple(re.split(r", | or ", meant[1])) if meant else (),
        refused=tuple(map(_refused_by, rules)),
    )


def _refused_by(broken: BrokenRule) -> RefusedBy:
    tries = tuple(SettingToTry(setting=name, values=values) for name, values in broken.tries)
    return RefusedBy(rule=broken.rule, sentence=broken.sentence, source=broken.source, tries=tries)


def _word(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return TURNED_OFF.get(name, name)


def _mended(rules: Sequence[BrokenRule], words: Collection[str]) -> str | None:
    """The setting that would mend the first rule."""
    return next((name for name, _ in rules[0].tries if name in words), None)


def _named(error: InputError, words: Collection[str]) -> str | None:
    """The first word of the question that the first clause names; `GPU` is one of `gpus`. Else the
    first option that the message names.
    """
    text = str(error).removeprefix("question: ")
    options = [_word(found) for found in OPTION.finditer(text)]
    clause = re.split(r"[:.] |\?", OPTION.sub(_word, text))[0]
    for said in re.findall(r"[A-Za-z_]+", re.sub(r"'[^']*'", "", clause)):
        for name in (said, f"{said.lower()}s"):
            if name in words:
                return name
    return options[0] if options and options[0] in words else None
