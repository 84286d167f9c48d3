"""A plan as FlagScale's files: the task, the experiment around it and the typed hosts.

FlagScale turns the keys of the task into Megatron-LM's options (`a_b` is `--a-b`, true is a bare
option), so a plan whose stages are alike is written as for Megatron-LM, on one GPU type or with its
replicas on several. Stages that differ are *meshes*: runs of stages with one GPU type, tp, dp and
ep. Checked against flag-scale 0.8.0.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from astra.export import megatron
from astra.export.torchrun import SAFE, Group, node_groups, one_line, rank_lines
from astra.export.unsupported import unsupported as megatron_unsupported
from astra.export.yaml_text import yaml_text
from astra.strategy.plan import Plan, Segment
from astra.strategy.recompute import Recompute

# Options that its Megatron-LM (core 0.15) lacks, and the part of a plan that needs them.
UNSUPPORTED = {
    "--cuda-graph-impl": "CUDA graphs (cuda_graph)",
    "--fine-grained-activation-offloading": "activations offloaded by module (offload_activations)",
}
# Options that it lacks where leaving them out changes nothing that a plan says.
DROPPED_OPTIONS = (
    "--moe-shared-expert-gate",
    "--moe-flex-dispatcher-backend",
    "--megatron-fsdp-main-params-dtype",
    "--megatron-fsdp-main-grads-dtype",
    "--megatron-fsdp-grad-comm-dtype",
)
SYSTEM = (  # beginnings of the options that speak of the machine, not of the network
    "tensor_model",
    "tp_comm",
    "sequence_parallel",
    "context_parallel",
    "cp_comm",
    "use_tp",
    "pipeline_model",
    "num_virtual",
    "microbatch_group",
    "no_overlap",
    "expert_model",
    "expert_tensor",
    "use_distributed",
    "overlap_",
    "use_megatron_fsdp",
    "data_parallel",
    "num_distributed",
    "ckpt_format",
    "bf16",
    "fp16",
    "fp8",
    "fp4",
    "grad_reduce",
    "accumulate",
    "use_precision",
    "main_",
    "exp_avg",
    "reuse_grad",
    "recompute",
    "optimizer_",
)
NUMBER = re.compile(r"\d+|\d*\.\d+(e-?\d+)?|\d+e-?\d+")
SCRIPT = """\
#!/usr/bin/env bash
# {title}
{notes}# Run once, on the first host, with your host names in `hostfile`. FlagScale starts the
# others by ssh: its folder, this one and the Python environment have one path on all of them.
#{order}
# What follows on the command line changes settings:
#   ./launch.sh action=dryrun       only write the script of each host
#   ./launch.sh action=stop         end the job
#   ./launch.sh train.data.mock_data=false +train.data.data_path=/data/corpus_text_document
set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
cd "${{FLAGSCALE:?the folder of FlagScale, the one with run.py}}"
exec python run.py --config-path "$here" --config-name train \\
  "experiment.runner.hostfile='$here/hostfile'" "experiment.exp_dir='$here/outputs'" "$@"
"""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Stages in a row with one GPU type and one cut."""

    gpu: str
    tp: int
    dp: int
    ep: int
    etp: int
    stages: int

    def gpus(self, cp: int) -> int:
        return self.tp * cp * self.dp * self.stages


def meshes_of(plan: Plan) -> list[Mesh]:
    """The meshes in pipeline order; stages that differ only in recompute share one.

    Replicas on several GPU types are one: FlagScale's own, which knows nothing of types.
    """
    pipeline, *others = plan.pipelines
    if others:
        return [Mesh("", pipeline.segments[0].tp, plan.dp, plan.ep, plan.etp, plan.pp)]

    def cut(segment: Segment) -> tuple[str, int, int, int, int]:
        dp, ep = segment.dp or pipeline.replicas, segment.ep or plan.ep
        return segment.gpu, segment.tp, dp, ep, segment.etp or plan.etp

    return [
        Mesh(*own, stages=sum(segment.stages for segment in group))
        for own, group in groupby(pipeline.segments, cut)
    ]


def is_mixed(plan: Plan) -> bool:
    """Whether stages differ in more than their layers."""
    recomputes = {segment.recompute for segment in plan.pipelines[0].segments}
    return len(meshes_of(plan)) > 1 or len(recomputes) > 1


def labels_of(gpus: Iterable[str]) -> list[str]:
    """The device type of each mesh. FlagScale sorts ranks by it, so GPUs of one type in two places
    of the pipeline have two names.

    >>> labels_of("AABA")
    ['A', 'A', 'B', 'A-2']
    """
    seen: dict[str, int] = {}
    labels = []
    for gpu, group in groupby(gpus):
        seen[gpu] = seen.get(gpu, 0) + 1
        label = gpu if seen[gpu] == 1 else f"{gpu}-{seen[gpu]}"
        labels += [label for _ in group]
    return labels


def hosts_of(plan: Plan) -> list[Group]:
    """(device type, hosts, GPUs of each) in the order of ranks."""
    blocks: Iterable[tuple[str, int]] = plan.rank_blocks
    if is_mixed(plan):  # ranks follow the meshes, in whatever order a mesh has its own
        by_type = groupby(meshes_of(plan), lambda mesh: mesh.gpu)
        blocks = [(gpu, sum(mesh.gpus(plan.cp) for mesh in group)) for gpu, group in by_type]
    labels = labels_of(gpu for gpu, _ in blocks)
    named = [(label, *block) for label, block in zip(labels, blocks, strict=True)]
    return node_groups(plan, named)


def unsupported(plan: Plan) -> list[str]:
    """What the files cannot say about this model, in words."""
    found = megatron_unsupported(plan, key_of)
    if plan.model.moe is not None and plan.model.moe.shared_gate:
        found.append("the gate of the shared expert, which FlagScale 0.8 does not have")
    return found


def refusals(plan: Plan) -> list[str]:
    """Parts of a plan that FlagScale has no words for."""
    options = {option for option, *_ in megatron.arguments(plan)}
    found = [part for option, part in UNSUPPORTED.items() if option in options]
    cuts = {
        (s.tp, s.ep, s.etp, s.micro_batch, s.recompute, s.dp in (None, pipeline.replicas))
        for pipeline in plan.pipelines
        for s in pipeline.segments
    }
    if len(plan.pipelines) > 1 and len(cuts) > 1:  # a mesh lies on one type
        found.append("stages that differ and whose replicas lie on several GPU types")
    dtypes = (plan.main_grads_dtype, plan.master_dtype, plan.grad_reduce_dtype)
    if megatron.is_fsdp(plan) and set(dtypes) != {"fp32"}:
        found.append("dtypes of Megatron-FSDP other than fp32")
    return found


def task(plan: Plan, *, train_iters: int, learning_rate: float) -> dict[str, Any]:
    """The task: what is trained and how it is cut."""
    mixed = is_mixed(plan)
    found = megatron.arguments(plan, train_iters=train_iters, learning_rate=learning_rate)
    settings = _settings(plan, found, mixed)
    system: dict[str, Any] = {}
    model: dict[str, Any] = {}
    for key, value in settings.items():
        (system if key.startswith(SYSTEM) else model)[key] = value
    if mixed:
        system["hetero"] = _hetero(plan)
        system["recompute"] = _recompute(plan)
    system["logging"] = {"log_interval": 1, "log_throughput": True}
    data = {"mock_data": True, "tokenizer": {"tokenizer_type": "NullTokenizer"}}
    return {"system": system, "model": model, "data": data}


def key_of(option: str) -> str:
    """`--a-b` is `a_b`."""
    return option.removeprefix("--").replace("-", "_")


def _value(words: Sequence[str]) -> Any:
    """An option's words as a setting: true for none, a number where it is one."""
    if not words:
        return True
    if len(words) > 1:
        return list(words)
    (word,) = words
    if NUMBER.fullmatch(word):
        return int(word) if word.isdigit() else float(word)
    return word


def _settings(plan: Plan, found: Iterable[megatron.Argument], mixed: bool) -> dict[str, Any]:
    """Megatron-LM's options as keys, but for those that meshes say otherwise."""
    settings: dict[str, Any] = {}
    for option, *values in found:
        key = key_of(option)
        if option in DROPPED_OPTIONS or (mixed and key.startswith("recompute_")):
            continue
        settings[key] = _value(values)
    if plan.dispatcher == "deepep":
        settings["moe_enable_deepep"] = True
    if mixed:
        first = plan.pipelines[0].segments[0]
        settings.pop("pipeline_model_parallel_layout", None)
        settings["micro_batch_size"] = first.micro_batch or plan.micro_batch
        settings.pop("num_distributed_optimizer_instances", None)  # there is one
        if plan.model.moe is not None:
            settings["expert_model_parallel_size"] = first.ep or plan.ep
            settings["expert_tensor_parallel_size"] = first.etp or plan.etp
    return settings


def _hetero(plan: Plan) -> dict[str, Any]:
    meshes = meshes_of(plan)
    labels = labels_of(mesh.gpu for mesh in meshes)
    hetero: dict[str, Any] = {
        "enable_hetero": True,
        # tp, cp, ep, dp, pp of every mesh
        "hetero_process_meshes": [
            number for m in meshes for number in (m.tp, plan.cp, m.ep, m.dp, m.stages)
        ],
        "hetero_pipeline_layer_split": list(plan.pipelines[0].layers),
        "hetero_device_types": labels,
        "hetero_current_device_type": labels[0],
    }
    if plan.model.moe is not None:
        hetero["expert_tensor_parallel_size_per_process_mesh"] = [mesh.etp for mesh in meshes]
    shared = plan.model.tied_embeddings or plan.mtp_layers > 0
    if shared and meshes[0].dp != meshes[-1].dp:
        hetero["use_partial_reduce_for_shared_embedding"] = True
    return hetero


def _recompute(plan: Plan) -> dict[str, Any]:
    """One setting for all stages, or whole layers stage by stage.

    A row is [stages, micro-batches, value]: 1 or 0 for recompute or none, 0 or 1 for groups of
    layers (uniform) or some layers (block), and the number of layers.
    """
    pipeline = plan.pipelines[0]
    stages = [(s.stages, Recompute.parse(s.recompute)) for s in pipeline.segments]
    full = next((r for _, r in stages if r.mode.startswith("full")), None)
    if len({recompute for _, recompute in stages}) == 1 or full is None:
        options = megatron.recompute_arguments(stages[0][1])
        return {key_of(option): _value(values) for option, *values in options}

    def rows(values: Iterable[int]) -> list[list[int]]:
        pairs = zip(stages, values, strict=True)
        return [[count, pipeline.micro_batches, value] for (count, _), value in pairs]

    layered = [recompute.mode.startswith("full") for _, recompute in stages]
    return {
        "recompute_granularity": "full",
        "recompute_method": full.mode.removeprefix("full:"),
        "recompute_num_layers": full.layers,
        "recompute_granularity_per_stage_micro_batch": rows(map(int, layered)),
        "recompute_method_per_stage_micro_batch": rows(
            int((r if on else full).mode == "full:block")
            for (_, r), on in zip(stages, layered, strict=True)
        ),
        "recompute_num_layers_per_stage_micro_batch": rows(r.layers for _, r in stages),
    }


def experiment(plan: Plan) -> dict[str, Any]:
    """The experiment around the task: hosts, environment, where things go."""
    return {
        "defaults": ["_self_", {"train": "plan"}],
        "experiment": {
            "exp_name": SAFE.sub("-", plan.model.name) or "model",
            "exp_dir": "outputs",
            "task": {
                "type": "train",
                "backend": "megatron",
                "entrypoint": "flagscale/train/train_gpt.py",
            },
            "runner": {"hostfile": "hostfile", "rdzv_backend": "static"},
            "envs": dict(sorted(megatron.environment(plan).items())),
        },
        "action": "run",
        "hydra": {"run": {"dir": "${experiment.exp_dir}/hydra"}},
    }


def hostfile(plan: Plan) -> str:
    """One line a host, in the order of ranks; the names are to be replaced."""
    lines = ["# Put your host names here, one line a host. Ranks follow the order of the types:"]
    lines += [f"#{line}" for line in rank_lines(hosts_of(plan), "hosts")]
    place = 0
    for label, hosts, each in hosts_of(plan):
        for _ in range(hosts):
            lines.append(f"host-{place:03d} slots={each} type={label}")
            place += 1
    return "\n".join(lines) + "\n"


def files(
    plan: Plan, notes: Sequence[str], *, train_iters: int, learning_rate: float
) -> dict[str, str]:
    """Name and text of every file but the plan."""
    title = one_line(f"{plan.model.name}: {plan.summary()}")
    head = f"# {title}\n" + "".join(f"# {one_line(note)}\n" for note in notes)
    own = task(plan, train_iters=train_iters, learning_rate=learning_rate)
    return {
        "train.yaml": head + yaml_text(experiment(plan)),
        "train/plan.yaml": head + yaml_text(own),
        "hostfile": hostfile(plan),
        "launch.sh": SCRIPT.format(
            title=title,
            notes="".join(f"# {one_line(note)}\n" for note in notes),
            order="\n#".join(rank_lines(hosts_of(plan), "hosts")),
        ),
    }
