"""Sends that block both ends: the sender waits until they are gone, the receiver for them."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from astra.simulate.pipeline_columns import PipelineColumns

Floats = NDArray[np.float64]


def with_blocking_sends(pipelines: PipelineColumns, blocking_send_s: Floats) -> PipelineColumns:
    """The same pipelines, where each transfer over link i keeps both its stages from working.

    blocking_send_s h (stage, plan) is the part of a transfer's seconds L that neither end can work
    beside; the rest runs in the background. An operation of c seconds takes  h_in + c + h_out,  and
    its input is there L - 2 h after the sender is free again: alone, a micro-batch arrives when it
    did. Interleaved pipelines are left as they are: their sends run beside other chunks.
    """
    rows = pipelines.forward_s.shape[1]
    inner = np.arange(rows)[:, np.newaxis] >= rows - pipelines.stages
    inner = inner & (np.arange(rows) < rows - 1)[:, np.newaxis] & (pipelines.chunks == 1)
    below = np.where(inner, blocking_send_s, 0.0)
    both = below + np.roll(below, 1, axis=0)
    return replace(
        pipelines,
        forward_s=pipelines.forward_s + both,
        backward_s=pipelines.backward_s + both,
        forward_link_s=pipelines.forward_link_s - 2 * below,
        backward_link_s=pipelines.backward_link_s - 2 * below,
    )
