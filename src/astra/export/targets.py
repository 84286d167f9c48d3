"""Which files each training framework gets."""

import msgspec

from astra.cost.price import price_plan
from astra.cost.result import PricedPlan
from astra.errors import InputError, did_you_mean, shorten
from astra.export import (
    accelerate,
    bridge,
    deepspeed,
    flagscale,
    megatron_files,
    torchtitan,
)
from astra.export.installed_targets import installed_targets
from astra.export.job_folder import folder_files
from astra.export.launchers import LAUNCHERS, LaunchJob, start_lines
from astra.export.rents import Rents
from astra.export.target import Target
from astra.export.torchrun import kinds_of, nodes_of
from astra.export.unsupported import unsupported as megatron_unsupported
from astra.strategy.dispatchers import dispatch_libraries
from astra.strategy.plan import Plan, Runtime
from astra.strategy.rules.our_rules import ONE_JOB
from astra.strategy.rules.registry import broken_rules

MEGATRON: tuple[Runtime, ...] = ("megatron", "flagscale", "any")
TARGETS: dict[str, Target] = {
    "megatron": Target(
        name="Megatron-LM",
        runtime="megatron",
        takes=MEGATRON,
        files=megatron_files.files,
        unsupported=megatron_unsupported,
        set_up=("MEGATRON=~/Megatron-LM",),
        first_try="--mock-data --tokenizer-type NullTokenizer --log-interval 1 --eval-iters 0",
        logs="Megatron-LM does with --log-interval 1.",
    ),
    "bridge": Target(
        name="Megatron-Bridge",
        runtime="megatron",
        takes=MEGATRON,
        files=bridge.files,
        unsupported=bridge.unsupported,
        refusals=bridge.refusals,
        set_up=(),
        first_try="logger.log_interval=1",
        logs="Megatron-Bridge does with logger.log_interval=1.",
    ),
    "flagscale": Target(
        name="FlagScale",
        runtime="flagscale",
        takes=MEGATRON,
        files=flagscale.files,
        unsupported=flagscale.unsupported,
        refusals=flagscale.refusals,
        set_up=("FLAGSCALE=~/FlagScale",),
        first_try="action=dryrun    (then without it)",
        logs="FlagScale does, in outputs/logs.",
    ),
    "torchtitan": Target(
        name="torchtitan",
        runtime="fsdp",
        takes=("fsdp",),
        files=torchtitan.files,
        unsupported=torchtitan.unsupported,
        refusals=torchtitan.refusals,
        set_up=("HF_ASSETS=~/assets/hf/MODEL",),
        first_try="",
        logs="torchtitan does.",
    ),
    "accelerate": Target(
        name="accelerate",
        runtime="fsdp",
        takes=("fsdp",),
        files=accelerate.files,
        unsupported=accelerate.unsupported,
        refusals=accelerate.refusals,
        set_up=("TRAIN_SCRIPT=train.py",),
        first_try="",
        logs="A Trainer says its speed at the end.",
    ),
    "deepspeed": Target(
        name="DeepSpeed",
        runtime="deepspeed",
        takes=("deepspeed",),
        files=deepspeed.files,
        unsupported=deepspeed.unsupported,
        refusals=deepspeed.refusals,
        set_up=("TRAIN_SCRIPT=train.py",),
        first_try="",
        logs="DeepSpeed does, on rank 0.",
    ),
}


def target_named(name: object) -> Target:
    """A target of ours or of an installed package."""
    if isinstance(name, str) and name in TARGETS:
        return TARGETS[name]
    found, broken = installed_targets(TARGETS)
    if isinstance(name, str) and name in found:
        return found[name]
    if isinstance(name, str) and name in broken:
        raise InputError(f"--to {name}: {broken[name]}")
    known = [*TARGETS, *found]
    hint = did_you_mean(str(name)[:60], known, f"Use one of {', '.join(known)}.")
    raise InputError(" ".join([f"--to {shorten(name)}: not known. {hint}", *target_notes()]))


def target_notes() -> list[str]:
    """Why targets of installed packages cannot be used."""
    _, broken = installed_targets(TARGETS)
    return [f"An installed target is left out: {why}" for why in broken.values()]


def export_files(
    plan: Plan,
    target: str,
    *,
    launcher: str = "torchrun",
    rents: Rents = (),
    train_iters: int = 100,
    learning_rate: float = 1e-4,
) -> dict[str, str]:
    """Name and text of every file of a plan's folder. Refuses what the target cannot start."""
    refused = refusal(plan, target)
    if refused:
        raise InputError(refused)
    framework, priced = target_named(target), price_plan(plan)
    notes = [*expectations(priced), *unsupported(plan, target)]
    made = framework.launch_files(plan, notes, train_iters=train_iters, learning_rate=learning_rate)
    made |= {"plan.json": plan_json(plan)}
    if target == "flagscale":
        if launcher != "torchrun":
            raise InputError(
                f"--launcher {launcher}: FlagScale starts its hosts by ssh, from the first. Leave "
                "--launcher out; --to megatron takes one where all stages are alike."
            )
        _, *commands = next_steps(plan, target, "./launch.sh")
        steps = ["Put your host names in `hostfile` and your data in `train/plan.yaml`, then:", ""]
        steps += [f"  {line}" for line in commands]
        nodes = kinds_of(flagscale.hosts_of(plan), "hosts")
    else:
        job = LaunchJob(plan, nodes_of(plan), framework.set_up, framework.first_try, rents)
        nodes = kinds_of(job.groups)
        made |= LAUNCHERS[launcher](job)
        steps = start_lines(job, launcher)
    yours = [
        f"the learning rate, {learning_rate:g}, is no advice, and {train_iters:,} steps are a "
        "first try: set your own (`--lr`, `--train-iters` of `astra export`)",
        *unsupported(plan, target),
    ]
    return made | folder_files(
        priced, framework.name, steps, framework.logs, yours, list(made), nodes
    )


def unsupported(plan: Plan, target: str) -> list[str]:
    """What the files of a target leave out, in words; first what must be installed."""
    library = dispatch_libraries().get(str(plan.dispatcher))
    installed = []
    if library is not None:
        installed = [f"{library.library} must be installed on all nodes ({library.module})"]
    return [*installed, *target_named(target).unsupported(plan)]


def refusal(plan: Plan, target: str) -> str | None:
    """Which part of a plan a target cannot start and which target can; None where it can."""
    framework = target_named(target)
    if not plan.is_one_job:
        return (
            f"{framework.name} cannot run this plan: {ONE_JOB.reason} [rule {ONE_JOB.name}]. "
            "Try --rank N of a plan whose replicas are alike, or plan again with --runtime "
            "flagscale. No other target can."
        )
    if plan.runtime not in framework.takes:
        return (
            f"a plan of the runtime {plan.runtime} is not {framework.name}'s; "
            f"plan it again with --runtime {framework.runtime}."
        )
    reasons = _reasons(plan, framework)
    if not reasons:
        return None
    every = TARGETS | installed_targets(TARGETS)[0]
    able = [
        name
        for name, other in every.items()
        if name != target and plan.runtime in other.takes and _can(plan, other)
    ]
    none = "" if plan.runtime in MEGATRON else f" of plans for the runtime {plan.runtime}"
    others = f" {every[able[0]].name} can: --to {able[0]}." if able else ""
    others = others or f" No other target{none} can."
    return f"{framework.name} cannot run this plan: {'; '.join(reasons[:3])}.{others}"


def _can(plan: Plan, framework: Target) -> bool:
    """Whether a target can be advised; not one whose package is at fault."""
    try:
        return not _reasons(plan, framework)
    except InputError:
        return False


def _reasons(plan: Plan, framework: Target) -> list[str]:
    """Rules of a target that a plan breaks, and parts that it has no words for."""
    broken = broken_rules(msgspec.structs.replace(plan, runtime=framework.runtime))
    if broken:
        return [f"{rule.reason} [rule {rule.name}]" for rule in broken]
    return [f"it has no words for {part}" for part in framework.refusals(plan)]


def next_steps(plan: Plan, target: str, script: str, launcher: str = "torchrun") -> list[str]:
    """What a person does with the files, in words and commands."""
    framework = target_named(target)
    if launcher != "torchrun":
        job = LaunchJob(plan, nodes_of(plan), framework.set_up, framework.first_try)
        where = script.removesuffix("/launch.sh")
        return [f"Next, in {where} (README.md says it too):", *start_lines(job, launcher)]
    if target == "flagscale":
        hosts = sum(count for _, count, _ in flagscale.hosts_of(plan))
        where = "once, on the first; it starts the others by ssh" if hosts > 1 else "on it"
        return [
            "Next: set your learning rate, the data (train/plan.yaml) and "
            f"{f'the names of your {hosts} hosts' if hosts > 1 else 'the name of your host'} "
            f"(hostfile). Then, {where}:",
            f"  export {' '.join(framework.set_up)}",
            f"  {script} {framework.first_try}",
        ]
    groups = nodes_of(plan)
    nodes = sum(count for _, count, _ in groups)
    first = "localhost" if nodes == 1 else "10.0.0.1"
    where = "" if nodes == 1 else f"On each of the {nodes} nodes, NODE_RANK 0 to {nodes - 1}, "
    where += "" if nodes == 1 else "MASTER_ADDR the address of the first:"
    settings = [*framework.set_up, "NODE_RANK=0", f"MASTER_ADDR={first}"]
    return [
        "Next: set your learning rate; data and checkpoints follow on the command line:",
        *([where] if where else []),
        *(f"  {line}" for line in kinds_of(groups)),
        f"  export {' '.join(settings)}",
        f"  {script} {framework.first_try}".rstrip(),
    ]


def expectations(priced: PricedPlan) -> list[str]:
    """What a run of this plan should show, and whether it should run at all."""
    memory = priced.memory
    gib = f"{memory.reserved_bytes / 2**30:.1f} of {memory.usable_bytes / 2**30:.1f} GiB"
    fits = "" if memory.fits else "; IT WILL PROBABLY RUN OUT OF MEMORY"
    return [
        f"expected: {priced.step_s:.3g} s a step ({priced.step_s_low:.3g} to "
        f"{priced.step_s_high:.3g}), {gib} reserved on the fullest GPU{fits}"
    ]


def plan_json(plan: Plan) -> str:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"
