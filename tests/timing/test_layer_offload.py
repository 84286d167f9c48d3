"""Layers whose activations go to the host: what stays on the GPU, and what of the copies shows."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.api import export, import_job, predict
from astra.api.prediction import Prediction
from astra.errors import InputError
from astra.timing.layer_offload import exposed_copies_s

JOB = {"gpus": "gb300:64", "global_batch": 256, "seq_len": 8192, "micro_batch": 2}


def forward_by_events(layers: int, offloaded: int, copy_s: float, layer_s: float) -> float:
    """A forward pass layer by layer, as Transformer Engine orders it: two streams and events."""
    now, copies = 0.0, 0.0  # when the compute stream and the stream of copies are free
    done: dict[int, float] = {}  # when the copy of a layer is
    for layer in range(layers):
        waits_for = layer - (layers - offloaded)
        if waits_for >= 0:
            now = max(now, done[waits_for])
        now += layer_s
        if layer < offloaded:
            copies = done[layer] = max(copies, now) + copy_s
    return now


def backward_by_events(layers: int, offloaded: int, copy_s: float, layer_s: float) -> float:
    """A backward pass: layer i is reloaded once layer M - N + i is through."""
    now, copies = 0.0, 0.0
    back: dict[int, float] = {}
    for layer in reversed(range(layers)):
        if layer < offloaded:
            now = max(now, back[layer])
        now += layer_s
        reloads = layer - (layers - offloaded)
        if reloads >= 0:
            copies = back[reloads] = max(copies, now) + copy_s
    return now


@given(st.data(), st.integers(2, 40), st.floats(0, 5), st.floats(0.1, 5))
def test_what_shows_of_copies_is_what_events_leave(
    data: st.DataObject, layers: int, copy_s: float, layer_s: float
) -> None:
    offloaded = data.draw(st.integers(1, layers - 1))
    found = exposed_copies_s(
        np.array([offloaded * copy_s]),
        np.array([layers * layer_s]),
        np.array([layers]),
        np.array([offloaded]),
    )
    for by_events in (forward_by_events, backward_by_events):
        step_s = by_events(layers, offloaded, copy_s, layer_s)
        assert found[0] == pytest.approx(step_s - layers * layer_s, rel=1e-9, abs=1e-9)


def priced(offload_layers: int, **more: object) -> Prediction:
    said = {**JOB, "sharding": "parameters", "offload_layers": offload_layers, **more}
    return predict("llama-3-70b", **said)  # type: ignore[arg-type]


def test_every_layer_that_leaves_moves_its_bytes_to_the_host() -> None:
    """What the GPU no longer holds its host does, four GPUs a node."""
    kept = priced(0)
    assert kept.host_memory_bytes == 0
    for layers in (1, 20, 79):
        found = priced(layers)
        gone = kept.memory.allocated_bytes - found.memory.allocated_bytes
        assert found.host_memory_bytes == pytest.approx(4 * gone, rel=1e-9)
        # Llama 3 70B in bf16, by hand: two norms and their outputs, queries, keys and values, what
        # attention makes, gate, up and what comes out of them; log-sum-exps in fp32.
        values = 4 * 8192 + (8192 + 2 * 1024) + 8192 + 3 * 28_672
        layer = 2 * 8192 * (2 * values + 4 * 64)
        assert gone == pytest.approx(layers * layer, rel=1e-9)


def test_more_layers_on_the_host_never_take_less_time() -> None:
    steps = [priced(layers, gpus="b300:64").step_s for layers in (0, 10, 30, 50, 70, 79)]
    assert all(before <= after for before, after in pairwise(steps))
    assert steps[1] == steps[0]  # hidden
    assert steps[-1] > 1.2 * steps[0]  # copies of all layers but one hide behind nothing


def test_the_step_is_the_sum_of_its_parts_with_copies_that_show() -> None:
    found = priced(79)
    assert sum(found.step_parts_s.values()) == pytest.approx(found.step_s, rel=1e-9)
    assert found.step_parts_s["other"] > 10 * priced(0).step_parts_s["other"]


def test_offloaded_layers_and_a_pipeline_are_refused_with_what_to_try() -> None:
    with pytest.raises(InputError, match=r"without a pipeline only.*Try"):
        priced(20, pp=2, sharding="optimizer")


def test_offloaded_layers_survive_export_and_import(tmp_path: Path) -> None:
    export(priced(20).plan, "megatron", tmp_path)
    words = " ".join((tmp_path / "args.txt").read_text().split())
    assert "--cpu-offloading-num-layers 20" in words
    script = tmp_path / "train.sh"
    script.write_text(f"torchrun --nnodes 16 --nproc-per-node 4 pretrain_gpt.py {words}\n")
    assert import_job(script, gpus="gb300").plan.offload_layers == 20
