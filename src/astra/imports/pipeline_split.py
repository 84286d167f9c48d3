"""Layers of every chunk out of Megatron-LM's options for the pipeline."""

from astra.errors import InputError


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


def stages_with_ends(
    layers: int, pp: int, first: int | None, last: int | None, where: str
) -> tuple[int, ...]:
    """Stages of one size but for the first and last, which are said."""
    stated = [count for count in (first, last) if count is not None]
    middle = pp - len(stated)
    left = layers - sum(stated)
    if middle < 0 or (middle and left % middle) or (not middle and left):
        raise InputError(
            f"{where}: {left} layers do not divide into the {middle} stages between the first "
            "and the last; Megatron-LM refuses this job."
        )
    body = [left // middle] * middle if middle else []
    opening = [] if first is None else [first]
    closing = [] if last is None else [last]
    return (*opening, *body, *closing)
