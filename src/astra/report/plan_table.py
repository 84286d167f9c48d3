"""Priced plans as a table: flat rows, or a DataFrame where pandas or polars is installed."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from astra.cost.result import PricedPlan
from astra.errors import InputError

FRAME_LIBRARIES = ("pandas", "polars")


def to_rows(priced: PricedPlan | Sequence[PricedPlan]) -> list[dict[str, Any]]:
    """One flat dictionary a plan: degrees, seconds by part, memory, dollars, energy.

    What is not known is None: dollars without a price, energy without `objective="energy"`.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> astra.to_rows(priced)[0]["dp"]
    8
    """
    plans = [priced] if isinstance(priced, PricedPlan) else list(priced)
    return [_row(plan) for plan in plans]


def to_frame(priced: PricedPlan | Sequence[PricedPlan], library: str | None = None) -> Any:
    """The rows as a DataFrame of pandas or polars, whichever is installed.

    >>> import astra
    >>> answer = astra.plan("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, tp=1)
    >>> len(astra.to_frame(answer.plans)) == len(answer.plans)
    True
    """
    return frame_of(to_rows(priced), library)


def frame_of(rows: list[dict[str, Any]], library: str | None = None) -> Any:
    """Rows as a DataFrame."""
    installed = [name for name in FRAME_LIBRARIES if find_spec(name) is not None]
    if library is not None and library not in FRAME_LIBRARIES:
        raise InputError(f"no frames of {library!r} are known. Use {' or '.join(FRAME_LIBRARIES)}.")
    if library is not None and library not in installed:
        raise InputError(f"{library} is not installed. Install it, or use astra.to_rows().")
    if not installed:
        raise InputError("neither pandas nor polars is installed. Use astra.to_rows().")
    return import_module(library or installed[0]).DataFrame(rows)


def _row(priced: PricedPlan) -> dict[str, Any]:
    plan, energy = priced.plan, priced.energy
    segment = plan.pipelines[0].segments[0]
    return {
        "rank": priced.rank,
        "summary": priced.summary,
        "model": plan.model.name,
        "gpus": sum(priced.gpus.values()),
        "tp": segment.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "vpp": plan.vpp,
        "cp": plan.cp,
        "ep": plan.ep,
        "etp": plan.etp,
        "micro_batch": plan.micro_batch,
        "global_batch": plan.global_batch,
        "seq_len": plan.seq_len,
        "recompute": segment.recompute,
        "sharding": plan.sharding,
        "offload_optimizer_fraction": plan.offload_optimizer_fraction,
        "offload_layers": plan.offload_layers,
        "precision": plan.precision,
        "step_s": priced.step_s,
        "tokens_per_s": priced.tokens_per_s,
        "mfu_fraction": priced.mfu_fraction,
        **{f"{name}_s": value for name, value in priced.step_parts_s.items()},
        "fits": priced.memory.fits,
        "fit_probability": priced.memory.fit_probability,
        "allocated_bytes": priced.memory.allocated_bytes,
        "reserved_bytes": priced.memory.reserved_bytes,
        "usable_bytes": priced.memory.usable_bytes,
        "hours": priced.hours,
        "usd": priced.usd,
        "usd_per_hour": priced.usd_per_hour,
        "step_kwh": energy and energy.step_kwh,
        "run_kwh": energy and energy.run_kwh,
    }
