"""Megatron-LM's pipeline layout string, read: which layers every virtual stage holds."""

import re

from astra.errors import InputError, shorten

MAX_LETTERS = 100_000  # letters of a layout whose repeats are written out
REPEATS = (r"\(([^()]+)\)\*(\d{1,6})", r"(.)\*(\d{1,6})")  # `(tt|)*3`, and only then `t*3`


def parse_pipeline_layout(text: str, pp: int, where: str) -> tuple[tuple[int, ...], int]:
    """Decoder layers of every virtual stage, in the order of execution, and prediction layers.

    An InputError where `PipelineParallelLayerLayout` refuses the string; whether it holds as many
    layers as the model is for the caller to see.

    >>> parse_pipeline_layout("Et*4|(t*4|)*2,tmL", 2, "--pipeline-model-parallel-layout")
    ((4, 4, 4, 1), 1)
    """
    flat = text.replace(",", "")
    for pattern in REPEATS:
        if sum(len(part) * int(times) for part, times in re.findall(pattern, flat)) > MAX_LETTERS:
            raise InputError(f"{where} {shorten(text)}: longer than any pipeline.")
        flat = re.sub(pattern, lambda found: found[1] * int(found[2]), flat)
    stages = flat.split("|")
    letters = "".join(stages)
    predicting = [row for row, stage in enumerate(stages) if "m" in stage]
    for refused, reason in (
        (set(letters) - set("EtmL"), "layers are E, t, m and L, stages are parted by |"),
        (
            not re.fullmatch("E[^EL]*L", letters),
            "the first layer is the only E, the last the only L",
        ),
        ("t" in letters.partition("m")[2], "no t comes after an m"),
        (len(predicting) > 1, "all m are in one stage"),
        (len(stages) % pp, f"it has {len(stages)} stages, and pp {pp} does not divide them"),
        (predicting and predicting[0] < len(stages) - pp, f"m is in one of the last {pp} stages"),
    ):
        if refused:
            raise InputError(f"{where} {shorten(text)}: {reason}; Megatron-LM refuses it.")
    return tuple(stage.count("t") for stage in stages), letters.count("m")
