"""Finds the fastest and the cheapest way to train a large language model.

>>> import astra
>>> answer = astra.predict("llama-3-8b", gpus="h100:64", tp=2, global_batch=256, seq_len=8192)
>>> answer.memory.fits
True
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astra.api import explain, import_job, plan, predict, predict_plan, prices
    from astra.api.answers import Answer
    from astra.cost.result import PricedPlan
    from astra.errors import InputError
    from astra.explain.result import Explanation
    from astra.hardware.catalogue import find_gpu
    from astra.model.zoo import find_model
    from astra.report.frame import to_frame, to_rows
    from astra.strategy.plan import Plan
    from astra.strategy.plan_file import read_plan

__all__ = [
    "Answer",
    "Explanation",
    "InputError",
    "Plan",
    "PricedPlan",
    "explain",
    "find_gpu",
    "find_model",
    "import_job",
    "plan",
    "predict",
    "predict_plan",
    "prices",
    "read_plan",
    "to_frame",
    "to_rows",
]

_HOMES = {
    "Answer": "astra.api.answers",
    "Explanation": "astra.explain.result",
    "InputError": "astra.errors",
    "Plan": "astra.strategy.plan",
    "PricedPlan": "astra.cost.result",
    "explain": "astra.api",
    "find_gpu": "astra.hardware.catalogue",
    "find_model": "astra.model.zoo",
    "import_job": "astra.api",
    "plan": "astra.api",
    "predict": "astra.api",
    "predict_plan": "astra.api",
    "prices": "astra.api",
    "read_plan": "astra.strategy.plan_file",
    "to_frame": "astra.report.frame",
    "to_rows": "astra.report.frame",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: `import astra` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'astra' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
