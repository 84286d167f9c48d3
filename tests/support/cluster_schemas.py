"""What SkyPilot and Kubernetes ask of a file, written down by hand from their documentation.

Neither's own validator is at hand offline: SkyPilot's task schema (docs.skypilot.co, "Task YAML")
and JobSet's and Job's required fields (jobset.sigs.k8s.io, kubernetes.io API reference) are spelt
out here as far as our files go. Unknown keys are refused, as both do.
"""

import re
from typing import Any

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123
SKY_TASK = {"name", "resources", "num_nodes", "workdir", "envs", "setup", "run", "file_mounts"}
SKY_RESOURCES = {"accelerators", "use_spot", "cloud", "region", "instance_type", "disk_size"}
JOB = {"parallelism", "completions", "completionMode", "backoffLimit", "template"}
POD = {"restartPolicy", "nodeSelector", "containers", "volumes"}
CONTAINER = {"name", "image", "command", "args", "env", "ports", "resources", "volumeMounts"}


def sky_errors(task: dict[str, Any]) -> list[str]:
    """What SkyPilot would refuse in a task."""
    found = [f"unknown key {key}" for key in set(task) - SKY_TASK]
    found += [f"unknown resource {key}" for key in set(task["resources"]) - SKY_RESOURCES]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", task.get("name", "")):
        found.append("name")
    if not isinstance(task.get("num_nodes"), int) or task["num_nodes"] < 1:
        found.append("num_nodes")
    if not re.fullmatch(r"[A-Za-z0-9-]+:[1-9]\d*", task["resources"]["accelerators"]):
        found.append("accelerators")
    for key, value in task.get("envs", {}).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) or not isinstance(value, str):
            found.append(f"envs.{key}")
    if not isinstance(task.get("run"), str):
        found.append("run")
    return found


def jobset_errors(made: dict[str, Any]) -> list[str]:
    """What the API server would refuse in a JobSet."""
    found = []
    if (made.get("apiVersion"), made.get("kind")) != ("jobset.x-k8s.io/v1alpha2", "JobSet"):
        found.append("apiVersion and kind")
    name = made["metadata"]["name"]
    if not LABEL.fullmatch(name):
        found.append(f"metadata.name {name}")
    jobs = made["spec"]["replicatedJobs"]
    if len({job["name"] for job in jobs}) != len(jobs):
        found.append("two replicated jobs of one name")
    for job in jobs:
        host = f"{name}-{job['name']}-0-{job['template']['spec']['completions'] - 1}"
        if not LABEL.fullmatch(job["name"]) or len(host) > 63:
            found.append(f"replicatedJobs.name {job['name']}")
        found += _job_errors(job["template"]["spec"])
    return found


def _job_errors(job: dict[str, Any]) -> list[str]:
    found = [f"unknown key {key}" for key in set(job) - JOB]
    if job["completionMode"] != "Indexed" or job["parallelism"] != job["completions"]:
        found.append("all pods of an indexed job must run at once")
    pod = job["template"]["spec"]
    found += [f"unknown key {key}" for key in set(pod) - POD]
    if pod["restartPolicy"] not in ("Never", "OnFailure"):
        found.append("restartPolicy")
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        found += [f"unknown key {key}" for key in set(container) - CONTAINER]
        found += [
            f"mount {m['name']}" for m in container["volumeMounts"] if m["name"] not in volumes
        ]
        found += [f"env {e['name']}" for e in container["env"] if not isinstance(e["value"], str)]
        if not LABEL.fullmatch(container["name"]) or not container["image"]:
            found.append("container name or image")
    return found
