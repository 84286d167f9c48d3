"""One rank of a tiny job: Megatron-LM's own model and schedule, laid out by exported arguments.

Runs on CPU with gloo. What is replaced is what asks for a GPU: devices, streams, the random states
of GPUs. Prints one line of JSON a job: the losses, and what this rank holds and does.
"""

import contextlib
import json
import os
import sys
import typing
import warnings
from pathlib import Path
from typing import Any

import torch
import typing_extensions
from torch.overrides import TorchFunctionMode

LAST = ("--transformer-impl", "local", "--no-gradient-accumulation-fusion")
STEPS = 4
SEED = 7


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Every tensor that would be made on a GPU is made on the CPU."""

    def __torch_function__(
        self, function: Any, _: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and "cpu" not in str(device) and "meta" not in str(device):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        return function(*args, **kwargs)


class Nothing:
    """A stream or an event of a GPU that is not there."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


def pretend() -> None:
    """A machine without a GPU, as far as Megatron-LM asks."""
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.Stream = torch.cuda.Event = Nothing
    torch.cuda.current_stream = lambda *_: Nothing()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    torch.cuda.get_rng_state = lambda *_: torch.zeros(1)
    torch.cuda.manual_seed = lambda *_: None


def arguments(path: Path, world: int) -> Any:
    """The exported command line through Megatron-LM's own parser and validation."""
    from tests.support.megatron_oracle import megatron

    framework = megatron()
    words = [word for word in path.read_text().split() if word not in ("--bf16",)]
    found = framework["parser"].parse_args([*words, *LAST])
    found._is_global_batch_size_explicitly_specified = True
    found.rank, found.world_size = int(os.environ["RANK"]), world
    framework["arguments"].validate_args(found)
    return found, framework["config_from_args"]


def models(found: Any, config_from_args: Any) -> list[Any]:
    """The chunks of the model that this rank holds."""
    from megatron.core import parallel_state as state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel import random

    chunks = found.virtual_pipeline_model_parallel_size or 1
    state.initialize_model_parallel(
        found.tensor_model_parallel_size,
        found.pipeline_model_parallel_size,
        found.virtual_pipeline_model_parallel_size,
        order="tp-cp-ep-dp-pp",
        create_gloo_process_groups=False,
    )
    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    torch.manual_seed(SEED + state.get_tensor_model_parallel_rank())
    config = config_from_args(found)
    config.pipeline_dtype = config.params_dtype = torch.float32
    config.deallocate_pipeline_outputs = False
    for name in ("bias_activation_fusion", "masked_softmax_fusion", "bias_dropout_fusion"):
        setattr(config, name, False)
    config.apply_rope_fusion = config.gradient_accumulation_fusion = False
    config.persist_layer_norm = config.cross_entropy_loss_fusion = False
    built = []
    for chunk in range(chunks):
        virtual = chunk if chunks > 1 else None
        built.append(
            GPTModel(
                config=config,
                transformer_layer_spec=get_gpt_layer_local_spec(normalization=found.normalization),
                vocab_size=found.vocab_size,
                max_sequence_length=found.seq_length,
                pre_process=state.is_pipeline_first_stage(False, virtual),
                post_process=state.is_pipeline_last_stage(False, virtual),
                share_embeddings_and_output_weights=False,
                position_embedding_type="rope",
                parallel_output=True,
                vp_stage=virtual,
            )
        )
    return built


def train(found: Any, built: list[Any]) -> tuple[list[float], int]:
    """A few steps on one batch; the losses of the last stage, and micro-batches of a step."""
    from megatron.core import parallel_state as state
    from megatron.core.num_microbatches_calculator import (
        get_num_microbatches,
        init_num_microbatches_calculator,
    )
    from megatron.core.pipeline_parallel import get_forward_backward_func

    init_num_microbatches_calculator(
        found.rank, None, found.global_batch_size, found.micro_batch_size, found.data_parallel_size
    )
    count = get_num_microbatches()
    maker = torch.Generator().manual_seed(SEED + state.get_data_parallel_rank())
    shape = (found.micro_batch_size, found.seq_length + 1)
    batches = [torch.randint(0, found.vocab_size, shape, generator=maker) for _ in range(count)]
    seen = {"forwards": 0}

    def step(iterator: Any, model: Any) -> Any:
        seen["forwards"] += 1
        tokens = next(iterator)
        places = torch.arange(found.seq_length).expand(found.micro_batch_size, -1)
        mask = torch.ones(1, 1, found.seq_length, found.seq_length).triu(1).bool()
        output = model(tokens[:, :-1], places, mask, labels=tokens[:, 1:])
        return output, lambda losses: (losses.mean(), {"loss": losses.detach().mean()})

    weights = [weight for model in built for weight in model.parameters()]
    optimizer = torch.optim.Adam(weights, lr=3e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        seen["forwards"] = 0
        several = len(built) > 1
        told = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=[iter(batches) for _ in built] if several else iter(batches),
            model=built if several else built[0],
            num_microbatches=count,
            seq_length=found.seq_length,
            micro_batch_size=found.micro_batch_size,
            forward_only=False,
        )
        for weight in weights:
            if weight.grad is not None:
                torch.distributed.all_reduce(weight.grad, group=state.get_data_parallel_group())
                weight.grad /= found.data_parallel_size
        optimizer.step()
        losses += [float(sum(one["loss"] for one in told) / count)] if told else []
    assert seen["forwards"] == count * len(built)
    return losses, count


def held(built: list[Any]) -> dict[str, Any]:
    """Where this rank stands and what it holds."""
    from megatron.core import parallel_state as state

    return {
        "tp": state.get_tensor_model_parallel_rank(),
        "pp": state.get_pipeline_model_parallel_rank(),
        "dp": state.get_data_parallel_rank(),
        "layers": [len(model.decoder.layers) for model in built],
        "parameters": sum(w.numel() for model in built for w in model.parameters()),
    }


def main() -> None:
    """Every job of the command line in turn: importing the framework takes longest."""
    world = int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    pretend()
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo")
    for path in sys.argv[1:]:
        with OnCpu(), contextlib.redirect_stdout(sys.stderr):
            found, config_from_args = arguments(Path(path), world)
            built = models(found, config_from_args)
            losses, count = train(found, built)
            told = {**held(built), "micro_batches": count, "losses": losses}
            forget()
        sys.__stdout__.write(json.dumps(told) + "\n")  # type: ignore[union-attr]
    torch.distributed.destroy_process_group()


def forget() -> None:
    """Groups and counts of one job, before the next."""
    from megatron.core import parallel_state as state
    from megatron.core.num_microbatches_calculator import destroy_num_microbatches_calculator

    state.destroy_model_parallel()
    destroy_num_microbatches_calculator()


if __name__ == "__main__":
    main()
