"""Arguments of the API, read and as typed values: model, cluster, settings, batch, rules."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from astra.errors import InputError, did_you_mean, either, shorten
from astra.files import convert
from astra.strategy.complete import PlanSettings
from astra.values import file_path, number, of_kind, token_count, whole_number, word

if TYPE_CHECKING:
    from astra.hardware.cluster import Cluster, Gpu
    from astra.model.shape import Model
    from astra.notes import Note
    from astra.strategy.plans import Task
    from astra.strategy.rules.rule import Rule

ModelSource: TypeAlias = "str | Path | Model | Mapping[str, Any] | Any"  # Any: has `to_dict()`
GpuCounts: TypeAlias = (  # keys of a Mapping are of one type exactly
    "str | Mapping[str, int] | Mapping[Gpu, int] | Mapping[str | Gpu, int]"
    " | Sequence[str | tuple[str | Gpu, int]] | None"
)
ClusterSource: TypeAlias = "str | Path | Mapping[str, Any] | Cluster | None"
Settings: TypeAlias = "Sequence[str] | Mapping[str, Any]"
RuleSource: TypeAlias = "str | Path | Sequence[str | Mapping[str, str]] | Mapping[str, str] | None"

DEFAULT_STACKS = {"fsdp": "torch-fsdp", "deepspeed": "deepspeed"}  # by runtime; else megatron
SETTING_NAMES = tuple(field.name for field in fields(PlanSettings))
SEARCHED_PRECISIONS = ("bf16", "fp16", "fp8", "fp4")
SCALED_IN_BLOCKS = {"mxfp8": "fp8", "nvfp4": "fp4"}  # spellings, for GPUs that have such units
RUNTIMES = ("megatron", "flagscale", "fsdp", "deepspeed", "any")
PIPELINE_MODELS = ("simulated", "paper")
COUNT_SETTINGS = tuple(field.name for field in fields(PlanSettings) if field.type == int | None)
TOKEN_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


def model_of(model: ModelSource) -> "Model":
    """The model itself: by name or file, or of a config as a dict or an object of transformers."""
    from astra.model.shape import Model
    from astra.model.zoo import find_model

    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return find_model(model)
    from astra.model.huggingface import model_from_config, size_name  # when asked for

    to_dict = getattr(model, "to_dict", None)
    model = to_dict() if callable(to_dict) and not isinstance(model, type) else model
    if not isinstance(model, Mapping):
        raise InputError(
            f"model = {shorten(model)}: a name, a file, a config as a dict or an object with "
            "to_dict() is needed. `astra models` lists the names."
        )
    if "hidden" in model:  # the words of a TOML file
        from astra.model.handwritten import model_from_table

        shape = model_from_table(model, "model", "model")
        named = "name" in model
        return shape if named else replace(shape, name=f"model-{size_name(shape)}")
    return model_from_config(model, "model")


def cluster_of(
    gpus: GpuCounts, cluster: ClusterSource, precision: str | None = None
) -> tuple["Cluster", tuple["Note", ...]]:
    """The cluster, with units for the format on some GPU type, and notes on how it was read."""
    found, notes = _read_cluster(gpus, cluster)
    if precision is not None:
        _check_formats(found, precision)
    return found, notes


def gpus_text(gpus: GpuCounts) -> str | None:
    """GPUs as `--gpus` has them; a dict may leave a count open with None.

    >>> gpus_text({"h100": 64, "a100-80g": 32}), gpus_text(["h100:64", ("a100-80g", 32)])
    ('h100:64,a100-80g:32', 'h100:64,a100-80g:32')
    """
    if gpus is None or isinstance(gpus, str):
        return gpus
    return ",".join(_entry(entry) for entry in _gpu_entries(gpus))


def gpu_objects(gpus: GpuCounts) -> "dict[str, Gpu]":
    """GPUs that were given themselves (`{find_gpu("h100")[0]: 64}`), by name."""
    from astra.hardware.cluster import Gpu

    found: dict[str, Gpu] = {}
    for entry in () if gpus is None or isinstance(gpus, str) else _gpu_entries(gpus):
        kind = entry[0] if isinstance(entry, tuple | list) and entry else entry
        if isinstance(kind, Gpu) and found.setdefault(kind.name, kind) != kind:
            raise InputError(f"gpus: two different GPUs are called {kind.name}. Rename one.")
    return found


def _gpu_entries(gpus: object) -> Sequence[object]:
    """Types with their counts, as they were given."""
    if isinstance(gpus, Mapping):
        _refuse_description(gpus)
        return list(gpus.items())
    if not isinstance(gpus, Sequence):
        raise InputError(f"gpus = {shorten(gpus)}: give {{'h100': 64}}, or 'h100:64'.")
    return gpus


def _entry(entry: object) -> str:
    """`h100:64` of a text, or of a type and its count."""
    from astra.hardware.cluster import Gpu

    if isinstance(entry, str):
        return entry
    if isinstance(entry, tuple | list) and len(entry) == 2:
        kind, count = entry
        _refuse_description(kind)
        name = kind.name if isinstance(kind, Gpu) else kind
        return str(name) if count is None else f"{name}:{count}"
    _refuse_description(entry)
    raise InputError(f"gpus has {shorten(entry)}: give a type and its count, ('h100', 64).")


def _refuse_description(said: object) -> None:
    """An InputError where a dict says what a GPU is like, not how many there are."""
    if isinstance(said, Mapping) and "memory_bytes" in said:
        raise InputError(
            "gpus has a dict that describes a GPU: names with counts are needed, {'h100': 64}. "
            "Write the description to a TOML file and give {'my-gpu.toml': 64}, or give a Gpu with "
            "its count, [(astra.find_gpu('my-gpu.toml')[0], 64)]."
        )


def _read_cluster(gpus: GpuCounts, cluster: ClusterSource) -> tuple["Cluster", tuple["Note", ...]]:
    if (gpus is None) == (cluster is None):
        raise InputError("give the GPUs: --gpus h100:64, or --cluster FILE (and not both).")
    text = gpus_text(gpus)
    if text is not None:
        from astra.hardware.gpus_option import parse_gpus

        return parse_gpus(text, gpu_objects(gpus))
    if isinstance(cluster, str | Path):
        from astra.hardware.cluster_file import read_cluster

        return read_cluster(file_path(cluster))
    if isinstance(cluster, Mapping):  # the words of such a file
        from astra.hardware.cluster_file import cluster_of
        from astra.hardware.units import check_bounds

        check_bounds(cluster, "cluster")
        return cluster_of(dict(cluster), "cluster", Path(), "cluster")
    from astra.hardware.cluster import Cluster
    from astra.hardware.pools import merge_equal_pools

    of_kind(cluster, "cluster", Cluster, "a file or a Cluster")
    assert cluster is not None
    pools, notes = merge_equal_pools(cluster.pools, "cluster")
    return replace(cluster, pools=pools), notes


def _check_formats(cluster: "Cluster", precision: str) -> None:
    """An InputError where no GPU has units for the format, with one that all of them know.

    A type beside others that lacks them is left out of the search, which says so.
    """
    gpus = [pool.gpu for pool in cluster.pools]
    without = [gpu for gpu in gpus if not has_units(gpu, precision)]
    if not without or (len(without) < len(gpus) and precision not in SCALED_IN_BLOCKS):
        return
    able = [word for word in SEARCHED_PRECISIONS if all(has_units(gpu, word) for gpu in gpus)]
    hint = f"Try --precision {either(able)}." if able else "No format is common to all."
    names = either(gpu.name for gpu in without).replace(" or ", " and ")
    has = "has" if len(without) == 1 else "have"
    raise InputError(f"{names} {has} no units for {precision}. {hint}")


def has_units(gpu: "Gpu", precision: str) -> bool:
    """For a format, by any of its spellings."""
    from astra.strategy.complete import scales_in_blocks

    rate = getattr(gpu, f"{SCALED_IN_BLOCKS.get(precision, precision)}_flops_per_s")
    return rate is not None and (precision not in SCALED_IN_BLOCKS or scales_in_blocks(gpu))


def precision_words(precision: str) -> tuple[str, str]:
    """The format as it was asked for, and as plans say it."""
    words = (*SEARCHED_PRECISIONS, *SCALED_IN_BLOCKS)
    asked = word(precision, "--precision", words)
    return asked, SCALED_IN_BLOCKS.get(asked, asked)


def plan_settings(settings: Mapping[str, Any]) -> PlanSettings:
    """Keyword arguments as settings of a plan; what was not given is left open."""
    given = {name: _plain(value) for name, value in settings.items()}
    asked = given.get("precision")
    if isinstance(asked, str) and asked in SCALED_IN_BLOCKS:
        given["precision"] = SCALED_IN_BLOCKS[asked]
        if asked == "mxfp8" and given.setdefault("fp8_recipe", asked) != asked:
            raise InputError(
                f"--precision mxfp8 is fp8 with the recipe mxfp8, not {given['fp8_recipe']}."
            )
    for name in COUNT_SETTINGS:
        if _is_several(given.get(name)):
            hint = "`astra.plan` takes a list and finds the best"
            hint = "Ask for each in turn" if name in ("global_batch", "seq_len") else hint
            raise InputError(
                f"{name} = {shorten(given[name])}: one whole number is needed. {hint}."
            )
    if given.get("seq_len") is not None:
        given["seq_len"] = token_count(given["seq_len"], "--seq-len")
    if isinstance(given.get("global_batch"), str):
        given["global_batch"], _ = batch_of(given["global_batch"], given.get("seq_len"))
    parsed = convert(given, PlanSettings, "settings")
    for name in COUNT_SETTINGS:
        value = getattr(parsed, name)
        least = 0 if name in ("mtp_layers", "offload_layers") else 1
        if value is not None and value < least:
            raise InputError(f"settings: {name} = {value}: expected {least} or more.")
    return parsed


def _plain(value: Any) -> Any:
    """A number of NumPy as Python's."""
    return value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value


def check_keywords(
    said: Mapping[str, Any], known: Sequence[str], function: Callable[..., Any] | None = None
) -> None:
    """An InputError where a keyword is none of these; the function's own may be what is meant."""
    for name in said:
        if name not in known:
            own = keywords_of(function) if function else ()
            listing = f"There are {', '.join(known)}."
            hint = did_you_mean(str(name), (*known, *own), listing)
            raise InputError(f"there is no setting {name!r}. {hint}")


def keywords_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Parameters that are given by name."""
    named = signature(function).parameters.values()
    return tuple(each.name for each in named if each.kind is each.KEYWORD_ONLY)


def settings_texts(settings: Settings, more: Mapping[str, Any]) -> tuple[str, ...]:
    """What narrows the space, in the words of `--set`; `more` of the same as keywords.

    >>> settings_texts({"tp": [1, 2], "sequence_parallel": False}, {"pp": 4})
    ('tp=1,2', 'sequence_parallel=false', 'pp=4')
    """
    if isinstance(settings, str):
        raise InputError(f"settings = {settings!r}: give a list, [{settings!r}].")
    if isinstance(settings, Mapping):
        texts, given = [], [*settings.items(), *more.items()]
    else:
        entries = of_kind(settings, "settings", Sequence, "a dict, {'tp': [1, 2]},")
        texts = [of_kind(text, "settings", str, "a dict, {'tp': [1, 2]},") for text in entries]
        given = list(more.items())
    for name, value in given:
        values = list(value) if _is_several(value) else [value]
        texts.append(f"{name}={','.join(map(_setting_text, values))}")
    return tuple(texts)


def _is_several(value: object) -> bool:
    """Whether it is a list of values."""
    return isinstance(value, Sequence | set | frozenset | range) and not isinstance(value, str)


def _setting_text(value: Any) -> str:
    value = _plain(value)
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def batch_of(said: Any, seq_len: int | None) -> tuple[int, str | None]:
    """Samples of a step, and a word on how `4M-tokens` was read: the nearest that divides well."""
    if _is_several(said):
        raise InputError(
            f"global_batch = {shorten(said)}: one batch is needed. Ask for each in turn, and "
            "compare: {batch: astra.plan(..., global_batch=batch) for batch in (16, 256)}."
        )
    text = said.strip() if isinstance(said, str) else said
    if not isinstance(text, str) or "-" not in text[1:]:
        return whole_number(text, "--global-batch"), None
    amount, _, unit = text.partition("-")
    scale = TOKEN_SCALES.get(amount[-1:].lower(), 1.0)
    digits = amount[:-1] if amount[-1:].lower() in TOKEN_SCALES else amount
    if unit != "tokens" or not digits.replace(".", "", 1).isdecimal():
        raise InputError(f"--global-batch {text}: use a number of samples, or 4M-tokens.")
    if seq_len is None:
        raise InputError(f"--global-batch {text}: of which length? Give --seq-len 8k.")
    wanted = float(digits) * scale / seq_len
    if not 1 <= round(wanted) <= 10**7:
        raise InputError(
            f"--global-batch {text}: that is {wanted:.2g} samples of {seq_len} tokens."
        )
    samples = divisible_batch(wanted)
    read_as = f"--global-batch {text}: {samples:,} samples of {seq_len:,} tokens"
    if samples == round(wanted):
        return samples, read_as
    total = f"{samples * seq_len / 1e6:.3g}M in all"
    return samples, f"{read_as}, {total}; a batch of {round(wanted):,} divides less well"


def divisible_batch(wanted: float) -> int:
    """The number within 7 % that most powers of two divide; the nearest of those.

    >>> divisible_batch(4e6 / 8192), divisible_batch(1e6 / 8192), divisible_batch(3.2)
    (512, 128, 3)
    """
    low, high = math.ceil(wanted * 0.93), math.floor(wanted * 1.07)
    power = 1 << (max(high, 1).bit_length() - 1)
    while power > 1:
        nearest = max(round(wanted / power), 1) * power
        if low <= nearest <= high:
            return nearest
        power //= 2
    return round(wanted)


def rule_texts(rules: RuleSource) -> tuple[str, ...]:
    """Rules that were given outright, one a line; none where they are in a file.

    >>> rule_texts(["$tp > 4", {"no-deep-pipelines": "$pp > 8"}])
    ('$tp > 4', 'no-deep-pipelines: $pp > 8')
    """
    if rules is None or isinstance(rules, str | Path):
        return ()
    given = [rules] if isinstance(rules, Mapping) else rules
    texts: list[str] = []
    for rule in of_kind(given, "rules", Sequence, "a file or a list of rules"):
        if isinstance(rule, Mapping):
            texts += [f"{name}: {text}" for name, text in rule.items()]
        else:
            texts.append(str(rule))
    return tuple(texts)


def user_rules_of(rules: RuleSource, task: "Task") -> "tuple[Rule, ...]":
    """The rules of a user's file, or those that were given."""
    if rules is None:
        return ()
    from astra.strategy.user_rules import parse_user_rules, read_user_rules  # when asked for

    if isinstance(rules, str | Path):
        return read_user_rules(file_path(rules), task)
    return parse_user_rules(rule_texts(rules), task)


def checked_margin(margin: float) -> float:
    return number(margin, "--memory-margin", least=0.0, most=0.9)
