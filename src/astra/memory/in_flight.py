"""Micro-batches in flight: whose activations a stage holds until their backward pass."""

import numpy as np

from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.stages import Stages


def in_flight(plans: Plans, stages: Stages) -> Floats:
    """Activations held at once, in units of one micro-batch of the whole stage.

        1F1B         min(m, p - i)
        interleaved  min(m v, 2 (p - i - 1) + (v - 1) g + 1) / v,   one more with EP overlap

    For stage i of p, m micro-batches, v chunks, groups of g: Narayanan et al. 2021
    (arXiv 2104.04473), section 2.2; Megatron-LM's schedules. Chunks of unlike size are weighed
    by their layers: a large first chunk waits longer than a small last one.
    """
    below = plans.pp[:, np.newaxis] - stages.index - 1
    count = plans.micro_batches[:, np.newaxis]
    plain = np.minimum(count, below + 1)
    group = plans.microbatch_groups[:, np.newaxis]
    ahead = 2 * below + (plans.vpp - 1) * group + 1 + plans.overlap_ep
    chunks = np.minimum(count * plans.vpp, ahead) / plans.vpp
    found = np.where(plans.vpp > 1, chunks, plain)
    if (plans.chunking >= 0).any():
        _weigh_by_layers(found, plans, stages, ahead)
    return found


def _weigh_by_layers(found: Floats, plans: Plans, stages: Stages, ahead: Ints) -> None:
    """Puts in what stages with chunks of unlike size hold; once for plans with equal chunks."""
    rows = np.flatnonzero((plans.chunking >= 0) & (plans.vpp > 1))
    group, vpp = plans.microbatch_group[rows], plans.vpp[rows]
    # What is held repeats with the groups: more micro-batches than two rounds show nothing new.
    rounds = -(-ahead[0, :, rows].max(axis=1, initial=1) // (group * vpp)) + 2
    count = plans.micro_batches[0, rows]
    count = np.minimum(count, rounds * group + count % group)  # the last group stays as it is
    # The same list of chunks may be cut for few stages and many chunks, or the other way round.
    keys = [plans.chunking, plans.microbatch_group, plans.overlap_ep, plans.mtp_layers, plans.vpp]
    distinct, at = np.unique(
        np.stack([count, *(key[rows] for key in keys)]), axis=1, return_inverse=True
    )
    for place, (micro_batches, chunking, size, extra, mtp, chunks) in enumerate(distinct.T):
        equal = rows[at.ravel() == place]
        layers = np.reshape(plans.chunk_layers[chunking], (int(chunks), -1))
        layers[-1, -1] += mtp  # multi-token prediction lies behind the last layer
        held = _layers_in_flight(layers, int(micro_batches), int(size), int(extra))
        whole = layers.sum(axis=0)
        stage = np.minimum(stages.index[..., equal], len(whole) - 1)
        unlike = (layers != layers[:1]).any(axis=0) & (whole > 0)
        share = held / np.maximum(whole, 1)
        found[..., equal] = np.where(unlike[stage], share[stage], found[..., equal])


def _layers_in_flight(layers: Ints, micro_batches: int, group: int, extra: int) -> Ints:
    """Most layers of one micro-batch each that every stage holds at once. (stage,)

    Forwards go group after group, in a group chunk after chunk; backwards likewise with the
    chunks in reverse; after the warm-up one of each in turn. On the last stage it is what is
    held at the loss, behind the last chunk, where its memory peaks.
    """
    chunks, stages = layers.shape
    steps = np.arange(chunks * micro_batches)
    first = steps // (group * chunks) * group  # micro-batches before this group
    size = np.minimum(group, micro_batches - first)  # the last group may be smaller
    chunk = (steps - first * chunks) // size
    came = np.cumsum(layers[chunk], axis=0)  # (step, stage)
    gone = np.cumsum(layers[chunks - 1 - chunk], axis=0) - layers[chunks - 1 - chunk]
    warmup = 2 * np.arange(stages)[::-1] + (chunks - 1) * group + extra
    last = np.minimum(steps[:, np.newaxis] + warmup, len(steps) - 1)
    held: Ints = np.take_along_axis(came, last, axis=0) - gone
    at_loss = chunk[last[:, -1]] == chunks - 1
    held[~at_loss, -1] = 0
    most: Ints = held.max(axis=0)
    return most
