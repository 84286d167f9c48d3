"""Arguments of the API, checked and as typed values: model, cluster, settings, rules."""

from collections.abc import Mapping
from dataclasses import fields
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.errors import InputError, did_you_mean, either, shorten
from astra.files import convert
from astra.strategy.complete import PlanSettings

if TYPE_CHECKING:
    from astra.hardware.cluster import Cluster, Gpu
    from astra.model.shape import Model
    from astra.notes import Note
    from astra.strategy.plans import Task
    from astra.strategy.rules.rule import Rule

DEFAULT_STACKS = {"fsdp": "torch-fsdp", "deepspeed": "deepspeed"}  # by runtime; else megatron
SETTING_NAMES = tuple(field.name for field in fields(PlanSettings))
MAX_COUNT = 10_000_000  # of samples, tokens or GPUs
SEARCHED_PRECISIONS = ("bf16", "fp16", "fp8")
RUNTIMES = ("megatron", "flagscale", "fsdp", "deepspeed", "any")
PIPELINE_MODELS = ("simulated", "paper")
COUNT_SETTINGS = tuple(field.name for field in fields(PlanSettings) if field.type == int | None)


def checked_count(name: str, value: Any, maximum: int = MAX_COUNT) -> int:
    """A count as an int, NumPy's integers included; an InputError where it is none."""
    try:
        number = index(value)
    except TypeError:
        raise InputError(f"{name} = {shorten(value)}: a whole number is needed.") from None
    if not 1 <= number <= maximum:
        raise InputError(f"{name} = {number}: must lie between 1 and {maximum:,}.")
    return number


def check_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    """An InputError where a word is none of these."""
    if value not in words:
        hint = did_you_mean(str(value)[:60], words, f"Use {either(words)}.")
        raise InputError(f"{name} = {shorten(value)}: not known. {hint}")


def _check_formats(cluster: "Cluster", precision: str) -> None:
    """An InputError where no GPU has units for the format, with one that all of them know.

    A type beside others that lacks them is left out of the search, which says so.
    """
    gpus = [pool.gpu for pool in cluster.pools]
    if any(_has_units(gpu, precision) for gpu in gpus):
        return
    able = [word for word in SEARCHED_PRECISIONS if all(_has_units(gpu, word) for gpu in gpus)]
    hint = f"Try --precision {either(able)}." if able else "No format is common to all."
    names = either(gpu.name for gpu in gpus).replace(" or ", " and ")
    has = "has" if len(gpus) == 1 else "have"
    raise InputError(f"{names} {has} no units for {precision}. {hint}")


def _has_units(gpu: "Gpu", precision: str) -> bool:
    return getattr(gpu, f"{precision}_flops_per_s") is not None


def model_of(model: "str | Path | Model") -> "Model":
    """The model itself, by name or file where it is none yet."""
    from astra.model.zoo import find_model

    return find_model(str(model)) if isinstance(model, str | Path) else model


def cluster_of(
    gpus: str | None, cluster: "str | Path | Cluster | None", precision: str | None = None
) -> tuple["Cluster", tuple["Note", ...]]:
    """The cluster, with units for the format on some GPU type, and notes on how it was read."""
    found, notes = _read_cluster(gpus, cluster)
    if precision is not None:
        _check_formats(found, precision)
    return found, notes


def _read_cluster(
    gpus: str | None, cluster: "str | Path | Cluster | None"
) -> tuple["Cluster", tuple["Note", ...]]:
    if (gpus is None) == (cluster is None):
        raise InputError("give the GPUs: --gpus h100:64, or --cluster FILE (and not both).")
    if gpus is not None and not isinstance(gpus, str):
        raise InputError(f"gpus = {shorten(gpus)}: text such as h100:64 is needed.")
    if gpus is not None:
        from astra.hardware.gpus_option import parse_gpus

        return parse_gpus(gpus)
    if isinstance(cluster, str | Path):
        from astra.hardware.cluster_file import read_cluster

        return read_cluster(Path(cluster))
    assert cluster is not None
    from astra.hardware.pools import merge_equal_pools

    pools, notes = merge_equal_pools(cluster.pools, "cluster")
    return msgspec.structs.replace(cluster, pools=pools), notes


def plan_settings(settings: Mapping[str, Any]) -> PlanSettings:
    """Keyword arguments as settings of a plan; what was not given is left open."""
    for name in settings:
        if name not in SETTING_NAMES:
            hint = did_you_mean(
                name, SETTING_NAMES, f"The settings are {', '.join(SETTING_NAMES)}."
            )
            raise InputError(f"there is no setting {name!r}. {hint}")
    parsed = convert(dict(settings), PlanSettings, "settings")
    for name in COUNT_SETTINGS:
        value, least = getattr(parsed, name), 0 if name == "mtp_layers" else 1
        if value is not None and value < least:
            raise InputError(f"settings: {name} = {value}: expected {least} or more.")
    return parsed


def user_rules_of(rules: str | Path | None, task: "Task") -> "tuple[Rule, ...]":
    """The rules of a user's file."""
    if rules is None:
        return ()
    from astra.strategy.user_rules import read_user_rules  # a language of its own: when asked for

    return read_user_rules(Path(rules), task)


def checked_margin(margin: float) -> float:
    if not 0 <= margin <= 0.9:
        raise InputError(
            f"margin = {margin:g}: the fraction of memory to keep free lies between 0 and 0.9."
        )
    return margin


def checked_pipeline_model(pipeline_model: str) -> str:
    check_word("pipeline_model", pipeline_model, PIPELINE_MODELS)
    return pipeline_model
