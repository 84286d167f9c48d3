"""What a broken rule means for one plan, and which single change would mend it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from astra.errors import BrokenRule, InputError, RefusedPlanError, either
from astra.strategy.complete import CompletedPlan, PlanSettings, complete
from astra.strategy.plan import Plan
from astra.strategy.rules.registry import broken_rules
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space

Complete = Callable[[PlanSettings], CompletedPlan]

DEGREES_TO_TRY = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
VALUES_TO_TRY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch"), DEGREES_TO_TRY),
    "microbatch_group": DEGREES_TO_TRY,
    "global_batch": (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "seq_len": (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
    "sharding": ("none", "optimizer", "gradients", "parameters"),
    "recompute": ("none", "selective", "full"),
    "precision": ("bf16", "fp16", "fp8"),
    "attention": ("flash", "unfused"),
    "cp_comm_type": ("p2p", "a2a", "allgather"),
    "fp8_recipe": ("tensorwise", "blockwise", "mxfp8", "delayed"),
    "dispatcher": ("alltoall", "allgather"),
    "cuda_graph": ("none", "local", "transformer_engine", "full_iteration"),
    "offload_optimizer_fraction": (0.0,),
    "offload_activations": ((),),
    "offload_layers": (0,),
    "main_grads_dtype": ("fp32", "bf16"),
    "grad_reduce_dtype": ("fp32", "bf16"),
    "master_dtype": ("fp32",),
    "mtp_layers": (0, 1),
    **dict.fromkeys(
        ("sequence_parallel", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p"),
        (True, False),
    ),
    "overlap_tp": (False,),
    "overlap_ep": (False,),
}


SEGMENT_SETTINGS = (
    "tp",
    "ep",
    "etp",
    "recompute",
    "micro_batch",
    "gpu",
)  # may differ inside a plan

MAY_BE_UNSET = ("fp8_recipe",)  # whose absence can be what is wrong
NAMES_IN_SENTENCES = {"layers": "stages hold", "model.layers": "the model has"}


def rule_message(plan: Plan, rule: Rule) -> str:
    """One broken rule in a sentence, with the values it speaks of."""
    if rule.name == "batch-adds-up" and (counted := _micro_batch_mismatch(plan)):
        return f"{counted} [rule {rule.name}]"
    values = ", ".join(text for name in rule.settings if (text := _value_text(plan, name)))
    shown = f" ({values})" if values else ""
    return f"{rule.reason}{shown} [rule {rule.name}]"


def _micro_batch_mismatch(plan: Plan) -> str:
    """Where the batch divides, but a plan file counts other micro-batches."""
    step = plan.dp * plan.micro_batch
    if not plan.is_one_job or plan.global_batch % step:
        return ""
    fields = [f"pipelines[{row}].micro_batches" for row in range(len(plan.pipelines))]
    return (
        f"replicas x micro_batches x micro_batch must be global_batch: {plan.dp} x "
        f"{plan.pipelines[0].micro_batches} x {plan.micro_batch} is not {plan.global_batch}; "
        f"{' and '.join(fields)} would be {plan.global_batch // step}"
    )


def _value_text(plan: Plan, name: str) -> str:
    """`tp 8`; where segments differ, each by its place: `segments[0].tp 8, segments[1].tp 6`."""
    segments = [segment for pipeline in plan.pipelines for segment in pipeline.segments]
    of_segments = (
        [getattr(segment, name, None) for segment in segments] if name in SEGMENT_SETTINGS else []
    )
    if len(set(of_segments)) > 1:
        return ", ".join(
            f"segments[{place}].{name} {value}" for place, value in enumerate(of_segments)
        )
    value = _value(plan, name)
    if value is None:
        return f"no {name}" if name in MAY_BE_UNSET else ""
    return f"{NAMES_IN_SENTENCES.get(name) or name.removeprefix('model.')} {value}"


def _value(plan: Plan, name: str) -> object:
    """The plan's value of a field that a rule speaks of, where it is a plain one."""
    segment = plan.pipelines[0].segments[0]
    special: dict[str, object] = {
        "tp": segment.tp,
        "dp": plan.dp,
        "pp": plan.pp,
        "gpus": sum(plan.gpus.values()),
        "gpu": segment.gpu,
        "recompute": segment.recompute,
        "micro_batches": plan.pipelines[0].micro_batches,
        "layers": "+".join(map(str, plan.pipelines[0].layers)) if plan.pp <= 8 else None,
    }
    if name in special:
        return special[name]
    value: object = plan
    for step in name.split("."):
        value = getattr(value, step, None)
    return value if isinstance(value, int | float | str) else None


def refused_plan(
    plan: Plan,
    broken: Sequence[Rule],
    complete: Complete | None = None,
    settings: PlanSettings | None = None,
    where: str = "",
) -> RefusedPlanError:
    """The error for a plan that breaks rules: each one, and what to try where its settings are
    known.
    """
    rules = tuple(
        BrokenRule(
            rule=rule.name,
            sentence=rule_message(plan, rule),
            source=rule.where,
            tries=tuple(_tries(rule, broken, complete, settings)) if complete and settings else (),
        )
        for rule in broken
    )
    sentences = [rule.sentence for rule in rules[:3]]
    if len(rules) > 3:
        sentences.append(f"and {len(rules) - 3} more rules")
    ours = all(rule.layer == "ours" for rule in broken)
    who = "Astra does not plan this" if ours else f"the runtime {plan.runtime} refuses this plan"
    text = f"{where}{who}: {'; '.join(sentences)}. {_hint(rules[0])}".rstrip()
    return RefusedPlanError(text, rules)


def _hint(rule: BrokenRule) -> str:
    """The first few values of two settings."""
    found = []
    for name, values in rule.tries[:2]:
        shown = ["none" if value == () else value for value in values[:6]]
        found.append(f"{name} {either(shown)}")
    return f"Try {' or '.join(found)}." if found else ""


def _tries(
    rule: Rule, broken: Sequence[Rule], complete: Complete, settings: PlanSettings
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Values of one setting that would meet a rule and break no other, all else equal."""
    for name in rule.settings:
        tries = VALUES_TO_TRY.get(name, ())
        ordered = (rule, *(other for other in broken if other is not rule))
        values = tuple(each for each in tries if _mends(ordered, name, each, complete, settings))
        if values:
            yield name, values


def _mends(
    broken: Sequence[Rule], name: str, value: object, complete: Complete, settings: PlanSettings
) -> bool:
    if getattr(settings, name, None) == value:
        return False
    try:
        changed: dict[str, Any] = {name: value}
        left = {rule.name for rule in broken_rules(complete(replace(settings, **changed)).plan)}
    except InputError:
        return False
    return broken[0].name not in left and left <= {rule.name for rule in broken}


def why_impossible(plan: Plan, space: Space, chosen: Mapping[str, tuple[Any, ...]]) -> str:
    """What is wrong with a plan like this one in these settings, of which a space has none: as the
    error says that a person would get for it.
    """
    fields = PlanSettings.__dataclass_fields__
    said: dict[str, Any] = {"global_batch": plan.global_batch, "seq_len": plan.seq_len}
    said |= {name: values[0] for name, values in chosen.items() if name in fields}
    try:
        settings = PlanSettings(**said)
        completed = complete(settings, plan.model, plan.cluster, plan.runtime, plan.stack).plan
    except InputError as error:
        return str(error)
    broken = broken_rules(completed)
    if broken:
        return f"{rule_message(completed, broken[0])}."
    values = [f"{name} {', '.join(map(str, space.values(name) or ()))}" for name in chosen]
    return f"the degrees divide neither the batch nor the GPUs ({'; '.join(values)})."
