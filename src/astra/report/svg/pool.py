"""Which GPUs hold which layers: a bar a layer, a dot a GPU, a column of dots a node."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from astra.report.gpus import short_gpus
from astra.report.priced_plan import seconds
from astra.report.svg.axis import number, picture, text, text_width
from astra.report.svg.colours import GPU_TYPES, paint
from astra.report.svg.priced import Document
from astra.report.svg.shapes import rect

TITLE = "Which GPUs hold which layers"
GAP_PX, LAYER_PX = 16.0, 30.0
DOT_PX, SMALL_DOT_PX, LEAST_DOT_PX = 6.2, 3.6, 2.2
MOST_DOTS_PX = 130.0
METER_PX = 34.0


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive stages that are alike, of one group of replicas."""

    first: int
    stages: int
    layers: int  # of all of them
    gpu: str
    gpus: int  # of all of them, over all replicas
    tp: int
    node_gpus: int
    busy_s: float | None  # of a step, of the busiest; None: not said
    filled: float | None  # of their memory, of the fullest


def pool_svg(document: Document, plan: Document, width: float) -> str:
    """A group of replicas below the other; in one row where there is room, else a block a row."""
    parts, y = [], 0.0
    pipelines = plan["plan"]["pipelines"]
    types = sorted({s["gpu"] for each in pipelines for s in each["segments"]})
    for row, pipeline in enumerate(pipelines):
        blocks, widths, in_a_row = _laid_out(_stages(document, plan, row), width)
        if len(pipelines) > 1:
            count = pipeline["replicas"]
            head = f"group {row + 1}: {count} {'replica' if count == 1 else 'replicas'}, "
            head += f"{pipeline['micro_batches']} micro-batches each"
            parts.append(text(0, y + 12, head, size=12, colour="ink2"))
            y += 22
        pitch = min(_pitch(block, wide) for block, wide in zip(blocks, widths, strict=True))
        x, high = 0.0, 0.0
        for block, wide in zip(blocks, widths, strict=True):
            colour = list(GPU_TYPES)[types.index(block.gpu) % len(GPU_TYPES)]
            drawn, tall = _block(block, colour, (x, y, wide, pitch), plan["step_s"])
            parts += drawn
            if in_a_row:
                x, high = x + wide + GAP_PX, max(high, tall)
            else:
                y += tall + 14
        y += high + (14 if in_a_row else 0)
    return picture(width, y - 6, _sentence(document, plan), parts)


def _stages(document: Document, plan: Document, row: int) -> list[Block]:
    """Every stage of a group of replicas."""
    pipeline, said = plan["plan"]["pipelines"][row], plan["plan"]
    node = {p["gpu"]["name"]: p["gpu"]["node"]["gpus"] for p in said["cluster"]["pools"]}
    busy, found = _busy(document, plan, row), list[Block]()
    for segment in pipeline["segments"]:
        for layers in segment["layers"]:
            busy_s, filled = busy.get(len(found), (None, None))
            found.append(
                Block(
                    first=len(found),
                    stages=1,
                    layers=layers,
                    gpu=segment["gpu"],
                    gpus=pipeline["replicas"] * said["cp"] * segment["tp"],
                    tp=segment["tp"],
                    node_gpus=node.get(segment["gpu"], 8),
                    busy_s=busy_s,
                    filled=filled,
                )
            )
    return found


def _laid_out(stages: list[Block], width: float) -> tuple[list[Block], list[float], bool]:
    """Stages, or those alike as one, in a row where their words fit; else one below the other.

    The widths are those of their layers, all on one scale.
    """
    for blocks in (stages, _merged(stages)):
        room = width - GAP_PX * (len(blocks) - 1)
        layer_px = room / sum(block.layers for block in blocks)
        widths = [block.layers * layer_px for block in blocks]
        fits = zip(blocks, widths, strict=True)
        if all(_words_px(block) <= wide for block, wide in fits):
            return blocks, widths, True
    most = max(block.layers for block in blocks)
    return blocks, [width * block.layers / most for block in blocks], len(blocks) == 1


def _merged(stages: list[Block]) -> list[Block]:
    """Consecutive stages on the same GPUs with the same tp as one."""
    found = []
    for _, run in groupby(stages, key=lambda stage: (stage.gpu, stage.tp)):
        own = list(run)
        found.append(
            replace(
                own[0],
                stages=len(own),
                layers=sum(stage.layers for stage in own),
                gpus=sum(stage.gpus for stage in own),
                busy_s=max((s.busy_s for s in own if s.busy_s is not None), default=None),
                filled=max((s.filled for s in own if s.filled is not None), default=None),
            )
        )
    return found


def _names(block: Block) -> tuple[str, str]:
    """What it is, and on what."""
    last = block.first + block.stages - 1
    name = f"stage {block.first}" if block.stages == 1 else f"stages {block.first} to {last}"
    layers = "1 layer" if block.layers == 1 else f"{block.layers} layers"
    return f"{name}: {layers}", short_gpus({block.gpu: block.gpus})


def _words_px(block: Block) -> float:
    return max(text_width(words, 12) for words in _names(block))


def _busy(document: Document, plan: Document, row: int) -> dict[int, tuple[float, float]]:
    """Busy seconds and share of memory of every stage, where the answer says so of this plan."""
    mixed = document.get("mixed") or {}
    if plan["rank"] != 1 or not mixed.get("stages"):
        return {}
    own = [stage for stage in mixed["stages"] if stage["pipeline"] == row]
    return {at: (stage["busy_s"], stage["filled_fraction"]) for at, stage in enumerate(own)}


def _block(
    block: Block, colour: str, place: tuple[float, float, float, float], step_s: float
) -> tuple[list[str], float]:
    """A block, and how high it is; `place`: left, top, width and the distance of dots."""
    x, y, width, pitch = place
    name, on = _names(block)
    parts = [text(x, y + 12, name, size=12, colour="ink", weight=600)]
    each = width / block.layers
    gap = 1.0 if each > 3 else 0.0
    bars = "".join(
        f"M{number(x + row * each)} {number(y + 20)}h{number(each - gap)}v{LAYER_PX:g}"
        f"h-{number(each - gap)}z"
        for row in range(block.layers)
    )
    parts.append(f'<path d="{bars}" fill="{paint(colour)}"/>')
    at = y + 20 + LAYER_PX + 8
    dots, high = _dots(block, x, at, width, pitch)
    parts.append(f'<path d="{dots}" fill="{paint(colour)}"/>')
    at += high + 16
    nodes = _nodes(block)
    words = f"{nodes:,} {'node' if nodes == 1 else 'nodes'}, tp {block.tp}"
    parts.append(text(x, at, on, size=12, colour="ink", weight=600))
    parts.append(text(x, at + 15, words))
    at += 22
    for share, said, meter in _meters(block, step_s):
        parts += [
            rect(x, at, width, 6, paint("sunk")),
            rect(x, at, max(min(share, 1.0) * width, 0.5), 6, paint(meter)),
            text(x, at + 20, said),
        ]
        at += METER_PX
    return parts, at - y


def _meters(block: Block, step_s: float) -> Iterator[tuple[float, str, str]]:
    if block.busy_s is not None:
        yield block.busy_s / step_s, f"busy {seconds(block.busy_s)}", "backward"
    if block.filled is not None:
        yield block.filled, f"memory {block.filled:.0%} full", "activations"


def _pitch(block: Block, width: float) -> float:
    """The distance of dots: of a size that one row of nodes holds them, else as high as may be."""
    nodes, one_row = _nodes(block), block.node_gpus * DOT_PX + 4
    pitch = DOT_PX
    while pitch > SMALL_DOT_PX and _dots_high(block, pitch, width) > one_row:
        pitch -= 0.2
    if pitch * nodes <= width:
        return pitch
    pitch = DOT_PX
    while pitch > LEAST_DOT_PX and _dots_high(block, pitch, width) > MOST_DOTS_PX:
        pitch -= 0.4
    return pitch


def _nodes(block: Block) -> int:
    return -(-block.gpus // block.node_gpus)


def _dots(block: Block, x: float, y: float, width: float, pitch: float) -> tuple[str, float]:
    """One path of all GPUs, node beside node."""
    columns = max(1, int(width / pitch))
    size = pitch - max(0.6, 0.22 * pitch)
    found = []
    for gpu in range(block.gpus):
        node, place = divmod(gpu, block.node_gpus)
        row, column = divmod(node, columns)
        left = x + column * pitch
        top = y + row * (block.node_gpus * pitch + 3) + place * pitch
        found.append(f"M{number(left)} {number(top)}h{size:.1f}v{size:.1f}h-{size:.1f}z")
    return "".join(found), _dots_high(block, pitch, width)


def _dots_high(block: Block, pitch: float, width: float) -> float:
    rows = -(-_nodes(block) // max(1, int(width / pitch)))
    return rows * (block.node_gpus * pitch + 3)


def _sentence(document: Document, plan: Document) -> str:
    said = [
        " on ".join(_names(block))
        for row in range(len(plan["plan"]["pipelines"]))
        for block in _merged(_stages(document, plan, row))
    ]
    return f"{TITLE}. {'; '.join(said)}"
