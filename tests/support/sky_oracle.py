"""SkyPilot's own verdict on task files: `Task.from_yaml_config`, schema and machines.

Runs in a process of its own (`python -m tests.support.sky_oracle`) with a home of its own, where
SkyPilot finds its lists of machines. They are fetched on first use; here they are written from our
catalogue, so that what is asked is whether SkyPilot takes our words for those machines.
"""

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = (
    *("InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "GpuInfo"),
    *("Price", "SpotPrice", "Region", "AvailabilityZone", "Generation"),
)


def write_lists(home: Path, machines: list[dict[str, Any]], gpus: list[str]) -> None:
    """SkyPilot's lists: for each cloud its machines, and the GPUs that it has names for."""
    from sky.skylet import constants

    files: dict[str, list[dict[str, Any]]] = {}
    for machine in machines:
        row = {name: machine.get(name, "") for name in COLUMNS}
        row |= {"vCPUs": 8, "MemoryGiB": 64}
        files.setdefault(f"{machine['cloud']}/vms.csv", []).append(row)
    files["common/accelerators.csv"] = [{"AcceleratorName": name, "Clouds": "[]"} for name in gpus]
    for name, rows in files.items():
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        path = home / ".sky" / "catalogs" / constants.CATALOG_SCHEMA_VERSION / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.getvalue())


def judge(text: str) -> dict[str, Any]:
    """What SkyPilot makes of a file: why it refuses, or nodes and GPUs."""
    import yaml
    from sky import exceptions, task

    try:
        made = task.Task.from_yaml_config(yaml.safe_load(text))
        made.validate(skip_file_mounts=True, skip_workdir=True)
        (machine,) = made.resources
        gpus = machine.accelerators or {}
    except (ValueError, TypeError, AssertionError, exceptions.ResourcesMismatchError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {
        "refused": None,
        "nodes": made.num_nodes,
        "cloud": str(machine.cloud).lower() if machine.cloud else None,
        "instance": machine.instance_type,
        "gpus": sum(gpus.values()),
        "spot": machine.use_spot,
    }


def main() -> None:
    """Judge the tasks of a JSON object on standard input: `machines`, `gpus`, `tasks`."""
    asked = json.load(sys.stdin)
    write_lists(Path.home(), asked["machines"], asked["gpus"])
    sys.stdout, told = sys.stderr, sys.stdout
    json.dump([judge(text) for text in asked["tasks"]], told)


if __name__ == "__main__":
    main()
