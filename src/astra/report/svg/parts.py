"""Where the time of a step goes: the parts of its busiest stage in one bar."""

from astra.report.priced_plan import seconds
from astra.report.svg.axis import picture
from astra.report.svg.priced import Document
from astra.report.svg.shapes import BarSegment, hatch, legend, stacked_bar

HEIGHT = 26.0
LEAST_SHARE = 5e-4  # of the step, that a part must take to be named
WAITING = "parts-waiting"
PART_WORDS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "tensor_comm": "tensor traffic",
    "context_comm": "context traffic",
    "expert_comm": "expert traffic",
    "pipeline_comm": "links between stages",
    "data_comm": "gradients, parameters",
    "optimizer": "optimizer",
    "other": "other",
    "bubble": "waiting",
}


def parts_svg(plan: Document, width: float) -> str:
    """The seconds of a priced plan's `step_parts_s`, to scale; they sum to the step."""
    step_s, parts_s = plan["step_s"], plan["step_parts_s"]
    segments = [
        BarSegment(
            WAITING if part == "bubble" else part,
            words,
            parts_s[part],
            seconds(parts_s[part]),
            seconds(parts_s[part]),
            f"{words}: {seconds(parts_s[part])}, {parts_s[part] / step_s:.1%} of the step",
        )
        for part, words in PART_WORDS.items()
        if parts_s.get(part, 0.0) > 0
    ]
    named = [each for each in segments if each.value >= LEAST_SHARE * step_s]
    bar = stacked_bar(segments, 0, 0, width / step_s, HEIGHT)
    rows = [(each.colour, each.name, each.words) for each in named]
    height, words = legend(rows, width, HEIGHT + 22)
    said = ", ".join(f"{each.name} {each.words}" for each in named)
    return picture(width, height, f"{parts_title(plan)}: {said}", [hatched(), *bar, *words])


def hatched() -> str:
    return hatch(WAITING, "waiting")


def parts_title(plan: Document) -> str:
    return f"Where the {seconds(plan['step_s'])} of the busiest stage, {plan['parts_stage']}, go"
