"""Errors in the caller's words. Messages name options as the command line does, `--seq-len 8k`;
raised from a function that somebody called in Python they say `seq_len="8k"`.

The front of the package wraps its functions in `in_python_words`, and so do the methods of results;
the command line calls the functions themselves, and prints what they say as it is.
"""

import re
from collections.abc import Callable, Iterable, Sized
from dataclasses import fields
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import ParamSpec, TypeVar

from astra.errors import InputError, did_you_mean

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

FLAGS = ("use_all", "fold", "exact", "verify", "quick", "force")
ARGUMENTS = (  # that are options too
    *("plan", "model", "gpus", "cluster", "runtime", "stack", "settings", "rules", "top", "margin"),
    *("max_gpus", "objective", "min_tokens_per_s", "pipeline_model", "risk", "time_limit", "rank"),
    *("against", "target", "out", "launcher", "train_iters", "learning_rate", "world_size"),
    *("vocab_size", "family", "worst", "name", "base", "filter", "cloud", "region", "plot"),
    "format",
)
OTHER_NAMES = {"set": "settings", "memory-margin": "margin", "to": "target", "lr": "learning_rate"}
TURNED_OFF = {"no-mixed": "mixed=False", "no-failures": "failures=False", "all": "fold=False"}
KEYED = ("settings", "price", "owned", "against")  # arguments that are dictionaries
LISTINGS = ("models", "gpus", "prices")  # commands that are functions too
NEEDED = {  # arguments that have no default
    "seq_len": "tokens of a sample, such as seq_len=4096",
    "global_batch": "samples of a step over all GPUs, such as global_batch=256",
    "model": "a name, a file or a config, such as 'llama-3-8b'",
}
WORDS_AS_VALUES = (
    "money",
    "frontier",
    "gpus",
    "time",
    "energy",
    "any",
    "sky",
    "slurm",
    "kubernetes",
)

# A command in backticks, or an option with the word behind it and how that ends.
_SAID = re.compile(
    r"`astra (?P<listing>[a-z]+)`|`[^`]*`"
    r"|(?<![\w-])--(?P<option>[a-z][a-z0-9-]*[a-z0-9])(?![\w-])"
    r"(?: (?P<value>'[^']*'|\"[^\"]*\"|(?!--)\S+?)(?P<colon>:?)(?=[.,;:)]*(?:\s|$)))?"
    r"(?P<assigned>(?= = | is given twice))?"
)


def in_python_words(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function; an InputError that it raises names arguments, not options. Arguments that
    are missing or that it does not know are one too.
    """
    known = signature(function)

    @wraps(function)
    def call(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            known.bind(*args, **named)
        except TypeError as error:
            raise InputError(_unlike(known, args, named, str(error))) from None
        try:
            return function(*args, **named)
        except InputError as error:
            error.args = (python_words(str(error)),)
            raise

    return call


def _unlike(known: Signature, args: Sized, named: Iterable[str], otherwise: str) -> str:
    """What is wrong with arguments: those that nobody knows, then those that are missing."""
    own = known.parameters
    takes_more = any(each.kind is each.VAR_KEYWORD for each in own.values())
    names = {*own, *(argument_names() if takes_more else ())} - {"self"}
    said = []
    for name in sorted(set(named) - names):
        hint = did_you_mean(name, names, f"There are {', '.join(sorted(names))}.")
        said.append(f"there is no setting {name!r}. {hint}")
    for name in list(own)[len(args) :]:
        kind, default = own[name].kind, own[name].default
        is_open = kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if default is Parameter.empty and not is_open and name not in named:
            said.append(f"{name} is missing{f': {NEEDED[name]}' if name in NEEDED else ''}.")
    return " ".join(said) or f"{otherwise}: give them by name."


def python_words(text: str) -> str:
    """A message that names options, with arguments in their place.

    >>> python_words("--seq-len '8q': not a whole number. Try --seq-len 8k, or --use-all.")
    "seq_len = '8q': not a whole number. Try seq_len='8k', or use_all=True."
    """
    return _SAID.sub(_argument, text)


def _argument(said: re.Match[str]) -> str:
    option, value, whole = said["option"], said["value"], said[0]
    if said["listing"] in LISTINGS:
        return f"`astra.{said['listing']}()`"
    name = OTHER_NAMES.get(option or "", (option or "").replace("-", "_"))
    if option in TURNED_OFF:
        argument = TURNED_OFF[option]
    elif option is None or name not in argument_names():
        return whole
    elif name in _flags():
        argument = f"{name}=True"
    elif name in KEYED and _is_key(said):
        return f"{name}[{value!r}]{said['colon']}"
    elif value == "=":
        return f"{name} ="
    elif value is None or not _is_value(said):
        argument = f"{name}="
    else:
        return _with_value(name, value, said["colon"])
    return argument if value is None else f"{argument} {value}{said['colon']}"


def _is_key(said: re.Match[str]) -> bool:
    """Whether it is one entry that is spoken of: `--set tp = 0: ...`, `--price h100: ...`."""
    key = re.fullmatch(r"[\w.-]+", said["value"] or "")
    return key is not None and (said["assigned"] is not None or said["colon"] == ":")


def _is_value(said: re.Match[str]) -> bool:
    """`8k`, `h100:64`, `'x'`, `FILE`, `money`, what ends there; not the sentence's next word."""
    ends = said["colon"] == ":" or said.string[said.end() : said.end() + 1] in (".", ")")
    return ends or said["value"] in WORDS_AS_VALUES or not re.fullmatch("[a-z]+", said["value"])


def _with_value(name: str, text: str, colon: str) -> str:
    """What was given (`top = 0: ...`), or what to give (`top=10`)."""
    key, equals, amount = text.partition("=")
    if equals and not text.startswith(("'", '"')) and name in KEYED:
        values = ", ".join(map(_literal, amount.split(",")))
        text = f"{{{key!r}: {f'[{values}]' if ',' in values else values}}}"
    else:
        text = _literal(text)
    return f"{name} = {text}:" if colon else f"{name}={text}"


def _literal(text: str) -> str:
    plain = re.fullmatch(r"-?[\d_.]+(?:e[+-]?\d+)?|nan|inf|True|False|None|[A-Z]+", text)
    return text if plain or text.startswith(("'", '"', "{", "[", "(")) else repr(text)


@cache
def argument_names() -> frozenset[str]:
    """Of all functions of the API, with the settings of plans and the words about money."""
    from astra.money.options import OPTION_NAMES
    from astra.strategy.complete import PlanSettings

    settings = (field.name for field in fields(PlanSettings))
    return frozenset({*ARGUMENTS, *FLAGS, *OPTION_NAMES, *settings})


@cache
def _flags() -> frozenset[str]:
    """Arguments that are on or off."""
    from astra.money.options import MoneyOptions

    about_money = {name for name, kind in MoneyOptions.__annotations__.items() if kind is bool}
    return frozenset({*FLAGS, *about_money})
