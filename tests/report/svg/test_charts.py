"""Charts show the JSON's figures to scale, and are SVG that a strict page takes."""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.report.some_answers import (
    explained,
    mixed,
    nothing_fits,
    priced,
    rented,
    searched,
    sixty_four,
)
from tests.support.cases import each_case

import astra
from astra.report.amounts import usd
from astra.report.svg.charts import CHARTS, charts_of, draw
from astra.report.svg.colours import paint
from astra.report.svg.labels import Wanted, boxes_along, dot_box, label_box, placed_labels
from astra.report.svg.memory import CAUSES
from astra.report.svg.parts import PART_WORDS, WAITING
from astra.report.svg.scaling import fastest_by_count

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = (300, 720, 1072)


def documents() -> list[dict[str, Any]]:
    return [
        *(priced(), sixty_four(), searched(), nothing_fits()),
        *(rented(), mixed(), explained()),
    ]


def every_chart() -> Iterator[tuple[dict[str, Any], str, float]]:
    for document in documents():
        for name in charts_of(document):
            for width in WIDTHS:
                yield document, name, width


@pytest.mark.slow
def test_every_chart_is_well_formed_and_a_strict_page_takes_it() -> None:
    for document, name, width in every_chart():
        root = ElementTree.fromstring(draw(name, document, width))
        assert root.get("role") == "img" and len(root.get("aria-label") or "") > 20
        assert float(root.get("width") or 0) == width
        for element in root.iter():
            assert "style" not in element.attrib
            assert element.tag not in (f"{SVG}style", f"{SVG}script", f"{SVG}image")
            for paints in ("fill", "stroke"):
                colour = element.get(paints, "none")
                pattern = r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)|url\(#[a-z-]+\)|none"
                assert re.fullmatch(pattern, colour), colour


@pytest.mark.slow
def test_nothing_lies_outside_of_a_chart() -> None:
    for document, name, width in every_chart():
        if name == "timeline":  # which is tested beside
            continue
        root = ElementTree.fromstring(draw(name, document, width))
        height = float(root.get("height") or 0)
        for each in root.findall(f"{SVG}rect"):
            x, y, wide, high = (float(each.get(k) or 0) for k in ("x", "y", "width", "height"))
            assert min(x, y, wide, high) >= 0
            assert x + wide <= width + 0.2 and y + high <= height
        for word in root.iter(f"{SVG}text"):
            assert 0 <= float(word.get("x") or 0) <= width
            assert 0 <= float(word.get("y") or 0) <= height
            assert int(word.get("font-size") or 0) >= 11


@each_case("recompute", ["none", "full:block:4"])
def test_parts_are_as_wide_as_their_seconds_and_sum_to_the_step(recompute: str) -> None:
    document = priced(recompute=recompute)
    root = ElementTree.fromstring(draw("parts", document, 1000))
    drawn = [each for each in root.findall(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    at = 0.0
    shown = [part for part in PART_WORDS if document["step_parts_s"][part] > 0]
    assert len(drawn) == len(shown)
    for part, each in zip(shown, drawn, strict=True):
        fill = f"url(#{WAITING})" if part == "bubble" else paint(part)
        assert each.get("fill") == fill
        assert float(each.get("x") or 0) == pytest.approx(at, abs=0.06)
        at += document["step_parts_s"][part] / document["step_s"] * 1000
    assert at == pytest.approx(1000)


@each_case("asked", [priced, sixty_four])
def test_memory_is_as_wide_as_its_bytes_against_one_limit(
    asked: Callable[[], dict[str, Any]],
) -> None:
    document = asked()
    root = ElementTree.fromstring(draw("memory", document, 1000))
    memory, bars = document["memory"], root.findall(f"{SVG}rect")
    drawn = [each for each in bars if each.find(f"{SVG}title") is not None]
    limit = next(e for e in root.findall(f"{SVG}line") if e.get("stroke") == paint("ink"))
    left = float(drawn[0].get("x") or 0)
    px_per_byte = (float(limit.get("x1") or 0) - left) / memory["usable_bytes"]
    segments = iter(drawn)
    for stage in memory["stages"]:
        at = left
        for colour, (field, _) in CAUSES.items():
            if stage.get(field, 0.0) > 0:
                each = next(segments)
                assert each.get("fill") == paint(colour)
                assert float(each.get("x") or 0) == pytest.approx(at, abs=0.2)
                at += stage[field] * px_per_byte
    assert next(segments, None) is None


def test_a_gpu_that_is_too_full_is_said_in_red_behind_the_limit() -> None:
    document = copy.deepcopy(searched()["plans"][0])
    stage = document["memory"]["stages"][0]
    assert paint("risky") not in draw("memory", document, 720)
    stage["activations_bytes"] += 200 * 2**30
    assert paint("risky") in draw("memory", document, 720)


def test_names_are_escaped() -> None:
    document = copy.deepcopy(priced())
    name = "<script>\"&'</script>"
    for row, stage in enumerate(document["memory"]["stages"]):
        stage["gpu"] = f"{name}{row}"
    for width in WIDTHS:
        text = draw("memory", document, width)
        assert "<script" not in text
        words = [each.text or "" for each in ElementTree.fromstring(text).iter(f"{SVG}text")]
        assert any(name in each for each in words) or width < 560  # where there is no room


@pytest.mark.slow
def test_each_answer_has_the_charts_that_it_holds_figures_for() -> None:
    of_a_plan = {"pool", "timeline", "parts", "memory"}
    assert set(charts_of(priced())) == of_a_plan
    assert set(charts_of(searched())) == {*of_a_plan, "plans", *several_counts(searched())}
    assert set(charts_of(mixed())) >= {*of_a_plan, "plans", "mixing"}
    assert set(charts_of(rented())) == {*of_a_plan, "frontier", "scaling"}
    assert charts_of(explained()) == ["changes"]
    assert {name for document in documents() for name in charts_of(document)} == set(CHARTS)


def several_counts(document: dict[str, Any]) -> set[str]:
    counts = {sum(plan["gpus"].values()) for plan in document["plans"]}
    return {"scaling"} if len(counts) > 1 else set()


def test_the_frontier_has_a_mark_a_plan_and_labels_that_cross_nothing() -> None:
    document = rented()
    for width in WIDTHS:
        root = ElementTree.fromstring(draw("frontier", document, width))
        marks = [each for each in root.findall(f"{SVG}path") if each.get("data-rank")]
        ranks = [int(each.get("data-rank") or 0) for each in marks]
        assert ranks == [point["rank"] for point in document["frontier"]]
        hints = [(each.findtext(f"{SVG}title") or "").splitlines()[0] for each in marks]
        for point, hint in zip(document["frontier"], hints, strict=True):
            assert f"plan {point['rank']}: {usd(point['usd'])} in " in hint
        words = [each.text or "" for each in root.iter(f"{SVG}text")]
        assert any("the answer" in each for each in words)
        assert any("deadline 2 hours" in each for each in words)


def test_a_changed_frontier_is_dashed_beside_the_one_there_is() -> None:
    document = copy.deepcopy(rented())
    dearer = [{**point, "usd": 2 * point["usd"]} for point in document["frontier"]]
    document["market"]["what_if"] = {"what": "prices x2", "frontier": dearer}
    root = ElementTree.fromstring(draw("frontier", document, 900))
    dashed = [each for each in root.iter(f"{SVG}path") if each.get("stroke-dasharray")]
    assert len(dashed) == 1 and "dashed: with prices x2" in "".join(root.itertext())
    assert len(re.findall(r"[ML]", dashed[0].get("d") or "")) == 2 * len(dearer) - 1


def test_frontier_marks_lie_where_hours_and_dollars_say_on_logarithmic_axes() -> None:
    document = rented()
    root = ElementTree.fromstring(draw("frontier", document, 1000))
    places = [
        tuple(map(float, re.match(r"M(-?[\d.]+) (-?[\d.]+)", each.get("d") or "").groups()))  # type: ignore[union-attr]
        for each in root.findall(f"{SVG}path")
        if each.get("data-rank")
    ]
    for axis, field in ((0, "hours"), (1, "usd")):
        at = [place[axis] for place in places]
        logs = np.log([point[field] for point in document["frontier"]])
        slope = (at[-1] - at[0]) / (logs[-1] - logs[0])
        assert np.allclose(at, at[0] + slope * (logs - logs[0]), atol=0.11)
        assert (slope > 0) == (field == "hours")


@each_case("count", [3, 30])
def test_words_beside_crowded_marks_cover_no_others_and_no_line(count: int) -> None:
    places = [(100.0 + 3 * row, 200.0 - 2 * row) for row in range(count)]
    wanted = [Wanted(at, (f"{row}: 256 H100 (fastest)",)) for row, at in enumerate(places)]
    taken = [*boxes_along(places), *map(dot_box, places)]
    drawn = placed_labels(wanted, taken, (0, 0, 700, 400))
    boxes = list(taken)
    assert drawn and "0: 256" in drawn[0]
    for each in drawn:
        word = ElementTree.fromstring(each)
        at = [float(word.get(name) or 0) for name in ("x", "y")] if word.tag == "text" else None
        if at is None:
            continue
        box = label_box(word.text or "", at[0], at[1], word.get("text-anchor") or "")
        assert box[0] >= 0 and box[2] <= 700 and box[1] >= 0 and box[3] <= 400
        for other in boxes:
            across = min(box[2], other[2]) - max(box[0], other[0])
            assert across <= 0 or min(box[3], other[3]) <= max(box[1], other[1])
        boxes.append(box)


@pytest.mark.slow
def test_what_ifs_go_to_the_side_of_their_sign_and_to_scale() -> None:
    document = explained()
    root = ElementTree.fromstring(draw("changes", document, 1000))
    (zero,) = (float(each.get("x1") or 0) for each in root.findall(f"{SVG}line"))
    bars = {
        (each.findtext(f"{SVG}title") or "").rpartition(":")[0]: each
        for each in root.findall(f"{SVG}rect")[1:]
    }
    scales = []
    for change in document["changes"]:
        if change["plan"] is None:
            continue
        more, bar = change["plan"]["slower_s"], bars[change["what"]]
        left, wide = (float(bar.get(name) or 0) for name in ("x", "width"))
        assert (left if more >= 0 else left + wide) == pytest.approx(zero, abs=0.11)
        if wide > 20:
            scales.append(wide / abs(more))
    assert max(scales) == pytest.approx(min(scales), rel=0.02)


@pytest.mark.slow
def test_the_pool_has_a_bar_a_layer_and_a_dot_a_gpu() -> None:
    for document in (priced(), mixed()):
        plan = document["plans"][0] if "plans" in document else document
        root = ElementTree.fromstring(draw("pool", document, 1000))
        paths = [each.get("d") or "" for each in root.findall(f"{SVG}path")]
        layers, dots = (sum(path.count("M") for path in paths[start::2]) for start in (0, 1))
        held = [s["layers"] for p in plan["plan"]["pipelines"] for s in p["segments"]]
        assert layers == sum(map(sum, held))
        assert dots == sum(plan["gpus"].values())


def test_scaling_says_what_each_count_reaches_of_proportion() -> None:
    series = fastest_by_count(rented())
    ((_, plans),) = series.items()
    least, most = min(plans), max(plans)
    share = plans[most]["tokens_per_s"] / plans[least]["tokens_per_s"] * least / most
    assert 0.3 < share <= 1.0 + 1e-9
    assert f">{share:.0%}</text>" in draw("scaling", rented(), 1000)


def test_an_unknown_chart_a_missing_rank_and_an_empty_answer_are_refused() -> None:
    with pytest.raises(astra.InputError, match="Did you mean memory"):
        draw("memroy", priced(), 720)
    with pytest.raises(astra.InputError, match="no rank 99"):
        draw("memory", searched(), 720, 99)
    with pytest.raises(astra.InputError, match="has nothing for the chart memory"):
        draw("memory", {"plans": []}, 720)
    with pytest.raises(astra.InputError, match="width = 3"):
        draw("memory", priced(), 3)
    assert not set(charts_of({})) and set(CHARTS)
