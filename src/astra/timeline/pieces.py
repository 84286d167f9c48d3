"""What a stage does, cut into pieces of one cause each, in the order of time."""

from dataclasses import dataclass

import numpy as np

from astra.strategy.plans import Floats, Ints
from astra.timeline.step import StageTimeline

# Every piece, and the part of a step that it counts to. A transfer lies in what a stage waits:
# the step's own parts ask how much shorter it were without links, so of these two the sum is equal.
STEP_PART = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "tensor": "tensor_comm",
    "context": "context_comm",
    "expert": "expert_comm",
    "transfer": "pipeline_comm",
    "receive": "pipeline_comm",
    "send": "pipeline_comm",
    "tied": "pipeline_comm",
    "data": "data_comm",
    "reduce": "data_comm",
    "between_groups": "data_comm",
    "optimizer": "optimizer",
    "offloaded_optimizer": "optimizer",
    "host": "other",
    "other": "other",
}
PIECES = tuple(STEP_PART)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StagePieces:
    """Pieces that follow one another; between them the stage waits. (piece,)"""

    name: Ints  # place in PIECES
    start_s: Floats
    end_s: Floats
    operation: Ints  # -1 behind the last backward

    def of(self, name: str) -> Ints:
        """Places of the pieces of this name."""
        return np.flatnonzero(self.name == PIECES.index(name))

    def seconds(self) -> dict[str, float]:
        """Of each part of a step, what a stage waits left out."""
        found = dict.fromkeys(STEP_PART.values(), 0.0)
        for name, part in STEP_PART.items():
            rows = self.of(name)
            found[part] += float((self.end_s[rows] - self.start_s[rows]).sum())
        return found


def stage_pieces(stage: StageTimeline) -> StagePieces:
    """All of a stage's step."""
    start_s, end_s = np.array(stage.start_s), np.array(stage.end_s)
    chunk, micro_batch = np.array(stage.chunk), np.array(stage.micro_batch)
    operation = np.arange(len(start_s))
    blocks = [("transfer", start_s - np.array(stage.transfer_s), start_s, operation)]
    for way, parts in stage.op_parts_s.items():
        rows = np.flatnonzero(np.array(stage.kind) == way)
        at_s = start_s[rows]
        for name, by_chunk in parts.items():
            seconds = np.array(by_chunk)[chunk[rows]]
            if (way, name) == ("forward", "data"):
                first = np.array(stage.first_gather_s)[chunk[rows]]
                seconds = seconds + np.where(micro_batch[rows] == 0, first, 0.0)
            until_s = np.minimum(at_s + seconds, end_s[rows])  # no further, however it rounds
            blocks.append((way if name == "compute" else name, at_s, until_s, rows))
            at_s = until_s
    behind = np.array([-1])
    at = stage.end_s[-1]
    for name, after_s in stage.after_parts_s.items():
        until = at + after_s
        blocks.append((name, np.array([at]), np.array([until]), behind))
        at = max(until, stage.grads_ready_s) if name == "reduce" else until
    return _in_order(blocks)


def _in_order(blocks: list[tuple[str, Floats, Floats, Ints]]) -> StagePieces:
    codes = [np.full(len(start_s), PIECES.index(name)) for name, start_s, _, _ in blocks]
    name, start_s = np.concatenate(codes), np.concatenate([block[1] for block in blocks])
    end_s, operation = (np.concatenate([block[row] for block in blocks]) for row in (2, 3))
    some = np.flatnonzero(end_s > start_s)
    order = some[np.lexsort((end_s[some], start_s[some]))]
    return StagePieces(
        name=name[order], start_s=start_s[order], end_s=end_s[order], operation=operation[order]
    )
