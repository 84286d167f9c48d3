"""An export target: the settings of a plan as JSON, for a trainer that torchrun starts."""

import json

import astra


def files(plan: astra.Plan, notes: list[str], *, train_iters: int, learning_rate: float, **_):
    settings = {
        "model": plan.model.name,
        "parallel": {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "cp": plan.cp, "ep": plan.ep},
        "micro_batch": plan.micro_batch,
        "global_batch": plan.global_batch,
        "seq_len": plan.seq_len,
        "precision": plan.precision,
        "steps": train_iters,
        "learning_rate": learning_rate,
        "about": notes,  # such as the step that is expected
    }
    return {"trainer.json": json.dumps(settings, indent=2) + "\n"}


def refusals(plan: astra.Plan) -> list[str]:
    """Parts of a plan that this trainer cannot do; `astra export` says so, and who can."""
    offloads = plan.offload_optimizer_fraction > 0 or plan.offload_activations
    parts = {"interleaved stages (vpp)": plan.vpp > 1, "offload": offloads}
    return [part for part, is_needed in parts.items() if is_needed]


def unsupported(plan: astra.Plan) -> list[str]:
    """What it can do but `trainer.json` does not say; README.md asks a person to set it."""
    left = {"sharding": plan.sharding, "recompute": plan.recompute}
    return [f"{name} = {value}" for name, value in left.items() if value != "none"]


TARGET = astra.Target(
    name="my trainer",
    runtime="megatron",
    files=files,
    refusals=refusals,
    unsupported=unsupported,
    start='"${TRAIN_SCRIPT:?your trainer}" --config "$here/trainer.json" "$@"',
)
