"""One plan: from a person's words, from a file or from a job that runs today; and why it is so."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astra.api.asked import (
    RUNTIMES,
    STACKS,
    checked_margin,
    checked_pipeline_model,
    machines_of,
    one_of,
    shape_of,
    wish_of,
)
from astra.api.money import money_of, with_dollars
from astra.errors import InputError
from astra.strategy.settle import Settled, Wish, settle

if TYPE_CHECKING:
    from astra.hardware.cluster import Cluster
    from astra.imports.read import ImportedJob
    from astra.model.shape import Model
    from astra.search.answer import Answer
    from astra.search.explained import Explanation
    from astra.search.priced import Priced
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

    shape = shape_of(model)
    machines, notes = machines_of(gpus, cluster)
    if runtime is not None:
        one_of("runtime", runtime, RUNTIMES)
    chosen: Runtime = runtime or "megatron"
    wish = wish_of(settings)
    software = stack or STACKS.get(chosen, "megatron")
    find_stack(software)

    def settled(changed: Wish) -> Settled:
        return settle(changed, shape, machines, chosen, software)

    answer = settled(wish)
    broken = broken_rules(answer.plan)
    if broken:
        raise InputError(refuse(answer.plan, broken, settled, wish))
    priced = _modelled(
        price(answer.plan, answer.assumed, notes, checked_margin(margin)), pipeline_model
    )
    return with_dollars([priced], money_of(money or {}), machines)[0]


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
    priced = _modelled(price(found, margin=checked_margin(margin)), pipeline_model)
    return with_dollars([priced], money_of(money or {}), found.cluster)[0]


def _modelled(priced: "Priced", pipeline_model: str) -> "Priced":
    """By the simulator, or by the paper's formula."""
    from astra.search.paper import by_paper

    return by_paper(priced) if checked_pipeline_model(pipeline_model) == "paper" else priced


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

    kept = None if margin is None else checked_margin(margin)
    return explain_source(plan, against, rank, quick=quick, margin=kept, say=say)


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

    blocks = parse_rank_blocks(gpus)[1] if ":" in gpus or "," in gpus else ()
    count = sum(count for _, count in blocks) or world_size
    if world_size is not None and count != world_size:
        raise InputError(f"--gpus {gpus} and --world-size {world_size} differ; make them agree.")
    asked = ImportRequest(
        gpus=gpus,
        world_size=count,
        is_checked=len(blocks) > 1 and world_size is None,
        model=None if model is None else shape_of(model),
        seq_len=seq_len,
        vocab=vocab_size,
    )
    return read_job(Path(file), asked)
