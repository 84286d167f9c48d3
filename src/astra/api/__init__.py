"""The Python API: the command line's words as functions. `import astra; astra.predict(...)`."""

from astra.api.money import prices
from astra.api.plans import plan
from astra.api.single import explain, import_job, predict, predict_plan

__all__ = ["explain", "import_job", "plan", "predict", "predict_plan", "prices"]
