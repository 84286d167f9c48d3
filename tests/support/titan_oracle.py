"""torchtitan's own verdict on a config module: its trainer, up to where it would cut the network.

`Trainer.__init__` runs on a machine without a GPU: the processes are torch's fake ones, and the
functions that would cut and fill the network end the trial. On the way the trainer checks degrees
against the world, meshes, sequence, heads, embeddings and batch; pipelines then build torch's own
schedule. A network that is only asked for its shape is not built (`build=False`).
"""

import logging
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any


class AcceptedError(Exception):
    """The trainer has no more questions."""


@cache
def titan() -> dict[str, Any]:
    """Import the framework once, with the shims of a machine without a GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from torchtitan import trainer
        from torchtitan.components import metrics
        from torchtitan.components.quantization import float8, mx
        from torchtitan.config.manager import ConfigManager
        from torchtitan.distributed import parallel_dims, pipeline_parallel
        from torchtitan.distributed import utils as distributed
        from torchtitan.tools import utils

    logging.disable(logging.WARNING)  # it tells of every mesh it builds
    os.environ["LOCAL_RANK"] = os.environ["RANK"] = "0"
    for module in (utils, parallel_dims, distributed):
        module.device_type = "cpu"
        module.device_module = torch.cpu
    for module in (float8, mx):  # which ask for a GPU that has fp8
        module.has_cuda_capability = lambda *_: True
    monitor = types.SimpleNamespace(device_name="cpu", reset_peak_stats=lambda: None)
    metrics.build_device_memory_monitor = lambda: monitor
    distributed.set_determinism = lambda *_, **__: None
    trainer.dist_utils.set_determinism = distributed.set_determinism
    return {
        "torch": torch,
        "trainer": trainer,
        "manager": ConfigManager,
        "pipeline": pipeline_parallel,
    }


def read_module(text: str) -> types.ModuleType:
    """A config module out of its text."""
    module = types.ModuleType("astra_plan")
    exec(compile(text, "astra_plan.py", "exec"), module.__dict__)
    return module


def parse(text: str, words: Sequence[str]) -> Any:
    """What torchtitan's command line makes of these words, `astra_plan` being this text."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "astra_plan.py").write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        sys.modules.pop("astra_plan", None)
        try:
            return titan()["manager"]().parse_args(list(words))
        finally:
            sys.path.remove(folder)
            sys.modules.pop("astra_plan", None)


def verdict(made: Callable[[], Any], world: int, *, build: bool = True) -> str | None:
    """Why torchtitan would not start a config on so many processes; None where it would."""
    frame = titan()
    torch = frame["torch"]
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        config = made()
        frame["trainer"].Trainer(_ending(config, build))
    except AcceptedError:
        return None
    except (AssertionError, ValueError, RuntimeError, NotImplementedError, TypeError) as error:
        if "CUDA" in str(error) and "graphs" not in str(error):
            raise  # of this machine, not of the job
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        torch.distributed.destroy_process_group()
    raise AssertionError("the trainer went on to train")


def pipeline_ranks(config: Any, world: int) -> list[list[int]]:
    """The ranks of every pipeline's stages, in the mesh that torchtitan builds."""
    torch = titan()["torch"]
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed import ParallelDims

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        dims = ParallelDims.from_config(config.parallelism, world)
        dims.build_mesh()
        mesh = dims._global_meshes["dataloading"].mesh  # pp, batch, cp, tp
        found: list[list[int]] = mesh.movedim(0, -1).reshape(-1, mesh.shape[0]).tolist()
    finally:
        torch.distributed.destroy_process_group()
    return found


def _ending(config: Any, build: bool) -> Any:
    """The same job, whose network ends the trial where it would be cut."""

    def cut(_: Any, **given: Any) -> None:
        given["parallel_dims"].build_mesh()  # which the trainer leaves for later without dp
        raise AcceptedError

    def pipeline(_: Any, **given: Any) -> None:
        given["parallel_dims"].build_mesh()
        _schedule(given["parallelism"], given["training"], given["model_config"])
        raise AcceptedError

    spec = replace(config.model_spec, parallelize_fn=cut, pipelining_fn=pipeline)
    if not build:
        shape = spec.model
        stand_in = types.SimpleNamespace(verify_module_protocol=lambda: None)
        own = {"build": lambda _: stand_in, "get_nparams_and_flops": lambda *_: (1, 1)}
        kind = type("Shape", (type(shape),), {"__slots__": (), **own})
        spec = replace(spec, model=_of_kind(shape, kind))
    return replace(config, model_spec=spec)


def _of_kind(shape: Any, kind: Any) -> Any:
    """The same fields in another class."""
    import dataclasses

    other = object.__new__(kind)
    for field in dataclasses.fields(shape):
        object.__setattr__(other, field.name, getattr(shape, field.name))
    return other


def _schedule(parallelism: Any, training: Any, shape: Any) -> None:
    """Stages and schedule as `pipeline_llm` makes them, without the network in them."""
    pipeline = titan()["pipeline"]
    parts = parallelism.module_fqns_per_model_part
    layers = [name for part in parts for name in part if name.startswith("layers.")]
    if layers != [f"layers.{row}" for row in range(len(shape.layers))]:
        raise ValueError("the stages do not hold every layer once, in order")
    pp = parallelism.pipeline_parallel_degree
    places = pipeline._get_pp_rank_to_stage_indices_mapping(
        0, pp, parallelism.pipeline_parallel_schedule, len(parts)
    )
    stages = [_Stage(place, len(parts), pp) for place in places]
    pipeline._build_pipeline_schedule(
        parallelism=parallelism,
        local_batch_size=training.local_batch_size,
        stages=stages,
        loss_fn=lambda *_: None,
    )


class _Stage:
    """What torch's schedules ask a stage for."""

    def __init__(self, place: int, count: int, ranks: int) -> None:
        self.stage_index, self.num_stages = place, count
        self.group_size, self.group_rank = ranks, place % ranks
        self.is_first, self.is_last = place == 0, place == count - 1
        self.has_backward = False
        self.submod = types.SimpleNamespace()
        self.stage_index_to_group_rank = {i: i % ranks for i in range(count)}
        self.device = titan()["torch"].device("cpu")
        self.group = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)
