"""Which files each training framework gets."""

import msgspec

from astra.errors import InputError
from astra.export import flagscale, megatron
from astra.export.torchrun import launch_script, nodes_of
from astra.search.price import price
from astra.search.priced import Priced
from astra.strategy.plan import Plan, Runtime
from astra.strategy.rules.book import broken_rules

TARGETS: dict[str, tuple[str, Runtime]] = {  # what people call them, and whose rules they obey
    "megatron": ("Megatron-LM", "megatron"),
    "flagscale": ("FlagScale", "flagscale"),
}


def export_files(
    plan: Plan, target: str, *, train_iters: int = 100, learning_rate: float = 1e-4
) -> dict[str, str]:
    """Name and text of every launch file of a plan. Refuses what the target cannot start."""
    refused = refusal(plan, target)
    if refused:
        raise InputError(refused)
    notes = [*expectations(price(plan)), *not_expressed(plan, target)]
    if target == "flagscale":
        made = flagscale.files(plan, notes, train_iters=train_iters, learning_rate=learning_rate)
        return {**made, "plan.json": plan_json(plan)}
    found = megatron.arguments(plan, train_iters=train_iters, learning_rate=learning_rate)
    return {
        "args.txt": "".join(f"{' '.join(argument)}\n" for argument in found),
        "env.txt": "".join(f"{name}={value}\n" for name, value in environment(plan).items()),
        "launch.sh": launch_script(plan, notes),
        "plan.json": plan_json(plan),
    }


def not_expressed(plan: Plan, target: str) -> list[str]:
    """What the files of a target leave out, in words."""
    own = {"megatron": megatron.not_expressed, "flagscale": flagscale.not_expressed}
    return own[target](plan)


def refusal(plan: Plan, target: str) -> str | None:
    """Which part of a plan a target cannot start and which target can; None where it can."""
    name, _ = TARGETS[target]
    if plan.runtime not in ("megatron", "flagscale", "any"):
        return (
            f"a plan of the runtime {plan.runtime} is not {name}'s; "
            f"plan it again with --runtime {TARGETS[target][1]}."
        )
    reasons = _reasons(plan, target)
    if not reasons:
        return None
    able = [other for other in TARGETS if other != target and not _reasons(plan, other)]
    others = f" {TARGETS[able[0]][0]} can: --to {able[0]}." if able else " No other target can."
    return f"{name} cannot run this plan: {'; '.join(reasons[:3])}.{others}"


def _reasons(plan: Plan, target: str) -> list[str]:
    """Rules of a target that a plan breaks, and parts that it has no words for."""
    _, runtime = TARGETS[target]
    broken = broken_rules(msgspec.structs.replace(plan, runtime=runtime))
    if broken:
        return [f"{rule.reason} [rule {rule.name}]" for rule in broken]
    if target != "flagscale":
        return []
    return [f"it has no words for {part}" for part in flagscale.refusals(plan)]


def next_steps(plan: Plan, target: str, script: str) -> list[str]:
    """What a person does with the files, in words and commands."""
    if target == "flagscale":
        hosts = sum(count for _, count, _ in flagscale.hosts_of(plan))
        where = "once, on the first; it starts the others by ssh" if hosts > 1 else "on it"
        return [
            "Next: set your learning rate, the data (train/plan.yaml) and the names of your "
            f"{hosts} hosts (hostfile). Then, {where}:",
            "  export FLAGSCALE=~/FlagScale",
            f"  {script} action=dryrun    (then without it)",
        ]
    nodes = sum(count for _, count, _ in nodes_of(plan))
    first = "localhost" if nodes == 1 else "10.0.0.1"
    where = "" if nodes == 1 else f"On each of the {nodes} nodes, NODE_RANK 0 to {nodes - 1}, "
    where += "" if nodes == 1 else "MASTER_ADDR the address of the first:"
    return [
        "Next: set your learning rate; data and checkpoints follow on the command line:",
        *([where] if where else []),
        f"  export MEGATRON=~/Megatron-LM NODE_RANK=0 MASTER_ADDR={first}",
        f"  {script} --mock-data --tokenizer-type NullTokenizer",
    ]


def expectations(priced: Priced) -> list[str]:
    """What a run of this plan should show, and whether it should run at all."""
    memory = priced.memory
    gib = f"{memory.reserved_bytes / 2**30:.1f} of {memory.usable_bytes / 2**30:.1f} GiB"
    fits = "" if memory.fits else "; IT WILL PROBABLY RUN OUT OF MEMORY"
    return [
        f"expected: {priced.step_s:.3g} s a step ({priced.step_s_low:.3g} to "
        f"{priced.step_s_high:.3g}), {gib} reserved on the fullest GPU{fits}"
    ]


def environment(plan: Plan) -> dict[str, str]:
    return dict(sorted(megatron.environment(plan).items()))


def plan_json(plan: Plan) -> str:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"
