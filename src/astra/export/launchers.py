"""How the nodes of a job get their part: SLURM, SkyPilot and Kubernetes, around `launch.sh`.

`launch.sh` starts one node, told its rank and the first node's address; a launcher tells it. A
mixed cluster is a group of nodes for every GPU type, in the order of ranks; a part of a node is one
of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from astra.errors import InputError, either
from astra.export.rents import Rents, price_note, resources
from astra.export.torchrun import SAFE, Group, one_line, rank_lines
from astra.export.yaml_text import yaml_text
from astra.hardware.vendors import vendor_of
from astra.strategy.plan import Plan

HOURS = 24
# What SkyPilot calls a GPU type.
SKY_NAMES = {
    "A10": "A10",
    "A10G": "A10G",
    "A40": "A40",
    "A100-40GB-SXM": "A100",
    "A100-40GB-PCIe": "A100",
    "A100-80GB-SXM": "A100-80GB",
    "A100-80GB-PCIe": "A100-80GB",
    "B200": "B200",
    "B300": "B300",
    "GB200": "GB200",
    "GH200-96GB": "GH200",
    "H100-80GB-SXM": "H100",
    "H100-PCIe": "H100",
    "H200-SXM": "H200",
    "L4": "L4",
    "L40": "L40",
    "L40S": "L40S",
    "MI300X": "MI300X",
    "RTX-3090": "RTX3090",
    "RTX-4090": "RTX4090",
    "RTX-A6000": "RTXA6000",
    "RTX-6000-Ada": "RTX6000-Ada",
    "T4": "T4",
    "V100-16GB-SXM2": "V100",
    "V100-32GB-SXM2": "V100-32GB",
}
SBATCH = """\
#!/usr/bin/env bash
# {title}
# Set your partition, account and, where types are mixed, how your cluster names each of them.
{groups}
set -euo pipefail
here="${{JOB_DIR:-$SLURM_SUBMIT_DIR}}"
{exports}nodes="${{SLURM_JOB_NODELIST_HET_GROUP_0:-$SLURM_JOB_NODELIST}}"
read -r MASTER_ADDR < <(scontrol show hostnames "$nodes")  # no pipe: head would break it
export MASTER_ADDR

# One task a node; its number over all groups is the node's rank.
# shellcheck disable=SC2016
srun {het}--kill-on-bad-exit=1 --ntasks-per-node=1 \\
  bash -c 'NODE_RANK="$SLURM_PROCID" exec "$0" "$@"' "$here/launch.sh" "$@"
"""
SKY_RUN = """\
{home}export NODE_RANK=$((NODE_OFFSET + SKYPILOT_NODE_RANK))
export MASTER_ADDR="${{MASTER_ADDR:-$(head -n 1 <<<"$SKYPILOT_NODE_IPS")}}"
{launch}
"""
SKY_HOME = 'export {name}="${{{name}/#\\~/$HOME}}"\n'
KUBE_RUN = 'NODE_RANK=$((NODE_OFFSET + JOB_COMPLETION_INDEX)) exec /job/launch.sh "$@"'


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """What a launcher has to know."""

    plan: Plan
    groups: Sequence[Group]  # in the order of ranks
    variables: Sequence[str]  # `NAME=value` that launch.sh wants
    trial: str  # what follows launch.sh the first time
    rents: Rents = ()  # machines that were chosen for their price

    @property
    def name(self) -> str:
        plain = SAFE.sub("-", self.plan.model.name).replace(".", "-").replace("_", "-")
        return plain.lower()[:32].strip("-") or "job"

    @property
    def is_mixed(self) -> bool:
        return len({gpu for gpu, _, _ in self.groups}) > 1

    def group_names(self) -> list[str]:
        """`h100-80gb-sxm` for the nodes of a type; a number where a type comes twice."""
        seen: dict[str, int] = {}
        names = []
        for gpu, _, _ in self.groups:
            plain = SAFE.sub("-", gpu).replace(".", "-").replace("_", "-").strip("-").lower()
            seen[plain] = seen.get(plain, 0) + 1
            names.append(plain if seen[plain] == 1 else f"{plain}-{seen[plain]}")
        return names

    def offsets(self) -> list[int]:
        """The rank of the first node of every group."""
        return [sum(nodes for _, nodes, _ in self.groups[:row]) for row in range(len(self.groups))]


def slurm_files(job: LaunchJob) -> dict[str, str]:
    """One batch script; groups of a mixed cluster are a heterogeneous job."""
    node_gpus = {pool.gpu.name: pool.gpu.node.gpus for pool in job.plan.cluster.pools}
    groups = []
    for (gpu, nodes, each), said in zip(job.groups, rank_lines(job.groups), strict=True):
        lines = [
            f"#SBATCH --job-name={job.name}",
            f"#SBATCH --nodes={nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={each}",
            f"#SBATCH --time={HOURS}:00:00",
            "#SBATCH --output=%x-%j.log",
        ]
        if each == node_gpus.get(gpu):
            lines.append("#SBATCH --exclusive")
        groups.append(f"# {said.strip()}\n" + "\n".join(lines))
    het = "".join(f"{row}," for row in range(len(groups))).rstrip(",")
    text = SBATCH.format(
        title=one_line(f"{job.plan.model.name}: {job.plan.summary()}"),
        groups="\n#SBATCH hetjob\n".join(groups),
        exports="".join(f"export {_default(variable)}\n" for variable in job.variables),
        het=f"--het-group={het} " if len(groups) > 1 else "",
    )
    return {"job.sbatch": text}


def _default(variable: str) -> str:
    """`NAME="${NAME:-value}"`: what is set already stays."""
    name, _, value = variable.partition("=")
    return f'{name}="${{{name}:-{value.replace("~", "$HOME", 1)}}}"'


def skypilot_files(job: LaunchJob) -> dict[str, str]:
    """One task for each GPU type: a cluster of SkyPilot has one kind of node."""
    several = len(job.groups) > 1
    found = {}
    for (gpu, nodes, each), name, offset in zip(
        job.groups, job.group_names(), job.offsets(), strict=True
    ):
        envs = dict(variable.split("=", 1) for variable in job.variables)
        envs |= {"NODE_OFFSET": str(offset), "MASTER_ADDR": ""}
        task = {
            "name": f"{job.name}-{name}" if several else job.name,
            "resources": _sky_resources(job, gpu, each),
            "num_nodes": nodes,
            "workdir": ".",
            "envs": envs,
            "run": SKY_RUN.format(
                home="".join(
                    SKY_HOME.format(name=variable.partition("=")[0])
                    for variable in job.variables
                    if "=~" in variable
                ),
                launch=f"./launch.sh {job.trial}".rstrip(),
            ),
        }
        head = f"# {nodes} nodes, the first of them node {offset}\n" if nodes > 1 else ""
        head = head or f"# one node, node {offset}\n"
        head += price_note(job.rents, gpu)
        if offset:
            head += "# give it the address of node 0: sky launch --env MASTER_ADDR=... \n"
        file = f"sky-{name}.yaml" if several else "sky.yaml"
        found[file] = head.replace(" \n", "\n") + yaml_text(task)
    return found


def _sky_resources(job: LaunchJob, gpu: str, each: int) -> dict[str, Any]:
    """The machine that was chosen, or any with such GPUs."""
    named = f"{SKY_NAMES.get(gpu)}:{each}"
    found = resources(job.rents, gpu, named)
    if found.get("accelerators") == named and gpu not in SKY_NAMES:
        raise InputError(
            f"--launcher skypilot: SkyPilot has no name for {gpu} that is known here. "
            "Try --launcher slurm or kubernetes."
        )
    return found


def kubernetes_files(job: LaunchJob) -> dict[str, str]:
    """A JobSet with one replicated job for each GPU type; the folder is a ConfigMap."""
    vendors = {pool.gpu.name: vendor_of(pool.gpu) for pool in job.plan.cluster.pools}
    names = job.group_names()
    first = f"{job.name}-{names[0]}-0-0.{job.name}"  # the name that JobSet gives the first pod
    jobs = []
    for (gpu, nodes, each), name, offset in zip(job.groups, names, job.offsets(), strict=True):
        device = "amd.com/gpu" if vendors[gpu] == "AMD" else "nvidia.com/gpu"
        variables = dict(v.replace("=~", "=/workspace").split("=", 1) for v in job.variables)
        variables |= {"MASTER_ADDR": first, "NODE_OFFSET": str(offset)}
        container = {
            "name": "train",
            "image": "YOUR_IMAGE",
            "command": ["bash", "-c", KUBE_RUN, "launch.sh"],
            "args": job.trial.partition("    (")[0].split(),
            "env": [{"name": key, "value": value} for key, value in variables.items()],
            "ports": [{"containerPort": 29500}],
            "resources": {"limits": {device: each}},
            "volumeMounts": [
                {"name": "job", "mountPath": "/job"},
                {"name": "shared-memory", "mountPath": "/dev/shm"},
            ],
        }
        pod = {
            "restartPolicy": "Never",
            **({"nodeSelector": {"astra/gpu": gpu}} if job.is_mixed else {}),
            "containers": [container],
            "volumes": [
                {"name": "job", "configMap": {"name": job.name, "defaultMode": 0o755}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
        indexed = {
            "parallelism": nodes,
            "completions": nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {"spec": pod},
        }
        jobs.append({"name": name, "replicas": 1, "template": {"spec": indexed}})
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {"failurePolicy": {"maxRestarts": 0}, "replicatedJobs": jobs},
    }
    return {"jobset.yaml": yaml_text(made)}


def no_files(_: LaunchJob) -> dict[str, str]:
    """torchrun is started by hand: `launch.sh` is all."""
    return {}


LAUNCHERS: dict[str, Callable[[LaunchJob], dict[str, str]]] = {
    "torchrun": no_files,
    "slurm": slurm_files,
    "skypilot": skypilot_files,
    "kubernetes": kubernetes_files,
}


def start_lines(job: LaunchJob, launcher: str) -> list[str]:
    """The commands in order, as Markdown."""
    exports = [f"    export {variable}" for variable in job.variables]
    trial = f" {job.trial}".rstrip()
    if launcher == "slurm":
        return [
            "Put this folder where all nodes see it, then in it:",
            "",
            *exports,
            f"    sbatch job.sbatch{trial}",
        ]
    if launcher == "skypilot":
        found = list(skypilot_files(job))
        several = ", with the first node's address for all but the first" if len(found) > 1 else ""
        lines = [f"In this folder{several}:", ""]
        lines += [f"    sky launch -c {job.name} {found[0]}"]
        lines += [
            f"    sky launch -c {job.name}-{row} --env MASTER_ADDR=ADDRESS {file}"
            for row, file in enumerate(found[1:], 2)
        ]
        return lines
    if launcher == "kubernetes":
        labels = []
        if job.is_mixed:
            types = either(dict.fromkeys(f"astra/gpu={gpu}" for gpu, _, _ in job.groups))
            labels = [f"Label the nodes of each type ({types}).", ""]
        return [
            *labels,
            "With JobSet installed in the cluster and your image in jobset.yaml:",
            "",
            f"    kubectl create configmap {job.name} --from-file=.",
            "    kubectl apply -f jobset.yaml",
            f"    kubectl logs -f -l jobset.sigs.k8s.io/jobset-name={job.name}",
        ]
    nodes = sum(count for _, count, _ in job.groups)
    first = "localhost" if nodes == 1 else "ADDRESS_OF_NODE_0"
    where = "On the node:" if nodes == 1 else f"On each of the {nodes} nodes, its own NODE_RANK:"
    start = f"    NODE_RANK=0 MASTER_ADDR={first} ./launch.sh{trial}"
    return [where, "", *exports, start]
