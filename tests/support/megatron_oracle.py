"""Megatron-LM's own verdict on a command line: parser, `validate_args`, configs, layout.

Runs the code of a megatron-core wheel on a machine without a GPU. What is replaced is only what
asks the machine: the GPU's generation and capability, and whether Transformer Engine is there.
"""

import contextlib
import io
import logging
import os
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

GPU_ARCHITECTURE = {"major": 9}  # of the GPU the plan is for; set by `verdict`


@cache
def megatron() -> dict[str, Any]:
    """Import the framework once, with the shims of a machine without a GPU."""
    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from megatron.core.models.common.embeddings import rope_utils
        from megatron.core.optimizer import optimizer_config
        from megatron.core.transformer import transformer_config
        from megatron.training import argument_utils, arguments

    logging.disable(logging.INFO)  # it tells of every layout it parses
    torch.cuda.get_device_capability = lambda *_: (GPU_ARCHITECTURE["major"], 0)
    arguments.get_device_arch_version = lambda: GPU_ARCHITECTURE["major"]
    arguments.is_te_min_version = lambda *_, **__: True
    transformer_config.is_te_min_version = lambda *_, **__: True
    rope_utils.fused_apply_rotary_pos_emb = object()
    _pretend_transformer_engine()
    parser = arguments.argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    return {
        "arguments": arguments,
        "config_from_args": argument_utils.core_transformer_config_from_args,
        "optimizer_config": optimizer_config.OptimizerConfig,
        "parser": arguments.add_megatron_arguments(parser),
        "torch": torch,
    }


def _pretend_transformer_engine() -> None:
    """The optimizer's configuration looks at the signature of Transformer Engine's Adam."""
    import sys
    import types

    class FusedAdam:
        def __init__(
            self,
            params: object,
            master_weight_dtype: object = None,
            exp_avg_dtype: object = None,
            exp_avg_sq_dtype: object = None,
            use_decoupled_grad: bool = False,
        ) -> None: ...

    optimizers = types.ModuleType("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = FusedAdam  # type: ignore[attr-defined]
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules.setdefault("transformer_engine.pytorch.optimizers", optimizers)


@contextlib.contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    """Exactly these settings of the variables that Megatron-LM reads."""
    read = ["CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1", "WORLD_SIZE", "RANK"]
    read += ["NCCL_GRAPH_REGISTER", "PYTORCH_CUDA_ALLOC_CONF"]
    before = {name: os.environ.pop(name) for name in read if name in os.environ}
    os.environ.update(env)
    try:
        yield
    finally:
        for name in [*read, *env]:
            os.environ.pop(name, None)
        os.environ.update(before)


def verdict(
    args: Sequence[str], env: Mapping[str, str], world_size: int, architecture: int = 9
) -> str | None:
    """None where Megatron-LM accepts the command line, else `layer: message`."""
    framework = megatron()
    GPU_ARCHITECTURE["major"] = architecture
    layer = "parser"
    silent = io.StringIO()
    with (
        _environment({**env, "WORLD_SIZE": str(world_size), "RANK": "0"}),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
    ):
        warnings.simplefilter("ignore")
        try:
            parsed = framework["parser"].parse_args(list(args))
            parsed._is_global_batch_size_explicitly_specified = True
            parsed.rank, parsed.world_size = 0, world_size
            framework["arguments"].validate_args(parsed)
            layer = "config"
            _optimizer_config(framework, parsed)
            framework["config_from_args"](parsed)
        except SystemExit:
            return f"{layer}: {silent.getvalue().strip().splitlines()[-1]}"
        except Exception as error:  # every refusal of the framework is one of its exceptions
            return f"{layer}: {type(error).__name__}: {error}"
    return None


def groups_verdict(
    world_size: int, *, tp: int, pp: int, cp: int, ep: int, etp: int, order: str, instances: int
) -> str | None:
    """None where Megatron-LM's `initialize_model_parallel` makes its process groups."""
    torch = megatron()["torch"]
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=tp,
                pipeline_model_parallel_size=pp,
                context_parallel_size=cp,
                expert_model_parallel_size=ep,
                expert_tensor_parallel_size=etp,
                num_distributed_optimizer_instances=instances,
                create_gloo_process_groups=False,
                order=order,
            )
    except (AssertionError, RuntimeError) as error:
        return f"runtime: {error}"
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    return None


def pipeline_ranks(*, tp: int, cp: int, dp: int, pp: int, order: str) -> list[list[int]]:
    """The ranks of every pipeline's stages, by Megatron-LM's own order of ranks."""
    megatron()
    from megatron.core.parallel_state import RankGenerator

    found: list[list[int]] = RankGenerator(tp, 1, dp, pp, cp, order).get_ranks("pp")
    return found


class _PassedError(Exception):
    """The schedule went past its checks."""


def schedule_verdict(*, pp: int, vpp: int, micro_batches: int, group: int) -> str | None:
    """None where Megatron-LM's interleaved schedule accepts its micro-batches.

    Runs the schedule itself up to its checks; the first use of the model behind them stops it.
    """
    torch = megatron()["torch"]
    from megatron.core.pipeline_parallel import schedules
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    class Unset:
        microbatch_group_size_per_vp_stage = group

        def __getattr__(self, name: str) -> None:
            return None

    class Chunk(torch.nn.Module):  # type: ignore[name-defined,misc]
        config = Unset()
        model_type = "decoder"

    class Group:
        config = Unset()

        def size(self) -> int:
            return pp

        def rank(self) -> int:
            return 0

    class AskedTwice(Group):
        asked = 0

        def size(self) -> int:  # once before the checks, once behind them
            self.asked += 1
            if self.asked > 1:
                raise _PassedError
            return 1

    group_of = type("Groups", (), {"tp": Group(), "cp": AskedTwice(), "pp_group": Group()})
    group_of.config = Unset()  # type: ignore[attr-defined]
    try:
        with OnCpu():
            schedules.forward_backward_pipelining_with_interleaving(
                forward_step_func=None,
                data_iterator=[None] * vpp,
                model=[Chunk() for _ in range(vpp)],
                num_microbatches=micro_batches,
                seq_length=1,
                micro_batch_size=1,
                p2p_communicator=group_of,
                pg_collection=group_of,
            )
    except (ValueError, RuntimeError) as error:
        return f"runtime: {error}"
    except _PassedError:
        return None
    raise AssertionError("the schedule neither refused nor went on")


def _optimizer_config(framework: dict[str, Any], parsed: Any) -> None:
    """Build the optimizer's configuration as `megatron.training` does: by field name."""
    import dataclasses

    kind = framework["optimizer_config"]
    names = [field.name for field in dataclasses.fields(kind)]
    kind(**{name: getattr(parsed, name) for name in names if hasattr(parsed, name)})
