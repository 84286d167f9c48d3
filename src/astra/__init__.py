"""Finds the fastest and the cheapest way to train a large language model.

>>> import astra
>>> answer = astra.predict("llama-3-8b", gpus={"h100": 64}, tp=2, global_batch=256, seq_len=8192)
>>> answer.memory.fits
True
"""

import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astra.api import (
        calibrate,
        explain,
        export,
        gpus,
        import_job,
        models,
        plan,
        predict,
        predict_plan,
        prices,
        report,
        trace,
        validate,
    )
    from astra.api.answers import Answer
    from astra.api.explanations import Explanation
    from astra.api.planner import Planner
    from astra.api.prediction import Prediction
    from astra.api.reports import Report
    from astra.api.traces import StepTrace
    from astra.cost.result import PricedPlan
    from astra.errors import InputError
    from astra.export.target import Target
    from astra.hardware.catalogue import find_gpu
    from astra.hardware.cluster import Cluster, Gpu
    from astra.model.shape import Model
    from astra.model.zoo import find_model
    from astra.report.plan_table import to_frame, to_rows
    from astra.strategy.plan import Plan
    from astra.strategy.plan_file import read_plan

__all__ = [
    "Answer",
    "Cluster",
    "Explanation",
    "Gpu",
    "InputError",
    "Model",
    "Plan",
    "Planner",
    "Prediction",
    "PricedPlan",
    "Report",
    "StepTrace",
    "Target",
    "calibrate",
    "explain",
    "export",
    "find_gpu",
    "find_model",
    "gpus",
    "import_job",
    "models",
    "plan",
    "predict",
    "predict_plan",
    "prices",
    "read_plan",
    "report",
    "to_frame",
    "to_rows",
    "trace",
    "validate",
]

_HOMES = dict.fromkeys(__all__, "astra.api") | {
    "Answer": "astra.api.answers",
    "Cluster": "astra.hardware.cluster",
    "Explanation": "astra.api.explanations",
    "Gpu": "astra.hardware.cluster",
    "InputError": "astra.errors",
    "Model": "astra.model.shape",
    "Plan": "astra.strategy.plan",
    "Planner": "astra.api.planner",
    "Prediction": "astra.api.prediction",
    "PricedPlan": "astra.cost.result",
    "Report": "astra.api.reports",
    "StepTrace": "astra.api.traces",
    "Target": "astra.export.target",
    "find_gpu": "astra.hardware.catalogue",
    "find_model": "astra.model.zoo",
    "read_plan": "astra.strategy.plan_file",
    "to_frame": "astra.report.plan_table",
    "to_rows": "astra.report.plan_table",
}


class _PublicName:
    """A name that is imported when it is first used: `import astra` costs nothing.

    It wins over a room of the same name: `astra.explain` is the function, wherever the modules of
    `astra/explain/` were imported before. Functions raise errors in Python's words.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: Any = None

    def __get__(self, package: object, owner: object) -> Any:
        if self.found is None:
            from importlib import import_module

            from astra.api.words import in_python_words

            found = getattr(import_module(_HOMES[self.name]), self.name)
            self.found = in_python_words(found) if isinstance(found, FunctionType) else found
        return self.found

    def __set__(self, package: object, room: object) -> None:
        """The import of a room tells its parent, which need not know."""


class _Package(ModuleType):
    """This package with its public names."""

    def __dir__(self) -> list[str]:
        return __all__


for _name in _HOMES:
    setattr(_Package, _name, _PublicName(_name))
sys.modules[__name__].__class__ = _Package
