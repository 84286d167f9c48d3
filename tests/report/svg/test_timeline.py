"""The picture of a step shows the simulator's seconds, and is an SVG that a strict page takes."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from tests.cost import some_plans
from tests.support.cases import each_case

import astra
from astra.report.svg.axis import ticks
from astra.report.svg.colours import STEP_PARTS, paint
from astra.report.svg.timeline import GAP_PX, LEGEND, TimeScale, part_shares, timeline_svg
from astra.strategy.plan import Plan
from astra.timeline.pieces import stage_pieces
from astra.timeline.step import StepTimeline, step_timeline

SVG = "{http://www.w3.org/2000/svg}"
WIDTH = 860.0


def pipelined(pp: int, **settings: object) -> Plan:
    """llama-3-70b over so many stages."""
    said = {"tp": 2, "pp": pp, "global_batch": 4 * pp, "seq_len": 4096} | settings
    return astra.predict("llama-3-70b", gpus={"h100": 2 * pp}, **said).plan  # type: ignore[arg-type]


def some_timelines() -> list[StepTimeline]:
    """Few operations and many, one replica group and two, 1 to 64 stages."""
    two = next(plan for plan in some_plans.mixed_plans("llama-3-8b") if len(plan.pipelines) == 2)
    plans = [pipelined(1), pipelined(4), pipelined(4, vpp=10), pipelined(16), two]
    return [*map(step_timeline, plans), step_timeline(sixty_four())]


def sixty_four() -> Plan:
    said = {"tp": 1, "pp": 64, "global_batch": 128, "seq_len": 4096}
    return astra.predict("qwen2.5-32b", gpus={"h100": 64}, **said).plan  # type: ignore[arg-type]


@each_case("timeline", some_timelines())
def test_a_picture_is_well_formed_and_needs_no_style(timeline: StepTimeline) -> None:
    text = timeline_svg(timeline, WIDTH)
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img" and "One step of" in (root.get("aria-label") or "")
    for element in root.iter():
        assert "style" not in element.attrib and element.tag not in (f"{SVG}style", f"{SVG}script")
    fills = {element.get("fill") for element in root.iter() if element.get("fill")}
    for fill in fills:
        assert re.fullmatch(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)|url\(#waiting\)|none", fill or "")


def test_names_are_escaped() -> None:
    name = "<script>\"&'</script>"
    timeline = msgspec.structs.replace(step_timeline(pipelined(2)), model=name)
    text = timeline_svg(timeline)
    assert "<script" not in text
    root = ElementTree.fromstring(text)
    assert name in (root.get("aria-label") or "")
    assert any(name in (each.text or "") for each in root.iter(f"{SVG}text"))


@each_case("timeline", some_timelines())
def test_nothing_lies_outside_of_the_picture_and_lanes_keep_apart(timeline: StepTimeline) -> None:
    root = ElementTree.fromstring(timeline_svg(timeline, WIDTH))
    height = float(root.get("height") or 0)
    stages = sum(len(each.stages) for each in timeline.pipelines)
    grounds = [each for each in root.iter(f"{SVG}rect") if each.get("fill") == "url(#waiting)"][:-1]
    assert len(grounds) == stages
    spans = [(float(e.get("y") or 0), float(e.get("height") or 0)) for e in grounds]
    assert all(y + high < below for (y, high), (below, _) in pairwise(spans))
    for path in root.iter(f"{SVG}path"):
        for left, right, top, bottom in boxes(path.get("d") or ""):
            assert 0 <= left <= right <= WIDTH and 0 <= top <= bottom <= height
    for word in root.iter(f"{SVG}text"):
        assert 0 <= float(word.get("x") or 0) <= WIDTH and int(word.get("font-size") or 0) >= 11


def boxes(path: str) -> list[tuple[float, float, float, float]]:
    """Left, right, top and bottom of every rectangle of a path."""
    figure = r"(-?[\d.]+)"
    found = re.findall(rf"M{figure} {figure}h{figure}v{figure}h-{figure}z", path)
    assert "".join(f"M{x} {y}h{w}v{h}h-{b}z" for x, y, w, h, b in found) == path
    numbers = [tuple(map(float, each)) for each in found]
    return [(x, x + w, y, y + h) for x, y, w, h, _ in numbers]


def test_operations_that_are_drawn_one_by_one_are_as_wide_as_they_are_long() -> None:
    """Each but for the gap behind it, and the rounding of its ends."""
    timeline = step_timeline(pipelined(4))
    root = ElementTree.fromstring(timeline_svg(timeline, WIDTH))
    ground = next(each for each in root.iter(f"{SVG}rect") if each.get("fill") == "url(#waiting)")
    px_per_s = float(ground.get("width") or 0) / timeline.step_s
    drawn = dict.fromkeys(STEP_PARTS, 0.0)
    count = dict.fromkeys(STEP_PARTS, 0)
    for path in root.iter(f"{SVG}path"):
        part = next(name for name in STEP_PARTS if paint(name) == path.get("fill"))
        for left, right, _, _ in boxes(path.get("d") or ""):
            drawn[part] += right - left
            count[part] += 1
    said = dict.fromkeys(STEP_PARTS, 0.0)
    for stage in timeline.pipelines[0].stages:
        for part, seconds in stage_pieces(stage).seconds().items():
            said[part] += seconds * px_per_s
    assert count["forward"] == count["backward"] == 4 * timeline.pipelines[0].micro_batches
    for part, px in said.items():
        assert px - (GAP_PX + 0.1) * count[part] <= drawn[part] <= px + 0.1 * count[part] + 0.01


def test_shares_are_those_of_the_simulated_seconds() -> None:
    """Where the schedule is steady; at its ends a window is cut."""
    timeline = step_timeline(pipelined(4, global_batch=256))
    scale = TimeScale(0.0, timeline.step_s, 0.0, 600.0)
    for stage in timeline.pipelines[0].stages:
        pieces = stage_pieces(stage)
        took = np.array(stage.end_s) - np.array(stage.start_s)
        shares = part_shares(stage, pieces, scale, 2.0, 2 * float(took.mean()))
        total = np.sum(list(shares.values()), axis=0)
        assert (total <= 1 + 1e-9).all()
        for part, share in shares.items():
            spent = float(share.sum()) * timeline.step_s / len(share)
            rows = pieces.operation >= 0
            own = [name for name in stage_parts(part) if len(pieces.of(name))]
            said = sum(
                float((pieces.end_s - pieces.start_s)[pieces.of(name)][rows[pieces.of(name)]].sum())
                for name in own
            )
            assert spent == pytest.approx(said, rel=0.02, abs=0.002 * timeline.step_s), part


def stage_parts(part: str) -> list[str]:
    from astra.timeline.pieces import STEP_PART

    return [name for name, of in STEP_PART.items() if of == part]


def test_narrow_operations_are_said_to_be_shares() -> None:
    few, many = step_timeline(pipelined(4)), step_timeline(pipelined(4, global_batch=512))
    assert "shares" not in timeline_svg(few) and "shares of the time" in timeline_svg(many)
    part = timeline_svg(many, from_s=0.0, to_s=many.step_s / 100)
    assert "shares" not in part


def test_a_legend_has_the_parts_that_are_there() -> None:
    timeline = step_timeline(pipelined(4, recompute="full:block:4"))
    words = {each.text for each in ElementTree.fromstring(timeline_svg(timeline)).iter()}
    assert {"forward", "recompute", "tensor traffic", "waiting"} <= words
    assert not words & {LEGEND["expert_comm"], LEGEND["context_comm"]}


def test_sixty_four_stages_are_512_pixels_high_and_every_eighth_is_named() -> None:
    timeline = step_timeline(sixty_four())
    text = timeline_svg(timeline, 1072)
    root = ElementTree.fromstring(text)
    assert float(root.get("height") or 0) < 512 + 150
    named = [word.text for word in root.iter(f"{SVG}text") if "stage" in (word.text or "")]
    assert [name for name in named if name and name.startswith("stage ")][1].startswith("stage 8")
    assert len(text) < 100_000


@each_case("low, high", [(0.0, 7.73), (0.0, 1e-4), (3.2, 3.21), (0.0, 1.0), (0.0, 950.0)])
def test_ticks_are_three_to_seven_round_numbers(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 3 <= len(found) <= 7 and low <= found[0] and found[-1] <= high * (1 + 1e-9)
    steps = {round((b - a) / 10 ** np.floor(np.log10(b - a)), 3) for a, b in pairwise(found)}
    assert len(steps) == 1 and steps <= {1.0, 2.0, 5.0, 10.0}
