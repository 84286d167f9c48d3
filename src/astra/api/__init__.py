"""The Python API: the questions as functions. `import astra; astra.predict(...)`."""

from astra.api.catalogue import gpus, models
from astra.api.exports import export
from astra.api.measured import calibrate, validate
from astra.api.money import prices
from astra.api.plans import plan
from astra.api.single import explain, import_job, predict, predict_plan

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
    "validate",
]
