"""Which GPUs hold which layers: a bar a layer, a dot a GPU, a column of dots a node."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from astra.report.priced_plan import seconds
from astra.report.svg.axis import number, picture, text
from astra.report.svg.colours import GPU_TYPES, paint
from astra.report.svg.priced import Document
from astra.report.svg.shapes import rect

TITLE = "Which GPUs hold which layers"
NARROW_PX, GAP_PX, LAYER_PX = 560.0, 16.0, 30.0
LEAST_STAGE_PX = 120.0  # narrower equal stages in a row become one block
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
        blocks = _blocks(document, plan, row, width)
        if len(pipelines) > 1:
            count = pipeline["replicas"]
            head = f"group {row + 1}: {count} {'replica' if count == 1 else 'replicas'}, "
            head += f"{pipeline['micro_batches']} micro-batches each"
            parts.append(text(0, y + 12, head, size=12, colour="ink2"))
            y += 22
        widths = _widths(blocks, width)
        pitch = min(_pitch(block, wide) for block, wide in zip(blocks, widths, strict=True))
        x, high = 0.0, 0.0
        for block, wide in zip(blocks, widths, strict=True):
            colour = list(GPU_TYPES)[types.index(block.gpu) % len(GPU_TYPES)]
            drawn, tall = _block(block, colour, (x, y, wide, pitch), plan["step_s"])
            parts += drawn
            if wide == width:
                y += tall + 14
            else:
                x, high = x + wide + GAP_PX, max(high, tall)
        y += high + (14 if high else 0)
    return picture(width, y - 6, _sentence(document, plan, width), parts)


def _blocks(document: Document, plan: Document, row: int, width: float) -> list[Block]:
    pipeline, said = plan["plan"]["pipelines"][row], plan["plan"]
    node = {p["gpu"]["name"]: p["gpu"]["node"]["gpus"] for p in said["cluster"]["pools"]}
    busy = _busy(document, plan, row)
    stages, at = [], 0
    for segment in pipeline["segments"]:
        each = pipeline["replicas"] * said["cp"] * segment["tp"]
        for layers in segment["layers"]:
            key = (segment["gpu"], segment["tp"])
            stages.append((key, at, layers, each, busy.get(at)))
            at += 1
    narrow = width < NARROW_PX or (width / len(stages)) < LEAST_STAGE_PX
    runs = groupby(stages, key=lambda s: s[0] if narrow else s[1])
    found = []
    for _, run in runs:
        own = list(run)
        (gpu, tp), first, _, each, _ = own[0]
        known = [b for *_, b in own if b is not None]
        found.append(
            Block(
                first=first,
                stages=len(own),
                layers=sum(layers for _, _, layers, _, _ in own),
                gpu=gpu,
                gpus=each * len(own),
                tp=tp,
                node_gpus=node.get(gpu, 8),
                busy_s=max((b[0] for b in known), default=None),
                filled=max((b[1] for b in known), default=None),
            )
        )
    return found


def _busy(document: Document, plan: Document, row: int) -> dict[int, tuple[float, float]]:
    """Busy seconds and share of memory of every stage, where the answer says so of this plan."""
    mixed = document.get("mixed") or {}
    if plan["rank"] != 1 or not mixed.get("stages"):
        return {}
    own = [stage for stage in mixed["stages"] if stage["pipeline"] == row]
    return {at: (stage["busy_s"], stage["filled_fraction"]) for at, stage in enumerate(own)}


def _widths(blocks: list[Block], width: float) -> list[float]:
    """As wide as the layers that they hold; each the whole width where one would be too narrow."""
    room = width - GAP_PX * (len(blocks) - 1)
    layers = sum(block.layers for block in blocks)
    found = [room * block.layers / layers for block in blocks]
    if min(found) < LEAST_STAGE_PX or (width < NARROW_PX and len(blocks) > 1):
        return [width] * len(blocks)
    return found


def _block(
    block: Block, colour: str, place: tuple[float, float, float, float], step_s: float
) -> tuple[list[str], float]:
    """A block, and how high it is; `place`: left, top, width and the distance of dots."""
    x, y, width, pitch = place
    last = block.first + block.stages - 1
    name = f"stage {block.first}" if block.stages == 1 else f"stages {block.first} to {last}"
    layers = "1 layer" if block.layers == 1 else f"{block.layers} layers"
    parts = [text(x, y + 12, f"{name}: {layers}", size=12, colour="ink", weight=600)]
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
    parts.append(text(x, at, f"{block.gpus:,} {block.gpu}", size=12, colour="ink", weight=600))
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


def _sentence(document: Document, plan: Document, width: float) -> str:
    said = [
        f"stages {b.first} to {b.first + b.stages - 1}: {b.layers} layers on {b.gpus} {b.gpu}"
        for row in range(len(plan["plan"]["pipelines"]))
        for b in _blocks(document, plan, row, width)
    ]
    return f"{TITLE}. {'; '.join(said)}"
