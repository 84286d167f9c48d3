"""Bad input: where it is, what it says, why it cannot be used, what to try."""

from collections.abc import Iterable
from dataclasses import dataclass


class InputError(Exception):
    """What the user gave cannot be used. The message is one paragraph for a person.

    >>> import astra
    >>> astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seqlen=4096)
    Traceback (most recent call last):
    ...
    astra.errors.InputError: there is no setting 'seqlen'. Did you mean seq_len?
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """A rule that a plan breaks, and single settings that would mend it."""

    rule: str
    sentence: str
    source: str  # where the runtime enforces it
    tries: tuple[tuple[str, tuple[object, ...]], ...]  # a setting and its values, all else equal


class RefusedPlanError(InputError):
    """A plan that its runtime, or Astra, refuses."""

    def __init__(self, message: str, rules: tuple[BrokenRule, ...]) -> None:
        super().__init__(message)
        self.rules = rules


class NoPriceError(InputError):
    """No price of a GPU is known; what else was asked can still be answered."""


def near(name: str, names: Iterable[str], most: int = 4) -> list[str]:
    """The known names that look most like `name`, best first."""
    from difflib import SequenceMatcher, get_close_matches

    known = sorted(set(names))
    bare = {known_name.lower(): known_name for known_name in known}
    wanted = name.lower()[:200]
    close = [bare[match] for match in get_close_matches(wanted, bare, n=most, cutoff=0.6)]
    inside = [bare[low] for low in bare if wanted and (wanted in low or low in wanted)]
    inside.sort(key=lambda known_name: -SequenceMatcher(None, wanted, known_name.lower()).ratio())
    return list(dict.fromkeys(close + inside))[:most]


def did_you_mean(name: str, names: Iterable[str], listing: str = "") -> str:
    """The last sentence of an unknown-name error."""
    found = near(name, names)
    if found:
        return f"Did you mean {either(found)}?"
    return listing


def either(words: Iterable[object]) -> str:
    """`a, b or c`."""
    texts = [str(word) for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def shorten(value: object, most: int = 60) -> str:
    """A value as an error may quote it: on one line, never longer than `most`."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except (RecursionError, ValueError):  # nested too deep; an integer of thousands of digits
        text = f"a {type(value).__name__} too large to show"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
