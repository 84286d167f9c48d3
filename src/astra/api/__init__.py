"""The Python API: the questions as functions. `import astra; astra.predict(...)`.

A function is imported when it is first used: `astra gpus` needs no cost model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astra.api.catalogue import gpus, models, prices
    from astra.api.exports import export
    from astra.api.measured import calibrate, validate
    from astra.api.plans import plan
    from astra.api.reports import report
    from astra.api.single import explain, import_job, predict, predict_plan
    from astra.api.traces import trace

__all__ = [
    "calibrate",
    "explain",
    "export",
    "gpus",
    "import_job",
    "models",
    "plan",
    "predict",
    "predict_plan",
    "prices",
    "report",
    "trace",
    "validate",
]

_HOMES = {
    "calibrate": "measured",
    "explain": "single",
    "export": "exports",
    "gpus": "catalogue",
    "import_job": "single",
    "models": "catalogue",
    "plan": "plans",
    "predict": "single",
    "predict_plan": "single",
    "prices": "catalogue",
    "report": "reports",
    "trace": "traces",
    "validate": "measured",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
