"""The answers that the functions of the API give, and what can be asked of them."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from astra.money.goals import goals_missed
from astra.report.document import AnswerDocument, document
from astra.search.result import Result

if TYPE_CHECKING:
    from astra.explain.result import Explanation


class Answer(AnswerDocument, frozen=True, kw_only=True):
    """What a search says, in the words of the JSON."""

    def explain(
        self, rank: int = 1, against: str | None = None, quick: bool = False
    ) -> "Explanation":
        """Why the plan of this rank, and why not those of these settings (`"tp=4 pp=8"`)."""
        from astra.api.explanations import explain_answer

        return explain_answer(self, against, rank, quick=quick)


def answer_of(result: Result) -> Answer:
    return Answer(**msgspec.structs.asdict(document(result)))


def best_answer(answers: Sequence[Answer]) -> Answer:
    """Of answers for several batches the one that keeps the goals, or comes nearest to them; of
    those that keep them, the first in the order asked for.
    """
    return min(answers, key=_precedence)


def _precedence(answer: Answer) -> tuple[float, ...]:
    """What the best plan of an answer misses, then what is to be small of it."""
    best, market = answer.best, answer.market
    if best is None:
        return (math.inf,)
    if market is not None:
        assert best.hours is not None and best.usd is not None
        missed = goals_missed(best.hours, best.usd, market.deadline_hours, market.budget_usd)
        return (*missed, best.hours if market.order == "throughput" else best.usd)
    if answer.request.objective == "gpus":
        below = best.tokens_per_s < answer.request.min_tokens_per_s
        return below, 0 if below else sum(best.gpus.values()), -best.tokens_per_s
    return (-best.tokens_per_s if best.hours is None else best.hours,)
