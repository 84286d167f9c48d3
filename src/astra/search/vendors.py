"""A question over GPUs of several vendors: the results of each, as one."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from astra.cost.result import PricedPlan
from astra.cost.stages import stage_summaries
from astra.errors import InputError
from astra.hardware.cluster import Cluster
from astra.hardware.vendors import by_vendor, vendor_of
from astra.notes import Note, NoteCode, note
from astra.search.evaluator import Limits
from astra.search.mixed import idle_gpus
from astra.search.query import Query
from astra.search.result import Comparison, NothingFits, Result, sum_funnels

Solve = Callable[[Query, Limits], Result]


def solve_each_vendor(query: Query, apart: Note, limits: Limits, solve: Solve) -> Result:
    """What `solve` says of the GPUs of each vendor, as one result: the best plans of any."""
    if query.use_all:
        names, libraries = (" and ".join(apart.facts[key]) for key in ("vendors", "libraries"))
        raise InputError(
            f"--use-all: {names} GPUs are planned apart: no job has both, for {libraries} do not "
            "speak to each other. Leave it out, or give the GPUs of one vendor."
        )
    results = [solve(query.on(own), limits) for own in by_vendor(query.cluster)]
    return _joined(results, query, apart)


def _joined(results: Sequence[Result], query: Query, apart: Note) -> Result:
    plans = sorted((plan for each in results for plan in each.plans), key=lambda plan: plan.step_s)
    ranked = tuple(
        msgspec.structs.replace(
            priced, rank=place, plan=msgspec.structs.replace(priced.plan, cluster=query.cluster)
        )
        for place, priced in enumerate(plans[: query.top], 1)
    )
    notes = _each_once([*(said for result in results for said in result.notes), apart])
    return Result(
        query=query,
        funnel=sum_funnels(each.funnel for each in results),
        seconds=sum(each.seconds for each in results),
        plans=ranked,
        nothing_fits=None if ranked else _nothing(results, by_vendor(query.cluster)),
        comparison=_compared(results, query, ranked),
        notes=notes,
    )


def _compared(results: Sequence[Result], query: Query, ranked: Sequence[PricedPlan]) -> Comparison:
    """What the best plan is worth beside those of every vendor."""
    known = [each.comparison for each in results if each.comparison]
    return Comparison(
        gap_fraction=_gap(results, ranked),
        alone_step_s={name: step for own in known for name, step in own.alone_step_s.items()},
        uniform_step_s=_least(own.uniform_step_s for own in known),
        even_split_step_s=None,  # over all GPUs
        runtimes_step_s={
            name: _least(own.runtimes_step_s.get(name) for own in known)
            for each in known
            for name in each.runtimes_step_s
        },
        pipelines_of=tuple(dict.fromkeys(name for own in known for name in own.pipelines_of)),
        idle=idle_gpus(query, ranked),
        types_left_out=tuple(each for own in known for each in own.types_left_out),
        stages=stage_summaries(ranked[0], query.stack) if ranked else (),
        launched_step_s=_least(own.launched_step_s for own in known),
    )


def _gap(results: Sequence[Result], ranked: Sequence[PricedPlan]) -> float | None:
    """How much faster than the best of all a plan of any vendor may be; None: not known."""
    gaps = [(each.best, each.comparison.gap_fraction) for each in results if each.comparison]
    if any(gap is None for _, gap in gaps):
        return None
    bounds_s = [best.step_s / (1 + gap) for best, gap in gaps if best and gap is not None]
    return max(ranked[0].step_s / min(bounds_s) - 1, 0.0) if ranked else 0.0


def _least(steps_s: Iterable[float | None]) -> float | None:
    return min((step_s for step_s in steps_s if step_s is not None), default=None)


def _nothing(results: Sequence[Result], apart: Sequence[Cluster]) -> NothingFits:
    """Why, of every vendor, and what comes closest to fitting."""
    why = [each.nothing_fits for each in results if each.nothing_fits]
    names = [vendor_of(own.pools[0].gpu) for own in apart]
    closest = [own.closest for own in why if own.closest]
    reasons: list[Note] = []
    for name, own in zip(names, why, strict=True):
        reasons += [note(NoteCode.OF_VENDOR, vendor=name), *own.reasons]
    return NothingFits(
        closest=min(
            closest,
            key=lambda plan: plan.memory.reserved_bytes / plan.memory.usable_bytes,
            default=None,
        ),
        reasons=tuple(reasons),
        suggestions=_each_once([each for own in why for each in own.suggestions]),
    )


def _each_once(notes: Sequence[Note]) -> tuple[Note, ...]:
    return tuple(each for row, each in enumerate(notes) if each not in notes[:row])
