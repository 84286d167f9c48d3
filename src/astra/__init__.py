"""Finds the fastest and the cheapest way to train a large language model.

>>> import astra
>>> answer = astra.predict("llama-3-8b", gpus="h100:64", tp=2, global_batch=256, seq_len=8192)
>>> answer.memory.fits
True
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astra.api import explain, import_job, plan, predict, predict_plan, prices
    from astra.api.answers import Answer
    from astra.cost.result import PricedPlan
    from astra.errors import InputError
    from astra.explain.result import Explanation
    from astra.hardware.catalogue import find_gpu
    from astra.model.zoo import find_model
    from astra.report.plan_table import to_frame, to_rows
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
    "to_frame": "astra.report.plan_table",
    "to_rows": "astra.report.plan_table",
}


class _PublicName:
    """A name that is imported when it is first used: `import astra` costs nothing.

    It wins over a room of the same name: `astra.explain` is the function, wherever the modules of
    `astra/explain/` were imported before.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, package: object, owner: object) -> Any:
        from importlib import import_module

        return getattr(import_module(_HOMES[self.name]), self.name)

    def __set__(self, package: object, room: object) -> None:
        """The import of a room tells its parent, which need not know."""


class _Package(ModuleType):
    """This package with its public names."""

    def __dir__(self) -> list[str]:
        return __all__


for _name in _HOMES:
    setattr(_Package, _name, _PublicName(_name))
sys.modules[__name__].__class__ = _Package
