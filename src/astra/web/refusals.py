"""Errors as JSON: which word of the question, what is wrong with it, what may have been meant."""

import re
from collections.abc import Collection

import msgspec

TURNED_OFF = {"no_mixed": "mixed = false", "no_failures": "failures = false"}


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a person can mend."""

    message: str
    field: str | None = None  # the word of the question, where it is one word
    suggestions: tuple[str, ...] = ()


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is none."""

    error: ErrorFacts


def refusal(message: str, words: Collection[str]) -> ErrorFacts:
    """An InputError's message in the words of the question.

    >>> said = refusal("question: seqlen: there is no such field. Did you mean seq_len?", ["model"])
    >>> said.field, said.suggestions
    ('seqlen', ('seq_len',))
    >>> refusal("--seq-len 8q: not a whole number of tokens. Try 8k.", ["seq_len"]).field
    'seq_len'
    """
    text = re.sub(r"(?<![\w-])--([a-z][a-z0-9-]*)", _word, message)
    unknown = re.match(r"question: ([^ :]+): there is no such field", text)
    meant = re.search(r"(?:Did you mean|Use one of|Use) ((?:(?!: )[^?])+?)(?:\?|\.(?: |$))", text)
    return ErrorFacts(
        message=text,
        field=unknown[1] if unknown else _field(text.removeprefix("question: "), words),
        suggestions=tuple(re.split(r", | or ", meant[1])) if meant else (),
    )


def _word(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return TURNED_OFF.get(name, name)


def _field(text: str, words: Collection[str]) -> str | None:
    """The first word of the question that the first clause names; `GPU` is one of `gpus`."""
    clause = re.split(r"[:.] |\?", text)[0]
    for said in re.findall(r"[A-Za-z_]+", re.sub(r"'[^']*'", "", clause)):
        for name in (said, f"{said.lower()}s"):
            if name in words:
                return name
    return None
