"""The best plans for a question."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.inputs import (
    DEFAULT_STACKS,
    RUNTIMES,
    SEARCHED_PRECISIONS,
    check_word,
    checked_count,
    checked_margin,
    checked_pipeline_model,
    cluster_of,
    model_of,
    user_rules_of,
)
from astra.api.money import FOR_MONEY, has_goals, money_options, rentable_gpus
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.api.answers import Answer
    from astra.hardware.cluster import Cluster
    from astra.model.shape import Model
    from astra.money.options import MoneyOptions
    from astra.notes import Note
    from astra.search.evaluator import Limits
    from astra.search.query import Query
    from astra.search.result import Progress
    from astra.strategy.plan import Runtime


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
    progress: "Callable[[Progress], None] | None" = None,
    time_limit: float | None = None,
    is_cancelled: Callable[[], bool] | None = None,
    **money: Any,
) -> "Answer":
    """The best plans; on one GPU type proven: no plan of the space has a shorter simulated step.

    Over several types uniform plans and pipelines that mix types are searched too, for Megatron-LM
    and FlagScale unless `runtime` names one; `mixed` tells what the best is worth. `settings`
    narrow the space (`["tp=4,8"]`), `rules` is a file. `objective` is as in `astra plan --help`:
    time, gpus, money or frontier, with its words about money. "Nothing fits" is an answer.
    `time_limit` [s] and `is_cancelled`, which is asked now and then, end a search early: the answer
    is the best so far, and `search.status` says so.
    """
    from astra.api.answers import answer_of
    from astra.search.solve import solve

    query = query_of(
        model,
        global_batch=global_batch,
        seq_len=seq_len,
        gpus=gpus,
        cluster=cluster,
        runtime=runtime,
        stack=stack,
        precision=precision,
        settings=settings,
        rules=rules,
        top=top,
        margin=margin,
        max_gpus=max_gpus,
        use_all=use_all,
        objective=objective,
        min_tokens_per_s=min_tokens_per_s,
        fold=fold,
        exact=exact,
        pipeline_model=pipeline_model,
        money=money,
    )
    return answer_of(solve(query, _limits(progress, time_limit, is_cancelled)))


def _limits(
    progress: "Callable[[Progress], None] | None",
    time_limit: float | None,
    is_cancelled: Callable[[], bool] | None,
) -> "Limits":
    import time

    from astra.search.evaluator import Limits

    if time_limit is not None and not time_limit > 0:
        raise InputError(f"time_limit = {time_limit:g}: seconds, more than none.")
    until_s = float("inf") if time_limit is None else time.monotonic() + time_limit
    return Limits(until_s=until_s, is_cancelled=is_cancelled or (lambda: False), watch=progress)


def query_of(
    model: "str | Path | Model",
    *,
    global_batch: int,
    seq_len: int,
    gpus: str | None,
    cluster: "str | Path | Cluster | None",
    runtime: "Runtime | None",
    stack: str | None,
    precision: str,
    settings: Sequence[str],
    rules: "str | Path | None",
    top: int,
    margin: float,
    max_gpus: int | None,
    use_all: bool,
    objective: str | None,
    min_tokens_per_s: float,
    fold: bool,
    exact: bool,
    pipeline_model: str,
    money: dict[str, Any],
) -> "Query":
    """The arguments of `plan`, read and checked, as a query."""
    from astra.hardware.stack import find_stack
    from astra.money.options import goals_of
    from astra.search.query import Query
    from astra.strategy.complete import trained_mtp_layers
    from astra.strategy.space import parse_set

    shape = model_of(model)
    _check_words(precision, runtime, settings, pipeline_model)
    max_gpus = None if max_gpus is None else checked_count("max_gpus", max_gpus)
    objective = objective or ("money" if has_goals(money) else "time")
    options = money_options(money, objective)
    is_for_money = objective in FOR_MONEY
    if options is not None and is_for_money and cluster is None:
        gpus, max_gpus = rentable_gpus(gpus, options, max_gpus, precision)
    machines, notes = cluster_of(gpus, cluster, None if is_for_money else precision)
    _check_goal(objective, use_all, min_tokens_per_s, options)
    runtimes = (runtime,) if runtime else _default_runtimes(machines)
    query = Query(
        model=shape,
        cluster=msgspec.structs.replace(machines, max_gpus=max_gpus or machines.max_gpus),
        stack=find_stack(stack or DEFAULT_STACKS.get(runtimes[0], "megatron")),
        global_batch=checked_count("global_batch", global_batch),
        seq_len=checked_count("seq_len", seq_len),
        runtimes=runtimes,
        precision=precision,
        mtp_layers=trained_mtp_layers(shape, runtimes[0]),
        use_all=use_all,
        settings=parse_set(settings),
        set_words=tuple(settings),
        rules_file=None if rules is None else str(rules),
        objective=objective,  # type: ignore[arg-type]
        min_tokens_per_s=min_tokens_per_s,
        money=options,
        goals=None if options is None else goals_of(options),
        top=checked_count("top", top, maximum=1000),
        fold=fold,
        exact=exact,
        margin=checked_margin(margin),
        pipeline_model=pipeline_model,
    )
    return _with_rules_and_notes(query, rules, notes)


def _with_rules_and_notes(
    query: "Query", rules: "str | Path | None", notes: "Sequence[Note]"
) -> "Query":
    from dataclasses import replace

    if len(query.cluster.pools) == 1 and "mesh_dp" in query.settings:
        raise InputError("--set mesh_dp: one GPU type has one dp; it is for several types.")
    return replace(
        query, user_rules=user_rules_of(rules, query.task), notes=(*notes, *_reading_notes(query))
    )


def _reading_notes(query: "Query") -> "list[Note]":
    """What is not needed, and what plans of a runtime leave out."""
    from astra.notes import NoteCode, note

    notes = []
    if query.exact and len(query.cluster.pools) == 1:
        notes.append(note(NoteCode.PROVEN_ANYWAY))
    layers = query.model.mtp_layers
    if query.mtp_layers != layers:
        notes.append(note(NoteCode.MTP_LEFT_OUT, layers=layers, runtime=query.runtime))
    return notes


def _default_runtimes(machines: "Cluster") -> "tuple[Runtime, ...]":
    """Runtimes whose plans are searched unless one is named."""
    return ("megatron", "flagscale") if len(machines.pools) > 1 else ("megatron",)


def _check_words(
    precision: str, runtime: str | None, settings: Sequence[str], pipeline_model: str
) -> None:
    checked_pipeline_model(pipeline_model)
    check_word("precision", precision, SEARCHED_PRECISIONS)
    if runtime is not None:
        check_word("runtime", runtime, RUNTIMES)
    if isinstance(settings, str):
        raise InputError(f"settings = {settings!r}: give a list, [{settings!r}].")


def _check_goal(
    objective: str, use_all: bool, min_tokens_per_s: float, options: "MoneyOptions | None"
) -> None:
    """Goals that contradict each other, or that are not known."""
    if objective not in ("time", "gpus", *FOR_MONEY):
        raise InputError(f"objective {objective!r}: use time, money, frontier or gpus.")
    if objective in FOR_MONEY and (options is None or options.tokens is None):
        raise InputError(
            f"--objective {objective}: how many tokens are to be trained? Give --tokens, such as "
            "--tokens 1T; hours and dollars follow from them."
        )
    if objective in FOR_MONEY and use_all:
        raise InputError(f"--objective {objective} chooses how many GPUs; --use-all forbids it.")
    for name in ("budget", "deadline", "longest", "order", "what_if"):
        if getattr(options, name, None) is not None and objective not in FOR_MONEY:
            option = name.replace("_", "-")
            raise InputError(f"--{option} is a goal of --objective money; add that.")
    if options is not None and objective not in FOR_MONEY:
        rented = {
            "--join-guessed": options.join_guessed,
            "--any-region": options.any_region,
            "--no-mixed": not options.mixed,
        }
        for option in (option for option, said in rented.items() if said):
            raise InputError(f"{option} is about what --objective money rents; add that.")
    if objective == "gpus" and use_all:
        raise InputError("--objective gpus looks for fewer GPUs, and --use-all forbids it.")
    if not 0 <= min_tokens_per_s <= 1e15:
        raise InputError(f"min_tokens_per_s = {min_tokens_per_s}: must lie between 0 and 1e15.")
    if min_tokens_per_s and objective != "gpus":
        raise InputError("--min-tokens-per-s is a goal of --objective gpus; add that.")
