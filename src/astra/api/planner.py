"""The same model on the same GPUs, asked often."""

from typing import Any

from astra.api.answers import Answer
from astra.api.inputs import (
    SETTING_NAMES,
    ClusterSource,
    GpuCounts,
    ModelSource,
    check_keywords,
    cluster_of,
    keywords_of,
    model_of,
)
from astra.api.plans import plan
from astra.api.prediction import Prediction
from astra.api.single import predict
from astra.api.words import in_python_words
from astra.money.options import OPTION_NAMES
from astra.strategy.space import SETTABLE, SHORT_NAMES


class Planner:
    """Questions about one model on one pool of GPUs, said once and asked often.

    >>> import astra
    >>> planner = astra.Planner("llama-3-8b", gpus={"h100": 8}, seq_len="4k")
    >>> planner.predict(tp=2, global_batch=32).plan.dp
    4
    >>> [planner.plan(global_batch=batch, tp=2, top=1).best.plan.tp for batch in (16, 32)]
    [2, 2]

    What is given here holds for `plan` and `predict`, as far as they know it, unless they say
    otherwise: GPUs, runtime, stack, batch, length, settings, words about money. Model and GPUs are
    read and checked at once; a config is not read again for each question. That saves 0.3 ms of the
    150 ms that a small search takes and of the 20 ms of `predict`: what takes long to read, tables
    of kernels and links, is kept in the process for every question, with a Planner or without.
    """

    @in_python_words
    def __init__(
        self,
        model: ModelSource,
        *,
        gpus: GpuCounts = None,
        cluster: ClusterSource = None,
        **question: Any,
    ) -> None:
        check_keywords(question, tuple(_words_of_plan() | _words_of_predict()))
        self.model = model_of(model)
        self.cluster, _ = cluster_of(gpus, cluster)
        self.question = {"gpus": gpus, "cluster": cluster, **question}

    def __repr__(self) -> str:
        return f"Planner({self.model!r}, {self.cluster!r})"

    @in_python_words
    def plan(self, **question: Any) -> Answer:
        """The best plans, as `astra.plan` finds them."""
        return in_python_words(plan)(self.model, **self._with(question, _words_of_plan()))

    @in_python_words
    def predict(self, **settings: Any) -> Prediction:
        """One plan, as `astra.predict` prices it."""
        return in_python_words(predict)(self.model, **self._with(settings, _words_of_predict()))

    def _with(self, question: dict[str, Any], words: set[str]) -> dict[str, Any]:
        """This question over what holds for all; other GPUs take the place of the pool."""
        common = {name: value for name, value in self.question.items() if name in words}
        if question.keys() & {"gpus", "cluster"}:
            common |= {"gpus": None, "cluster": None}
        return {**common, **question}


def _words_of_plan() -> set[str]:
    return {*keywords_of(plan), *SETTABLE, *SHORT_NAMES, *OPTION_NAMES}


def _words_of_predict() -> set[str]:
    return {*keywords_of(predict), *SETTING_NAMES, *OPTION_NAMES}
