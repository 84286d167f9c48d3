"""SkyPilot's own code takes our task files, with every machine that a search may rent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.frameworks import needs

needs("sky", "yaml")

from tests.support.launch_plans import job_of, mixed_plan, plain_plan  # noqa: E402

from astra.errors import InputError  # noqa: E402
from astra.export.launchers import LaunchJob, skypilot_files  # noqa: E402
from astra.export.rents import SKY_CLOUDS  # noqa: E402
from astra.money.catalogue import Instance, Offer, shipped_offers  # noqa: E402
from astra.money.rented import RentedNodes  # noqa: E402
from astra.money.skypilot_catalogue import names  # noqa: E402

HERE = Path(__file__).parents[2]


def asked(home: Path, tasks: list[str], machines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What SkyPilot says of task files, knowing these machines."""
    gpus = sorted({name for _, name in names()})
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.sky_oracle"],
        input=json.dumps({"tasks": tasks, "machines": machines, "gpus": gpus}),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "HOME": str(home)}
        | {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def sky_name(machine: Instance) -> str:
    """One of the names that SkyPilot has for a machine's GPUs at its cloud."""
    ours = names()
    for place in (machine.cloud, "*"):
        for (cloud, name), gpu in ours.items():
            if cloud == place and gpu == machine.gpu:
                return name
    return machine.gpu


def rented_job(machine: Instance, region: str, spot: bool) -> LaunchJob:
    """Two nodes of a machine, as the search for money would rent them."""
    rent = RentedNodes(
        gpu=machine.gpu,
        cloud=machine.cloud,
        region=region,
        instance=machine.instance,
        spot=spot,
        nodes=2,
        node_gpus=machine.gpus,
        idle_gpus=0,
        node_usd_per_hour=1.0,
        usd_per_gpu_hour=1.0 / machine.gpus,
        price_date="2026-08-22",
        price_source="a list",
        network_certainty="high",
    )
    job = job_of(plain_plan("h100:16"))
    return LaunchJob(job.plan, [(machine.gpu, 2, machine.gpus)], job.variables, job.trial, (rent,))


def test_every_machine_of_the_catalogue_is_rented_in_skypilots_words(tmp_path: Path) -> None:
    offers: dict[tuple[str, str, str], Offer] = {}
    for offer in shipped_offers():
        machine = offer.machine
        offers.setdefault((machine.cloud, machine.instance, machine.gpu), offer)
    tasks, wanted, machines = [], [], []
    for offer in offers.values():
        machine = offer.machine
        job = rented_job(machine, offer.region, offer.spot)
        if machine.cloud not in SKY_CLOUDS:
            with pytest.raises(InputError, match=f"starts no machines at {machine.cloud}"):
                skypilot_files(job)
            continue
        (text,) = skypilot_files(job).values()
        tasks.append(text)
        wanted.append(machine)
        added = machine.instance.startswith("n1-")  # a host, and its GPUs in a row of their own
        gpus = {"AcceleratorName": sky_name(machine), "AcceleratorCount": machine.gpus}
        place = {"cloud": machine.cloud, "Region": offer.region, "Price": 1, "SpotPrice": 1}
        place["AvailabilityZone"] = f"{offer.region}-a" if machine.cloud == "gcp" else ""
        machines.append(place | {"InstanceType": machine.instance} | ({} if added else gpus))
        if machine.cloud == "gcp":
            machines.append(place | gpus)
    said = asked(tmp_path, tasks, machines)
    wrong = [
        f"{machine.cloud} {machine.instance} ({machine.gpus} {machine.gpu}): {answer}"
        for machine, answer in zip(wanted, said, strict=True)
        if (answer["refused"], answer.get("instance"), answer.get("gpus"), answer.get("nodes"))
        != (None, machine.instance, machine.gpus, 2)
    ]
    assert not wrong, f"{len(wrong)} of {len(wanted)}:\n" + "\n".join(wrong[:40])
    assert len({machine.cloud for machine in wanted}) >= 9 and len(wanted) >= 200


def test_tasks_of_one_and_of_two_kinds_of_nodes_are_taken(tmp_path: Path) -> None:
    plans = (plain_plan(), mixed_plan(), plain_plan("mi300x:8"), plain_plan("l4:4"))
    jobs = [job_of(plan) for plan in plans]
    tasks = [text for job in jobs for text in skypilot_files(job).values()]
    groups = [group for job in jobs for group in job.groups]
    said = asked(tmp_path, tasks, [])
    assert [(a["refused"], a["nodes"], a["gpus"]) for a in said] == [
        (None, nodes, each) for _, nodes, each in groups
    ]


def test_spoiled_tasks_are_refused(tmp_path: Path) -> None:
    """The oracle can say no: to a key, a number, a machine and a cloud."""
    machine = next(o for o in shipped_offers() if o.machine.instance == "p5.48xlarge")
    (text,) = skypilot_files(rented_job(machine.machine, machine.region, False)).values()
    row = {"cloud": "aws", "Region": machine.region, "Price": 1, "SpotPrice": 1}
    row |= {"InstanceType": "p5.48xlarge", "AcceleratorName": "H100", "AcceleratorCount": 8}
    spoiled = [
        text,
        text.replace("num_nodes:", "nodes:"),
        text.replace("num_nodes: 2", 'num_nodes: "two"'),
        text.replace("p5.48xlarge", "p5.49xlarge"),
        text.replace(machine.region, "us-north-9"),
        text.replace('cloud: "aws"', 'cloud: "coreweave"'),
    ]
    good, *bad = asked(tmp_path, spoiled, [row])
    assert good["refused"] is None
    assert [answer["refused"] is None for answer in bad] == [False] * 5, bad
