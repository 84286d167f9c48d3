"""The best plans for a question."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.inputs import (
    DEFAULT_STACKS,
    PIPELINE_MODELS,
    RUNTIMES,
    ClusterSource,
    GpuCounts,
    ModelSource,
    RuleSource,
    Settings,
    batch_of,
    check_keywords,
    checked_margin,
    cluster_of,
    model_of,
    precision_words,
    rule_texts,
    settings_texts,
    user_rules_of,
)
from astra.api.money import default_objective, money_options, rentable_gpus
from astra.errors import InputError
from astra.search.objectives import OBJECTIVES, RISKS
from astra.values import number, of_kind, token_count, whole_number, word

if TYPE_CHECKING:
    from astra.api.answers import Answer
    from astra.hardware.cluster import Cluster
    from astra.money.options import MoneyOptions
    from astra.notes import Note
    from astra.search.evaluator import Limits
    from astra.search.query import Query
    from astra.search.result import Progress
    from astra.strategy.plan import Runtime


def plan(
    model: ModelSource,
    *,
    global_batch: int | str,
    seq_len: int | str,
    gpus: GpuCounts = None,
    cluster: ClusterSource = None,
    runtime: "Runtime | None" = None,
    stack: str | None = None,
    precision: str = "bf16",
    settings: Settings = (),
    rules: RuleSource = None,
    top: int = 10,
    margin: float = 0.05,
    risk: str = "normal",
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
    **more: Any,
) -> "Answer":
    """The best plans, the recommended one first; on one GPU type proven.

    >>> import astra
    >>> job = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": "4k"}
    >>> answer = astra.plan("llama-3-8b", tp=[2, 4], **job)
    >>> answer.best.plan.tp, answer.best.memory.fits
    (2, True)

    `model` is a name, a file, a config as a dict or an object of transformers; `gpus` a dict of
    counts. Any dimension narrows the space as a keyword (`tp=[1, 2]`) or in `settings`; `rules` is
    a file or a list (`["$tp > 4"]`). Over several types uniform plans and pipelines that mix types
    are searched, for Megatron-LM and FlagScale unless `runtime` names one: `mixed` compares them.
    `objective` is time, gpus, energy, money or frontier, `risk` normal, careful or none; words on
    money are keywords too: `tokens="1T", budget=4e5, deadline="30d", price={"h100": 2.49}`.
    "Nothing fits" is an answer. `time_limit` [s] or `is_cancelled` end it with the best so far.
    """
    question = {
        "gpus": gpus,
        "cluster": cluster,
        "global_batch": global_batch,
        "seq_len": seq_len,
        "runtime": runtime,
        "stack": stack,
        "precision": precision,
        "settings": settings,
        "rules": rules,
        "top": top,
        "margin": margin,
        "risk": risk,
        "max_gpus": max_gpus,
        "use_all": use_all,
        "objective": objective,
        "min_tokens_per_s": min_tokens_per_s,
        "fold": fold,
        "exact": exact,
        "pipeline_model": pipeline_model,
    }
    limits = limits_of(progress, time_limit, is_cancelled)
    return answer_question(model, question, more, limits, {"time_limit": time_limit})


def answer_question(
    model: ModelSource,
    question: dict[str, Any],
    more: dict[str, Any],
    limits: "Limits",
    said: Mapping[str, Any],
) -> "Answer":
    """`plan` of arguments that are all there.

    `said`: words of the question that decide nothing more, for the command line that asks it.
    """
    from dataclasses import replace

    from astra.api.answers import answer_of
    from astra.api.asked import with_question
    from astra.api.contradicted import with_contradictions
    from astra.api.deciding import with_deciding_notes
    from astra.api.what_if import answered_what_ifs, changed_query
    from astra.search.solve import solve

    wanted = _what_ifs(more.pop("what_if", None))
    query = query_of(model, **question, more=more)
    changed = {text: changed_query(query, text) for text in wanted}
    changed = {
        text: replace(other, runtimes=_runtimes(question["runtime"], other.cluster))
        for text, other in changed.items()
    }
    found = solve(query, limits)
    others = answered_what_ifs(found, changed, limits)
    told = with_contradictions(
        with_deciding_notes(query, found, limits), [other.cluster for other in changed.values()]
    )
    answer = answer_of(told)
    market = answer.market
    if market is not None and others:
        market = msgspec.structs.replace(market, what_if=others[0])
    words = {**question, **said, "model": model, "what_if": wanted}
    request = with_question(answer.request, words, query)
    return msgspec.structs.replace(answer, what_if=others, market=market, request=request)


def _what_ifs(said: Any) -> list[str]:
    """What is to be different, each a question of its own."""
    texts = [] if said is None else [said] if isinstance(said, str) else said
    return [of_kind(text, "what_if", str, "a text or a list of texts") for text in texts]


def limits_of(
    progress: "Callable[[Progress], None] | None",
    time_limit: float | None,
    is_cancelled: Callable[[], bool] | None,
) -> "Limits":
    """Until when it is searched, who is told, and who may stop it."""
    import time

    from astra.search.evaluator import Limits

    until_s = float("inf")
    if time_limit is not None:
        until_s = time.monotonic() + number(time_limit, "--time-limit", least=1e-6, most=1e9)
    return Limits(until_s=until_s, is_cancelled=is_cancelled or (lambda: False), watch=progress)


def query_of(
    model: ModelSource,
    *,
    global_batch: int | str,
    seq_len: int | str,
    gpus: GpuCounts,
    cluster: ClusterSource,
    runtime: "Runtime | None",
    stack: str | None,
    precision: str,
    settings: Settings,
    rules: RuleSource,
    top: int,
    margin: float,
    risk: str,
    max_gpus: int | None,
    use_all: bool,
    objective: str | None,
    min_tokens_per_s: float,
    fold: bool,
    exact: bool,
    pipeline_model: str,
    more: dict[str, Any],
) -> "Query":
    """The arguments of `plan`, read and checked, as a query."""
    from astra.hardware.stack import find_stack
    from astra.money.options import goals_of
    from astra.search.query import Query
    from astra.strategy.complete import trained_mtp_layers
    from astra.strategy.space import parse_set

    shape, (narrowed, money) = model_of(model), _split_keywords(more)
    texts = settings_texts(settings, narrowed)
    asked, precision = precision_words(precision)
    max_gpus = None if max_gpus is None else whole_number(max_gpus, "--max-gpus")
    objective = word(objective or default_objective(money), "--objective", tuple(OBJECTIVES))
    options, is_for_money = money_options(money, objective), OBJECTIVES[objective].is_for_money
    uncounted: list[Note] = []
    if options is not None and is_for_money and cluster is None:
        gpus, max_gpus, uncounted = rentable_gpus(gpus, options, max_gpus, asked)
    needed = None if is_for_money and asked == precision else asked  # of each type
    machines, notes = cluster_of(gpus, cluster, needed)
    runtimes = _runtimes(runtime, machines)
    length = token_count(seq_len, "--seq-len")
    query = Query(
        model=shape,
        cluster=msgspec.structs.replace(machines, max_gpus=max_gpus or machines.max_gpus),
        stack=find_stack(stack or DEFAULT_STACKS.get(runtimes[0], "megatron")),
        global_batch=batch_of(global_batch, length)[0],
        seq_len=length,
        runtimes=runtimes,
        precision=precision,
        mtp_layers=trained_mtp_layers(shape, runtimes[0]),
        use_all=use_all,
        settings=parse_set(texts),
        set_words=texts,
        rules_file=str(rules) if isinstance(rules, str | Path) else None,
        rule_texts=rule_texts(rules),
        objective=objective,
        min_tokens_per_s=_checked_goal(objective, use_all, min_tokens_per_s, options),
        money=options,
        goals=None if options is None else goals_of(options),
        top=whole_number(top, "--top", most=1000),
        fold=fold,
        exact=exact,
        margin=checked_margin(margin),
        risk=word(risk, "--risk", RISKS),
        pipeline_model=word(pipeline_model, "--pipeline-model", PIPELINE_MODELS),
    )
    return _with_rules_and_notes(query, rules, [*notes, *uncounted])


def _split_keywords(more: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dimensions that are narrowed, and words about money."""
    from astra.money.options import OPTION_NAMES
    from astra.strategy.space import SETTABLE, SHORT_NAMES

    dimensions = (*SETTABLE, *SHORT_NAMES)
    check_keywords(more, (*dimensions, *OPTION_NAMES), plan)
    narrowed = {name: value for name, value in more.items() if name in dimensions}
    return narrowed, {name: value for name, value in more.items() if name not in dimensions}


def _with_rules_and_notes(query: "Query", rules: RuleSource, notes: "Sequence[Note]") -> "Query":
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


def _runtimes(runtime: str | None, machines: "Cluster") -> "tuple[Runtime, ...]":
    """The runtime that is named, else those whose plans are searched."""
    if runtime is not None:
        return (word(runtime, "--runtime", RUNTIMES),)  # type: ignore[return-value]
    return ("megatron", "flagscale") if len(machines.pools) > 1 else ("megatron",)


def _checked_goal(
    objective: str, use_all: bool, min_tokens_per_s: float, options: "MoneyOptions | None"
) -> float:
    """The throughput; an error where goals contradict each other, or are not known."""
    row = OBJECTIVES[objective]
    rate = number(min_tokens_per_s, "--min-tokens-per-s", least=0.0, most=1e15)
    if row.is_for_money and (options is None or options.tokens is None):
        raise InputError(
            f"--objective {objective}: how many tokens are to be trained? Give --tokens, such as "
            "--tokens 1T; hours and dollars follow from them."
        )
    if row.against_use_all and use_all:
        raise InputError(f"--objective {objective} {row.against_use_all}.")
    goals = {"min_tokens_per_s": rate or None}
    owners = {name: other for other in reversed(OBJECTIVES) for name in OBJECTIVES[other].takes}
    for name in sorted(owners.keys() - set(row.takes)):
        if goals.get(name, getattr(options, name, None)) is not None:
            option = name.replace("_", "-")
            raise InputError(f"--{option} is a goal of --objective {owners[name]}; add that.")
    if options is not None and not row.is_for_money:
        rented = {
            "--join-guessed": options.join_guessed,
            "--no-mixed": not options.mixed,
        }
        for option in (option for option, said in rented.items() if said):
            raise InputError(f"{option} is about what --objective money rents; add that.")
    return rate
