"""The best plans for a question."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.asked import (
    PRECISIONS,
    RUNTIMES,
    STACKS,
    checked_margin,
    checked_pipeline_model,
    counted,
    machines_of,
    one_of,
    rules_of,
    shape_of,
)
from astra.api.money import MONEY, bought, for_rent, has_goals, money_of, with_dollars
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.hardware.cluster import Cluster
    from astra.model.shape import Model
    from astra.money.options import MoneyOptions
    from astra.search.answer import Answer, Wanted
    from astra.search.priced import Priced
    from astra.strategy.plan import Runtime
    from astra.strategy.space import Question


def plan(
    model: "str | Path | Model",
    *,
    global_batch: int,
    seq_len: int,
    gpus: str | None = None,
    cluster: "str | Path | Cluster | None" = None,
    runtime: "Runtime | None" = None,
    stack: str | None = None,
    precision: str = "bf16",
    settings: Sequence[str] = (),
    rules: "str | Path | None" = None,
    top: int = 10,
    margin: float = 0.05,
    max_gpus: int | None = None,
    use_all: bool = False,
    objective: str | None = None,
    min_tokens_per_s: float = 0.0,
    fold: bool = True,
    exact: bool = False,
    pipeline_model: str = "simulated",
    progress: Callable[[int], None] | None = None,
    **money: Any,
) -> "Answer":
    """The best plans; on one GPU type proven: no plan of the space has a shorter simulated step.

    Over several types uniform plans and pipelines that mix types are searched too, for Megatron-LM
    and FlagScale unless `runtime` names one; `mixed` tells what the best is worth. `settings`
    narrow the space (`["tp=4,8"]`), `rules` is a file. `objective` is as in `astra plan --help`:
    time, gpus, money or frontier, with its words about money. "Nothing fits" is an answer.
    """
    from astra.hardware.stack import find_stack
    from astra.search.answer import Wanted
    from astra.strategy.plans import Task
    from astra.strategy.settle import trained_mtp_layers
    from astra.strategy.space import Question, Space, parse_set

    shape = shape_of(model)
    global_batch, seq_len, top, max_gpus = _numbers(global_batch, seq_len, top, max_gpus)
    _check_words(precision, runtime, settings, pipeline_model)
    objective = objective or ("money" if has_goals(money) else "time")
    wish = money_of(money, objective)
    paid = objective in MONEY
    if wish is not None and paid and cluster is None:
        gpus, max_gpus = for_rent(gpus, wish, max_gpus, precision)
    machines, notes = machines_of(gpus, cluster, None if paid else precision)
    _check_goal(objective, use_all, min_tokens_per_s, wish)
    runtimes = (runtime,) if runtime else _launchers(machines)
    machines = msgspec.structs.replace(machines, max_gpus=max_gpus or machines.max_gpus)
    software = find_stack(stack or STACKS.get(runtimes[0], "megatron"))
    task = Task(model=shape, cluster=machines, runtime=runtimes[0], stack=software.full_name)
    mtp = trained_mtp_layers(shape, runtimes[0])
    asked = Question(task, global_batch, seq_len, mtp, precision, use_all)
    wanted = Wanted(
        space=Space(asked, parse_set(settings)),
        stack=software,
        own_rules=rules_of(rules, task),
        top=top,
        margin=checked_margin(margin),
        fold=fold,
        exact=exact,
        runtimes=runtimes,
    )
    request = _request(wanted, notes) | _said(settings, rules, objective, min_tokens_per_s)
    if wish is not None and paid:
        return bought(wanted, wish, request, progress)
    with_dollars((), wish, machines)  # prices that cannot be are refused before the search
    found = _answered(wanted, request, objective, min_tokens_per_s, progress)
    found = _with_ram_notes(found, tuple(with_dollars(found.plans, wish, machines)))
    return _with_paper(found) if pipeline_model == "paper" else found


def _launchers(machines: "Cluster") -> "tuple[Runtime, ...]":
    """Runtimes that are asked by default: over several GPU types FlagScale too."""
    return ("megatron", "flagscale") if len(machines.pools) > 1 else ("megatron",)


def _numbers(
    global_batch: int, seq_len: int, top: int, max_gpus: int | None
) -> tuple[int, int, int, int | None]:
    return (
        counted("global_batch", global_batch),
        counted("seq_len", seq_len),
        counted("top", top, most=1000),
        None if max_gpus is None else counted("max_gpus", max_gpus),
    )


def _check_words(
    precision: str, runtime: str | None, settings: Sequence[str], pipeline_model: str
) -> None:
    checked_pipeline_model(pipeline_model)
    one_of("precision", precision, PRECISIONS)
    if runtime is not None:
        one_of("runtime", runtime, RUNTIMES)
    if isinstance(settings, str):
        raise InputError(f"settings = {settings!r}: give a list, [{settings!r}].")


def _exact_anyway(wanted: "Wanted") -> list[str]:
    one = len(wanted.space.question.task.cluster.pools) == 1
    said = "exact: on one GPU type every search is proven without it"
    return [said] if wanted.exact and one else []


def _without_mtp(asked: "Question") -> list[str]:
    """Layers of the model that a runtime's plans leave out."""
    layers, runtime = asked.task.model.mtp_layers, asked.task.runtime
    if asked.mtp_layers == layers:
        return []
    counted = f"{layers} layer{'s' if layers > 1 else ''}"
    return [f"multi-token prediction ({counted}) is left out: plans of {runtime} do not train it"]


def _said(
    settings: Sequence[str], rules: "str | Path | None", objective: str, min_tokens_per_s: float
) -> dict[str, object]:
    """What narrows a question, as a result keeps it."""
    return {
        "set": list(settings),
        "rules": rules and str(rules),
        "objective": objective,
        "min_tokens_per_s": min_tokens_per_s,
    }


def _answered(
    wanted: "Wanted",
    request: dict[str, object],
    objective: str,
    min_tokens_per_s: float,
    progress: Callable[[int], None] | None,
) -> "Answer":
    """The fastest plans, or those on the fewest GPUs."""
    from astra.search.answer import answer, fewest_gpus

    if len(wanted.space.question.task.cluster.pools) > 1:
        from astra.search.mixed.answer import answer_mixed, fewest_mixed

        if objective == "gpus":
            return fewest_mixed(wanted, request, min_tokens_per_s, progress)
        return answer_mixed(wanted, request, progress)
    if "mesh_dp" in wanted.space.chosen:
        raise InputError("--set mesh_dp: one GPU type has one dp; it is for several types.")
    if objective == "gpus":
        return fewest_gpus(wanted, request, min_tokens_per_s, progress)
    return answer(wanted, request, progress)


def _with_ram_notes(found: "Answer", plans: "tuple[Priced, ...]") -> "Answer":
    """The answer with these plans, and a word where the RAM for their offload is not known."""
    from astra.search.host import ram_notes

    said = found.request.get("notes")
    notes = [*(said if isinstance(said, list) else []), *ram_notes(plans)]
    return msgspec.structs.replace(found, plans=plans, request=found.request | {"notes": notes})


def _with_paper(found: "Answer") -> "Answer":
    from astra.search.paper import compared

    return msgspec.structs.replace(found, paper=compared(found.plans))


def _check_goal(
    objective: str, use_all: bool, min_tokens_per_s: float, wish: "MoneyOptions | None"
) -> None:
    """Goals that contradict each other, or that are not known."""
    if objective not in ("time", "gpus", *MONEY):
        raise InputError(f"objective {objective!r}: use time, money, frontier or gpus.")
    if objective in MONEY and (wish is None or wish.tokens is None):
        raise InputError(
            f"--objective {objective}: how many tokens are to be trained? Give --tokens, such as "
            "--tokens 1T; hours and dollars follow from them."
        )
    if objective in MONEY and use_all:
        raise InputError(f"--objective {objective} chooses how many GPUs; --use-all forbids it.")
    for name in ("budget", "deadline", "longest", "order", "what_if"):
        if getattr(wish, name, None) is not None and objective not in MONEY:
            option = name.replace("_", "-")
            raise InputError(f"--{option} is a goal of --objective money; add that.")
    if wish is not None and objective not in MONEY:
        rented = {
            "--join-guessed": wish.join_guessed,
            "--any-region": wish.any_region,
            "--no-mixed": not wish.mixed,
        }
        for option in (option for option, said in rented.items() if said):
            raise InputError(f"{option} is about what --objective money rents; add that.")
    if objective == "gpus" and use_all:
        raise InputError("--objective gpus looks for fewer GPUs, and --use-all forbids it.")
    if not 0 <= min_tokens_per_s <= 1e15:
        raise InputError(f"min_tokens_per_s = {min_tokens_per_s}: must lie between 0 and 1e15.")
    if min_tokens_per_s and objective != "gpus":
        raise InputError("--min-tokens-per-s is a goal of --objective gpus; add that.")


def _request(wanted: "Wanted", notes: Sequence[str]) -> dict[str, object]:
    """What a result says of the question it answers."""
    question = wanted.space.question
    return {
        "model": question.task.model.name,
        "gpus": {pool.gpu.name: pool.count for pool in question.task.cluster.pools},
        "max_gpus": question.task.cluster.max_gpus,
        "use_all": question.use_all,
        "global_batch": question.global_batch,
        "seq_len": question.seq_len,
        "runtime": question.task.runtime,
        "runtimes": list(wanted.asked_runtimes),
        "stack": wanted.stack.full_name,
        "precision": question.precision,
        "top": wanted.top,
        "memory_margin": wanted.margin,
        "notes": [*notes, *_exact_anyway(wanted), *_without_mtp(question)],
    }
