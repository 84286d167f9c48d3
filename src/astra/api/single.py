"""One plan: from settings, from a file or from a job that runs today; and why it is so."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astra.api.inputs import (
    DEFAULT_STACKS,
    PIPELINE_MODELS,
    RUNTIMES,
    SETTING_NAMES,
    ClusterSource,
    GpuCounts,
    ModelSource,
    check_keywords,
    checked_margin,
    cluster_of,
    gpu_objects,
    gpus_text,
    model_of,
    plan_settings,
)
from astra.api.money import money_options
from astra.api.sources import checked_plan
from astra.errors import InputError
from astra.strategy.complete import CompletedPlan, PlanSettings, complete
from astra.values import file_path, of_kind, token_count, whole_number, word

if TYPE_CHECKING:
    from astra.api.explanations import Explanation
    from astra.api.prediction import Prediction
    from astra.api.sources import PlanSource
    from astra.cost.result import PricedPlan
    from astra.hardware.cluster import Cluster, Gpu
    from astra.imports.read import ImportedJob
    from astra.strategy.plan import Plan, Runtime


def predict(
    model: ModelSource,
    *,
    gpus: GpuCounts = None,
    cluster: ClusterSource = None,
    runtime: "Runtime | None" = None,
    stack: str | None = None,
    margin: float = 0.05,
    pipeline_model: str = "simulated",
    money: Mapping[str, Any] | None = None,
    **settings: Any,
) -> "Prediction":
    """One plan, checked against its runtime's rules and priced.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 16}, tp=2, global_batch=64, seq_len="4k")
    >>> priced.plan.dp, priced.memory.fits, priced.step_s > 0
    (8, True, True)

    `settings` are the fields of a plan (`tp=4, pp=2, global_batch=256, seq_len=4096,
    recompute="full:block:4", ...`); what is left out is what an expert would set, and is listed in
    the answer's `assumed`. Words about money are as in `plan`, as keywords or in `money`: with
    `tokens="1T", price={"h100": 2.49}` the answer has hours and dollars. A plan that the runtime
    would refuse, and anything else a person can mend, is an `InputError`.

    `pipeline_model="paper"` takes the pipeline formula of arXiv 2502.13480 in place of the
    simulator, for comparison.
    """
    from astra.api.layer_cut import with_best_cut
    from astra.cost.price import price_plan
    from astra.hardware.stack import find_stack
    from astra.strategy.outside_space import outside_space
    from astra.strategy.rule_messages import refused_plan
    from astra.strategy.rules.registry import broken_rules

    shape = model_of(model)
    machines, notes = cluster_of(gpus, cluster)
    launcher: Any = word(runtime or "megatron", "--runtime", RUNTIMES)
    said, about_money = _split_keywords(settings)
    typed_settings = plan_settings(said)
    software = stack or DEFAULT_STACKS.get(launcher, "megatron")
    find_stack(software)

    def cut(plan: "Plan") -> "Plan":
        return with_best_cut(plan, checked_margin(margin))

    def complete_settings(changed: PlanSettings) -> CompletedPlan:
        return complete(changed, shape, machines, launcher, software, cut)

    completed = complete_settings(typed_settings)
    broken = broken_rules(completed.plan)
    if broken:
        raise refused_plan(completed.plan, broken, complete_settings, typed_settings)
    notes = (*notes, *outside_space(completed.plan))
    priced = price_plan(completed.plan, completed.assumed, notes, checked_margin(margin))
    return _with_money_and_words(priced, pipeline_model, {**_money(money), **about_money}, machines)


def _split_keywords(said: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the plan, as keywords or in `settings`, and words about money."""
    from astra.money.options import OPTION_NAMES

    if "settings" in said:
        together = of_kind(said["settings"], "settings", Mapping, "a dict, {'tp': 2},")
        said = {**together, **{name: said[name] for name in said if name != "settings"}}
    check_keywords(said, (*SETTING_NAMES, *OPTION_NAMES), predict)
    settings = {name: value for name, value in said.items() if name in SETTING_NAMES}
    return settings, {name: value for name, value in said.items() if name not in SETTING_NAMES}


def _money(said: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return of_kind(said or {}, "money", Mapping, "a dict, {'tokens': '1T'},")


def predict_plan(
    plan: "PlanSource",
    rank: int = 1,
    *,
    margin: float = 0.05,
    pipeline_model: str = "simulated",
    money: Mapping[str, Any] | None = None,
) -> "Prediction":
    """A whole plan, checked and priced: of an answer or a file that of this rank.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> astra.predict_plan(priced.plan).step_s == priced.step_s
    True
    """
    from astra.cost.price import price_plan
    from astra.strategy.outside_space import outside_space

    found = checked_plan(plan, rank)
    priced = price_plan(found, notes=outside_space(found), margin=checked_margin(margin))
    return _with_money_and_words(priced, pipeline_model, _money(money), found.cluster)


def _with_money_and_words(
    priced: "PricedPlan",
    pipeline_model: str,
    money: Mapping[str, Any],
    machines: "Cluster",
) -> "Prediction":
    """By the simulator or the paper's formula, with dollars where they are asked for, in words."""
    from astra.api.prediction import prediction_of
    from astra.report.words import with_words

    if word(pipeline_model, "--pipeline-model", PIPELINE_MODELS) == "paper":
        from astra.cost.paper import by_paper

        priced = by_paper(priced)
    if money:
        from astra.cost.bill import with_dollars

        (priced,) = with_dollars([priced], money_options(money), machines)
    return prediction_of(with_words(priced))


def explain(
    plan: "PlanSource",
    against: "str | Mapping[str, Any] | None" = None,
    rank: int = 1,
    *,
    quick: bool = False,
    margin: float | None = None,
    say: Callable[[str], None] | None = None,
) -> "Explanation":
    """Why a plan is as fast as it is, what binds, what the next plans lose, what would change.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, tp=2, global_batch=32, seq_len=4096)
    >>> astra.explain(priced, quick=True).binding.constraint
    'compute'

    `plan` is an answer of `plan`, a priced or a bare plan, or a file with any of them. `against`
    asks why not the best plan with these settings, `{"tp": 4, "pp": 8}`. `quick` leaves out the
    searches for what would change.
    """
    from astra.api.explanations import explain_answer

    return explain_answer(
        plan,
        against,
        whole_number(rank, "--rank"),
        quick=quick,
        margin=None if margin is None else checked_margin(margin),
        say=say,
    )


def import_job(
    file: str | Path,
    *,
    text: str | None = None,
    gpus: "GpuCounts | Gpu" = "h100",
    world_size: int | None = None,
    model: ModelSource = None,
    seq_len: int | str | None = None,
    vocab_size: int | None = None,
) -> "ImportedJob":
    """The plan of an existing job: a launch script, a configuration, a folder of `export`, or the
    `text` of such a file, of which `file` is then the name alone.

    >>> import astra, tempfile
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, tp=2, global_batch=32, seq_len=4096)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     job = priced.export("megatron", folder)
    ...     astra.import_job(folder, gpus={"h100": 8}).plan.tp
    2

    Parsed as text, never executed. What the file leaves open is the framework's own default;
    `gpus` names the type (`"h100"`, or `{"h100": 64}` with the count), since launch files do not.
    Where ranks lie on several types, all are named with their counts, in the order of the ranks:
    `{"h100": 256, "h200": 64}`. A `Gpu` may stand for its name.
    """
    from astra.hardware.cluster import Gpu
    from astra.hardware.gpus_option import parse_rank_blocks
    from astra.imports.read import ImportRequest, job_of_text, read_job
    from astra.notes import NoteCode
    from astra.report.words import all_words

    def count(said: int | None, option: str) -> int | None:
        return None if said is None else whole_number(said, option)

    counts: Any = [(gpus, None)] if isinstance(gpus, Gpu) else gpus
    types, described = gpus_text(counts) or "h100", gpu_objects(counts)
    blocks = parse_rank_blocks(types, described)[1] if ":" in types or "," in types else ()
    said_size = count(world_size, "--world-size")
    size = sum(count for _, count in blocks) or said_size
    if said_size is not None and size != said_size:
        raise InputError(f"--gpus {types} and --world-size {said_size} differ; make them agree.")
    request = ImportRequest(
        gpus=types,
        described=described,
        world_size=size,
        is_checked=len(blocks) > 1 and world_size is None,
        model=None if model is None else model_of(model),
        seq_len=None if seq_len is None else token_count(seq_len, "--seq-len"),
        vocab=count(vocab_size, "--vocab-size"),
    )
    if text is None:
        job = read_job(file_path(file), request)
    else:
        job = job_of_text(text, Path(str(file)), replace(request, is_alone=True))
    outside = [each for each in job.notes if each.code is NoteCode.OUTSIDE_SPACE]
    read_as = [each for each in job.notes if each.code is not NoteCode.OUTSIDE_SPACE]
    assumed = (*all_words(read_as), *job.assumed)
    return replace(job, assumed=assumed, outside_space=all_words(outside))
