"""What decides an answer besides its degrees: a library that must be installed, or dtypes that are
off because they change the training's numbers.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from astra.notes import Note
    from astra.search.evaluator import Limits
    from astra.search.query import Query
    from astra.search.result import Result

WORTH_TELLING = 0.01  # share of a step
# Whose values are those of the plans found: other dtypes leave room for less recompute.
DEGREES = ("tp", "cp", "pp", "vpp", "micro_batch")
RUNTIMES = ("megatron", "flagscale")  # with an optimizer whose dtypes can be set
BF16_GRADIENTS = {"main_grads_dtype": ("bf16",), "grad_reduce_dtype": ("bf16",)}
BF16_MOMENTS = {"first_moment_dtype": ("bf16",), "second_moment_dtype": ("bf16",)}
DTYPES: dict[str, dict[str, tuple[Any, ...]]] = {
    "bf16 gradients": BF16_GRADIENTS,
    "bf16 moments": BF16_MOMENTS,
    "bf16 gradients and moments": BF16_GRADIENTS | BF16_MOMENTS,
}


def with_deciding_notes(query: "Query", found: "Result", limits: "Limits") -> "Result":
    """A result that says what library its best plan needs, and what other dtypes would buy."""
    if found.best is not None:
        return replace(
            found, notes=(*found.notes, *_library(found), *_saving(query, found, limits))
        )
    nothing = found.nothing_fits
    if nothing is None or nothing.closest is None or not _may_change(query) or not query.suggest:
        return found
    tries = (*nothing.suggestions, *_fitting(query))
    return replace(found, nothing_fits=msgspec.structs.replace(nothing, suggestions=tries))


def _may_change(query: "Query") -> bool:
    """Whether dtypes are looked at: on one GPU type, for the least step, where none was asked."""
    one = len(query.cluster.pools) == 1 and query.objective == "time"
    free = not any(name in query.settings for name in BF16_GRADIENTS | BF16_MOMENTS)
    return one and free and query.runtime in RUNTIMES and query.precision in ("bf16", "fp8", "fp4")


def _library(found: "Result") -> "list[Note]":
    """The library of the best plan's dispatcher, and the same plan without it."""
    from astra.cost.price import price_plan
    from astra.notes import NoteCode, note
    from astra.strategy.dispatchers import dispatch_libraries

    assert found.best is not None
    library = dispatch_libraries().get(str(found.best.plan.dispatcher))
    if library is None:
        return []
    plain = price_plan(msgspec.structs.replace(found.best.plan, dispatcher="alltoall"))
    more = plain.step_s / found.best.step_s - 1
    code, name = NoteCode.NEEDS_LIBRARY, library.library
    return [
        note(code, library=name, module=library.module, step_s=plain.step_s, more_fraction=more)
    ]


def _saving(query: "Query", found: "Result", limits: "Limits") -> "list[Note]":
    """Dtypes with which a plan of degrees as the best ones have takes less, by over a per cent."""
    from astra.notes import NoteCode, note
    from astra.search.one_type import search_best

    fastest = found.fastest_on_paper or found.best
    if fastest is None or not _may_change(query) or limits.stopped or not query.suggest:
        return []
    notes, below_s = [], fastest.step_s * (1 - WORTH_TELLING)
    plans = [priced.plan for priced in (fastest, *found.plans[:3])]
    near = {name: tuple({getattr(plan, name) for plan in plans}) for name in DEGREES}

    def best_s(settings: dict[str, tuple[Any, ...]]) -> float:
        asked = {**query.settings, **near, **settings}
        wider = replace(query, settings=asked, top=1, risk="none", faster_than_s=below_s)
        return search_best(wider, limits).best_s

    *_, every = DTYPES.values()
    every_s = best_s(every)
    if every_s >= below_s:  # a part of them saves no more
        return []
    for what, settings in DTYPES.items():
        step_s = every_s if settings is every else best_s(settings)
        if step_s < below_s and limits.stopped is None:
            saved = 1 - step_s / fastest.step_s
            words = [f"{name}={values[0]}" for name, values in settings.items()]
            notes.append(
                note(NoteCode.DTYPES_SAVE, what=what, saved_fraction=saved, settings=words)
            )
            below_s = min(below_s, step_s - WORTH_TELLING * fastest.step_s)
    return notes


def _fitting(query: "Query") -> "list[Note]":
    """Dtypes with which a plan fits; both only where neither is enough."""
    from astra.notes import NoteCode, note
    from astra.search.nothing_fits import any_fits

    notes: list[Note] = []
    for what, settings in DTYPES.items():
        both = len(settings) > len(BF16_GRADIENTS)
        if not (both and notes) and any_fits(
            replace(query, settings={**query.settings, **settings})
        ):
            words = [f"{name}={values[0]}" for name, values in settings.items()]
            notes.append(note(NoteCode.TRY_DTYPES, what=what, settings=words))
    return notes
