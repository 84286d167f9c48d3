"""What a person says, as the types of the search: model, machines, settings, rules."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.errors import InputError, did_you_mean
from astra.files import convert
from astra.strategy.settle import Wish

if TYPE_CHECKING:
    from astra.hardware.cluster import Cluster
    from astra.model.shape import Model
    from astra.strategy.plans import Task
    from astra.strategy.rules.rule import Rule

STACKS = {"fsdp": "torch-fsdp", "deepspeed": "deepspeed"}  # of a runtime; else megatron
WISHES = tuple(field.name for field in fields(Wish))
PIPELINE_MODELS = ("simulated", "paper")
COUNTS = tuple(field.name for field in fields(Wish) if field.type == int | None)


def shape_of(model: "str | Path | Model") -> "Model":
    from astra.model.zoo import find_model

    return find_model(str(model)) if isinstance(model, str | Path) else model


def machines_of(
    gpus: str | None, cluster: "str | Path | Cluster | None"
) -> tuple["Cluster", tuple[str, ...]]:
    """The machines, and notes on how they were read."""
    if (gpus is None) == (cluster is None):
        raise InputError("give the GPUs: --gpus h100:64, or --cluster FILE (and not both).")
    if gpus is not None:
        from astra.hardware.gpus_option import parse_gpus

        return parse_gpus(gpus)
    if isinstance(cluster, str | Path):
        from astra.hardware.cluster_file import read_cluster

        return read_cluster(Path(cluster))
    assert cluster is not None
    from astra.hardware.pools import merge_twins

    pools, twins = merge_twins(cluster.pools, "cluster")
    return msgspec.structs.replace(cluster, pools=pools), twins


def wish_of(settings: Mapping[str, Any]) -> Wish:
    for name in settings:
        if name not in WISHES:
            hint = did_you_mean(name, WISHES, f"The settings are {', '.join(WISHES)}.")
            raise InputError(f"there is no setting {name!r}. {hint}")
    wish = convert(dict(settings), Wish, "settings")
    for name in COUNTS:
        value, least = getattr(wish, name), 0 if name == "mtp_layers" else 1
        if value is not None and value < least:
            raise InputError(f"settings: {name} = {value}: expected {least} or more.")
    return wish


def rules_of(rules: str | Path | None, task: "Task") -> "tuple[Rule, ...]":
    if rules is None:
        return ()
    from astra.strategy.own_rules import read_own_rules  # a language of its own: when asked for

    return read_own_rules(Path(rules), task)


def checked_margin(margin: float) -> float:
    if not 0 <= margin <= 0.9:
        raise InputError(
            f"margin = {margin:g}: the fraction of memory to keep free lies between 0 and 0.9."
        )
    return margin


def checked_pipeline_model(pipeline_model: str) -> str:
    if pipeline_model not in PIPELINE_MODELS:
        hint = did_you_mean(pipeline_model, PIPELINE_MODELS, "Use simulated or paper.")
        raise InputError(f"pipeline_model = {pipeline_model!r}: not known. {hint}")
    return pipeline_model
