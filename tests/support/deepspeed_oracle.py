"""DeepSpeed's own verdict on a configuration: its config class, AutoEP, pipelines and Ulysses.

All of it is DeepSpeed's code on a machine without a GPU, with torch's fake processes. Of engines
that need a model only the checks are run.
"""

import logging
import os
import types
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any


class Grid:
    """What DeepSpeed asks a pipeline's processes for."""

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def get_data_parallel_world_size(self) -> int:
        return self.copies


@cache
def deepspeed() -> types.SimpleNamespace:
    os.environ["DS_ACCELERATOR"] = "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed.comm
        import torch
        from deepspeed.module_inject import auto_ep_config
        from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer
        from deepspeed.runtime import config, engine
        from deepspeed.runtime.pipe.engine import PipelineEngine
        from deepspeed.runtime.pipe.module import PipelineModule
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
        from deepspeed.runtime.utils import partition_balanced
    logging.disable(logging.WARNING)
    deepspeed.comm.get_rank = torch.distributed.get_rank  # its own backend compiles kernels first
    deepspeed.comm.get_world_size = torch.distributed.get_world_size
    return types.SimpleNamespace(
        torch=torch,
        Config=config.DeepSpeedConfig,
        ConfigError=config.DeepSpeedConfigError,
        experts=auto_ep_config,
        ExpertLayer=AutoEPMoELayer,
        Engine=engine.DeepSpeedEngine,
        PipelineEngine=PipelineEngine,
        PipelineModule=PipelineModule,
        Ulysses=UlyssesSPAttentionHF,
        partition_balanced=partition_balanced,
    )


def verdict(
    settings: dict[str, Any], world: int, *, heads: int, kv_heads: int, experts: int, layers: int
) -> str | None:
    """Why DeepSpeed would not start a configuration on so many processes; None where it would."""
    frame = deepspeed()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    stages = settings.get("pipeline", {}).get("stages", 1)
    tp = settings.get("tensor_parallel", {}).get("autotp_size", 1)
    cp = settings.get("sequence_parallel_size", 1)
    frame.torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        mpu = Grid(world // stages) if stages > 1 else None
        read = frame.Config(settings, mpu)
        checks: list[Callable[[], None]] = []
        if stages > 1:
            checks.append(lambda: _pipeline(read))
        if cp > 1:
            checks.append(lambda: _ulysses(cp, heads // tp, max(kv_heads // tp, 1), layers))
        if "expert_parallel" in settings:
            checks.append(lambda: _experts(read, world, stages, tp, cp, experts))
        for check in checks:
            check()
    except (AssertionError, ValueError, frame.ConfigError) as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        frame.torch.distributed.destroy_process_group()
    return None


def pipeline_ranks(stages: int, copies: int) -> list[list[int]]:
    """The ranks of every pipeline's stages, by DeepSpeed's own topology."""
    deepspeed()
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology

    found: list[list[int]] = PipeDataParallelTopology(stages, copies).get_axis_comm_lists("pipe")
    return found


def _pipeline(read: Any) -> None:
    """The first questions of the pipeline engine."""
    frame = deepspeed()
    engine = object.__new__(frame.PipelineEngine)
    object.__setattr__(engine, "_config", read)
    module = object.__new__(frame.PipelineModule)
    own = frame.Engine.__init__
    frame.Engine.__init__ = lambda self: self.__dict__.update(module=module)
    try:
        frame.PipelineEngine.__init__(engine)
    except AttributeError:
        pass  # it goes on to look at an optimizer
    finally:
        frame.Engine.__init__ = own


def _ulysses(ranks: int, heads: int, kv_heads: int, layers: int) -> None:
    frame = deepspeed()
    group = frame.torch.distributed.new_group(list(range(ranks)))
    frame.Ulysses(
        attn=None,
        batch_size=1,
        attn_head_count=heads,
        attn_head_size=64,
        kv_head_count=kv_heads,
        num_hidden_layers=layers,
        process_group=group,
        seq_length_is_variable=True,
    )


def _experts(read: Any, world: int, stages: int, tp: int, cp: int, experts: int) -> None:
    frame = deepspeed()
    offload = read.zero_config.offload_optimizer is not None
    frame.experts.validate_autoep_config(
        read.expert_parallel_config,
        world,
        stages,
        tp,
        cp,
        zero_stage=int(read.zero_optimization_stage),
        zero_offload_optimizer=offload,
    )
    layer = types.SimpleNamespace(
        num_experts=experts,
        moe_module_name="layers.0.mlp",
        score_apply="post",
        num_expert_groups=None,
        num_limited_groups=None,
    )
    frame.experts.validate_autoep_post_detection(read.expert_parallel_config, [layer])
    if int(read.zero_optimization_stage) == 3:
        engine = types.SimpleNamespace(
            has_moe_layers=True,
            module=types.SimpleNamespace(
                named_modules=lambda: [("mlp", object.__new__(frame.ExpertLayer))]
            ),
            sequence_parallel_size=cp,
            zero_quantized_gradients=lambda: False,
            _config=read,
        )
        frame.Engine._validate_zero3_moe_compatibility(engine)
