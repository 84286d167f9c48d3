"""Charts show the JSON's figures to scale, and are SVG that a strict page takes."""

import copy
import json
import re
from functools import cache
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from tests.support.cases import each_case

import astra
from astra.report.priced_plan import priced_json
from astra.report.svg.charts import CHARTS, charts_of, draw
from astra.report.svg.colours import paint
from astra.report.svg.memory import CAUSES
from astra.report.svg.parts import PART_WORDS, WAITING

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = (300, 720, 1072)


@cache
def priced(**settings: Any) -> dict[str, Any]:
    said = {"tp": 2, "pp": 4, "global_batch": 64, "seq_len": 4096} | settings
    return priced_json(astra.predict("llama-3-70b", gpus={"h100": 32}, **said))


@cache
def sixty_four() -> dict[str, Any]:
    said = {"tp": 1, "pp": 64, "global_batch": 128, "seq_len": 4096}
    return priced_json(astra.predict("qwen2.5-32b", gpus={"h100": 64}, **said))  # type: ignore[arg-type]


@cache
def nothing_fits() -> dict[str, Any]:
    answer = astra.plan("llama-3-70b", gpus={"h100": 8}, global_batch=64, seq_len=4096)
    return json.loads(msgspec.json.encode(answer))


@cache
def searched() -> dict[str, Any]:
    answer = astra.plan("llama-3-8b", gpus={"h100": 16}, global_batch=64, seq_len=4096)
    return json.loads(msgspec.json.encode(answer))


def documents() -> list[dict[str, Any]]:
    return [priced(), sixty_four(), searched(), nothing_fits()]


@each_case("document", documents())
def test_every_chart_is_well_formed_and_a_strict_page_takes_it(document: dict[str, Any]) -> None:
    names = charts_of(document)
    assert {"parts", "memory"} <= set(names)
    for name in names:
        for width in WIDTHS:
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


@each_case("document", documents())
def test_nothing_lies_outside_of_a_chart(document: dict[str, Any]) -> None:
    for name in charts_of(document):
        for width in WIDTHS:
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


@each_case("document", [priced(), priced(recompute="full:block:4"), sixty_four()])
def test_parts_are_as_wide_as_their_seconds_and_sum_to_the_step(document: dict[str, Any]) -> None:
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


@each_case("document", [priced(), sixty_four()])
def test_memory_is_as_wide_as_its_bytes_against_one_limit(document: dict[str, Any]) -> None:
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
        assert any(name in each for each in words)


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
