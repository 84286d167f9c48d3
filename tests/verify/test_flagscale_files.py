"""FlagScale's own code accepts every plan exported to it, reads it as it was meant, and agrees with
the second set of rules on tasks that are broken on purpose."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.frameworks import needs

needs("torch", "triton", "hydra", "six", "flag_scale")

from tests.support.flagscale_oracle import Judge, written  # noqa: E402
from tests.support.flagscale_plans import handmade_plans, searched_plans  # noqa: E402
from tests.support.flagscale_rules import broken  # noqa: E402
from tests.support.uniform_plans import uniform_plan  # noqa: E402

from astra.export.flagscale import is_mixed, meshes_of  # noqa: E402
from astra.export.megatron import architecture  # noqa: E402
from astra.export.targets import export_files, refusal  # noqa: E402
from astra.export.yaml_text import yaml_text  # noqa: E402
from astra.strategy.plan import Plan  # noqa: E402
from astra.strategy.recompute import Recompute  # noqa: E402


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    found = Judge()
    yield found
    found.process.communicate(timeout=60)
    assert found.process.returncode == 0


def meant(plan: Plan) -> list[dict[str, Any]]:
    """What FlagScale should make of every mesh."""
    samples = plan.micro_batch * plan.dp
    return [
        {
            "tensor_model_parallel_size": mesh.tp,
            "pipeline_model_parallel_size": mesh.stages,
            "data_parallel_size": mesh.dp,
            "context_parallel_size": plan.cp,
            "expert_model_parallel_size": mesh.ep,
            "micro_batch_size": samples // mesh.dp,
            "sequence_parallel": plan.sequence_parallel and mesh.tp > 1,
        }
        for mesh in meshes_of(plan)
    ]


def recomputes(plan: Plan, found: dict[str, Any]) -> bool:
    """Whether the lists of FlagScale are the plan's, for every stage and micro-batch."""
    (pipeline,) = plan.pipelines
    own = [Recompute.parse(s.recompute) for s in pipeline.segments for _ in range(s.stages)]
    if found["granularity"] is None:
        return len(set(own)) == 1
    count = pipeline.micro_batches
    full = [setting.mode.startswith("full") for setting in own]
    same = found["granularity"] == [[int(on)] * count for on in full]
    for stage, setting in enumerate(own):
        if full[stage]:
            block = int(setting.mode == "full:block")
            same &= found["method"][stage] == [block] * count
            same &= found["num_layers"][stage] == [setting.layers] * count
    return same


def plans() -> list[Plan]:
    return [plan for plan in (*searched_plans(), *handmade_plans(60)) if not refusal_of(plan)]


def refusal_of(plan: Plan) -> str | None:
    return refusal(plan, "flagscale")


def test_flagscale_accepts_every_plan_and_reads_it_as_it_was_meant(
    judge: Judge, tmp_path: Path
) -> None:
    refused, misread = [], []
    found = plans()
    assert len(found) > 100
    for place, plan in enumerate(found):
        folder = written(tmp_path / str(place), export_files(plan, "flagscale"))
        answer = judge.ask(folder, architecture(plan))
        if "refused" in answer:
            refused.append(f"{plan.model.name} {plan.summary()}: {answer['refused'][:400]}")
            continue
        for said, wanted in zip(answer["meshes"], meant(plan), strict=True):
            unlike = {key: said[key] for key in wanted if said[key] != wanted[key]}
            if unlike or (is_mixed(plan) and not recomputes(plan, said)):
                misread.append(f"{plan.model.name} {plan.summary()}: {unlike}")
        if is_mixed(plan):
            layers = list(plan.pipelines[0].layers)
            assert all(said["layers"] == layers for said in answer["meshes"])
    assert not refused, "\n".join(refused)
    assert not misread, "\n".join(misread)


@pytest.mark.parametrize(
    ("gpus", "settings"),
    [
        ("h100:48,h200:16", {}),
        ("h100:56,h200:8", {"tp": 4, "pp": 4}),
        ("a100-80g:20,h100:12", {"tp": 4, "pp": 2, "layers_per_stage": (17, 15)}),
        ("h100:48,h200:16", {"model": "mixtral-8x7b", "ep": 8}),
    ],
)
def test_flagscale_takes_one_cut_over_several_types_as_an_ordinary_job(
    gpus: str, settings: dict[str, Any], judge: Judge, tmp_path: Path
) -> None:
    plan = uniform_plan(gpus, runtime="flagscale", **settings)
    assert len(plan.pipelines) > 1 and refusal_of(plan) is None
    folder = written(tmp_path, export_files(plan, "flagscale"))
    (said,) = judge.ask(folder, architecture(plan))["meshes"]
    (wanted,) = meant(plan)
    assert {key: said[key] for key in wanted} == wanted
    assert said["layers"] is None and said["data_parallel_size"] == plan.dp


def spoiled(task: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The task with one number changed at a time."""
    hetero = task["system"]["hetero"]
    for key in ("hetero_process_meshes", "hetero_pipeline_layer_split"):
        for place, value in enumerate(hetero[key]):
            for other in {value + 1, 2 * value}:
                copy = json.loads(json.dumps(task))
                copy["system"]["hetero"][key][place] = other
                yield f"{key}[{place}] = {other}", copy
        short = json.loads(json.dumps(task))
        short["system"]["hetero"][key].pop()
        yield f"{key} shorter", short
    everywhere = json.loads(json.dumps(task))
    everywhere["system"]["hetero"]["hetero_process_meshes"][1::5] = [
        2 for _ in hetero["hetero_device_types"]
    ]
    yield "cp 2 in every mesh", everywhere
    for section, key, value in (
        ("system", "pipeline_model_parallel_size", 99),
        ("system", "num_virtual_stages_per_pipeline_rank", 2),
        ("system", "num_distributed_optimizer_instances", 2),
        ("model", "micro_batch_size", 3),
        ("model", "global_batch_size", 7),
        ("model", "num_layers", 7),
    ):
        copy = json.loads(json.dumps(task))
        copy[section][key] = value
        yield f"{key} = {value}", copy
    for key, rows in task["system"]["recompute"].items():
        if isinstance(rows, list):
            for column in (0, 1, 2):
                copy = json.loads(json.dumps(task))
                copy["system"]["recompute"][key][0][column] += 2
                yield f"{key}[0][{column}] + 2", copy


def test_the_second_set_of_rules_refuses_all_that_flagscale_refuses(
    judge: Judge, tmp_path: Path
) -> None:
    """While it reads its options, FlagScale asks nothing of the world size, of the number of
    micro-batches and of how experts are shared out: of those the rules alone speak."""
    later = {"world-is-the-sum", "experts-share-the-mesh", "experts-divide", "batch-divides"}
    later |= {"no-experts-to-share-out"}
    some = [plan for plan in plans() if is_mixed(plan)][::20]
    told = 0
    for place, plan in enumerate(some):
        files = export_files(plan, "flagscale")
        for row, (what, task) in enumerate(spoiled(yaml.safe_load(files["train/plan.yaml"]))):
            spoilt = {**files, "train/plan.yaml": yaml_text(task)}
            folder = written(tmp_path / f"{place}-{row}", spoilt)
            refused = judge.ask(folder, architecture(plan)).get("refused")
            ours = set(broken(task, files["hostfile"])) - later
            told += bool(refused)
            if bool(ours) != bool(refused) and not (refused and not ours and elsewhere(refused)):
                pytest.fail(f"{plan.summary()}, {what}: {sorted(ours)} against {refused}")
    assert told > 50


def elsewhere(refusal: str) -> bool:
    """Refused by what the rules on meshes do not speak of: Megatron-LM's own, of the model."""
    return "hetero" not in refusal and "mesh" not in refusal and "recompute" not in refusal
