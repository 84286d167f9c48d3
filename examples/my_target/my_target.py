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
    return ["interleaved stages (vpp)"] if plan.vpp > 1 else []


TARGET = astra.Target(
    name="my trainer",
    runtime="megatron",
    files=files,
    refusals=refusals,
    start='"${TRAIN_SCRIPT:?your trainer}" --config "$here/trainer.json" "$@"',
)
