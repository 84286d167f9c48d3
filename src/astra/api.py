"""The Python API: the command line's words as functions. `import astra; astra.predict(...)`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.errors import InputError, NoPriceError, did_you_mean
from astra.files import convert
from astra.strategy.settle import Settled, Wish, settle

if TYPE_CHECKING:
    from astra.hardware.cluster import Cluster
    from astra.jobs.read import Job
    from astra.model.shape import Model
    from astra.money.catalogue import Offer
    from astra.money.wish import Wish as Wish_
    from astra.search.answer import Answer, Wanted
    from astra.search.explained import Explanation
    from astra.search.priced import Priced
    from astra.strategy.plan import Plan, Runtime
    from astra.strategy.plans import Task
    from astra.strategy.rules.rule import Rule

MONEY = ("money", "frontier")  # objectives
MOST_RENTED = 1024  # GPUs of a type, where nobody says how many there are
STACKS = {"fsdp": "torch-fsdp", "deepspeed": "deepspeed"}  # of a runtime; else megatron
WISHES = tuple(field.name for field in fields(Wish))
PIPELINE_MODELS = ("simulated", "paper")
COUNTS = tuple(field.name for field in fields(Wish) if field.type == int | None)


def predict(
    model: "str | Path | Model",
    *,
    gpus: str | None = None,
    cluster: "str | Path | Cluster | None" = None,
    runtime: "Runtime | None" = None,
    stack: str | None = None,
    margin: float = 0.05,
    pipeline_model: str = "simulated",
    money: Mapping[str, Any] | None = None,
    **settings: Any,
) -> "Priced":
    """One plan, checked against its runtime's rules and priced.

    `pipeline_model="paper"` takes the pipeline formula of arXiv 2502.13480 in place of the
    simulator, for comparison.

    `settings` are the fields of a plan in a person's words (`tp=4, pp=2, global_batch=256,
    seq_len=4096, recompute="full:block:4", ...`); what is left out is what an expert would set,
    and is listed in the answer's `assumed`. `money` are the words of `plan` about money: with
    `{"tokens": "1T", "price": "h100=2.49"}` the answer has hours and dollars. A plan that the
    runtime would refuse, and anything else a person can mend, is an `InputError`.
    """
    from astra.hardware.stack import find_stack
    from astra.search.price import price
    from astra.strategy.advice import refuse
    from astra.strategy.rules.book import broken_rules

    shape = _model(model)
    machines, notes = _cluster(gpus, cluster)
    chosen: Runtime = runtime or ("megatron" if len(machines.pools) == 1 else "flagscale")
    wish = _wish(settings)
    software = stack or STACKS.get(chosen, "megatron")
    find_stack(software)

    def settled(changed: Wish) -> Settled:
        return settle(changed, shape, machines, chosen, software)

    answer = settled(wish)
    broken = broken_rules(answer.plan)
    if broken:
        raise InputError(refuse(answer.plan, broken, settled, wish))
    priced = _modelled(price(answer.plan, answer.assumed, notes, _margin(margin)), pipeline_model)
    return _paid([priced], _money(money or {}), machines)[0]


def _modelled(priced: "Priced", pipeline_model: str) -> "Priced":
    """By the simulator, or by the paper's formula."""
    from astra.search.paper import by_paper

    return by_paper(priced) if _check_model(pipeline_model) == "paper" else priced


def _check_model(pipeline_model: str) -> str:
    if pipeline_model not in PIPELINE_MODELS:
        hint = did_you_mean(pipeline_model, PIPELINE_MODELS, "Use simulated or paper.")
        raise InputError(f"pipeline_model = {pipeline_model!r}: not known. {hint}")
    return pipeline_model


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
    """The best plans, proven: no plan of the space has a shorter simulated step.

    Over several GPU types the best pipeline that mixes them is searched too (`mixed` tells what it
    is worth and how far it is proven; `exact` looks longer); the runtime is then flagscale, else
    megatron. `settings` narrow the space (`["tp=4,8", "recompute=none"]`); `rules` is a file of
    your own. The objective `gpus` asks for the fewest GPUs that fit, or that reach
    `min_tokens_per_s`; `money` (as with a budget or a deadline) and `frontier` for hours against
    dollars over GPUs that can be rented, with the words of `astra plan --help` (`tokens`, ...).
    `pipeline_model="paper"` adds what the formula of arXiv 2502.13480 says. "Nothing fits" is an
    answer: `plans` is empty and `nothing_fits` says why.
    """
    from astra.hardware.stack import find_stack
    from astra.search.answer import Wanted
    from astra.strategy.plans import Task
    from astra.strategy.space import Question, Space, parse_set

    shape, _ = _model(model), _check_model(pipeline_model)
    objective = objective or ("money" if _has_goals(money) else "time")
    wish = _money(money, objective)
    paid = objective in MONEY
    if wish is not None and paid and cluster is None:
        gpus, max_gpus = _for_rent(gpus, wish, max_gpus, precision)
    machines, notes = _cluster(gpus, cluster)
    _check_goal(objective, use_all, min_tokens_per_s, wish)
    chosen: Runtime = runtime or ("megatron" if paid or len(machines.pools) == 1 else "flagscale")
    machines = msgspec.structs.replace(machines, max_gpus=max_gpus or machines.max_gpus)
    software = find_stack(stack or STACKS.get(chosen, "megatron"))
    task = Task(model=shape, cluster=machines, runtime=chosen, stack=software.full_name)
    mtp = shape.mtp_layers if chosen == "megatron" else 0
    asked = Question(task, global_batch, seq_len, mtp, precision, use_all)
    wanted = Wanted(
        space=Space(asked, parse_set(settings)),
        stack=software,
        own_rules=_own_rules(rules, task),
        top=top,
        margin=_margin(margin),
        fold=fold,
        exact=exact,
    )
    request = _request(wanted) | _said(settings, rules, objective)
    request["notes"] = [*notes, *_exact_anyway(exact, len(machines.pools))]
    if wish is not None and paid:
        return _bought(wanted, wish, request, progress)
    found = _answered(wanted, request, objective, min_tokens_per_s, progress)
    found = _with_ram_notes(found, tuple(_paid(found.plans, wish, machines)))
    return found if pipeline_model == "simulated" else _with_paper(found)


def _exact_anyway(exact: bool, types: int) -> list[str]:
    return (
        ["exact: on one GPU type every search is proven without it"] if exact and types == 1 else []
    )


def _said(settings: Sequence[str], rules: "str | Path | None", objective: str) -> dict[str, object]:
    """What narrows a question, as a result keeps it."""
    return {"set": list(settings), "rules": rules and str(rules), "objective": objective}


def _bought(
    wanted: "Wanted",
    wish: "Wish_",
    request: dict[str, object],
    progress: Callable[[int], None] | None,
) -> "Answer":
    """The frontier of hours and dollars, and what the goals come to."""
    from astra.money.wish import goals_of
    from astra.search.market_answer import Asked, answer_money

    asked = Asked(wanted=wanted, wish=wish, goals=goals_of(wish))
    own = _own_gpus(wanted.space.question.task.cluster)
    return answer_money(asked, request | own | _asked_money(wish), progress)


def _own_gpus(cluster: "Cluster") -> dict[str, object]:
    """GPUs and nodes that the catalogue does not have, so that a result can be asked again."""
    from astra.hardware.pools import is_own

    own = [msgspec.to_builtins(pool.gpu) for pool in cluster.pools if is_own(pool)]
    return {"own_gpus": own} if own else {}


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


def prices(
    gpu: str | None = None,
    *,
    cloud: str | Sequence[str] | None = None,
    region: str | Sequence[str] | None = None,
    spot: bool = False,
) -> "tuple[Offer, ...]":
    """What GPUs cost to rent, cheapest first: offers with their machine, date and source."""
    from astra.hardware.catalogue import find_gpu
    from astra.money.catalogue import chosen, shipped_offers
    from astra.money.wish import names_in

    some = chosen(shipped_offers(), names_in(cloud), names_in(region), spot)
    wanted = None if gpu is None else find_gpu(gpu)[0].name
    own = [offer for offer in some if wanted in (None, offer.machine.gpu)]
    return tuple(sorted(own, key=lambda offer: (offer.usd_per_gpu_hour, -offer.machine.gpus)))


def _money(said: Mapping[str, Any], objective: str = "time") -> "Wish_ | None":
    """The words about money, checked; None where nobody speaks of it."""
    if not said and objective not in MONEY:
        return None
    from astra.money.wish import WORDS, goals_of, wish_of

    for name in said:
        if name not in WORDS:
            hint = did_you_mean(name, WORDS, f"The words about money are {', '.join(WORDS)}.")
            raise InputError(f"there is no setting {name!r}. {hint}")
    wish = wish_of(said)
    goals_of(wish)
    return wish


def _asked_money(wish: "Wish_") -> dict[str, object]:
    """The words about money as a result keeps them, so that it can be asked again."""
    from astra.money.wish import goals_of

    hours = goals_of(wish).deadline_h  # of a date: as many as there are today
    given = msgspec.structs.replace(wish, offers=None, deadline=hours)
    said = msgspec.to_builtins(given)
    plain = msgspec.to_builtins(type(wish)())
    return {"money": {name: value for name, value in said.items() if value != plain[name]}}


def _for_rent(
    gpus: str | None, wish: "Wish_", max_gpus: int | None, precision: str
) -> tuple[str, int | None]:
    """GPUs as `--gpus` says them, and how many in all: without any, every type that somebody
    rents out and that knows the format; without a count, as many as are looked at of each.
    """
    from astra.hardware.catalogue import find_gpu
    from astra.money.catalogue import chosen, shipped_offers
    from astra.money.wish import names_in, prices_of

    most = max_gpus or MOST_RENTED
    if gpus is not None:
        parts = [part.strip() for part in gpus.split(",")]
        parts = [part if ":" in part or not part else f"{part}:{most}" for part in parts]
        return ",".join(parts), max_gpus
    catalogue = shipped_offers() if wish.offers is None else wish.offers
    listed = chosen(catalogue, names_in(wish.cloud), names_in(wish.region), wish.spot)
    names = {offer.machine.gpu for offer in listed} | set(prices_of(wish))
    able = [name for name in names if getattr(find_gpu(name)[0], f"{precision}_flops_per_s", None)]
    return ",".join(f"{name}:{most}" for name in sorted(able)), None


def _has_goals(money: Mapping[str, Any]) -> bool:
    return money.get("budget") is not None or money.get("deadline") is not None


def _paid(plans: "Sequence[Priced]", wish: "Wish_ | None", cluster: "Cluster") -> "list[Priced]":
    """Plans with hours and dollars where tokens and prices are known, else with a word on it."""
    if wish is None:
        return list(plans)
    from astra.money.wish import goals_of
    from astra.search.money import with_money
    from astra.search.offers import offers_for

    goals = goals_of(wish)
    try:
        offers = offers_for(wish, cluster)
    except NoPriceError as error:
        return [_warned(plan, str(error)) for plan in plans]
    if goals.tokens is None:
        found = [with_money(plan, offers, 1e12, goals.kept) for plan in plans]
        missing = "hours and dollars need --tokens"
        return [
            _warned(msgspec.structs.replace(plan, money=None, hours=None, usd=None), missing)
            for plan in found
        ]
    return [with_money(plan, offers, goals.tokens, goals.kept) for plan in plans]


def _warned(plan: "Priced", text: str) -> "Priced":
    from astra.search.priced import NO_MONEY, UNFIT_MONEY

    kept = tuple(said for said in plan.warnings if said not in (NO_MONEY, UNFIT_MONEY))
    return msgspec.structs.replace(plan, warnings=(*kept, text))


def _check_goal(
    objective: str, use_all: bool, min_tokens_per_s: float, wish: "Wish_ | None"
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
    if min_tokens_per_s and objective != "gpus":
        raise InputError("--min-tokens-per-s is a goal of --objective gpus; add that.")


def _request(wanted: "Wanted") -> dict[str, object]:
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
        "stack": wanted.stack.full_name,
        "precision": question.precision,
        "top": wanted.top,
        "memory_margin": wanted.margin,
    }


def predict_plan(
    plan: "str | Path | Plan",
    rank: int = 1,
    *,
    margin: float = 0.05,
    pipeline_model: str = "simulated",
    money: Mapping[str, Any] | None = None,
) -> "Priced":
    """A whole plan, from a file or as it is, checked and priced."""
    from astra.search.price import price
    from astra.strategy.advice import refuse
    from astra.strategy.plan import Plan
    from astra.strategy.plan_file import read_plan
    from astra.strategy.rules.book import broken_rules

    found = plan if isinstance(plan, Plan) else read_plan(Path(plan), rank)
    broken = broken_rules(found)
    if broken:
        where = "plan" if isinstance(plan, Plan) else str(plan)
        raise InputError(f"{where}: {refuse(found, broken, None, None)}")
    priced = _modelled(price(found, margin=_margin(margin)), pipeline_model)
    return _paid([priced], _money(money or {}), found.cluster)[0]


def explain(
    plan: "str | Path | Plan | Priced | Answer",
    against: str | None = None,
    rank: int = 1,
    *,
    quick: bool = False,
    margin: float | None = None,
    say: Callable[[str], None] | None = None,
) -> "Explanation":
    """Why a plan is as fast as it is, what binds, what the next plans lose, what would change.

    `plan` is an answer of `plan`, a priced or a bare plan, or a file with any of them. `against`
    asks why not the best plan with these settings, `"tp=4 pp=8"`. `quick` leaves out the searches
    for what would change.
    """
    from astra.search.explain import explain_source

    kept = None if margin is None else _margin(margin)
    return explain_source(plan, against, rank, quick=quick, margin=kept, say=say)


def _model(model: "str | Path | Model") -> "Model":
    from astra.model.zoo import find_model

    return find_model(str(model)) if isinstance(model, str | Path) else model


def _cluster(
    gpus: str | None, cluster: "str | Path | Cluster | None"
) -> tuple["Cluster", tuple[str, ...]]:
    """The machines, and notes on how they were read."""
    if (gpus is None) == (cluster is None):
        raise InputError("give the GPUs: --gpus h100:64, or --cluster FILE (and not both).")
    if gpus is not None:
        from astra.hardware.gpus_option import parse_gpus

        return parse_gpus(gpus)
    if isinstance(cluster, str | Path):
        from astra.hardware.cluster_file import read_cluster

        return read_cluster(Path(cluster))
    assert cluster is not None
    from astra.hardware.pools import merge_twins

    pools, twins = merge_twins(cluster.pools, "cluster")
    return msgspec.structs.replace(cluster, pools=pools), twins


def _wish(settings: Mapping[str, Any]) -> Wish:
    for name in settings:
        if name not in WISHES:
            hint = did_you_mean(name, WISHES, f"The settings are {', '.join(WISHES)}.")
            raise InputError(f"there is no setting {name!r}. {hint}")
    wish = convert(dict(settings), Wish, "settings")
    for name in COUNTS:
        value, least = getattr(wish, name), 0 if name == "mtp_layers" else 1
        if value is not None and value < least:
            raise InputError(f"settings: {name} = {value}: expected {least} or more.")
    return wish


def import_job(
    file: str | Path,
    *,
    gpus: str = "h100",
    world_size: int | None = None,
    model: "str | Path | Model | None" = None,
    seq_len: int | None = None,
    vocab_size: int | None = None,
) -> "Job":
    """The plan of an existing job: a launch script, a torchtitan or DeepSpeed configuration.

    Parsed as text, never executed. What the file leaves open is the framework's own default;
    `gpus` names the type (`h100`, or `h100:64` with the count), since launch files do not.
    """
    from astra.jobs.read import Asked, read_job

    kind, _, count = gpus.partition(":")
    if "," in gpus or (count and not count.isdigit()):
        raise InputError(f"--gpus {gpus}: one type, with or without a count: h100 or h100:64.")
    if count and world_size is not None and int(count) != world_size:
        raise InputError(f"--gpus {gpus} and --world-size {world_size} differ; give one of them.")
    asked = Asked(
        gpu=kind,
        world_size=int(count) if count else world_size,
        model=None if model is None else _model(model),
        seq_len=seq_len,
        vocab=vocab_size,
    )
    return read_job(Path(file), asked)


def _own_rules(rules: str | Path | None, task: "Task") -> "tuple[Rule, ...]":
    if rules is None:
        return ()
    from astra.strategy.own_rules import read_own_rules  # a language of its own: when asked for

    return read_own_rules(Path(rules), task)


def _margin(margin: float) -> float:
    if not 0 <= margin <= 0.9:
        raise InputError(
            f"margin = {margin:g}: the fraction of memory to keep free lies between 0 and 0.9."
        )
    return margin
