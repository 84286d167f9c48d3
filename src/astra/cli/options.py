"""Options that several commands share, and how their values are read."""

import argparse
from typing import TYPE_CHECKING, Any

from astra.errors import InputError, shorten
from astra.values import number, token_count, whole_number, word

if TYPE_CHECKING:
    from pathlib import Path

    from astra.strategy.complete import PlanSettings

RUNTIMES = ("megatron", "flagscale", "fsdp", "deepspeed", "any")

# Options of one plan, each with its help or its words. `--no-X` exists for every flag.
DEGREE_OPTIONS = {
    "tp": "tensor-parallel size",
    "pp": "pipeline stages",
    "dp": "data-parallel replicas; default: what fills the GPUs",
    "vpp": "virtual stages per pipeline rank (interleaved schedule)",
    "cp": "context-parallel size",
    "ep": "expert-parallel size",
    "etp": "expert tensor-parallel size",
    "micro-batch": "samples of one micro-batch",
    "microbatch-group": "micro-batches in a row of one virtual stage; default: pp where it can be",
    "shard-group": "ranks that share sharded states; default: all copies",
    "mtp-layers": "multi-token-prediction layers; default: the model's",
}
WORD_OPTIONS = {
    "sharding": ("none", "optimizer", "gradients", "parameters"),
    "attention": ("flash", "unfused"),
    "precision": ("bf16", "fp16", "fp8", "mxfp8", "fp4", "nvfp4", "fp32"),
    "fp8-recipe": ("delayed", "tensorwise", "blockwise", "mxfp8"),
    "cp-comm-type": ("p2p", "a2a", "allgather"),
    "rank-order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    "dispatcher": ("alltoall", "allgather", "deepep", "hybridep"),
    "cuda-graph": ("none", "local", "transformer_engine", "full_iteration"),
    "main-grads-dtype": ("fp32", "bf16", "fp16", "fp8"),
    "grad-reduce-dtype": ("fp32", "bf16", "fp16", "fp8"),
    "master-dtype": ("fp32", "bf16", "fp16", "fp8"),
}
FLAG_OPTIONS = {
    "sequence-parallel": "share the sequence among tensor-parallel ranks",
    "overlap-grad-reduce": "hide the gradient reduction",
    "overlap-param-gather": "hide the parameter gather",
    "overlap-p2p": "hide the traffic between stages",
    "overlap-tp": "hide tensor-parallel communication",
    "overlap-ep": "hide the experts' all-to-all",
}


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("GPUs")
    group.add_argument("--gpus", metavar="TYPE:COUNT[,...]", help="h100:64, or a GPU's .toml:64")
    group.add_argument(
        "--cluster",
        metavar="FILE",
        help="nodes, links and NICs of your own (TOML; `astra gpus --help` shows one)",
    )


def add_pipeline_model(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument(
        "--pipeline-model", metavar="WORD", default="simulated", help=f"simulated; paper: {meaning}"
    )


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Settings of one plan."""
    group = parser.add_argument_group("the job")
    group.add_argument("--global-batch", metavar="N", help="samples per step over all GPUs")
    group.add_argument("--seq-len", metavar="N", help="tokens per sample; default: up to 4096")
    group.add_argument(
        "--runtime", metavar="NAME", help=f"{', '.join(RUNTIMES)}; default: megatron"
    )
    group.add_argument("--stack", metavar="NAME", help="software that runs it; default: megatron")
    group = parser.add_argument_group("the plan (what is left out is what an expert would set)")
    for name, meaning in DEGREE_OPTIONS.items():
        group.add_argument(f"--{name}", metavar="N", help=meaning)
    group.add_argument("--layers-per-stage", metavar="N,N,...", help="10,12,12,10")
    group.add_argument(
        "--chunk-layers", metavar="N,N,...", help="layers of every chunk, virtual stage major"
    )
    group.add_argument(
        "--recompute",
        metavar="HOW",
        help="none, selective[:MODULE+MODULE], full[:uniform|block:N]",
    )
    for name, words in WORD_OPTIONS.items():
        group.add_argument(f"--{name}", metavar="WORD", help=", ".join(words))
    group.add_argument("--moment-dtypes", metavar="DTYPE,DTYPE", help="Adam's first and second")
    group.add_argument("--offload-optimizer-fraction", metavar="X", help="0 to 1, on the host")
    group.add_argument("--offload-activations", metavar="MODULE+MODULE", help="to the host")
    group.add_argument("--offload-layers", metavar="N", help="the first N, activations to the host")
    group.add_argument("--capacity-factor", metavar="X", help="drop tokens above it")
    for name, meaning in FLAG_OPTIONS.items():
        group.add_argument(
            f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=meaning
        )


def plan_settings(options: argparse.Namespace) -> "PlanSettings":
    """The plan options as typed values."""
    from astra.strategy.complete import PlanSettings

    given: dict[str, Any] = {}
    for name in ("global-batch", "seq-len", *DEGREE_OPTIONS):
        text = getattr(options, _field(name))
        least, most = (0, 10**6) if name == "mtp-layers" else (1, 10**7)
        if text is not None:
            given[_field(name)] = (
                token_count(text, "--seq-len")
                if name == "seq-len"
                else whole_number(text, f"--{name}", least=least, most=most)
            )
    for name, words in WORD_OPTIONS.items():
        text = getattr(options, _field(name))
        if text is not None:
            given[_field(name)] = word(text, f"--{name}", words)
    for name in FLAG_OPTIONS:
        given[_field(name)] = getattr(options, _field(name))
    for name in ("layers-per-stage", "chunk-layers"):
        text = getattr(options, _field(name))
        if text is not None:
            entries = enumerate(text.split(","))
            given[_field(name)] = tuple(
                whole_number(entry.strip(), f"--{name} entry {row + 1}", least=0, most=10**6)
                for row, entry in entries
            )
    return PlanSettings(**given, **_memory_settings(options))


def _memory_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Recompute, offload, moments and capacity."""
    from astra.strategy.recompute import Recompute

    given: dict[str, Any] = {}
    if options.recompute is not None:
        given["recompute"] = str(Recompute.parse(options.recompute, "--recompute"))
    if options.offload_activations is not None:
        from astra.strategy.space import offload_modules

        text = options.offload_activations
        given["offload_activations"] = offload_modules(text, "--offload-activations")
    if options.offload_layers is not None:
        given["offload_layers"] = whole_number(
            options.offload_layers, "--offload-layers", least=0, most=10**6
        )
    if options.moment_dtypes is not None:
        pair = options.moment_dtypes.split(",")
        if len(pair) != 2:
            raise InputError(f"--moment-dtypes {shorten(options.moment_dtypes)}: give two, a,b.")
        dtypes = WORD_OPTIONS["main-grads-dtype"]
        given["moment_dtypes"] = tuple(word(text, "--moment-dtypes", dtypes) for text in pair)
    if options.offload_optimizer_fraction is not None:
        text = options.offload_optimizer_fraction
        given["offload_optimizer_fraction"] = number(
            text, "--offload-optimizer-fraction", least=0.0, most=1.0
        )
    if options.capacity_factor is not None:
        given["capacity_factor"] = number(
            options.capacity_factor, "--capacity-factor", least=0.01, most=1e6
        )
    return given


def _field(name: str) -> str:
    return name.replace("-", "_")


def add_server_options(parser: argparse.ArgumentParser, time_limit: str) -> None:
    parser.add_argument(
        "--workers", metavar="N", default="2", help="questions answered at a time; default: 2"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        default=time_limit,
        help=f"for one question, then the best so far is the answer; default: {time_limit}",
    )


def server_options(options: argparse.Namespace) -> tuple[int, float]:
    """How many at a time, and how long each."""
    workers = whole_number(options.workers, "--workers", most=256)
    return workers, number(options.time_limit, "--time-limit", least=0.1, most=1e6)


def missing_extra(command: str, extra: str, error: ImportError) -> InputError:
    """What to install; an import that fails within Astra is our fault."""
    if (error.name or "").partition(".")[0] == "astra":
        raise error
    return InputError(
        f"`astra {command}` needs {error.name}, which is not installed. Try "
        f"pip install 'astra-planner[{extra}]'."
    )


def add_plot_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plot", metavar="FILE", help="its charts as .svg, .html or (with CairoSVG) .png"
    )


def plot_path(options: argparse.Namespace) -> "Path | None":
    """Where charts go: refused before the work where they cannot."""
    if options.plot is None:
        return None
    from astra.api.saving import out_path
    from astra.report.plot import picture_format

    picture_format(options.plot)
    return out_path(options.plot, "--plot")
