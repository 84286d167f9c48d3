"""The Python API: the command line's words as functions. `import astra; astra.predict(...)`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.errors import InputError, did_you_mean
from astra.files import convert
from astra.strategy.settle import Settled, Wish, settle

if TYPE_CHECKING:
    from astra.hardware.cluster import Cluster
    from astra.model.shape import Model
    from astra.search.answer import Answer, Wanted
    from astra.search.explained import Explanation
    from astra.search.priced import Priced
    from astra.strategy.plan import Plan, Runtime

STACKS = {"fsdp": "torch-fsdp", "deepspeed": "deepspeed"}  # of a runtime; else megatron
WISHES = tuple(field.name for field in fields(Wish))
COUNTS = tuple(field.name for field in fields(Wish) if field.type == int | None)


def predict(
    model: "str | Path | Model",
    *,
    gpus: str | None = None,
    cluster: "str | Path | Cluster | None" = None,
    runtime: "Runtime | None" = None,
    stack: str | None = None,
    margin: float = 0.05,
    **settings: Any,
) -> "Priced":
    """One plan, checked against its runtime's rules and priced.

    `settings` are the fields of a plan in a person's words (`tp=4, pp=2, global_batch=256,
    seq_len=4096, recompute="full:block:4", ...`); what is left out is what an expert would set,
    and is listed in the answer's `assumed`. A plan that the runtime would refuse, and anything
    else a person can mend, is an `InputError`.
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
    return price(answer.plan, answer.assumed, notes, _margin(margin))


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
    objective: str = "time",
    min_tokens_per_s: float = 0.0,
    fold: bool = True,
    exact: bool = False,
    progress: Callable[[int], None] | None = None,
) -> "Answer":
    """The best plans, proven: no plan of the space has a shorter simulated step.

    Over several GPU types the best pipeline that mixes them is searched too (`mixed` of the
    answer tells what it is worth); the runtime is then flagscale, else megatron. Where that is
    too much to prove, the answer says by how much it may miss; `exact` goes on instead.
    `settings` narrow the space (`["tp=4,8", "recompute=none"]`); `rules` is a file of rules of
    your own. Plans that differ only in chunks, splits and recompute are folded into the best of
    them unless `fold` is off. The objective `gpus` asks for the fewest GPUs that fit, or that
    reach `min_tokens_per_s`. "Nothing fits" is an answer: `plans` is empty and `nothing_fits`
    says why.
    """
    from astra.hardware.stack import find_stack
    from astra.search.answer import Wanted, answer, fewest_gpus
    from astra.strategy.own_rules import read_own_rules
    from astra.strategy.plans import Task
    from astra.strategy.space import Question, Space, parse_set

    shape = _model(model)
    machines, notes = _cluster(gpus, cluster)
    several = len(machines.pools) > 1
    _check_goal(objective, use_all, min_tokens_per_s)
    notes = (*notes, *_too_long(shape, seq_len))
    chosen: Runtime = runtime or ("flagscale" if several else "megatron")
    if max_gpus is not None:
        machines = msgspec.structs.replace(machines, max_gpus=max_gpus)
    software = find_stack(stack or STACKS.get(chosen, "megatron"))
    task = Task(model=shape, cluster=machines, runtime=chosen, stack=software.full_name)
    trained = shape.mtp_layers if chosen == "megatron" else 0
    question = Question(task, global_batch, seq_len, trained, precision, use_all)
    wanted = Wanted(
        space=Space(question, parse_set(settings)),
        stack=software,
        own_rules=read_own_rules(Path(rules), task) if rules is not None else (),
        top=top,
        margin=_margin(margin),
        fold=fold,
        exact=exact,
    )
    if not several and "mesh_dp" in wanted.space.chosen:
        raise InputError("--set mesh_dp: one GPU type has one dp; it is for several types.")
    said = {"set": list(settings), "rules": None if rules is None else str(rules)}
    request = _request(wanted) | said | {"objective": objective, "notes": list(notes)}
    if objective == "gpus" and not several:
        return fewest_gpus(wanted, request, min_tokens_per_s, progress)
    if several:
        from astra.search.mixed.answer import answer_mixed, fewest_mixed

        if objective == "gpus":
            return fewest_mixed(wanted, request, min_tokens_per_s, progress)
        return answer_mixed(wanted, request, progress)
    return answer(wanted, request, progress)


def _check_goal(objective: str, use_all: bool, min_tokens_per_s: float) -> None:
    """Goals that contradict each other, or that are not known."""
    if objective not in ("time", "gpus"):
        raise InputError(f"objective {objective!r}: use time or gpus.")
    if objective == "gpus" and use_all:
        raise InputError("--objective gpus looks for fewer GPUs, and --use-all forbids it.")
    if min_tokens_per_s and objective != "gpus":
        raise InputError("--min-tokens-per-s is a goal of --objective gpus; add that.")


def _too_long(model: "Model", seq_len: int) -> tuple[str, ...]:
    """Says so where a sequence is longer than the model was made for."""
    if model.max_positions is None or seq_len <= model.max_positions:
        return ()
    limit = f"the {model.max_positions:,} positions {model.name} was made for"
    return (f"{seq_len:,} tokens are beyond {limit}",)


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


def predict_plan(plan: "str | Path | Plan", rank: int = 1, *, margin: float = 0.05) -> "Priced":
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
    return price(found, margin=_margin(margin))


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


def _margin(margin: float) -> float:
    if not 0 <= margin <= 0.9:
        raise InputError(
            f"margin = {margin:g}: the fraction of memory to keep free lies between 0 and 0.9."
        )
    return margin
