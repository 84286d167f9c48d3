"""One plan: from settings, from a file or from a job that runs today; and why it is so."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astra.api.inputs import (
    DEFAULT_STACKS,
    RUNTIMES,
    check_word,
    checked_margin,
    checked_pipeline_model,
    cluster_of,
    model_of,
    plan_settings,
)
from astra.api.money import money_options
from astra.errors import InputError
from astra.strategy.complete import CompletedPlan, PlanSettings, complete

if TYPE_CHECKING:
    from astra.api.answers import Answer
    from astra.cost.result import PricedPlan
    from astra.explain.result import Explanation
    from astra.hardware.cluster import Cluster
    from astra.imports.read import ImportedJob
    from astra.model.shape import Model
    from astra.strategy.plan import Plan, Runtime


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
) -> "PricedPlan":
    """One plan, checked against its runtime's rules and priced.

    `pipeline_model="paper"` takes the pipeline formula of arXiv 2502.13480 in place of the
    simulator, for comparison.

    `settings` are the fields of a plan in a person's words (`tp=4, pp=2, global_batch=256,
    seq_len=4096, recompute="full:block:4", ...`); what is left out is what an expert would set,
    and is listed in the answer's `assumed`. `money` are the words of `plan` about money: with
    `{"tokens": "1T", "price": "h100=2.49"}` the answer has hours and dollars. A plan that the
    runtime would refuse, and anything else a person can mend, is an `InputError`.
    """
    from astra.cost.price import price_plan
    from astra.hardware.stack import find_stack
    from astra.strategy.rule_messages import refusal_message
    from astra.strategy.rules.registry import broken_rules

    shape = model_of(model)
    machines, notes = cluster_of(gpus, cluster)
    if runtime is not None:
        check_word("runtime", runtime, RUNTIMES)
    launcher: Runtime = runtime or "megatron"
    typed_settings = plan_settings(settings)
    software = stack or DEFAULT_STACKS.get(launcher, "megatron")
    find_stack(software)

    def complete_settings(changed: PlanSettings) -> CompletedPlan:
        return complete(changed, shape, machines, launcher, software)

    completed = complete_settings(typed_settings)
    broken = broken_rules(completed.plan)
    if broken:
        raise InputError(refusal_message(completed.plan, broken, complete_settings, typed_settings))
    priced = price_plan(completed.plan, completed.assumed, notes, checked_margin(margin))
    return _with_money_and_words(priced, pipeline_model, money, machines)


def predict_plan(
    plan: "str | Path | Plan",
    rank: int = 1,
    *,
    margin: float = 0.05,
    pipeline_model: str = "simulated",
    money: Mapping[str, Any] | None = None,
) -> "PricedPlan":
    """A whole plan, from a file or as it is, checked and priced."""
    from astra.cost.price import price_plan
    from astra.strategy.plan import Plan
    from astra.strategy.plan_file import read_plan
    from astra.strategy.rule_messages import refusal_message
    from astra.strategy.rules.registry import broken_rules

    found = plan if isinstance(plan, Plan) else read_plan(Path(plan), rank)
    broken = broken_rules(found)
    if broken:
        where = "plan" if isinstance(plan, Plan) else str(plan)
        raise InputError(f"{where}: {refusal_message(found, broken, None, None)}")
    priced = price_plan(found, margin=checked_margin(margin))
    return _with_money_and_words(priced, pipeline_model, money, found.cluster)


def _with_money_and_words(
    priced: "PricedPlan",
    pipeline_model: str,
    money: Mapping[str, Any] | None,
    machines: "Cluster",
) -> "PricedPlan":
    """By the simulator or the paper's formula, with dollars where they are asked for, in words."""
    from astra.report.words import with_words

    if checked_pipeline_model(pipeline_model) == "paper":
        from astra.cost.paper import by_paper

        priced = by_paper(priced)
    if money:
        from astra.cost.bill import with_dollars

        (priced,) = with_dollars([priced], money_options(money), machines)
    return with_words(priced)


def explain(
    plan: "str | Path | Plan | PricedPlan | Answer",
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
    from astra.api.explanations import explain_answer

    checked = None if margin is None else checked_margin(margin)
    return explain_answer(plan, against, rank, quick=quick, margin=checked, say=say)


def import_job(
    file: str | Path,
    *,
    gpus: str = "h100",
    world_size: int | None = None,
    model: "str | Path | Model | None" = None,
    seq_len: int | None = None,
    vocab_size: int | None = None,
) -> "ImportedJob":
    """The plan of an existing job: a launch script, a torchtitan or DeepSpeed configuration.

    Parsed as text, never executed. What the file leaves open is the framework's own default;
    `gpus` names the type (`h100`, or `h100:64` with the count), since launch files do not. Where
    ranks lie on several types, all are named with their counts, in the order of the ranks:
    `h100:256,h200:64`.
    """
    from astra.hardware.gpus_option import parse_rank_blocks
    from astra.imports.read import ImportRequest, read_job
    from astra.report.words import all_words

    blocks = parse_rank_blocks(gpus)[1] if ":" in gpus or "," in gpus else ()
    count = sum(count for _, count in blocks) or world_size
    if world_size is not None and count != world_size:
        raise InputError(f"--gpus {gpus} and --world-size {world_size} differ; make them agree.")
    request = ImportRequest(
        gpus=gpus,
        world_size=count,
        is_checked=len(blocks) > 1 and world_size is None,
        model=None if model is None else model_of(model),
        seq_len=seq_len,
        vocab=vocab_size,
    )
    job = read_job(Path(file), request)
    return replace(job, assumed=(*all_words(job.notes), *job.assumed))
