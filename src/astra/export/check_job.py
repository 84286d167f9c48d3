#!/usr/bin/env python3
"""Reads the log of a job and says how it compares with what was expected.

    python3 check.py job.log

Needs nothing but Python. `expected.json` is beside it; `astra export` wrote both.
"""

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MEGATRON_STEP = re.compile(r"iteration +(\d+)/ *\d+ .*?elapsed time per iteration \(ms\): ([\d.]+)")
MEGATRON_MEMORY = re.compile(r"max reserved: ([\d.]+)")  # MB, as Megatron-LM calls 2**20 bytes
TITAN = re.compile(r"(?<!validate )step: +(\d+) .*?memory: +([\d.]+)GiB\([\d.]+%\) +tps: ([\d,]+)")
ENGINE = re.compile(
    r"global_step=(\d+), .*?CurrSamplesPerSec=([\d.e+-]+), .*?MaxMemAllocated=([\d.]+)GB"
)
PIPELINE = re.compile(r"steps: (\d+) loss: .*?iter time \(s\): ([\d.]+)")
TRAINER = re.compile(r"'train_steps_per_second': '?([\d.]+)'?")
WARM_UP = 2  # steps that compile, allocate and connect
ENOUGH = 5  # steps after which the first ones can be left out


def read_log(text: str, expected: dict[str, Any]) -> dict[str, Any]:
    """Seconds of every step and the bytes of memory that a log tells of."""
    steps: list[float] = []
    reserved: list[float] = []
    allocated: list[float] = []
    for line in COLOUR.sub("", text).splitlines():
        if found := MEGATRON_STEP.search(line):
            steps.append(float(found[2]) / 1000)
        elif found := TITAN.search(line):
            rate = float(found[3].replace(",", "")) * expected["gpus"]
            if rate > 0:
                steps.append(expected["tokens_per_step"] / rate)
            reserved.append(float(found[2]) * 2**30)
        elif found := ENGINE.search(line):
            rate = float(found[2])
            if rate > 0:
                steps.append(expected["samples_logged"] / rate)
            allocated.append(float(found[3]) * 2**30)
        elif found := PIPELINE.search(line):
            steps.append(float(found[2]))
        elif (found := TRAINER.search(line)) and float(found[1]) > 0:
            steps.append(1 / float(found[1]))
        if found := MEGATRON_MEMORY.search(line):
            reserved.append(float(found[1]) * 2**20)
    settled = steps[WARM_UP:] if len(steps) >= ENOUGH else steps
    return {
        "steps": len(steps),
        "step_s": median(settled) if settled else None,
        "reserved_bytes": max(reserved, default=None),
        "allocated_bytes": max(allocated, default=None),
        "out_of_memory": "out of memory" in text.lower(),
    }


def report(measured: dict[str, Any], expected: dict[str, Any]) -> tuple[list[str], bool]:
    """Measured against expected in words, and whether they agree."""
    lines: list[str] = []
    agree = True
    if measured["out_of_memory"]:
        lines.append("The log speaks of memory that ran out.")
        agree = False
    seconds, step = measured["step_s"], expected["step_s"]
    if seconds is None:
        lines.append("No step was found in the log: it needs one line a step (see README.md).")
        return lines, False
    low, high = expected["step_s_low"], expected["step_s_high"]
    within = low <= seconds <= high
    agree &= within
    lines.append(
        f"step: {seconds:.4g} s measured over {measured['steps']} steps, {step:.4g} s expected "
        f"({low:.4g} to {high:.4g}): {'within' if within else f'{seconds / step:.2f} times'}"
    )
    for kind in ("reserved", "allocated"):
        held = measured[f"{kind}_bytes"]
        if held is not None:
            planned = expected[f"{kind}_bytes"]
            lines.append(
                f"memory: {held / 2**30:.1f} GiB {kind} at most, {planned / 2**30:.1f} expected "
                f"on the fullest GPU, {expected['usable_bytes'] / 2**30:.1f} usable"
            )
            agree &= held <= planned * 1.1
    if expected.get("usd_per_hour") is not None:
        usd = expected["usd_per_hour"] * seconds / 3600
        planned = expected["usd_per_hour"] * step / 3600
        lines.append(f"a step costs ${usd:.4g}, ${planned:.4g} expected")
    return lines, agree


def advice(measured: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What to do where the two differ."""
    if measured["step_s"] is None:
        return []
    lines = [
        "They differ. First look for what is not the plan's: a slow node, data that comes late,",
        "checkpoints or evaluation between steps, another version of the framework.",
    ]
    if expected.get("nodes"):
        lines.append(f"Or nodes out of order; the plan has {'; '.join(expected['nodes'])}.")
    lacks = ", ".join(expected.get("row_lacks", []))
    if expected["row"] is None and "several types" in lacks:
        return [*lines, "Then measure a run on each type alone, and calibrate on those."]
    if expected["row"] is None:
        return [
            *lines,
            f"A row of runs.csv cannot say all of this job ({lacks}): `astra calibrate` would take",
            "the difference for your cluster's. Calibrate on runs of a plainer model or layout.",
        ]
    row = {**expected["row"], "measured_step_time_s": f"{measured['step_s']:.6g}"}
    return [
        *lines,
        "If it stays so, teach Astra your cluster; three runs or more, one line each in runs.csv:",
        "  " + ",".join(row),
        "  " + ",".join(str(value) for value in row.values()),
        *([f"(what it cannot say changes little: {lacks})"] if lacks else []),
        "  astra calibrate runs.csv --name my-cluster",
        "and plan again with --stack my-cluster.",
    ]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python3 check.py LOG\n")
        return 2
    beside = Path(__file__).resolve().parent / "expected.json"
    try:
        expected = json.loads(beside.read_text(encoding="utf-8"))
        text = Path(arguments[0]).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"cannot be read: {error}\n")
        return 2
    measured = read_log(text, expected)
    lines, agree = report(measured, expected)
    lines += ["As expected."] if agree else advice(measured, expected)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
