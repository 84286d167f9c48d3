"""Training steps timed on one GPU: JSON lines of a Hugging Face config and what was measured."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from astra.errors import InputError
from astra.files import read_text
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.model.huggingface import model_from_config
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan


class TimedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one model on one GPU: forward, backward and optimizer, peak allocated memory."""

    name: str
    plan: Plan
    step_s: float
    allocated_bytes: float


def read_steps(path: Path) -> list[TimedStep]:
    """All steps of a file."""
    return [_step(raw, f"{path}:{line}") for line, raw in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in enumerate(read_text(path).splitlines(), 1):
        if text.strip():
            try:
                yield number, json.loads(text)
            except ValueError as error:
                raise InputError(f"{path}:{number}: not valid JSON: {error}.") from None


def _step(raw: dict[str, Any], where: str) -> TimedStep:
    gpu, _ = find_gpu(raw["gpu"])
    wish = PlanSettings(
        global_batch=raw["micro_batch"],
        micro_batch=raw["micro_batch"],
        seq_len=raw["seq"],
        recompute=raw["recompute"],
        sharding="none",
    )
    cluster = Cluster(name=gpu.name, pools=(Pool(gpu=gpu, count=1),))
    stack = "torch-compile" if raw["compiled"] else "torch-eager"
    model = model_from_config(raw["config"], where)
    return TimedStep(
        name=f"{raw['name']}, {stack}",
        plan=complete(wish, model, cluster, "megatron", stack).plan,
        step_s=(raw["forward_backward_ms"] + raw["optimizer_ms"]) / 1e3,
        allocated_bytes=raw["peak_allocated_gib"] * 2**30,
    )
