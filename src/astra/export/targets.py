"""Which files each training framework gets."""

import msgspec

from astra.errors import InputError
from astra.export import megatron
from astra.export.torchrun import launch_script
from astra.search.price import price
from astra.search.priced import Priced
from astra.strategy.plan import Plan
from astra.strategy.rules.book import broken_rules
from astra.strategy.rules.rule import Rule

TARGETS = ("megatron",)


def export_files(
    plan: Plan, target: str, *, train_iters: int = 100, learning_rate: float = 1e-4
) -> dict[str, str]:
    """Name and text of every launch file of a plan. Refuses what the target cannot start."""
    assert target in TARGETS
    if plan.runtime not in ("megatron", "flagscale", "any"):
        raise InputError(
            f"a plan of the runtime {plan.runtime} is not Megatron-LM's; "
            "plan it again with --runtime megatron."
        )
    as_megatron = msgspec.structs.replace(plan, runtime="megatron")
    broken = broken_rules(as_megatron)
    if broken:
        raise InputError(_cannot(broken))
    found = megatron.arguments(plan, train_iters=train_iters, learning_rate=learning_rate)
    notes = [*expectations(price(plan)), *megatron.not_expressed(plan)]
    return {
        "args.txt": "".join(f"{' '.join(argument)}\n" for argument in found),
        "env.txt": "".join(f"{name}={value}\n" for name, value in environment(plan).items()),
        "launch.sh": launch_script(plan, notes),
        "plan.json": plan_json(plan),
    }


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


def _cannot(broken: list[Rule]) -> str:
    reasons = "; ".join(f"{rule.reason} [rule {rule.name}]" for rule in broken[:3])
    return f"Megatron-LM cannot run this plan: {reasons}."
