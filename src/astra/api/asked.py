"""What a person says, as the types of the search: model, machines, settings, rules."""

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

STACKS = {"fsdp": "torch-fsdp", "deepspeed": "deepspeed"}  # of a runtime; else megatron
WISHES = tuple(field.name for field in fields(PlanSettings))
MOST = 10_000_000  # samples, tokens and GPUs
PRECISIONS = ("bf16", "fp16", "fp8")  # that plans are searched in
RUNTIMES = ("megatron", "flagscale", "fsdp", "deepspeed", "any")
PIPELINE_MODELS = ("simulated", "paper")
COUNTS = tuple(field.name for field in fields(PlanSettings) if field.type == int | None)


def counted(name: str, value: Any, most: int = MOST) -> int:
    """A count that somebody gives, also as NumPy has it."""
    try:
        number = index(value)
    except TypeError:
        raise InputError(f"{name} = {shorten(value)}: a whole number is needed.") from None
    if not 1 <= number <= most:
        raise InputError(f"{name} = {number}: must lie between 1 and {most:,}.")
    return number


def one_of(name: str, value: Any, words: tuple[str, ...]) -> None:
    """An InputError where a word is none of these."""
    if value not in words:
        hint = did_you_mean(str(value)[:60], words, f"Use {either(words)}.")
        raise InputError(f"{name} = {shorten(value)}: not known. {hint}")


def _check_formats(cluster: "Cluster", precision: str) -> None:
    """An InputError where no GPU has units for the format, with one that all of them know.

    A type beside others that lacks them is left out of the search, which says so.
    """
    gpus = [pool.gpu for pool in cluster.pools]
    if any(_knows(gpu, precision) for gpu in gpus):
        return
    able = [word for word in PRECISIONS if all(_knows(gpu, word) for gpu in gpus)]
    hint = f"Try --precision {either(able)}." if able else "No format is common to all."
    names = either(gpu.name for gpu in gpus).replace(" or ", " and ")
    has = "has" if len(gpus) == 1 else "have"
    raise InputError(f"{names} {has} no units for {precision}. {hint}")


def _knows(gpu: "Gpu", precision: str) -> bool:
    return getattr(gpu, f"{precision}_flops_per_s") is not None


def shape_of(model: "str | Path | Model") -> "Model":
    from astra.model.zoo import find_model

    return find_model(str(model)) if isinstance(model, str | Path) else model


def machines_of(
    gpus: str | None, cluster: "str | Path | Cluster | None", precision: str | None = None
) -> tuple["Cluster", tuple["Note", ...]]:
    """The machines, which know the format, and notes on how they were read."""
    found, notes = _read_machines(gpus, cluster)
    if precision is not None:
        _check_formats(found, precision)
    return found, notes


def _read_machines(
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

    pools, twins = merge_equal_pools(cluster.pools, "cluster")
    return msgspec.structs.replace(cluster, pools=pools), twins


def plan_settings(settings: Mapping[str, Any]) -> PlanSettings:
    for name in settings:
        if name not in WISHES:
            hint = did_you_mean(name, WISHES, f"The settings are {', '.join(WISHES)}.")
            raise InputError(f"there is no setting {name!r}. {hint}")
    wish = convert(dict(settings), PlanSettings, "settings")
    for name in COUNTS:
        value, least = getattr(wish, name), 0 if name == "mtp_layers" else 1
        if value is not None and value < least:
            raise InputError(f"settings: {name} = {value}: expected {least} or more.")
    return wish


def rules_of(rules: str | Path | None, task: "Task") -> "tuple[Rule, ...]":
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
    one_of("pipeline_model", pipeline_model, PIPELINE_MODELS)
    return pipeline_model
