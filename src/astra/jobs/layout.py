"""Layers of every chunk out of Megatron-LM's options for the pipeline."""

import re

from astra.errors import InputError, shorten

MOST = 100_000  # stages and layers of one layout


def chunks_of_layout(text: str, where: str) -> tuple[int, ...]:
    """Decoder layers of every virtual stage of a layout string, in the order of execution.

    >>> chunks_of_layout("E|(t*3|)*2m|L", "job.sh")
    (0, 3, 3, 0, 0)
    """
    flat = _unfolded(text.strip("'\"").replace(",", "").replace(" ", ""), where)
    if re.search(r"[^Etml|L]", flat):
        raise InputError(
            f"{where}: --pipeline-model-parallel-layout {shorten(text)}: layers are E, t, m and L, "
            "stages are parted by |."
        )
    return tuple(stage.count("t") for stage in flat.split("|"))


def _unfolded(text: str, where: str) -> str:
    """Repeats written out: `(t|)*3` and `t*3`."""
    for pattern in (r"\(([^()]*)\)\*(\d+)", r"([Etml L])\*(\d+)"):
        while match := re.search(pattern, text):
            if len(match[1]) * int(match[2]) > MOST or len(text) > MOST:
                raise InputError(f"{where}: the pipeline layout is longer than any pipeline.")
            text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    return text


def even_chunks(
    layers: int, chunks: int, embedding: bool, loss: bool, where: str
) -> tuple[int, ...]:
    """Chunks of one size, the ends lighter where embedding or loss counts as a layer."""
    size, left = divmod(layers + embedding + loss, chunks)
    if left or size < embedding + loss * (chunks == 1):
        raise InputError(
            f"{where}: {layers} layers do not divide into {chunks} chunks (pp x vpp); "
            "Megatron-LM refuses this job."
        )
    found = [size] * chunks
    found[0] -= embedding
    found[-1] -= loss
    return tuple(found)


def ended_stages(
    layers: int, pp: int, first: int | None, last: int | None, where: str
) -> tuple[int, ...]:
    """Stages of one size but for the first and last, which are said."""
    said = [count for count in (first, last) if count is not None]
    middle = pp - len(said)
    left = layers - sum(said)
    if middle < 0 or (middle and left % middle) or (not middle and left):
        raise InputError(
            f"{where}: {left} layers do not divide into the {middle} stages between the first "
            "and the last; Megatron-LM refuses this job."
        )
    body = [left // middle] * middle if middle else []
    opening = [] if first is None else [first]
    closing = [] if last is None else [last]
    return (*opening, *body, *closing)
