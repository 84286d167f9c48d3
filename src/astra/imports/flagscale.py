"""FlagScale's experiment: which task it names, and how many GPUs its runner starts."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astra.errors import InputError
from astra.files import read_text
from astra.imports.options import LaunchOptions

RUNNER = "experiment.runner"


def is_experiment(said: Mapping[str, str]) -> bool:
    return any(name.startswith(("experiment.task.", f"{RUNNER}.")) for name in said)


def task_file(experiment: Mapping[str, Any], path: Path) -> Path:
    """The file of the task, `train/NAME.yaml`, as Hydra finds it beside the experiment."""
    listed = experiment.get("defaults")
    entries = (
        [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    )
    named = next((each["train"] for each in entries if isinstance(each.get("train"), str)), None)
    if named is None:
        raise InputError(f"{path}: its defaults name no `train: TASK`, which has the settings.")
    file = path.parent / "train" / f"{named.removesuffix('.yaml')}.yaml"
    if not file.is_file():
        raise InputError(f"{path}: it names the task {file}, which is not there. Import that.")
    return file


def world_of(said: Mapping[str, str], path: Path) -> int | None:
    """GPUs: nodes x processes, or the slots of its hostfile; None where neither says."""
    nodes, each = (said.get(f"{RUNNER}.{name}", "") for name in ("nnodes", "nproc_per_node"))
    if nodes.isdigit() and each.isdigit():
        return int(nodes) * int(each)
    hosts = path.parent / said.get(f"{RUNNER}.hostfile", "hostfile")
    if not hosts.is_file():
        return None
    lines = [line.partition("#")[0] for line in read_text(hosts).splitlines()]
    slots = [re.search(r"\bslots=(\d{1,4})\b", line) for line in lines if line.strip()]
    if not slots or not all(slots):
        return None
    return sum(int(found[1]) for found in slots if found)


def as_megatron(options: LaunchOptions) -> None:
    """What FlagScale says in words of its own, or does by itself, in Megatron-LM's options."""
    if not any(name.startswith("system.") for name in options.values):
        return
    options.put("megatron-fsdp-main-grads-dtype", "fp32")  # its release knows no other
    deepep = [name for name in options.values if name.endswith(".moe-enable-deepep")]
    if options.flag(*deepep):
        options.put("moe-flex-dispatcher-backend", "deepep")


def refuse_mixed(said: Mapping[str, str], path: Path) -> None:
    """A job over several GPU types is no plan on one."""
    for name, value in said.items():
        if name.endswith(".enable_hetero") and value.lower() == "true":
            raise InputError(
                f"{path}: a job over several GPU types (enable_hetero) is not read. Where "
                "`astra export` wrote it, plan.json beside it is the plan."
            )
