"""The best plans over several GPU types: of each vendor by itself, for each runtime asked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from astra.cost.result import PricedPlan
from astra.cost.stages import stage_summaries
from astra.errors import InputError
from astra.hardware.vendors import by_vendor, vendor_note, vendor_of
from astra.notes import Note, NoteCode, note
from astra.search.any_runtime import solve_any
from astra.search.best_plans import reaching
from astra.search.evaluator import Limits
from astra.search.mixed import idle_gpus, solve_mixed
from astra.search.nothing_fits import least_of
from astra.search.query import Query
from astra.search.recommend import ranked
from astra.search.result import Comparison, NothingFits, Result, sum_funnels

ByVendor = Mapping[str, Result]


def solve_over_types(query: Query, limits: Limits) -> Result:
    """The fastest plans."""
    apart = vendor_note(query.cluster)
    if apart is None:
        return solve_any(query, limits) if "any" in query.runtimes else solve_mixed(query, limits)
    if query.use_all:
        names, libraries = (" and ".join(apart.facts[key]) for key in ("vendors", "libraries"))
        raise InputError(
            f"--use-all: {names} GPUs are planned apart: no job has both, for {libraries} do not "
            "speak to each other. Leave it out, or give the GPUs of one vendor."
        )
    results = {
        vendor_of(own.pools[0].gpu): solve_over_types(query.on(own), limits)
        for own in by_vendor(query.cluster)
    }
    return _joined(results, query, apart)


def fewest_over_types(query: Query, limits: Limits) -> Result:
    """The best plans on the fewest GPUs of all types that fit, or that reach a throughput.

    More GPUs never take longer, so the least total is found by halving.
    """
    best = solve_over_types(query, limits)

    def used(found: Result) -> int | None:
        enough = [plan for plan in found.plans if plan.tokens_per_s >= query.min_tokens_per_s]
        return min((sum(plan.gpus.values()) for plan in enough), default=None)

    def capped(gpus: int) -> Result:
        smaller = query.on(msgspec.structs.replace(query.cluster, max_gpus=gpus))
        return replace(solve_over_types(smaller, limits), query=query)

    counts = list(range(1, (used(best) or 0) + 1))
    if counts:
        best = capped(least_of(counts, lambda gpus: used(capped(gpus)) is not None))
    return reaching(best, sum(pool.count for pool in query.cluster.pools))


def _joined(results: ByVendor, query: Query, apart: Note) -> Result:
    """The results of each vendor as one: the best plans of any, on the whole cluster."""
    every = results.values()
    whole = [
        msgspec.structs.replace(
            priced, plan=msgspec.structs.replace(priced.plan, cluster=query.cluster)
        )
        for each in every
        for priced in each.plans
    ]
    plans = ranked(whole, query)
    comparison = _compared(results, query, plans)
    return Result(
        query=query,
        funnel=sum_funnels(each.funnel for each in every),
        seconds=sum(each.seconds for each in every),
        plans=plans,
        nothing_fits=None if plans else _nothing(results),
        comparison=comparison,
        gap_fraction=comparison.gap_fraction,
        notes=_each_once([*(said for each in every for said in each.notes), apart]),
    )


def _compared(results: ByVendor, query: Query, plans: Sequence[PricedPlan]) -> Comparison:
    """What the best plan is worth beside those of every vendor."""
    known = [each.comparison for each in results.values() if each.comparison]
    return Comparison(
        gap_fraction=_gap(results, plans),
        alone_step_s={name: step for own in known for name, step in own.alone_step_s.items()},
        uniform_step_s=_least(own.uniform_step_s for own in known),
        even_split_step_s=None,  # over all GPUs
        runtimes_step_s={
            name: _least(own.runtimes_step_s.get(name) for own in known)
            for each in known
            for name in each.runtimes_step_s
        },
        pipelines_of=tuple(dict.fromkeys(name for own in known for name in own.pipelines_of)),
        idle=idle_gpus(query, plans),
        types_left_out=tuple(each for own in known for each in own.types_left_out),
        stages=stage_summaries(plans[0], query.stack) if plans else (),
        launched_step_s=_least(own.launched_step_s for own in known),
    )


def _gap(results: ByVendor, plans: Sequence[PricedPlan]) -> float | None:
    """How much faster than the best of all a plan of any vendor may be; None: not known."""
    gaps = [(each.best, each.gap_fraction) for each in results.values()]
    bounds_s = [best.step_s / (1 + gap) for best, gap in gaps if best and gap is not None]
    return max(plans[0].step_s / min(bounds_s) - 1, 0.0) if len(bounds_s) == len(gaps) else None


def _least(steps_s: Iterable[float | None]) -> float | None:
    return min((step_s for step_s in steps_s if step_s is not None), default=None)


def _nothing(results: ByVendor) -> NothingFits:
    """Why, of every vendor, and what comes closest to fitting."""
    why = {name: each.nothing_fits for name, each in results.items() if each.nothing_fits}
    reasons: list[Note] = []
    for name, own in why.items():
        reasons += [note(NoteCode.OF_VENDOR, vendor=name), *own.reasons]
    return NothingFits(
        closest=min(
            (own.closest for own in why.values() if own.closest),
            key=lambda plan: plan.memory.reserved_bytes / plan.memory.usable_bytes,
            default=None,
        ),
        reasons=tuple(reasons),
        suggestions=_each_once([each for own in why.values() for each in own.suggestions]),
    )


def _each_once(notes: Sequence[Note]) -> tuple[Note, ...]:
    return tuple(each for row, each in enumerate(notes) if each not in notes[:row])
