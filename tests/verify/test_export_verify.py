"""`astra export --verify` with the frameworks at hand: good files pass, spoiled ones do not."""

import json

import pytest
from tests.support.frameworks import needs

needs("torch", "torchtitan", "accelerate", "deepspeed", "megatron.training")

from tests.verify.test_launch_files import plan_of  # noqa: E402

from astra.export.targets import export_files  # noqa: E402
from astra.export.verify import SCRIPTS, verify  # noqa: E402


def spoiled(files: dict[str, str], target: str) -> dict[str, str]:
    """The same files with one word wrong."""
    if target == "deepspeed":
        config = json.loads(files["ds_config.json"])
        config["zero_optimization"]["stage"] = 5
        return files | {"ds_config.json": json.dumps(config)}
    name, good, bad = {
        "megatron": ("args.txt", "--num-attention-heads 32", "--num-attention-headz 32"),
        "torchtitan": (
            "astra_plan.py",
            "'tensor_parallel_degree': 1",
            "'tensor_parallel_degree': 3",
        ),
        "accelerate": ("accelerate.yaml", "num_machines:", "num_machinez:"),
    }[target]
    assert good in files[name]
    return files | {name: files[name].replace(good, bad)}


@pytest.mark.parametrize("target", [target for target in SCRIPTS if target != "bridge"])
def test_good_files_are_accepted_and_spoiled_ones_refused(target: str) -> None:
    files = export_files(plan_of(target), target, launcher="slurm")
    framework, scripts = verify(files, target, 16)
    assert framework.outcome == "accepted", framework.line()
    assert scripts.outcome == "accepted", scripts.line()
    framework, _ = verify(spoiled(files, target), target, 16)
    assert framework.outcome == "refused" and framework.words
