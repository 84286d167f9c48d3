"""JSON's `request`: a query written down, and read back. Nothing else writes or reads it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from astra.cost.price import MARGIN
from astra.files import convert
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.pools import is_user_described
from astra.hardware.stack import find_stack
from astra.money.options import MoneyOptions, goals_of, money_options_of
from astra.notes import Note, NoteCode, note
from astra.search.objectives import OBJECTIVES, RISKS
from astra.search.query import Query
from astra.strategy.plan import Plan, Runtime
from astra.strategy.plans import task_of
from astra.strategy.rules.rule import Rule
from astra.strategy.space import parse_set
from astra.values import word


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a result says of the question it answers; the model is in its plans."""

    model: str = ""
    gpus: dict[str, int] = {}
    max_gpus: int | None = None
    use_all: bool = False
    global_batch: int | None = None
    seq_len: int | None = None
    runtime: Runtime | None = None
    runtimes: tuple[Runtime, ...] = ()
    stack: str | None = None
    precision: str | None = None
    top: int = 10
    memory_margin: float = MARGIN
    notes: tuple[str, ...] = ()  # in words
    set: tuple[str, ...] = ()
    rules: str | None = None
    rule_texts: tuple[str, ...] | UnsetType = UNSET  # rules that are in no file
    objective: str = "time"
    min_tokens_per_s: float = 0.0
    own_gpus: tuple[Gpu, ...] | UnsetType = UNSET  # that the catalogue does not have
    money: dict[str, Any] | UnsetType = UNSET
    note_codes: tuple[Note, ...] = ()
    all: bool = False  # near-identical plans too
    exact: bool = False
    mtp_layers: int | None = None
    pipeline_model: str = "simulated"
    risk: str = "none"
    command: str | None = None  # that asks the same; None: something is in no file
    python: str | None = None  # the same as a call
    question: dict[str, Any] | None = None  # the same as words of the server; None: it cannot be


def request_of(query: Query) -> Request:
    """The query in the words of the JSON."""
    pools, for_money = query.cluster.pools, query.is_for_money
    keeps_money = for_money or OBJECTIVES[query.objective].measure is not None
    own = tuple(pool.gpu for pool in pools if is_user_described(pool)) if for_money else ()
    return Request(
        model=query.model.name,
        gpus={pool.gpu.name: pool.count for pool in pools},
        max_gpus=query.cluster.max_gpus,
        use_all=query.use_all,
        global_batch=query.global_batch,
        seq_len=query.seq_len,
        runtime=query.runtime,
        runtimes=query.runtimes,
        stack=query.stack.full_name,
        precision=query.precision,
        top=query.top,
        memory_margin=query.margin,
        set=query.set_words,
        rules=query.rules_file,
        rule_texts=query.rule_texts or UNSET,
        objective=query.objective,
        min_tokens_per_s=query.min_tokens_per_s,
        own_gpus=own or UNSET,
        money=_money(query) if query.money is not None and keeps_money else UNSET,
        all=not query.fold,
        exact=query.exact,
        mtp_layers=query.mtp_layers,
        pipeline_model=query.pipeline_model,
        risk=query.risk,
    )


def _money(query: Query) -> dict[str, Any]:
    """What was said about money; a date as the hours that were left."""
    assert query.money is not None and query.goals is not None
    said = msgspec.structs.replace(query.money, deadline=query.goals.deadline_h)
    plain = msgspec.to_builtins(MoneyOptions())
    return {
        name: value for name, value in msgspec.to_builtins(said).items() if value != plain[name]
    }


def read_request(request: Mapping[str, object], plan: Plan, where: str) -> Query:
    """The query that a result answers; `plan` is one of its plans, which have the model and the
    GPUs in full.
    """
    said = convert(dict(request), Request, f"{where}: request")
    word(said.objective, f"{where}: request.objective", tuple(OBJECTIVES))
    stack = find_stack(said.stack or plan.stack)
    query = Query(
        model=plan.model,
        cluster=_cluster(said, plan),
        stack=stack,
        global_batch=said.global_batch or plan.global_batch,
        seq_len=said.seq_len or plan.seq_len,
        runtimes=said.runtimes or (said.runtime or plan.runtime,),
        precision=said.precision or plan.precision,
        mtp_layers=plan.mtp_layers if said.mtp_layers is None else said.mtp_layers,
        use_all=said.use_all,
        settings=parse_set(said.set),
        set_words=said.set,
        rules_file=said.rules,
        rule_texts=said.rule_texts or (),
        objective=said.objective,
        min_tokens_per_s=said.min_tokens_per_s,
        top=said.top,
        fold=not said.all,
        exact=said.exact,
        margin=said.memory_margin,
        pipeline_model=said.pipeline_model,
        risk=word(said.risk, f"{where}: request.risk", RISKS),
    )
    rules, notes = _rules(said, plan)
    query = replace(query, user_rules=rules, notes=notes)
    if isinstance(said.money, dict):
        money = money_options_of(said.money)
        query = replace(query, money=money, goals=goals_of(money))
    return query


def _cluster(said: Request, plan: Plan) -> Cluster:
    """Machines by their names: as a plan has them, as the result keeps them, or the catalogue's."""
    if not said.gpus:
        return plan.cluster
    users = [pool.gpu for pool in plan.cluster.pools if pool.gpu.source.kind == "user"]
    kept = said.own_gpus if isinstance(said.own_gpus, tuple) else ()
    own = {gpu.name: gpu for gpu in (*users, *kept)}
    pools = tuple(
        Pool(gpu=own.get(name) or find_gpu(name)[0], count=count, described=name in own)
        for name, count in said.gpus.items()
    )
    return Cluster(name="asked", pools=pools, max_gpus=said.max_gpus)


def _rules(said: Request, plan: Plan) -> tuple[tuple[Rule, ...], tuple[Note, ...]]:
    """The user's rules: those of a file where it is still there."""
    if said.rules is None and not said.rule_texts:
        return (), ()
    from astra.strategy.user_rules import parse_user_rules, read_user_rules  # when asked for

    if said.rule_texts:
        return parse_user_rules(said.rule_texts, task_of(plan)), ()
    assert said.rules is not None
    if not Path(said.rules).is_file():
        return (), (note(NoteCode.RULES_GONE, file=said.rules),)
    return read_user_rules(Path(said.rules), task_of(plan)), ()
