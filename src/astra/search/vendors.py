"""A question over GPUs of several vendors: the answers for each, as one."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from astra.errors import InputError
from astra.hardware.cluster import Cluster
from astra.hardware.vendors import by_vendor, vendor_note, vendor_of
from astra.search.answer import Answer, Mixed, NothingFits, Wanted, search_of, summed
from astra.search.by_stage import stages_of
from astra.search.find import Progress
from astra.search.priced import Priced
from astra.strategy.space import Space

Ask = Callable[[Wanted, dict[str, object], Progress | None], Answer]


def answer_each_vendor(
    wanted: Wanted, request: dict[str, object], progress: Progress | None, ask: Ask
) -> Answer:
    """What `ask` says of the GPUs of each vendor, as one answer: the best plans of any of them."""
    question = wanted.space.question
    cluster = question.task.cluster
    if question.use_all:
        raise InputError(
            f"--use-all: {vendor_note(cluster)}. Leave it out, or give the GPUs of one vendor."
        )
    answers: list[Answer] = []
    for own in by_vendor(cluster):
        task = msgspec.structs.replace(question.task, cluster=own)
        space = Space(replace(question, task=task), wanted.space.settings)
        answers.append(ask(replace(wanted, space=space), request, _after(progress, answers)))
    return _joined(answers, wanted)


def _after(progress: Progress | None, done: Sequence[Answer]) -> Progress | None:
    """The same, counting on from the searches that are done."""
    before = sum(each.search.candidates for each in done)
    return (lambda count: progress(before + count)) if progress else None


def _joined(answers: Sequence[Answer], wanted: Wanted) -> Answer:
    cluster = wanted.space.question.task.cluster
    plans = sorted((plan for each in answers for plan in each.plans), key=lambda plan: plan.step_s)
    ranked = tuple(
        msgspec.structs.replace(
            priced, rank=place, plan=msgspec.structs.replace(priced.plan, cluster=cluster)
        )
        for place, priced in enumerate(plans[: wanted.top], 1)
    )
    request, notes = answers[0].request, dict[object, None]()
    for each in answers:
        said = each.request.get("notes")
        notes |= dict.fromkeys(said if isinstance(said, list) else ())
    notes[vendor_note(cluster)] = None
    parts = [each.search for each in answers]
    return Answer(
        request=request | {"notes": [*notes]},
        search=search_of(summed(parts), sum(part.seconds for part in parts)),
        plans=ranked,
        nothing_fits=None if ranked else _nothing(answers, by_vendor(cluster)),
        mixed=_mixed(answers, wanted, ranked[0] if ranked else None),
    )


def _mixed(answers: Sequence[Answer], wanted: Wanted, best: Priced | None) -> Mixed:
    """What the best plan is worth beside those of every vendor."""
    known = [each.mixed for each in answers if each.mixed]
    bounds = [
        each.best.step_s / (1 + each.mixed.gap_fraction)
        for each in answers
        if each.best and each.mixed
    ]
    launched = [own.launched_step_s for own in known if own.launched_step_s is not None]
    used = best.gpus if best else {}
    caps = {pool.gpu.name: pool.count for pool in wanted.space.question.task.cluster.pools}
    idle = {name: count - used.get(name, 0) for name, count in caps.items()}
    return Mixed(
        gap_fraction=max(best.step_s / min(bounds) - 1, 0.0) if best else 0.0,
        alone_step_s={name: step for own in known for name, step in own.alone_step_s.items()},
        uniform_step_s=_least([own.uniform_step_s for own in known]),
        even_split_step_s=None,  # over all GPUs
        runtimes_step_s={
            name: _least([own.runtimes_step_s.get(name) for own in known])
            for own in known
            for name in own.runtimes_step_s
        },
        pipelines_of=tuple(dict.fromkeys(name for own in known for name in own.pipelines_of)),
        idle={name: count for name, count in idle.items() if count},
        left_out=tuple(text for own in known for text in own.left_out),
        stages=stages_of(best, wanted.stack) if best else (),
        launched_step_s=min(launched, default=None),
    )


def _least(steps_s: Sequence[float | None]) -> float | None:
    return min((step_s for step_s in steps_s if step_s is not None), default=None)


def _nothing(answers: Sequence[Answer], apart: Sequence[Cluster]) -> NothingFits:
    """Why, of every vendor, and what comes closest to fitting."""
    why = [each.nothing_fits for each in answers if each.nothing_fits]
    names = [vendor_of(own.pools[0].gpu) for own in apart]
    closest = [own.closest for own in why if own.closest]
    return NothingFits(
        closest=min(closest, key=_filled, default=None),
        binding="; ".join(f"{name}: {own.binding}" for name, own in zip(names, why, strict=True)),
        tries=tuple(dict.fromkeys(text for own in why for text in own.tries)),
    )


def _filled(plan: Priced) -> float:
    return plan.memory.reserved_bytes / plan.memory.usable_bytes
