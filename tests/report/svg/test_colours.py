"""Colours that lie side by side differ for every kind of colour blindness."""

from itertools import combinations

import numpy as np
import pytest
from tests.support.cases import each_case

from astra.report.svg.colours import (
    COLOURS,
    GPU_TYPES,
    MEMORY_CAUSES,
    STEP_PARTS,
    WAITING,
    variables,
)
from astra.strategy.plans import Floats

LEAST_DISTANCE = 12.0

# Machado, Oliveira and Fernandes 2009, doi:10.1109/TVCG.2009.113, severity 1.0, on linear RGB.
VISION = {
    "full": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear(colour: str) -> Floats:
    """Of an sRGB colour such as #8fb8f0."""
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    found: Floats = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return found


def lab(rgb: Floats) -> Floats:
    """CIE 1976 L*a*b* of linear RGB, white D65."""
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, vision: str) -> float:
    seen = (lab(VISION[vision] @ linear(each)) for each in (one, other))
    first, second = seen
    return float(np.linalg.norm(first - second))


@each_case("theme", ("light", "dark"))
def test_any_two_colours_of_a_timeline_can_be_told_apart(theme: str) -> None:
    ground = {"waiting": WAITING["waiting"]}
    seen = {name: getattr(colour, theme) for name, colour in (STEP_PARTS | ground).items()}
    close = [
        (*pair, vision)
        for pair in combinations(seen, 2)
        for vision in VISION
        if distance(seen[pair[0]], seen[pair[1]], vision) <= LEAST_DISTANCE
    ]
    assert close == []


@each_case("theme", ("light", "dark"))
def test_causes_of_memory_that_may_lie_side_by_side_can_be_told_apart(theme: str) -> None:
    """Next to one another, or with only such between as are often nothing."""
    often_nothing = ("optimizer_states", "logits", "buffers")
    order = list(MEMORY_CAUSES)
    for first, second in combinations(order, 2):
        between = order[order.index(first) + 1 : order.index(second)]
        if set(between) <= set(often_nothing):
            one, other = (getattr(MEMORY_CAUSES[name], theme) for name in (first, second))
            for vision in VISION:
                assert distance(one, other, vision) > LEAST_DISTANCE, (first, second, vision)


@each_case("theme", ("light", "dark"))
def test_gpu_types_and_the_sides_of_what_ifs_can_be_told_apart(theme: str) -> None:
    sides = [STEP_PARTS["backward"], STEP_PARTS["pipeline_comm"]]
    for one, other in [*combinations(GPU_TYPES.values(), 2), sides]:
        for vision in VISION:
            seen = distance(getattr(one, theme), getattr(other, theme), vision)
            assert seen > LEAST_DISTANCE, (one, other, vision)


@each_case("theme", ("light", "dark"))
def test_text_can_be_read(theme: str) -> None:
    """A contrast of 4.5 or more, as WCAG 2 asks of small text."""
    words_on_panel = ("ink", "ink2", "ink3", "safe", "tight", "risky")
    grounds = dict.fromkeys(words_on_panel, "panel")
    grounds |= {name: name.removeprefix("on_") for name in COLOURS if name.startswith("on_")}
    for words, ground in grounds.items():
        bright = [
            float(np.array([0.2126, 0.7152, 0.0722]) @ linear(getattr(COLOURS[name], theme)))
            for name in (words, ground)
        ]
        assert (max(bright) + 0.05) / (min(bright) + 0.05) >= 4.5, (words, ground)


def test_every_colour_has_a_variable_of_its_own() -> None:
    names = [colour.variable for colour in COLOURS.values()]
    assert len(set(names)) == len(names)
    for theme in ("light", "dark"):
        said = dict(each.split(":") for each in variables(theme).strip(";").split(";"))
        assert said == {f"--{c.variable}": getattr(c, theme) for c in COLOURS.values()}


def test_the_distance_is_the_one_that_is_published() -> None:
    """CIE76 of black and white is 100; red and green are as good as one for deuteranopes."""
    assert distance("#000000", "#ffffff", "full") == pytest.approx(100, abs=0.1)
    red_and_green = [distance("#b03030", "#707020", vision) for vision in ("full", "deutan")]
    assert red_and_green[0] > 40 > 20 > red_and_green[1]
