"""The pipeline formula of arXiv 2502.13480, kept beside the simulator for comparison."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def paper_pipeline_s(stage_s: Floats, link_s: Floats, micro_batches: Ints) -> Floats:
    """Seconds of all micro-batches through a pipeline. (stage, plan) in, (plan,) out. [s]

        T = sum over i of (t_i + h_i)  +  (K - 1) max over i of (t_i + h_i)

    arXiv 2502.13480 ("Astra"), its pipeline model: t_i forward and backward of one micro-batch
    on stage i, h_i its traffic with the next stage, K micro-batches. Exact for equal stages
    without traffic, where it is (p + K - 1) t. It knows neither interleaving nor that a stage
    holds only as many micro-batches as there are stages behind it, and it lets no link be hidden.
    """
    each = stage_s + link_s
    found: Floats = each.sum(axis=0) + (micro_batches - 1) * each.max(axis=0)
    return found
