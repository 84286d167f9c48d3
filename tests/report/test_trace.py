"""A trace is what its format says, by a reader of our own, and has the simulator's times."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from tests.cost import some_plans
from tests.support.cases import each_case

from astra.report.trace import STAGE, TRACKS, chrome_trace, track_of
from astra.strategy.plan import Plan
from astra.timeline.pieces import PIECES, stage_pieces
from astra.timeline.step import StepTimeline, step_timeline

TICK_US = 0.125  # what times are rounded to

Track = tuple[int, int]
Slices = dict[Track, list[dict[str, Any]]]


class Trace:
    """What a reader of the trace event format makes of a file; it refuses what readers drop."""

    def __init__(self, text: bytes) -> None:
        document = json.loads(text)
        self.other = document["otherData"]
        self.processes: dict[int, str] = {}
        self.threads: dict[Track, str] = {}
        self.slices: Slices = defaultdict(list)
        self.memory: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for event in document["traceEvents"]:
            {"M": self._name, "X": self._slice, "C": self._counter}[event["ph"]](event)
        for track, slices in self.slices.items():
            assert track in self.threads and track[0] in self.processes, "a track without a name"
            check_nesting(slices)
        assert len(set(self.processes.values())) == len(self.processes)
        numbers = [thread for _, thread in self.threads]
        assert len(set(numbers)) == len(numbers) and not set(numbers) & {0, *self.processes}

    def _name(self, event: dict[str, Any]) -> None:
        if event["name"] == "process_name":
            assert event["pid"] not in self.processes
            self.processes[event["pid"]] = event["args"]["name"]
        if event["name"] == "thread_name":
            assert (event["pid"], event["tid"]) not in self.threads
            self.threads[event["pid"], event["tid"]] = event["args"]["name"]

    def _slice(self, event: dict[str, Any]) -> None:
        for value in (event["ts"], event["dur"]):
            assert value * 1000 == int(value * 1000), "nanoseconds that a reader would round"
        assert event["ts"] >= 0 and event["dur"] > 0 and event["name"]
        self.slices[event["pid"], event["tid"]].append(event)

    def _counter(self, event: dict[str, Any]) -> None:
        self.memory[event["pid"]].append((event["ts"], event["args"]["allocated_bytes"]))

    def of(self, process: int, kind: str) -> list[dict[str, Any]]:
        """Slices of the one thread of a kind."""
        found = [key for key, name in self.threads.items() if key[0] == process and name == kind]
        assert len(found) <= 1
        return self.slices[found[0]] if found else []


def check_nesting(slices: list[dict[str, Any]]) -> None:
    """In the order of time, and each inside of those that are open or behind them."""
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(slices)), "not monotonic"
    open_until: list[float] = []
    for each in slices:
        while open_until and open_until[-1] <= each["ts"]:
            open_until.pop()
        end = each["ts"] + each["dur"]
        assert not open_until or end <= open_until[-1], "slices overlap"
        open_until.append(end)


PLANS = [
    next(plan for plan in some_plans.legal_plans("llama-3-8b") if plan.vpp == 1 and plan.pp > 1),
    next(plan for plan in some_plans.legal_plans("mixtral-8x7b") if plan.vpp > 1),
    next(plan for plan in some_plans.mixed_plans("llama-3-8b") if len(plan.pipelines) == 1),
    next(plan for plan in some_plans.mixed_plans("llama-3-8b") if len(plan.pipelines) == 2),
]


def read(plan: Plan) -> tuple[StepTimeline, Trace]:
    timeline = step_timeline(plan)
    return timeline, Trace(chrome_trace(timeline))


@each_case("plan", PLANS)
def test_a_trace_has_a_process_a_stage_and_a_thread_a_kind(plan: Plan) -> None:
    timeline, trace = read(plan)
    stages = [stage for each in timeline.pipelines for stage in each.stages]
    assert len(trace.processes) == len(stages) == len(trace.memory)
    assert trace.other["step_s"] == timeline.step_s
    for stage, (process, name) in zip(stages, trace.processes.items(), strict=True):
        assert f"stage {stage.stage}: {stage.layers} layers on {stage.gpu}" in name
        kinds = [kind for (of, _), kind in trace.threads.items() if of == process]
        assert len(kinds) == len(set(kinds)) and set(kinds) <= set(TRACKS)
        assert {STAGE, "compute", "host"} <= set(kinds)


@each_case("plan", PLANS)
def test_the_slices_of_a_track_sum_to_the_simulators_seconds(plan: Plan) -> None:
    timeline, trace = read(plan)
    stages = [stage for each in timeline.pipelines for stage in each.stages]
    for process, stage in enumerate(stages, 1):
        pieces = stage_pieces(stage)
        for kind in TRACKS[1:]:
            rows = [r for name in PIECES if track_of(name) == kind for r in pieces.of(name)]
            said = float((pieces.end_s[rows] - pieces.start_s[rows]).sum()) * 1e6
            found = sum(each["dur"] for each in trace.of(process, kind))
            assert found == pytest.approx(said, abs=TICK_US * (len(rows) + 1)), kind


@each_case("plan", PLANS)
def test_the_track_of_a_stage_has_every_moment_of_the_step(plan: Plan) -> None:
    timeline, trace = read(plan)
    for process in trace.processes:
        slices = trace.of(process, STAGE)
        assert slices[0]["ts"] == 0
        assert all(a["ts"] + a["dur"] == b["ts"] for a, b in pairwise(slices))
        end = slices[-1]["ts"] + slices[-1]["dur"]
        assert end == pytest.approx(timeline.step_s * 1e6, abs=TICK_US)


@each_case("plan", PLANS)
def test_every_micro_batch_and_chunk_is_named_once_in_either_way(plan: Plan) -> None:
    timeline, trace = read(plan)
    pipelines = [each for each in timeline.pipelines for _ in each.stages]
    for process, pipeline in enumerate(pipelines, 1):
        for way in ("forward", "backward"):
            named = [
                (each["args"]["chunk"], each["args"]["micro_batch"])
                for each in trace.of(process, "compute")
                if each["name"] == way
            ]
            assert len(named) == len(set(named)) == pipeline.chunks * pipeline.micro_batches


@each_case("plan", PLANS)
def test_the_counter_of_memory_is_monotonic_in_time_and_has_the_peak(plan: Plan) -> None:
    timeline, trace = read(plan)
    stages = [stage for each in timeline.pipelines for stage in each.stages]
    for stage, points in zip(stages, trace.memory.values(), strict=True):
        assert points[0][0] == 0 and all(a[0] < b[0] for a, b in pairwise(points))
        assert max(size for _, size in points) == round(max(stage.memory_bytes))


def test_the_reader_refuses_what_perfetto_drops() -> None:
    """The checks above rest on it."""
    nested = [{"ts": 0, "dur": 4}, {"ts": 1, "dur": 3}, {"ts": 4, "dur": 1}]
    check_nesting(nested)
    with pytest.raises(AssertionError, match="overlap"):
        check_nesting([{"ts": 0, "dur": 4}, {"ts": 1, "dur": 4}])
    with pytest.raises(AssertionError, match="monotonic"):
        check_nesting(nested[::-1])
    with pytest.raises(AssertionError, match="without a name"):
        Trace(
            b'{"otherData": {}, "traceEvents":'
            b'[{"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": 0, "dur": 1}]}'
        )
