"""What Kubernetes asks of a file: its own schemas, JobSet's own classes, and what neither says.

The schema of Job is the API server's (package kubernetes-validate, strict: unknown keys are
refused); the classes of JobSet are made from its own definition (kubeflow-trainer-api). They drop
keys they do not know, so what comes back is compared with what went in.
"""

import re
from typing import Any

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123
VERSIONS = ("1.28", "1.37")  # the oldest that keeps JobSet's indexes, and the newest with a schema


def jobset_errors(made: dict[str, Any]) -> list[str]:
    """What the API server and JobSet would refuse."""
    import kubernetes_validate
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet
    from pydantic import ValidationError

    found = []
    try:
        kept = JobsetV1alpha2JobSet.from_dict(made)
        found += _lost(made, kept.to_dict() if kept else {}, "")
    except ValidationError as error:
        found.append(str(error))
    for job in made["spec"]["replicatedJobs"]:
        alone = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(
                    alone | {"spec": job["template"]["spec"]}, version, strict=True
                )
            except kubernetes_validate.ValidationError as error:
                found.append(f"Kubernetes {version}: {error}")
    return found or _unsaid(made)


def _lost(wanted: Any, kept: Any, where: str) -> list[str]:
    """Parts that did not come back."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        return [
            line
            for key, value in wanted.items()
            for line in _lost(value, kept.get(key), f"{where}.{key}")
        ]
    if isinstance(wanted, list) and isinstance(kept, list) and len(wanted) == len(kept):
        return [
            line
            for row, pair in enumerate(zip(wanted, kept, strict=True))
            for line in _lost(*pair, f"{where}[{row}]")
        ]
    return [] if wanted == kept else [f"{where}: {wanted!r} became {kept!r}"]


def _unsaid(made: dict[str, Any]) -> list[str]:
    """Rules of the API server that no schema holds: names, mounts, indexes."""
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
        spec = job["template"]["spec"]
        host = f"{name}-{job['name']}-0-{spec['completions'] - 1}"
        if not LABEL.fullmatch(job["name"]) or len(host) > 63:
            found.append(f"replicatedJobs.name {job['name']}")
        if spec["completionMode"] != "Indexed" or spec["parallelism"] != spec["completions"]:
            found.append("all pods of an indexed job must run at once")
        pod = spec["template"]["spec"]
        if pod["restartPolicy"] not in ("Never", "OnFailure"):
            found.append("restartPolicy")
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            found += [
                f"mount {m['name']}" for m in container["volumeMounts"] if m["name"] not in volumes
            ]
            if not LABEL.fullmatch(container["name"]):
                found.append("container name")
    return found
