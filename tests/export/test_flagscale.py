"""FlagScale's files: by rules written a second time, and that they say the plan."""

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.flagscale_plans import QUESTIONS, handmade_plans, searched_plans
from tests.support.flagscale_rules import broken, flat, hosts_in
from tests.support.tiers import soak_but_every

from astra.errors import InputError
from astra.export.flagscale import is_mixed, meshes_of
from astra.export.targets import export_files, refusal
from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan

FEW, SOME = 3, 7  # questions of those that are searched
Task = dict[str, Any]


def exported(plan: Plan) -> tuple[Task, str]:
    """The task and the hosts of a plan."""
    files = export_files(plan, "flagscale")
    return yaml.safe_load(files["train/plan.yaml"]), files["hostfile"]


def plain_plan(gpus: str = "h100:16", model: str = "llama-3-8b", **said: Any) -> Plan:
    cluster, _ = parse_gpus(gpus)
    settings = PlanSettings(**{"global_batch": 64} | said)
    return complete(settings, find_model(model), cluster, "flagscale").plan


@cache
def all_plans() -> list[tuple[Plan, Task, str]]:
    """With their tasks and hosts, which are not to be changed."""
    return [(plan, *exported(plan)) for plan in (*searched_plans(FEW), *handmade_plans(80))]


@pytest.mark.parametrize("questions", soak_but_every(2, (SOME, len(QUESTIONS))))
def test_plans_of_every_question_obey_flagscales_rules(questions: int) -> None:
    plans = searched_plans(questions)
    assert sum(map(is_mixed, plans)) >= 15 and sum(not is_mixed(plan) for plan in plans) >= 25
    assert {len(plan.gpus) for plan in plans} == {1, 2, 3}
    assert any(plan.model.moe and is_mixed(plan) for plan in plans)
    for plan in plans:
        assert broken(*exported(plan)) == [], plan.summary()


@pytest.mark.slow
def test_plans_with_meshes_of_every_make_obey_flagscales_rules() -> None:
    unlike = [plan for plan, *_ in all_plans() if len({mesh.dp for mesh in meshes_of(plan)}) > 1]
    assert len(unlike) > 20 and any(plan.model.moe for plan in unlike)
    for plan, task, hosts in all_plans():
        assert broken(task, hosts) == [], plan.summary()


@pytest.mark.slow
def test_the_task_says_the_plan_stage_by_stage() -> None:
    """Read back by position: GPU, tp, dp, ep, micro-batch, layers and recompute of every stage."""
    for plan, task, _ in all_plans():
        if not is_mixed(plan):
            continue
        settings, (pipeline,) = flat(task), plan.pipelines
        numbers, said = settings["hetero_process_meshes"], []
        for place, kind in enumerate(settings["hetero_device_types"]):
            tp, cp, ep, dp, pp = numbers[5 * place : 5 * place + 5]
            size = numbers[3] * settings["micro_batch_size"] // dp
            said += [(kind, tp, cp, ep, dp, size)] * pp
        meant, recomputes = [], []
        for segment in pipeline.segments:
            dp, ep = segment.dp or pipeline.replicas, segment.ep or plan.ep
            size = segment.micro_batch or plan.micro_batch
            meant += [(segment.gpu, segment.tp, plan.cp, ep, dp, size)] * segment.stages
            recomputes += [segment.recompute] * segment.stages
        assert [(kind.removesuffix("-2"), *rest) for kind, *rest in said] == meant
        assert settings["hetero_pipeline_layer_split"] == list(pipeline.layers)
        assert [recomputed(settings, stage) for stage in range(plan.pp)] == recomputes


def recomputed(settings: dict[str, Any], stage: int) -> str:
    """What a stage recomputes, as FlagScale's transformer block reads its lists."""

    def of(name: str) -> int | None:
        rows = settings.get(f"recompute_{name}_per_stage_micro_batch")
        if rows is None:
            return None
        by_stage = [row for row in rows for _ in range(row[0])]
        assert len(by_stage[stage]) == 3
        value: int = by_stage[stage][2]
        return value

    kind = settings.get("recompute_granularity")
    if kind is None or of("granularity") == 0:
        return "none"
    if kind == "selective":
        modules = settings["recompute_modules"]
        names = [modules] if isinstance(modules, str) else modules
        return "selective" if names == ["core_attn"] else f"selective:{'+'.join(names)}"
    method = of("method")
    name = settings["recompute_method"] if method is None else ("uniform", "block")[method]
    count = of("num_layers")
    return f"full:{name}:{settings['recompute_num_layers'] if count is None else count}"


def test_a_plan_of_like_stages_is_an_ordinary_task() -> None:
    plan = plain_plan(tp=2, pp=2, vpp=4)
    settings = flat(exported(plan)[0])
    assert not any(name.startswith("hetero") for name in settings)
    assert settings["num_virtual_stages_per_pipeline_rank"] == 4
    assert settings["tensor_model_parallel_size"] == 2
    uneven = flat(exported(plain_plan(pp=4, layers_per_stage=(7, 9, 9, 7)))[0])
    assert uneven["pipeline_model_parallel_layout"] == "Et*7|t*9|t*9|t*7L"


@pytest.mark.slow
def test_hosts_come_in_the_order_of_the_pipeline_and_hold_its_gpus() -> None:
    for plan, _, hosts in all_plans():
        held: dict[str, int] = {}
        for _, slots, kind in hosts_in(hosts):
            assert kind is not None
            held[kind] = held.get(kind, 0) + slots
        assert held == plan.gpus
        assert list(held) == list(dict.fromkeys(gpu for gpu, _ in plan.rank_blocks))


def test_one_type_in_two_places_gets_two_names() -> None:
    plan = handmade_plans(80)[0]
    segments = plan.pipelines[0].segments
    first = msgspec.structs.replace(segments[-1], gpu=segments[0].gpu)
    pipeline = msgspec.structs.replace(plan.pipelines[0], segments=(*segments[:-1], first))
    task, hosts = exported(msgspec.structs.replace(plan, pipelines=(pipeline,)))
    names = flat(task)["hetero_device_types"]
    assert names[0] + "-2" == names[-1]
    assert broken(task, hosts) == []


# ------------------------------------------------------------------ the checker can say no


def changed(name: str, value: Any) -> Callable[[Task], None]:
    def change(task: Task) -> None:
        for section in ("hetero", "recompute"):
            if name in task["system"][section]:
                task["system"][section][name] = value
                return
        section = "system" if name in task["system"] else "model"
        task[section][name] = value

    return change


BREAKS: dict[str, Callable[[Task], None]] = {
    "five-numbers-a-mesh": lambda t: t["system"]["hetero"]["hetero_process_meshes"].pop(),
    "a-type-a-mesh": lambda t: t["system"]["hetero"]["hetero_device_types"].pop(),
    "world-is-the-sum": lambda t: t["system"]["hetero"]["hetero_process_meshes"].__setitem__(0, 16),
    "no-context-parallelism": lambda t: t["system"]["hetero"]["hetero_process_meshes"].__setitem__(
        1, 2
    ),
    "one-optimizer": lambda t: t["system"].update(num_distributed_optimizer_instances=2),
    "first-mesh-feeds-all": lambda t: t["system"]["hetero"]["hetero_process_meshes"].__setitem__(
        8, 3
    ),
    "batch-divides": changed("global_batch_size", 1001),
    "stages-are-the-sum": changed("pipeline_model_parallel_size", 17),
    "a-split-a-stage": lambda t: t["system"]["hetero"]["hetero_pipeline_layer_split"].append(0),
    "layers-add-up": changed("num_layers", 79),
    "no-virtual-stages": changed("num_virtual_stages_per_pipeline_rank", 2),
    "current-type-is-one-of-them": changed("hetero_current_device_type", "B200"),
    "granularity-of-every-stage": lambda t: t["system"]["recompute"][
        "recompute_granularity_per_stage_micro_batch"
    ].pop(),
    "num_layers-of-every-micro-batch": lambda t: t["system"]["recompute"][
        "recompute_num_layers_per_stage_micro_batch"
    ][0].__setitem__(1, 1),
    "method-is-a-flag": lambda t: t["system"]["recompute"][
        "recompute_method_per_stage_micro_batch"
    ][0].__setitem__(2, 2),
    "stages-recompute-in-full": changed("recompute_granularity", "selective"),
    "stages-recompute-by-a-method": lambda t: t["system"]["recompute"].pop("recompute_method"),
}


def stage_recompute_plan() -> Plan:
    """A mixed plan whose stages recompute differently."""
    plans = [plan for plan in handmade_plans(80) if "|" in plan.summary()]
    return next(plan for plan in plans if plan.model.name == "llama-3-8b")


@pytest.mark.parametrize("rule", BREAKS)
def test_the_second_set_of_rules_sees_what_breaks_one(rule: str) -> None:
    task, hosts = exported(stage_recompute_plan())
    BREAKS[rule](task)
    assert rule in broken(task, hosts)


def test_tied_ends_are_watched() -> None:
    tied = [
        plan
        for plan in handmade_plans(80)
        if plan.model.tied_embeddings and meshes_of(plan)[0].dp != meshes_of(plan)[-1].dp
    ]
    task, hosts = exported(tied[0])
    assert flat(task)["use_partial_reduce_for_shared_embedding"] is True
    task["system"]["use_distributed_optimizer"] = True
    assert broken(task, hosts) == []
    del task["system"]["hetero"]["use_partial_reduce_for_shared_embedding"]
    assert broken(task, hosts) == ["ends-reduce-in-part"]


# ------------------------------------------------------------------ what is refused, and words


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ({"cuda_graph": "local"}, r"CUDA graphs \(cuda_graph\)"),
        ({"offload_activations": ("core_attn",)}, r"offloaded by module \(offload_activations\)"),
        ({"sharding": "parameters", "grad_reduce_dtype": "bf16"}, "dtypes of Megatron-FSDP"),
    ],
)
def test_what_flagscale_has_no_words_for_is_named_with_a_target_that_has(
    said: dict[str, Any], part: str
) -> None:
    with pytest.raises(InputError, match=f"no words for .*{part}.*Megatron-LM can: --to megatron"):
        export_files(plain_plan(**said), "flagscale")


def test_hybridep_is_refused_with_a_target_that_has_it() -> None:
    plan = plain_plan(model="mixtral-8x7b", ep=8, dispatcher="hybridep")
    with pytest.raises(InputError, match=r"hybridep .*\[rule no-hybridep\].*--to megatron"):
        export_files(plan, "flagscale")


def test_a_mixed_plan_that_megatron_cannot_start_names_flagscale() -> None:
    said = refusal(stage_recompute_plan(), "megatron")
    assert said is not None and said.endswith("FlagScale can: --to flagscale.")
    assert refusal(stage_recompute_plan(), "flagscale") is None


def test_replicas_of_different_make_have_no_target() -> None:
    plan = plain_plan("h100:16", pp=2)
    (pipeline,) = plan.pipelines
    half = msgspec.structs.replace(pipeline, replicas=pipeline.replicas // 2)
    less = msgspec.structs.replace(half, micro_batches=half.micro_batches - 1)
    two = msgspec.structs.replace(plan, pipelines=(half, less), runtime="any")
    said = refusal(two, "flagscale")
    assert said is not None and said.endswith("No other target can.")


@pytest.mark.slow
def test_a_name_cannot_smuggle_settings_into_the_files() -> None:
    plan = plain_plan()
    for name in ("x\nsystem:", "${oc.env:HOME}", "a: b", "x\r\nexit 1", "\u2028", "../up", '"'):
        model = msgspec.structs.replace(plan.model, name=name)
        files = export_files(msgspec.structs.replace(plan, model=model), "flagscale")
        name_said = yaml.safe_load(files["train.yaml"])["experiment"]["exp_name"]
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name_said)
        assert yaml.safe_load(files["train/plan.yaml"]) == exported(plan)[0]
        body = files["launch.sh"][files["launch.sh"].index("set -euo") :]
        assert body == export_files(plan, "flagscale")["launch.sh"][-len(body) :]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_starts_flagscale_with_this_folder(tmp_path: Path) -> None:
    job = tmp_path / "my job"
    job.mkdir()
    for name, text in export_files(stage_recompute_plan(), "flagscale").items():
        (job / name).parent.mkdir(exist_ok=True)
        (job / name).write_text(text, encoding="utf-8")
    stub = tmp_path / "bin"
    stub.mkdir()
    (stub / "python").write_text('#!/bin/sh\npwd\nprintf "%s\\n" "$@"\n')
    (stub / "python").chmod(0o755)
    done = subprocess.run(
        ["bash", str(job / "launch.sh"), "action=dryrun"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={"PATH": f"{stub}:/usr/bin:/bin", "FLAGSCALE": str(tmp_path)},
    )
    assert done.stdout.splitlines() == [
        str(tmp_path),
        "run.py",
        "--config-path",
        str(job),
        "--config-name",
        "train",
        f"experiment.runner.hostfile='{job}/hostfile'",
        f"experiment.exp_dir='{job}/outputs'",
        "action=dryrun",
    ]
