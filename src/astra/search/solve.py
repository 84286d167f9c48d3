"""A query answered: which search it needs, and what is said of the plans besides."""

from dataclasses import replace

from astra.cost.host import ram_notes
from astra.cost.paper import compared
from astra.search.best_plans import fewest_gpus, solve_one_type
from astra.search.bill import with_dollars
from astra.search.evaluator import Limits
from astra.search.query import Query
from astra.search.result import Progress, Result


def solve(query: Query, progress: Progress | None = None) -> Result:
    """The best plans of a query; "nothing fits" is a result."""
    if query.is_for_money:
        from astra.search.rent import solve_for_money

        return solve_for_money(query, Limits(watch=progress))
    with_dollars((), query.money, query.cluster)  # prices that cannot be are refused at once
    found = _search(query, Limits(watch=progress))
    plans = tuple(with_dollars(found.plans, query.money, query.cluster))
    return replace(
        found,
        plans=plans,
        notes=(*found.notes, *ram_notes(plans)),
        paper=compared(plans) if query.pipeline_model == "paper" else None,
    )


def _search(query: Query, limits: Limits) -> Result:
    """The fastest plans, or those on the fewest GPUs."""
    fewest = query.objective == "gpus"
    if len(query.cluster.pools) > 1:
        from astra.search.over_types import fewest_over_types, solve_over_types

        return (fewest_over_types if fewest else solve_over_types)(query, limits)
    return (fewest_gpus if fewest else solve_one_type)(query, limits)
